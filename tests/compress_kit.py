"""What the tests of compression share: what a model is, to the bit, and small models and their data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def state(model: nn.Module) -> dict[str, object]:
    """All that compressing could change: modules, flags, numbers and gradients to the bit, and the random state."""
    found: dict[str, object] = {"random": torch.get_rng_state().tolist()}
    for name, module in model.named_modules(remove_duplicate=False):
        hooks = (len(module._forward_hooks), len(module._forward_pre_hooks))
        found[f"module {name}"] = (type(module), id(module), module.training, hooks)
    for name, value in (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)):
        found[name] = (id(value), value.requires_grad, value.dtype, _bits(value), _bits(value.grad))
    return found


def _bits(value: Tensor | None) -> bytes | None:
    return None if value is None else value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Fails if the block changes the model, also if it raises."""
    before = state(model)
    try:
        yield
    finally:
        after = state(model)
        changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        assert changed == []


def trained(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model with weights whose singular values fall, as those of trained ones, and biases and norms of any size."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() > 1:
                flat = torch.randn(len(value), value[0].numel(), generator=random, dtype=torch.float64)
                left, _, right = torch.linalg.svd(flat, full_matrices=False)
                fall = 0.8 ** torch.arange(left.shape[1], dtype=torch.float64)
                value.copy_((2.0 * left * fall @ right).reshape(value.shape))
            else:
                value.copy_(value + 0.3 * torch.randn(value.shape, generator=random))
        for name, value in model.named_buffers():
            if "running" in name:
                value.copy_(value + 0.2 * torch.rand(value.shape, generator=random))
    return model


def mlp(*sizes: int, seed: int = 0) -> nn.Sequential:
    """Linear layers with a ReLU between them."""
    layers: list[nn.Module] = []
    for inside, outside in itertools.pairwise(sizes):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    return trained(nn.Sequential(*layers[:-1]), seed)  # type: ignore[return-value]


def cnn(seed: int = 0) -> nn.Sequential:
    """A small CNN with normalization, in-place activations, a stride and a dropout."""
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(inplace=True),
        nn.Conv2d(12, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(16 * 16, 10),
    )
    return trained(model, seed).eval()  # type: ignore[return-value]


def images(count: int = 200) -> Tensor:
    return torch.randn(count, 3, 8, 8)


def numbers(model: nn.Module) -> int:
    """The number of parameters."""
    return sum(value.numel() for value in model.parameters())
