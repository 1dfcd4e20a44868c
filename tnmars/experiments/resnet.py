"""ResNets for CIFAR-10 (He et al., 2016), fresh or with published weights, with naive and proper TT convolutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from tnmars import families
from tnmars.compiler import compile_quietly as compile
from tnmars.errors import TnmarsError
from tnmars.experiments.idx import folder
from tnmars.graph import Graph
from tnmars.layer.module import TNModule
from tnmars.models.from_dense import from_dense
from tnmars.select import Selector

RANK = 20
NAIVE = {32: (8, 4), 64: (4, 4, 4)}
"""The modes of the channels, inputs as well as outputs."""
PROPER = {32: ((2, 3, 3, 4, 4), (2,) * 5), 64: ((2, 2, 3, 3, 4, 4), (2,) * 6)}
"""The modes of the patches (channels and taps together) and of the output channels."""
SIDES = {32: 16, 64: 8}
"""The sides of the images that the convolutions get."""
OPTIONS: dict[str, object] = {"padding": 1, "bias": False}


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut.

    Where sizes change, the shortcut takes every second pixel and pads the channels with zeros on both sides (option A);
    or it is a projection (option B).
    """

    def __init__(self, inputs: int, outputs: int, stride: int, *, is_projected: bool = False):
        super().__init__()
        self.conv1: nn.Module = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2: nn.Module = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.padding = stride, (outputs - inputs) // 2
        if is_projected and self.padding:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        if hasattr(self, "shortcut"):
            return relu(y + self.shortcut(x))
        if self.stride > 1 or self.padding:
            step = self.stride
            x = pad(x[:, :, ::step, ::step], (0, 0, 0, 0, self.padding, self.padding))
        return relu(y + x)


class ResNet(nn.Module):
    """The CIFAR variant with 6n + 2 layers."""

    def __init__(self, blocks: int, *, is_projected: bool = False):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, 1, blocks, is_projected)
        self.layer2 = _stage(16, 32, 2, blocks, is_projected)
        self.layer3 = _stage(32, 64, 2, blocks, is_projected)
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(x)))
        logits: Tensor = self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))
        return logits


def _stage(inputs: int, outputs: int, stride: int, blocks: int, is_projected: bool) -> nn.Sequential:
    first = Block(inputs, outputs, stride, is_projected=is_projected)
    return nn.Sequential(first, *(Block(outputs, outputs, 1) for _ in range(blocks - 1)))


def weights_file(depth: int, data: str | Path | None = None) -> Path:
    """The published weights of ResNet-20 or ResNet-56. Raises `TnmarsError` if they are not there."""
    path = folder(data) / "resnet-cifar10" / f"resnet{depth}.safetensors"
    if not path.exists():
        raise TnmarsError(f"{path} does not exist.")
    return path


def pretrained(depth: int, data: str | Path | None = None) -> ResNet:
    """ResNet-20 or ResNet-56, trained on CIFAR-10. Raises `TnmarsError` if the weights are not there."""
    made = ResNet((depth - 2) // 6)
    absent, unknown = made.load_state_dict(load_file(weights_file(depth, data)), strict=False)
    absent = [name for name in absent if not name.endswith("num_batches_tracked")]  # only counters may be absent
    assert not absent and not unknown, f"absent: {absent}; unknown: {unknown}"
    return made.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def naive(channels: int, rank: int = RANK) -> Graph:
    """The naive TT convolution: inputs, outputs, and all taps on the last core.

    >>> from tnmars.graph.counts import count
    >>> count(naive(32)).cores, count(naive(64)).cores
    (6740, 8260)
    """
    modes = NAIVE[channels]
    taps: Any = {"kernel": {"k": 9}, "kernel_size": (3, 3)}
    return families.tt_naive("conv", inputs=modes, outputs=modes, **taps, rank=rank, options=OPTIONS)


def proper(channels: int, rank: int = RANK) -> Graph:
    """The proper TT convolution: a TT matrix from patches to channels.

    >>> from tnmars.graph.counts import count
    >>> count(proper(32)).cores, count(proper(64)).cores
    (8240, 9840)
    """
    patch, outputs = PROPER[channels]
    return families.tt("conv", patch=patch, outputs=outputs, kernel_size=(3, 3), options=OPTIONS, rank=rank)


FORMS: dict[str, Callable[[int, int], Graph]] = {"naive": naive, "proper": proper}


def equal_convolutions(model: ResNet) -> Iterator[tuple[Block, str, int]]:
    """The convolutions of stages 2 and 3 with as many inputs as outputs: block, name and channels."""
    for stage in (model.layer2, model.layer3):
        for block in stage:
            assert isinstance(block, Block)
            for name in ("conv1", "conv2"):
                conv = getattr(block, name)
                if isinstance(conv, nn.Conv2d) and conv.in_channels == conv.out_channels:
                    yield block, name, conv.out_channels


def replace_(
    model: ResNet,
    form: str,
    *,
    rank: int = RANK,
    batch: int = 128,
    selector: Selector | None = None,
    is_fresh: bool = False,
) -> ResNet:
    """Makes all equal convolutions TT convolutions, in place. Unless they are to be fresh, weights are decomposed.

    A decomposed weight has bonds of the rank, or of what is useful if that is less. With a selector the cores are the
    same, and there are gates on all bonds.
    """
    for block, name, channels in list(equal_convolutions(model)):
        graph, side = FORMS[form](channels, rank), SIDES[channels]
        found = None if is_fresh else from_dense(getattr(block, name), graph, batch=batch, image=side)
        if found is None or selector is not None:
            graph = graph if found is None else found.graph
            made = compile(
                graph, selector=selector, open_only=selector is not None, init="kaiming", batch=batch, image=side
            )
            if found is not None:
                _copy_(found, made)
            found = made
        setattr(block, name, found)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@torch.no_grad()
def _copy_(found: TNModule, made: TNModule) -> None:
    for core in found.graph.cores:
        made.cores.get(core).copy_(found.cores.get(core))
