"""Inputs of the benchmark: CIFAR-10 images, SST sentences as token ids, and synthetic tones.

Every choice of samples follows from a seed. Calibration and matching never see a test sample.
"""

from __future__ import annotations

import lzma
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from bench.models.networks import VOCABULARY, NotFoundError, data_folder, packed
from torch import Tensor

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- CIFAR-10 ---------------------------------------------------------------------------------------------------------


@cache
def _cifar(name: str) -> tuple[Tensor, Tensor]:
    path = data_folder() / f"cifar10/{name}.bin.xz"
    if not path.exists():
        raise NotFoundError(f"{path} does not exist")
    with lzma.open(path) as file:
        records = np.frombuffer(file.read(), np.uint8).reshape(-1, 3073)
    return torch.tensor(records[:, 1:].reshape(-1, 3, 32, 32)), torch.tensor(records[:, 0]).long()


@cache
def cifar_train() -> tuple[Tensor, Tensor]:
    """The 50,000 training images as bytes, and their labels."""
    parts = [_cifar(f"data_batch_{number}") for number in range(1, 6)]
    return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])


def cifar_test() -> tuple[Tensor, Tensor]:
    """The 10,000 test images as bytes, and their labels."""
    return _cifar("test_batch")


def normalised(images: Tensor) -> Tensor:
    """Images as the networks want them."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    return ((images.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True, eq=False)
class Images:
    """Batches of normalised images, in a new order in every pass. A batch that is not full is dropped."""

    images: Tensor
    batch: int
    generator: torch.Generator

    def __len__(self) -> int:
        return len(self.images) // self.batch

    def __iter__(self) -> Iterator[Tensor]:
        order = torch.randperm(len(self.images), generator=self.generator)
        for at in range(len(self)):
            yield normalised(self.images[order[at * self.batch : (at + 1) * self.batch]])


# --- SST --------------------------------------------------------------------------------------------------------------


def sentences(split: str) -> tuple[list[str], Tensor]:
    """The sentences of a split of SST-5, and their labels 0 to 4."""
    path = data_folder() / f"sst5/{split}.tsv"
    if not path.exists():
        raise NotFoundError(f"{path} does not exist")
    rows = [line.split("\t", 1) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [text for _, text in rows], torch.tensor([int(label) for label, _ in rows])


@cache
def tokens(split: str) -> tuple[list[list[int]], Tensor]:
    """The sentences of a split as token ids, with their labels."""
    texts, labels = sentences(split)
    return encoded(texts), labels


def encoded(texts: Sequence[str]) -> list[list[int]]:
    """Sentences as token ids, between the marks of beginning and end, at most 256."""
    return [item.ids for item in _tokenizer().encode_batch(list(texts))]


@cache
def _tokenizer() -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise NotFoundError("the package tokenizers is not installed; it is in the extra `bench`") from error
    tokenizer = Tokenizer.from_str(packed("minilm", VOCABULARY).decode())
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    return tokenizer


def same_length(rows: Sequence[Sequence[int]], batch: int) -> list[tuple[list[int], Tensor]]:
    """Batches of equally long rows, so that none needs padding: the places of the rows, and their ids."""
    groups: dict[int, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        groups[len(row)].append(place)
    parts = [group[at : at + batch] for _, group in sorted(groups.items()) for at in range(0, len(group), batch)]
    return [(part, torch.tensor([list(rows[place]) for place in part])) for part in parts]


@dataclass(frozen=True, eq=False)
class Sentences:
    """Batches of equally long sentences, in a new order in every pass."""

    rows: Sequence[Sequence[int]]
    batch: int
    generator: torch.Generator

    def __len__(self) -> int:
        return len(same_length(self.rows, self.batch))

    def __iter__(self) -> Iterator[Tensor]:
        order = torch.randperm(len(self.rows), generator=self.generator).tolist()
        batches = same_length([self.rows[place] for place in order], self.batch)
        for at in torch.randperm(len(batches), generator=self.generator).tolist():
            yield batches[at][1]


# --- tones ------------------------------------------------------------------------------------------------------------

RATE, FRAME = 16_000, 1_024
LOWEST, HIGHEST = 60.0, 1_500.0
BIN_CENTS, FIRST_CENTS = 20.0, 1997.3794084376191
"""CREPE's pitches: 20 cents apart, the first this many cents above 10 Hz."""


def tones(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Frames of synthetic tones, and their pitch in Hz.

    Up to ten harmonics with random amplitudes and phases, and noise 10 to 40 dB below the tone. A frame has mean 0 and
    standard deviation 1, as in torchcrepe.
    """
    source = generator(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=source, dtype=torch.float64)

    pitch = LOWEST * (HIGHEST / LOWEST) ** uniform(count)
    number = torch.arange(1, 11, dtype=torch.float64)
    amplitude = (0.2 + 0.8 * uniform(count, 10)) * number ** -(0.5 + 1.5 * uniform(count, 1))
    amplitude[:, 0] = 1
    frequency = pitch[:, None] * number
    amplitude = amplitude * (frequency < 0.95 * RATE / 2)
    phase = 2 * math.pi * uniform(count, 10)
    seconds = torch.arange(FRAME, dtype=torch.float64) / RATE
    wave = torch.zeros(count, FRAME, dtype=torch.float64)
    for harmonic in range(10):
        angle = 2 * math.pi * frequency[:, harmonic, None] * seconds + phase[:, harmonic, None]
        wave += amplitude[:, harmonic, None] * torch.sin(angle)
    loudness = wave.std(1, keepdim=True) * 10 ** -(0.5 + 1.5 * uniform(count, 1))
    wave += loudness * torch.randn(count, FRAME, generator=source, dtype=torch.float64)
    wave -= wave.mean(1, keepdim=True)
    return (wave / wave.std(1, keepdim=True)).float(), pitch


def pitches(logits: Tensor) -> Tensor:
    """The pitch in cents above 10 Hz: the mean of the bins within four of the largest, weighted by probability."""
    best = logits.argmax(1, keepdim=True)
    near = (best + torch.arange(-4, 5)).clamp(0, logits.shape[1] - 1)
    weight = logits.gather(1, near).sigmoid().double()
    weight[:, 1:] *= near[:, 1:] != near[:, :-1]  # a bin at the border counts once
    return FIRST_CENTS + BIN_CENTS * (weight * near).sum(1) / weight.sum(1)


def within(logits: Tensor, pitch: Tensor, cents: float = 50.0) -> float:
    """The percentage of frames whose pitch is off by at most this many cents."""
    off = (pitches(logits) - 1200 * torch.log2(pitch / 10)).abs()
    return 100 * float((off <= cents).double().mean())


@dataclass(frozen=True, eq=False)
class Frames:
    """Batches of frames, in a new order in every pass. A batch that is not full is dropped."""

    frames: Tensor
    batch: int
    generator: torch.Generator

    def __len__(self) -> int:
        return len(self.frames) // self.batch

    def __iter__(self) -> Iterator[Tensor]:
        order = torch.randperm(len(self.frames), generator=self.generator)
        for at in range(len(self)):
            yield self.frames[order[at * self.batch : (at + 1) * self.batch]]
