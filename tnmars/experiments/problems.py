"""Problems as `tnmars.shrink` takes them: batches, a loss and a validation score; and a test for what it chose.

Validation data are split from the training data, or are an official part. Every choice is made on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tnmars.experiments import cifar, texts
from tnmars.graph.counts import count
from tnmars.layer.module import TNModule, layers

BATCH = 128
Texts = tuple[Sequence[Sequence[int]], Tensor]
"""Token ids and labels."""


class Batches:
    """Shuffled batches of some tensors, again and again."""

    def __init__(self, *tensors: Tensor, size: int = BATCH):
        self.tensors, self.size = tensors, size

    def __len__(self) -> int:
        return len(self.tensors[0]) // self.size

    def __iter__(self) -> Iterator[list[Tensor]]:
        order = torch.randperm(len(self.tensors[0]))
        for at in range(len(self)):
            rows = order[at * self.size : (at + 1) * self.size]
            yield [value[rows] for value in self.tensors]


@dataclass(frozen=True)
class Learnable:
    """What a model is trained on and judged by."""

    train: Any
    """Batches that can be read again and again."""
    loss: Callable[[Any, Any], Tensor]
    evaluate: Callable[[nn.Module], Any]
    """The score on validation data, with the number of samples if it is a share."""
    test: Callable[[nn.Module], float]


def held_out(count: int) -> int:
    """How many of some samples are for validation: 5,000, or half of a few."""
    return min(5000, count // 2)


def vectors(x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor, held: int, size: int | None = None) -> Learnable:
    """Labeled vectors; the last `held` training samples are for validation."""
    more = {} if size is None else {"size": size}
    return Learnable(
        Batches(x[:-held], y[:-held], **more),
        cross_entropy,
        lambda model: (right(model, x[-held:], y[-held:]), held),
        lambda model: 100 * right(model, test_x, test_y),
    )


def reading(train: Texts, held: Texts, test: Texts, size: int) -> Learnable:
    """Labeled texts."""
    return Learnable(
        texts.TextBatches(*train, size),
        cross_entropy,
        lambda model: (right_texts(model, *held), len(held[0])),
        lambda model: 100 * right_texts(model, *test),
    )


def pictures(
    data: cifar.Cifar, size: int, *, is_shifted: bool = False, channels: cifar.Channels = cifar.OWN
) -> Learnable:
    """Labeled images of bytes, mirrored at random; the last training samples are for validation."""
    held = held_out(len(data.train_y))
    return Learnable(
        cifar.Flipped(data.train_x[:-held], data.train_y[:-held], size, is_shifted=is_shifted, channels=channels),
        cross_entropy,
        lambda model: (right_images(model, data.train_x[-held:], data.train_y[-held:], channels), held),
        lambda model: 100 * right_images(model, data.test_x, data.test_y, channels),
    )


@torch.no_grad()
def right(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of right answers."""
    answers = torch.cat([model(part) for part in torch.split(x, 1000)])
    return answers.argmax(-1).eq(y).double().mean().item()


@torch.no_grad()
def right_texts(model: nn.Module, rows: Sequence[Sequence[int]], labels: Tensor) -> float:
    """The share of right answers on texts, which are sorted by length to save padding."""
    order = sorted(range(len(rows)), key=lambda at: len(rows[at]))
    found = 0
    for at in range(0, len(order), 500):
        part = order[at : at + 500]
        answers = model(texts.padded([rows[place] for place in part])).argmax(-1)
        found += int(answers.eq(labels[part]).sum())
    return found / len(rows)


@torch.no_grad()
def right_images(model: nn.Module, x: Tensor, y: Tensor, channels: cifar.Channels = cifar.OWN) -> float:
    """The share of right answers on images of bytes."""
    answers = torch.cat([model(cifar.normalized(part, channels)) for part in torch.split(x, 500)])
    return answers.argmax(-1).eq(y).double().mean().item()


def scaled(start: int, factor: float) -> int:
    """A start rank times a factor, rounded down, at least 1.

    >>> scaled(20, 0.25), scaled(20, 0.01)
    (5, 1)
    """
    return max(1, int(start * factor + 1e-9))


def layer_of(model: nn.Module, name: str) -> TNModule:
    """A compiled layer of a model."""
    return dict(layers(model))[name]


def limit(model: nn.Module, part: str, ratio: int) -> tuple[str, int | str]:
    """A budget in words, and as `tnmars.shrink` takes it: for the whole model, or for one layer of it."""
    if not part:
        return f"{ratio}x parameters", f"{ratio}x"
    layer = layer_of(model, part)
    own = sum(value.numel() for value in layer.parameters())
    return f"{ratio}x {part}", _parameters(model) - own + count(layer.graph).dense // ratio


def compression(model: nn.Module) -> float:
    """How many times smaller a whole model is than with dense weights; biases and all other parameters count.

    >>> compression(nn.Linear(3, 2))
    1.0
    """
    now = _parameters(model) - sum(value.numel() for _, layer in layers(model) for value in layer.logits())
    more = sum(count(layer.graph).dense - count(layer.graph).cores for _, layer in layers(model))
    return (now + more) / now


def _parameters(model: nn.Module) -> int:
    return sum(value.numel() for value in model.parameters())
