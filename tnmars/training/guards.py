"""What goes wrong with gates, said when it happens: each problem once, with the setting to change.

Everything here reads; nothing is changed. A penalty that outweighs the loss and a collapse are seen only if the loss
is given.
"""

from __future__ import annotations

import warnings
from math import isfinite, sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tnmars.layer.kept import can_decide, is_selecting, kept_slices
from tnmars.layer.masks import diverged, is_finite
from tnmars.layer.module import layers

WINDOW = 100
"""The number of steps over which losses are averaged, and after which gates are looked at."""
EARLY = 10
"""The same in the first steps: what collapses there would have no better loss before it."""
WORSE, SURE = 0.05, 4.0
"""A mean loss is worse than the best if it is higher by more than this share, and by so many standard errors of the
difference."""
FALLBACK = "tnmars.shrink needs none of these settings."

Value = Tensor | float


class Mean(NamedTuple):
    """The mean of some losses, and its standard error; 0 if there is only one."""

    value: float
    error: float

    @classmethod
    def of(cls, losses: list[float]) -> Mean:
        """
        >>> Mean.of([1.0, 3.0])
        Mean(value=2.0, error=1.0)
        """
        count = len(losses)
        value = sum(losses) / count
        squares = sum((loss - value) ** 2 for loss in losses)
        return cls(value, sqrt(squares / (count - 1) / count) if count > 1 else 0.0)

    def is_worse_than(self, best: Mean) -> bool:
        """Whether a loss has risen by more than chance and habit explain."""
        allowed = max(WORSE * abs(best.value), SURE * sqrt(self.error**2 + best.error**2))
        return self.value > best.value + allowed


class Guards:
    """Watches the training of the gates of a model."""

    def __init__(self, model: nn.Module):
        self.model = model
        self._warned: set[str] = set()
        self._steps = 0
        self._losses: list[Value] = []
        self._penalties: list[Value] = []
        self._best: Mean | None = None
        self._kept: dict[tuple[str, str], int] = {}
        """How many slices each bond kept when the loss was best."""

    def step(self, loss: Value | None, penalty: Value | None) -> None:
        """Looks at a step. Raises `TnmarsError` if a logit is NaN or infinite, which is looked for now and then."""
        self._steps += 1
        if loss is not None:
            self._losses.append(_apart(loss))
            if penalty is not None:
                self._penalties.append(_apart(penalty))
        is_whole = self._steps % WINDOW == 0
        if is_whole:
            check_logits(self.model)
        if is_whole or (self._steps < WINDOW and self._steps % EARLY == 0):
            self._look()
            self._losses, self._penalties = [], []

    def _look(self) -> None:
        if not self._losses:
            return
        loss = Mean.of(_numbers(self._losses))
        if not isfinite(loss.value):
            return  # nothing compares with it
        if self._penalties and len(self._penalties) == len(self._losses):
            self._compare(loss.value, Mean.of(_numbers(self._penalties)).value)
        kept = _kept(self.model)
        if self._best is not None and loss.is_worse_than(self._best):
            self._collapse(self._best.value, loss.value, kept)
        if self._best is None or loss.value < self._best.value:
            self._best, self._kept = loss, {name: count for name, (count, _, _) in kept.items()}

    def _compare(self, loss: float, penalty: float) -> None:
        if penalty > abs(loss):
            self._warn(
                "penalty",
                f"the penalty of the gates, {penalty:.3g}, outweighs the loss, {loss:.3g}: gates will close whatever "
                "the data say. Divide it by the number of training samples: loss + tnmars.penalty(model) / len(data). "
                f"{FALLBACK}",
            )

    def _collapse(self, before: float, loss: float, kept: dict[tuple[str, str], tuple[int, int, int]]) -> None:
        """Warns of a bond that has come to its minimum since the loss was best."""
        for (layer, bond), (count, size, least) in kept.items():
            if count <= least < self._kept.get((layer, bond), 0):
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
            warnings.warn(text, UserWarning, stacklevel=5)


def check_logits(model: nn.Module) -> None:
    """Raises `TnmarsError` if a gate of a model has a logit that is NaN or infinite: nothing can be decided by it."""
    for name, layer in layers(model):
        for bond, logits in zip(layer.graph.bonds, layer.logits(), strict=False):
            if not is_finite(logits):
                raise diverged(f"bond '{bond}' of layer '{name}'")


@torch.no_grad()
def _kept(model: nn.Module) -> dict[tuple[str, str], tuple[int, int, int]]:
    """For each bond whose selector chooses, how many slices are kept now, how many there are, and the least number."""
    found: dict[tuple[str, str], tuple[int, int, int]] = {}
    for name, layer in layers(model):
        if is_selecting(layer) and can_decide(layer):
            least = max(int(getattr(layer.selector, "min_keep", 1)), 1)
            for (bond, edge), slices in zip(layer.graph.bonds.items(), kept_slices(layer), strict=True):
                found[name, bond] = (int(slices.sum()), edge.size, least)
    return found


def _apart(value: Value) -> Value:
    """A value that keeps no graph alive. A tensor stays where it is: reading it would wait for the device."""
    return value.detach().clone() if isinstance(value, Tensor) else float(value)


def _numbers(values: list[Value]) -> list[float]:
    """Values as numbers, those of tensors read at once."""
    tensors = [value.reshape(()).double() for value in values if isinstance(value, Tensor)]
    read = iter(torch.stack(tensors).tolist() if tensors else [])
    return [next(read) if isinstance(value, Tensor) else float(value) for value in values]
