"""Whether losses have risen by more than noise explains. It knows losses, and nothing of what they are losses of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Generic, TypeVar

WORSE, SURE = 0.05, 4.0
"""A mean is worse than the best if it is higher by more than this share and this number of standard errors."""
COUNTS = (2, 4, 8)
"""How many windows in a row are compared with the best: many for small rises, few for sudden ones."""
FEW = 2
"""The best mean has at least this number of windows, if there are enough. More would lag behind falling losses."""
ENOUGH = 4
"""The number of windows between which noise can be measured."""
LIKELY = 2.0
"""The best mean is the lowest with this number of standard errors added, so that one lucky window does not count."""
BLOCKS = 5
"""The number of parts of a window whose means show noise that lasts for several steps."""

State = TypeVar("State")


@dataclass(frozen=True)
class Window(Generic[State]):
    """The mean of some losses in a row, its standard error, and what was known when they began."""

    value: float
    error: float
    state: State


@dataclass(frozen=True)
class Mean:
    """The mean of some windows in a row, and the standard error that one of them has."""

    value: float
    spread: float
    count: int
    median: float
    """The smaller one of two in the middle, so that a single window with large losses does not count."""

    @property
    def bound(self) -> float:
        """What the true mean is hardly above."""
        return self.value + LIKELY * self.spread / sqrt(max(self.count, 1))

    def is_worse_than(self, best: Mean, noise: float) -> bool:
        """Whether losses have risen by more than chance explains.

        The best of many means was lucky, and its losses are often closer together too; so the larger spread counts.
        """
        error = max(self.spread, best.spread, noise) * sqrt(1 / self.count + 1 / best.count)
        return self.median > best.value + max(WORSE * abs(best.value), SURE * error)


@dataclass(frozen=True)
class Rise(Generic[State]):
    """The best mean and the one after it that is worse, and what was known when the losses of the best began."""

    before: float
    after: float
    state: State


class Trend(Generic[State]):
    """Compares the losses of a training run with the best before."""

    def __init__(self) -> None:
        self._windows: list[Window[State]] = []
        self._best = Mean(inf, 0.0, 0, inf)
        self._state: State | None = None
        self._noise = 0.0
        """The deviation of windows from each other, when losses last were as good as the best."""

    def add(self, losses: Sequence[float], state: State) -> Rise[State] | None:
        """Takes the losses of one more window. Returns the rise if the last windows, at least two, are worse.

        >>> trend = Trend[str]()
        >>> [trend.add([loss] * 10, f"window {at}") for at, loss in enumerate([1.0, 1.0, 2.0, 2.0])][-1]
        Rise(before=1.0, after=2.0, state='window 0')
        """
        self._windows = [*self._windows[1 - max(COUNTS) :], Window(sum(losses) / len(losses), _error(losses), state)]
        known = len(self._windows)
        rise = None
        if self._state is not None:
            last = [self._mean(count) for count in COUNTS if count <= known]
            worse = [mean for mean in last if mean.is_worse_than(self._best, self._noise)]
            rise = Rise(self._best.value, worse[0].median, self._state) if worse else None
        best = min((self._mean(count) for count in {min(known, FEW), known}), key=lambda mean: mean.bound)
        # so few windows may have been lucky; but they are all that is known where losses rise soon after them
        is_calm = self._windows[-1].value <= self._best.value + WORSE * abs(self._best.value)
        if (is_calm and self._best.count < min(known, FEW)) or best.bound < self._best.bound:
            self._best, self._state = best, self._windows[-best.count].state
        if is_calm and known >= ENOUGH:
            self._noise = _deviation([window.value for window in self._windows])
        return rise

    def _mean(self, count: int) -> Mean:
        """The mean of the last windows. Their spread comes from within them and, if they are many, from between them:
        noise may last longer than a window."""
        last = self._windows[-count:]
        values = [window.value for window in last]
        within = sqrt(sum(window.error * window.error for window in last) / count)
        between = _deviation(values) if count >= ENOUGH else 0.0
        return Mean(sum(values) / count, max(within, between), count, sorted(values)[(count - 1) // 2])


def _error(losses: Sequence[float]) -> float:
    """The standard error of the mean of some losses in a row, whether noise lasts for one step or for several."""
    length = len(losses) // BLOCKS
    blocks = [sum(losses[at * length : (at + 1) * length]) / max(length, 1) for at in range(BLOCKS)]
    several = _deviation(blocks) / sqrt(BLOCKS) if length > 1 else 0.0
    return max(_deviation(losses) / sqrt(len(losses)), several)


def _deviation(values: Sequence[float]) -> float:
    """The deviation of values from a straight line, by how far each is from the middle between its neighbors.

    >>> _deviation([1.0, 2.0, 3.0]), _deviation([0.0, 1.0, 0.0, 1.0]) == sqrt(2 / 3)
    (0.0, True)
    """
    bends = [first - 2 * second + third for first, second, third in zip(values, values[1:], values[2:], strict=False)]
    return sqrt(sum(bend * bend for bend in bends) / max(len(bends), 1) / 6)
