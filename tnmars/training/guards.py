"""What goes wrong with gates, said when it happens: each problem once, with the setting to change.

Everything here reads; nothing is changed. A penalty that outweighs the loss, and a collapse after the first steps, are
seen only if the loss is given.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite, sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tnmars.layer.kept import can_decide, is_selecting, kept_slices
from tnmars.layer.masks import diverged, is_finite
from tnmars.layer.module import layers

WINDOW, EARLY = 50, 10
"""Gates and losses are looked at every so many steps; the second number is for the first steps."""
FEWEST = 8
"""The number of losses that a mean takes at least."""
WORSE, SURE = 0.05, 4.0
"""A mean loss is worse than the best if it is higher by more than this share, and by so many standard errors of the
difference, twice in a row."""
SUDDEN = 3
"""In the first steps the bonds of a layer may not all fall to their least number of slices from this many times it."""
FALLBACK = "tnmars.shrink needs none of these settings."

Value = Tensor | float
Counts = dict[tuple[str, str], tuple[int, int, int]]
"""By layer and bond: how many slices are kept, how many there are, and how many are kept at least."""


class Mean(NamedTuple):
    """The mean of some losses, and its standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, losses: Sequence[float]) -> Mean:
        """The mean, with an error that tells noise from a trend: it comes from the steps between successive losses.

        >>> Mean.of([1.0, 3.0])
        Mean(value=2.0, error=1.0)
        """
        squares = [(after - before) ** 2 for before, after in pairwise(losses)]
        variance = sum(squares) / max(len(squares), 1) / 2
        return cls(sum(losses) / len(losses), sqrt(variance / len(losses)))

    def is_worse_than(self, best: Mean) -> bool:
        """Whether a loss has risen by more than chance explains.

        The best of many means was lucky, and its losses are often closer together too; so the larger error counts.
        """
        error = sqrt(2.0) * max(self.error, best.error)
        return self.value > best.value + max(WORSE * abs(best.value), SURE * error)


class Guards:
    """Watches the training of the gates of a model. `is_trained` if it was trained before the first step seen here."""

    def __init__(self, model: nn.Module, *, is_trained: bool = False):
        self.model, self.is_trained = model, is_trained
        self._warned: set[str] = set()
        self._steps = 0
        self._losses: list[Value] = []
        self._penalties: list[Value] = []
        self._first: Counts | None = None
        """What was kept before the first step."""
        self._looks: list[Counts] = []
        """What was kept at the last two looks."""
        self._before: Counts = {}
        """What was kept at the look before the losses that are being collected began: one that is logged comes late."""
        self._best: Mean | None = None
        self._kept: Counts = {}
        """The same for the losses with the best mean."""
        self._worse = 0
        """How many means in a row were worse than the best."""

    def step(self, loss: Value | None, penalty: Value | None) -> None:
        """Looks at a step. Raises `TnmarsError` if a logit is NaN or infinite, which is looked for now and then."""
        if self._first is None:
            self._first = self._before = _kept(self.model)
            self._looks = [self._first]
        self._steps += 1
        if loss is not None:
            self._losses.append(_apart(loss))
            if penalty is not None:
                self._penalties.append(_apart(penalty))
        is_whole = self._steps % WINDOW == 0
        if is_whole:
            check_logits(self.model)
        if is_whole or (self._steps < WINDOW and self._steps % EARLY == 0):
            self._look(_kept(self.model))

    def _look(self, kept: Counts) -> None:
        """Looks at the gates, and at the losses once there are enough of them.

        All ranks count slices in the same steps, because those of a sharded model are gathered. Losses are each
        rank's own.
        """
        self._looks = [self._looks[-1], kept]
        if self._steps <= WINDOW and not self.is_trained:
            self._sudden(kept)
        losses, penalties = _finite(self._losses), _finite(self._penalties)
        self._losses, self._penalties = list(losses), list(penalties)
        if len(losses) < FEWEST:
            return
        loss = Mean.of(losses)
        if len(penalties) >= FEWEST:
            self._compare(loss.value, Mean.of(penalties).value)
        self._worse = self._worse + 1 if self._best is not None and loss.is_worse_than(self._best) else 0
        if self._best is not None and self._worse > 1:
            self._collapse(self._best.value, loss.value, kept)
        if self._best is None or loss.value < self._best.value:
            self._best, self._kept = loss, self._before
        self._losses, self._penalties, self._before = [], [], self._looks[0]

    def _sudden(self, kept: Counts) -> None:
        """Warns of a layer that closes in the first steps, when no loss can tell yet what its slices were good for."""
        assert self._first is not None
        for layer in dict.fromkeys(layer for layer, _ in kept):
            own = {bond: entry for (name, bond), entry in kept.items() if name == layer}
            fell = any(self._first[layer, bond][0] >= SUDDEN * least for bond, (_, _, least) in own.items())
            if fell and all(count <= least for count, _, least in own.values()):
                self._warn(
                    "sudden",
                    f"every bond of layer '{layer}' is down to its fewest slices after {self._steps} steps, sooner "
                    f"than training can tell which ones matter. To keep more, {self._advice(layer)}, or begin without "
                    f"gates: tnmars.MaskSchedule(..., warmup_steps=...). {FALLBACK}",
                )
                return

    def _compare(self, loss: float, penalty: float) -> None:
        if penalty > abs(loss):
            self._warn(
                "penalty",
                f"the penalty of the gates, {penalty:.3g}, outweighs the loss, {loss:.3g}: gates will close whatever "
                "the data say. Divide it by the number of training samples: loss + tnmars.penalty(model) / len(data). "
                f"{FALLBACK}",
            )

    def _collapse(self, before: float, loss: float, kept: Counts) -> None:
        """Warns of a bond that has come to its minimum since the loss was best."""
        for (layer, bond), (count, size, least) in kept.items():
            if count <= least < self._kept[layer, bond][0]:
                self._warn(
                    "collapse",
                    f"bond '{bond}' of layer '{layer}' is down to {count} of {size} slices, and the loss has risen "
                    f"from {before:.3g} to {loss:.3g}. To keep more, {self._advice(layer)}. {FALLBACK}",
                )
                return

    def _advice(self, name: str) -> str:
        layer = dict(layers(self.model))[name]
        assert layer.selector is not None
        slower = ", or lower the rate of the gates: tnmars.param_groups(..., mask_lr=...)"
        return layer.selector.keeps_more + (slower if layer.masks is not None else "")

    def _warn(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(text, UserWarning, stacklevel=6)


def check_logits(model: nn.Module) -> None:
    """Raises `TnmarsError` if a gate of a model has a logit that is NaN or infinite: nothing can be decided by it."""
    for name, layer in layers(model):
        for bond, logits in zip(layer.graph.bonds, layer.logits(), strict=False):
            if not is_finite(logits):
                raise diverged(f"bond '{bond}' of layer '{name}'")


@torch.no_grad()
def _kept(model: nn.Module) -> Counts:
    """What each bond whose selector chooses keeps now."""
    found: Counts = {}
    for name, layer in layers(model):
        if is_selecting(layer) and can_decide(layer):
            least = max(int(getattr(layer.selector, "min_keep", 1)), 1)
            for (bond, edge), slices in zip(layer.graph.bonds.items(), kept_slices(layer), strict=True):
                found[name, bond] = (int(slices.sum()), edge.size, least)
    return found


def _apart(value: Value) -> Value:
    """A value that keeps no graph alive. A tensor stays where it is: reading it would wait for the device."""
    return value.detach().clone() if isinstance(value, Tensor) else float(value)


def _finite(values: Sequence[Value]) -> list[float]:
    """The values that are finite, as numbers; those of tensors are read at once."""
    tensors = [value.reshape(()).float() for value in values if isinstance(value, Tensor)]
    read = iter(torch.stack(tensors).tolist() if tensors else [])
    numbers = (next(read) if isinstance(value, Tensor) else float(value) for value in values)
    return [number for number in numbers if isfinite(number)]
