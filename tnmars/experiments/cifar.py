"""CIFAR-10 from its binary files, compressed with xz, and a network of six layers for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from torch import Tensor, nn

from tnmars import families
from tnmars.compiler import compile_quietly as compile
from tnmars.errors import TnmarsError
from tnmars.experiments.idx import unpacked

Channels = tuple[tuple[float, ...], tuple[float, ...]]
"""The mean and the standard deviation of each channel, for pixels in [0, 1]."""
OWN: Channels = (0.49140, 0.48216, 0.44653), (0.24703, 0.24349, 0.26159)
"""Those of the training images."""
IMAGENET: Channels = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Those of ImageNet, which the published ResNets were trained with."""
RECORD = 1 + 3 * 32 * 32
WIDTHS = ((3, 32, True), (32, 64, False), (64, 64, True), (64, 128, False), (128, 128, True))
"""The convolutions: channels in and out, and whether pooling follows."""


@dataclass(frozen=True)
class Cifar:
    """Images as bytes of shape (images, 3, 32, 32), and their labels."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def cifar(folder: Path) -> Cifar:
    """The data set in the subfolder `cifar10` of a folder. Raises `TnmarsError`."""
    parts = [_read(folder / "cifar10" / f"data_batch_{number}.bin.xz") for number in range(1, 6)]
    images, labels = zip(*parts, strict=True)
    return Cifar(torch.cat(images), torch.cat(labels), *_read(folder / "cifar10" / "test_batch.bin.xz"))


def _read(path: Path) -> tuple[Tensor, Tensor]:
    if not path.exists():
        raise TnmarsError(f"{path} does not exist.")
    raw = numpy.frombuffer(unpacked(path), numpy.uint8)
    if raw.size % RECORD:
        raise TnmarsError(f"{path} holds {raw.size:,} bytes, which is not a multiple of {RECORD:,}.")
    records = raw.reshape(-1, RECORD)
    return torch.tensor(records[:, 1:]).reshape(-1, 3, 32, 32), torch.tensor(records[:, 0]).long()


def normalized(images: Tensor, channels: Channels = OWN) -> Tensor:
    """Bytes as the network expects them."""
    mean, std = (torch.tensor(values)[:, None, None] for values in channels)
    return ((images.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)


class Flipped:
    """Shuffled batches of normalized images, each mirrored at random, and their labels; again and again.

    With `is_shifted`, each is also shifted at random, by at most 4 pixels.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, size: int, *, is_shifted: bool = False, channels: Channels = OWN
    ):
        self.images, self.labels, self.size = images, labels, size
        self.is_shifted, self.channels = is_shifted, channels

    def __len__(self) -> int:
        return len(self.images) // self.size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.images))
        for at in range(len(self)):
            rows = order[at * self.size : (at + 1) * self.size]
            images = shifted(self.images[rows]) if self.is_shifted else self.images[rows]
            yield mirrored(normalized(images, self.channels)), self.labels[rows]


def mirrored(images: Tensor) -> Tensor:
    """Half of the images, chosen at random, are mirrored."""
    is_mirrored = torch.rand(len(images), 1, 1, 1) < 0.5
    return torch.where(is_mirrored, images.flip(3), images)


SHIFT = 4


def shifted(images: Tensor) -> Tensor:
    """Images of bytes, each shifted at random by at most 4 pixels; black comes in."""
    side = images.shape[-1]
    wide = nn.functional.pad(images, (SHIFT,) * 4)
    across, down = torch.randint(2 * SHIFT + 1, (2, len(images), 1))
    columns, rows = across + torch.arange(side), down + torch.arange(side)
    at = torch.arange(len(images))[:, None, None]
    return wide[at, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def network(factor: float | None = None, batch: int = 64) -> nn.Sequential:
    """Five convolutions with BatchNorm and a linear layer: dense, or with ranks that are a share of the widths.

    Convolutions become Tucker-2, the linear layer becomes two factors; the first convolution stays dense.
    """
    found: list[nn.Module] = []
    side = 32
    for inside, outside, is_pooled in WIDTHS:
        conv: nn.Module = nn.Conv2d(inside, outside, 3, padding=1, bias=False)
        if factor is not None and inside > 3:
            ranks = [max(1, int(size * factor + 1e-9)) for size in (inside, outside)]
            options: dict[str, object] = {"padding": 1, "bias": False}
            graph = families.tucker2(
                "conv", inputs=(inside,), outputs=(outside,), kernel=(3, 3), ranks=ranks, options=options
            )
            conv = compile(graph, batch=batch, image=side, init="kaiming")
        found += [conv, nn.BatchNorm2d(outside), nn.ReLU(), *([nn.MaxPool2d(2)] if is_pooled else [])]
        side //= 2 if is_pooled else 1
    last: nn.Module = nn.Linear(128 * side**2, 10)
    if factor is not None:
        rank = max(1, int(10 * factor + 1e-9))
        last = compile(families.lowrank("linear", inputs=(128 * side**2,), outputs=(10,), rank=rank), batch=batch)
    made = nn.Sequential(*found, nn.Flatten(), last)
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
