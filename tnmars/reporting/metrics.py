"""How good a model is before and after: an accuracy, a loss or a perplexity, from the caller or from a history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from tnmars.errors import Problem, TnmarsError
from tnmars.reporting.history import History, is_drawable, is_number

LOWER = ("loss", "error", "perplexity", "mse", "mae", "rmse", "nll", "wer", "cer", "fid")
"""A metric whose name contains one of these words is better when it is lower; any other when it is higher."""
IN_HISTORY = ("accuracy", "perplexity", "val_loss", "test_loss", "error")
"""The figures of a history that say how good the model is. A training loss does not."""
FALL, RISE = 0.05, 0.25
"""A metric is much worse if it lost more than this share of its value, or, if lower is better, grew by more."""


@dataclass(frozen=True)
class Metric:
    """A metric of the model before and after.

    Attributes:
        name: What is measured, for example `accuracy`.
        before: Its value before, for example with gates, or the best during training.
        after: Its value after.
        source: Where the values come from, in words; empty if the caller gave them.
    """

    name: str
    before: float
    after: float
    source: str = ""

    @property
    def is_lower_better(self) -> bool:
        words = self.name.lower().replace("-", "_").replace(" ", "_").split("_")
        return any(word in LOWER for word in words)

    @property
    def is_worse(self) -> bool:
        return self.after > self.before if self.is_lower_better else self.after < self.before

    @property
    def is_much_worse(self) -> bool:
        """Whether the model lost so much that its size does not matter."""
        limit = RISE if self.is_lower_better else FALL
        return self.is_worse and abs(self.after - self.before) > limit * abs(self.before)

    @property
    def change(self) -> str:
        """The difference in words.

        >>> Metric("accuracy", 0.981, 0.979).change, Metric("loss", 0.5, 0.5).change, Metric("top1", 70, 71).change
        ('0.002 lower', 'as before', '1 higher')
        """
        if self.after == self.before:
            return "as before"
        return f"{figure(abs(self.after - self.before))} {'higher' if self.after > self.before else 'lower'}"


def figure(value: float) -> str:
    """A value of a metric.

    >>> figure(0.981), figure(97.25), figure(123456.0)
    ('0.981', '97.25', '123,456')
    """
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def checked_metrics(given: Mapping[str, Sequence[float]] | None, history: History) -> tuple[Metric, ...]:
    """The metrics that a caller gives, or else the one that a history holds. Raises `TnmarsError` for anything else."""
    if given is None:
        return _from_history(history)
    return tuple(_checked(name, pair) for name, pair in given.items())


def _checked(name: object, pair: Any) -> Metric:
    fits = isinstance(name, str) and name and isinstance(pair, (list, tuple)) and len(pair) == 2
    if not fits or not all(is_number(value) and isfinite(value) for value in pair):
        fix = "Give the values before and after, for example metrics={'accuracy': (0.981, 0.979)}."
        raise TnmarsError(Problem(f"metrics[{name!r}] is {pair!r}, but must be two finite numbers.", fix))
    return Metric(str(name), float(pair[0]), float(pair[1]))


def _from_history(history: History) -> tuple[Metric, ...]:
    """The first metric of a history: its best value in training, and its last."""
    names = dict.fromkeys(key for entry in history for key in entry)
    for word in IN_HISTORY:
        for name in names:
            values = [float(entry[name]) for entry in history if is_drawable(entry.get(name))]
            if word not in str(name).lower() or not values:
                continue
            last = Metric(str(name), values[0], values[-1])
            best = min(values) if last.is_lower_better else max(values)
            return (Metric(str(name), best, values[-1], "best and last of the training history"),)
    return ()
