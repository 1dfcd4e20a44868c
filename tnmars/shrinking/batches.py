"""Training data as an endless stream of batches that can be continued at any place, with the same random numbers.

All random numbers of a run depend on its seed, the number of the pass over the data and the number of the stage. So a
run that is continued sees the batches that it would have seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from tnmars.errors import Problem, TnmarsError, listing
from tnmars.models.data import (
    Batch,
    checked,
    holds_arguments,
    lacking,
    may_hold_arguments,
    names_of,
    samples,
    taken_by_name,
)

SHAPE = (
    "Give a DataLoader or a list of batches, each (inputs..., target) or a mapping with the target under 'labels'. "
    "For anything else write a loop with tnmars.Stages."
)
TARGET = "labels"
"""The key of the target in a batch that is a mapping, as the data collators of transformers call it."""

MOST = 1000
"""How many batches are counted, where data have no length."""


def split(batch: Any, at: int, model: nn.Module, is_nested: bool | None = None) -> tuple[Batch, Any]:
    """A batch as what the model is called with, and the target. Raises `TnmarsError` for what has no such parts.

    `is_nested` says whether the first element of a batch holds all arguments; by default this batch tells.

    >>> split((1, 2, 3), 0, nn.Bilinear(2, 2, 2))
    (((1, 2), {}), 3)
    >>> split({"input": 1, "labels": [2], "id": 3}, 0, nn.Linear(2, 2))
    (((), {'input': 1}), [2])
    """
    if isinstance(batch, Mapping):
        if TARGET not in batch:
            text = f"batch {at} of train has the keys {listing([str(key) for key in batch])}, but no '{TARGET}'."
            raise TnmarsError(Problem(text, f"Put the target under '{TARGET}'; the model gets the others by name."))
        return _by_name({key: value for key, value in batch.items() if key != TARGET}, at, model), batch[TARGET]
    if not isinstance(batch, Sequence) or isinstance(batch, (str, bytes)) or not batch:
        text = f"batch {at} of train is of type {type(batch).__name__}, but must be a tuple of inputs and a target."
        raise TnmarsError(Problem(text, SHAPE))
    *inputs, target = batch
    is_nested = holds_arguments(batch, model) if is_nested is None else is_nested
    if len(inputs) == 1 and is_nested and may_hold_arguments(inputs[0]):
        if isinstance(inputs[0], Mapping):
            return _by_name(inputs[0], at, model), target
        (inputs,) = inputs
    return (tuple(inputs), {}), target


def _by_name(given: Mapping[Any, Any], at: int, model: nn.Module) -> Batch:
    """The entries that the model takes, by name. Raises `TnmarsError` if it takes none of them, or needs others."""
    named = taken_by_name(given, model)
    missing = lacking(named, model) if at == 0 else []
    if missing or (given and not named):
        keys = listing([str(key) for key in given]) if given else ""
        has = f"has the inputs {keys}" if keys else "has no inputs"
        needs = f"the model needs {listing(missing)}" if missing else f"the model takes {listing(names_of(model))}"
        text = f"batch {at} of train {has}, but {needs}{' too' if missing and keys else ''}."
        hint = f"The model does not get '{TARGET}' here: give it a default." if TARGET in missing else SHAPE
        raise TnmarsError(Problem(text, hint))
    return (), named


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads training data for a model. One batch tells what all others are like, wherever a run goes on from."""

    train: Iterable[Any]
    model: nn.Module
    first: Any
    is_nested: bool

    @classmethod
    def of(cls, train: Any, model: nn.Module) -> Reader:
        """Looks at the first batch. Raises `TnmarsError` if there is none, or if batches can be read only once."""
        given = checked(train, name="train") if not isinstance(train, Tensor) else None
        if given is None or isinstance(train, Iterator):
            what = "a tensor" if given is None else "an iterator, which can be read only once"
            raise TnmarsError(Problem(f"train is {what}.", SHAPE))
        for first in given:
            return cls(given, model, first, holds_arguments(first, model))
        raise TnmarsError(Problem("train has no batch.", SHAPE))

    def split(self, batch: Any, at: int) -> tuple[Batch, Any]:
        """A batch as what the model is called with, and the target."""
        return split(batch, at, self.model, self.is_nested)

    def __iter__(self) -> Iterator[tuple[Batch, Any]]:
        """One pass over the batches."""
        for at, batch in enumerate(self.train):
            yield self.split(batch, at)

    def count(self) -> int:
        """The number of training samples.

        It is the length of a loader's data set, or the number of batches times the samples of the first; where batches
        have no length, they are read once. Data that do not end count as their first `MOST` batches.
        """
        dataset = getattr(self.train, "dataset", None)
        for sized, each in ((dataset, 1), (self.train, _size(*self.split(self.first, 0)))):
            try:
                return max(len(sized) * each, 1)  # type: ignore[arg-type]
            except TypeError:
                continue
        return max(sum(_size(inputs, target) for inputs, target in islice(self, MOST)), 1)


def _size(inputs: Batch, target: Any) -> int:
    args, named = inputs
    return samples(((*args, *named.values(), target), {}))


class Stream:
    """Batches of some data, pass after pass.

    Attributes:
        epoch: The number of the pass.
        at: The number of batches of this pass that were taken.
    """

    def __init__(self, reader: Reader, seed: int, epoch: int = 0, at: int = 0):
        """Continues after batch `at` of a pass; the batches before it are read again, and dropped."""
        self.reader, self.train, self.seed, self.epoch, self.at = reader, reader.train, seed, epoch, 0
        self._batches = self._pass()
        for _ in range(at):
            next(self._batches)
            self.at += 1

    def _pass(self) -> Iterator[Any]:
        """A new pass. Its first batch is read at once: samplers draw their order then, from the seed of the pass."""
        state = torch.get_rng_state()
        reseed(self.seed, "pass", self.epoch, self.train)
        batches = iter(self.train)
        first = [batch for batch in [next(batches, self)] if batch is not self]
        torch.set_rng_state(state)
        return chain(first, batches)

    def take(self, steps: int) -> Iterator[tuple[Batch, Any]]:
        """The next batches: what the model is called with, and the target."""
        for _ in range(steps):
            batch = next(self._batches, self)
            if batch is self:
                self.epoch, self.at = self.epoch + 1, 0
                self._batches = self._pass()
                batch = next(self._batches, self)
            if batch is self:
                raise TnmarsError(Problem("train has batches only in its first pass.", SHAPE))
            self.at += 1
            yield self.reader.split(batch, self.at - 1)


def reseed(seed: int, what: str, number: int, train: Iterable[Any] | None = None) -> None:
    """Sets all random generators, with those of a loader, from a seed and a place in the run."""
    mixed = int(numpy.random.SeedSequence([seed, *what.encode(), number]).generate_state(1, numpy.uint64)[0]) >> 1
    torch.manual_seed(mixed)
    random.seed(mixed)
    numpy.random.seed(mixed % 2**32)
    for generator in _generators(train):
        generator.manual_seed(mixed)
    set_epoch = getattr(getattr(train, "sampler", None), "set_epoch", None)
    if callable(set_epoch):  # a sampler of several processes
        set_epoch(number)


def _generators(train: Iterable[Any] | None) -> list[torch.Generator]:
    """The random generators that a loader has of its own."""
    owners = [train, getattr(train, "sampler", None), getattr(train, "batch_sampler", None)]
    found = [getattr(owner, "generator", None) for owner in owners]
    return [generator for generator in found if isinstance(generator, torch.Generator)]


@contextmanager
def own_random_state(train: Iterable[Any]) -> Iterator[None]:
    """After the block all random generators are as they were."""
    generators = _generators(train)
    states = [generator.get_state() for generator in generators]
    python, arrays = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def plain(position: Mapping[str, Any] | None) -> tuple[int, int]:
    """The pass and the batch of a saved position."""
    return (0, 0) if position is None else (int(position["epoch"]), int(position["batch"]))
