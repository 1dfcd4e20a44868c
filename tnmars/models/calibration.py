"""Calibration data: most batches give statistics, some are held out to compare models. Memory is bounded."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tnmars.errors import Problem, TnmarsError
from tnmars.layer.numbers import squared, wide
from tnmars.models.data import Batch, Inputs, batches, call, primary, samples

EVERY = 5
"""Every fifth batch is held out."""
MOST = 8
"""How many batches of each kind are kept in memory."""


@dataclass(eq=False)
class Calibration:
    """The batches of some data, seen once. `stream` yields those that give statistics."""

    model: nn.Module
    data: Iterable[Any]
    inputs: Inputs | None = None
    held_out: list[Batch] = field(default_factory=list)
    kept: list[Batch] = field(default_factory=list)
    """Some of the batches that gave statistics."""

    @property
    def largest(self) -> Batch:
        """The batch that costs are counted for."""
        return max(self.kept, key=samples)

    def stream(self) -> Iterator[Batch]:
        for at, batch in enumerate(batches(self.data, self.inputs, model=self.model)):
            if at % EVERY == EVERY - 1:
                if len(self.held_out) < MOST:
                    self.held_out.append(batch)
                    continue
            elif at == 0 and samples(batch) >= 2 * EVERY:
                batch, last = self._split(batch)  # there may be no second one
                self.held_out += [] if last is None else [last]
            if len(self.kept) < MOST:
                self.kept.append(batch)
            yield batch

    def _split(self, batch: Batch) -> tuple[Batch, Batch | None]:
        """A batch without its last rows, and these; the batch alone if the model cannot take it in parts."""
        first, last = _split(batch)
        try:
            answers(self.model, [first, last])
        except Exception:  # such as a mask that is as long as the batch; what is wrong otherwise shows later
            return batch, None
        return first, last


def _split(batch: Batch) -> tuple[Batch, Batch]:
    """A batch without its last rows, and these."""
    count = samples(batch)
    first = count - count // EVERY

    def part(value: Any, rows: slice) -> Any:
        return value[rows] if isinstance(value, Tensor) and value.dim() and len(value) == count else value

    args, named = batch
    made = [
        (tuple(part(value, rows) for value in args), {key: part(value, rows) for key, value in named.items()})
        for rows in (slice(None, first), slice(first, None))
    ]
    return made[0], made[1]


@contextmanager
def as_is(model: nn.Module) -> Iterator[None]:
    """After the block, the training flags of a model are as they were."""
    training = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode


@torch.no_grad()
def answers(model: nn.Module, held: Iterable[Batch]) -> list[list[Tensor]]:
    """What a model answers in evaluation mode; its training flags stay as they are."""
    with as_is(model):
        model.eval()
        return [primary(call(model, batch)) for batch in held]


def distance(found: list[list[Tensor]], expected: list[list[Tensor]]) -> float:
    """The squared distance of answers from those expected, relative to their squared norm."""
    pairs = [pair for one, other in zip(found, expected, strict=True) for pair in zip(one, other, strict=True)]
    away = sum(float(squared(wide(one) - wide(other)).sum()) for one, other in pairs)
    norm = sum(float(squared(wide(other)).sum()) for _, other in pairs)
    return away / norm if norm else 0.0


def norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """The layers of a model with running statistics."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats and module.running_mean is not None
    }


@torch.no_grad()
def reestimated(model: nn.Module, data: Iterable[Batch]) -> dict[str, Tensor]:
    """The running statistics that a model would have on some data, by the names of its buffers; none of too few."""
    several = [batch for batch in data if samples(batch) > 1]  # of one sample torch takes no statistics
    if not several:
        return {}
    trial = copy.deepcopy(model).eval()
    found = norms(trial)
    for module in found.values():
        module.reset_running_stats()
        module.momentum = None  # a plain average
        module.train()
    for batch in several:
        call(trial, batch)
    return {
        f"{name}.{key}": getattr(module, key).clone()
        for name, module in found.items()
        for key in ("running_mean", "running_var")
        if module.num_batches_tracked is not None and int(module.num_batches_tracked)  # the data reach it
    }


def put_(model: nn.Module, buffers: dict[str, Tensor]) -> None:
    """Copies buffers into a model."""
    own = dict(model.named_buffers())
    for name, value in buffers.items():
        own[name].copy_(value)


def check_room(held: list[Batch]) -> None:
    if not held:
        text = "data has too few samples to hold any out for comparison."
        raise TnmarsError(Problem(text, "Give at least ten samples; some hundred are better. Nothing was changed."))
