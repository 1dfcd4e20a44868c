"""A user's data split in two: batches to train on, and held-out batches that training never sees.

A `DataLoader` or a tensor is split by samples, because it may yield them in another order each time; anything else by
batches. Held-out batches are kept in memory, up to a limit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, Subset, TensorDataset

from tnmars.errors import Problem, TnmarsError
from tnmars.models.data import Batch, checked

MEMORY = 1 << 28
"""Held-out batches, with what is stored beside them, take at most about this many bytes, but at least one batch."""

Read = Callable[[Iterable[Any]], Iterator[Batch]]
"""From some data to the batches of a model, as `tnmars.models.data.batches` makes them."""


@dataclass(frozen=True, eq=False)
class Parts:
    """Data to train on and held-out data."""

    training: Iterable[Any]
    held: Iterable[Any]
    length: int | None
    """The number of batches to train on in one pass; None if it is not known."""
    is_once: bool = False
    """Whether the data can be read only once."""


def split(data: Any, held_out: float | Iterable[Any], *, rows: int, steps: int | None, seed: int) -> Parts:
    """The two parts of some data.

    Args:
        data: As `batches` takes it.
        held_out: The share of the data to hold out, or held-out data.
        rows: The batch size for a tensor with all samples.
        steps: The number of steps that will be trained, if the user gives it. Data without a length need it.
        seed: The seed of the split.

    Raises:
        TnmarsError: If there is too little data to split, or the share is not between 0 and 1.
    """
    given = _loader(data, rows) if isinstance(data, Tensor) and len(data) else checked(data, rows)
    is_once = iter(given) is given if not isinstance(given, DataLoader) else False
    if not isinstance(held_out, (int, float)):
        return Parts(_shuffled(given, seed), checked(held_out, rows), _length(given), is_once)
    if not 0 < held_out < 1:
        raise TnmarsError(f"held_out is {held_out}, but must be a share between 0 and 1, or held-out data.")
    if isinstance(given, DataLoader) and _has_plain_sampler(given):
        return _by_samples(given, held_out, seed)
    length = _length(given)
    if length is None:
        return _from_the_front(given, held_out, steps, is_once)
    if length < 2:
        text = f"data has {length} batch, so none can be held out."
        raise TnmarsError(Problem(text, "Give smaller batches, or held-out data: match_(..., held_out=[batch])."))
    count = min(length - 1, max(1, round(held_out * length)))
    places = {int((at + 0.5) * length / count) for at in range(count)}
    if isinstance(given, Sequence):
        training = [batch for at, batch in enumerate(given) if at not in places]
        return Parts(_shuffled(training, seed), [given[at] for at in sorted(places)], length - count)
    held = _Filtered(given, places, is_inside=True)
    return Parts(_Filtered(given, places, is_inside=False), held, length - count)


def _length(data: Any) -> int | None:
    try:
        return len(data) if isinstance(data, Sized) else None
    except TypeError:  # a DataLoader of an iterable dataset
        return None


def _loader(data: Tensor, rows: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(data), batch_size=rows, shuffle=True)


def _has_plain_sampler(loader: DataLoader[Any]) -> bool:
    """Whether the loader reads every sample of its dataset once, by torch's own samplers."""
    if loader.batch_size is None or not isinstance(loader.dataset, Sized) or not hasattr(loader.dataset, "__getitem__"):
        return False
    sampler = loader.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(loader.dataset)
    return type(sampler) is SequentialSampler


def _by_samples(loader: DataLoader[Any], share: float, seed: int) -> Parts:
    """Two loaders over disjoint samples of one dataset."""
    assert isinstance(loader.dataset, Sized)
    count = len(loader.dataset)
    if count < 2:
        raise TnmarsError(f"data has {count} sample, so none can be held out.")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    held = min(count - 1, max(1, round(share * count)))
    training = _over(loader, sorted(order[held:]), isinstance(loader.sampler, RandomSampler))
    return Parts(training, _over(loader, sorted(order[:held]), False), len(training))


def _over(loader: DataLoader[Any], indices: list[int], is_shuffled: bool) -> DataLoader[Any]:
    """The loader for some of its samples. What is left of a last batch is kept."""
    return DataLoader(
        Subset(loader.dataset, indices),
        batch_size=loader.batch_size,
        shuffle=is_shuffled,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
    )


def _from_the_front(data: Iterable[Any], share: float, steps: int | None, is_once: bool) -> Parts:
    """Data of unknown length: the first batches are held out."""
    if steps is None:
        raise TnmarsError(Problem("data has no length.", "Say how long to train: match_(..., steps=1000)."))
    count = max(1, round(share * steps))
    if not is_once:
        return Parts(_Filtered(data, set(range(count)), is_inside=False), _Front(data, count), None)
    iterator = iter(data)
    held = []
    size = 0
    for batch in islice(iterator, count):  # they cannot be read again, so they are kept
        held.append(batch)
        size += nbytes(batch)
        if size > MEMORY:
            break
    return Parts(iterator, held, None, is_once=True)


@dataclass(frozen=True, eq=False)
class _Filtered:
    """The batches of some data at certain places, or all others."""

    data: Iterable[Any]
    places: set[int]
    is_inside: bool

    def __iter__(self) -> Iterator[Any]:
        return (batch for at, batch in enumerate(self.data) if (at in self.places) is self.is_inside)


@dataclass(frozen=True, eq=False)
class _Front:
    """The first batches of some data, which may be endless."""

    data: Iterable[Any]
    count: int

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.data), self.count)


class _Order:
    """A list of batches, in another order each time it is iterated over."""

    def __init__(self, batches: Sequence[Any], seed: int):
        self.batches = batches
        self.random = random.Random(seed)

    def __iter__(self) -> Iterator[Any]:
        order = list(range(len(self.batches)))
        self.random.shuffle(order)
        return (self.batches[at] for at in order)


def _shuffled(data: Iterable[Any], seed: int) -> Iterable[Any]:
    return _Order(data, seed) if isinstance(data, (list, tuple)) else data


def nbytes(value: Any) -> int:
    """The bytes of all tensors in a batch or an output.

    >>> nbytes([torch.ones(3), {"x": (torch.ones(2, dtype=torch.float64),)}])
    28
    """
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(nbytes, value.values()))
    return sum(map(nbytes, value)) if isinstance(value, (tuple, list)) else 0
