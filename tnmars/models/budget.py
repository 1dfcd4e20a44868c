"""Budgets, and how layers share one: each layer has a curve of (cost, loss) points, of which one is chosen.

It knows numbers only: no graphs, no layers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import numpy as np

from tnmars.arguments import own
from tnmars.errors import Problem, TnmarsError
from tnmars.text.numbers import byte_count

Point = tuple[float, float]
"""The cost and the loss of one choice for a layer."""

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]

UNITS = ("parameters", "bytes", "macs", "ms")
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30}
_BUDGET = re.compile(
    r"\s*(?P<number>\d[\d,_]*\.?\d*(?:e[+-]?\d+)?|\.\d+)\s*"
    r"(?:(?P<ratio>x)|(?P<factor>[kmg]i?)?)\s*(?P<unit>parameters|params|bytes|b|macs|ms)?\s*",
    re.IGNORECASE,
)
_NAMES = {None: "parameters", "params": "parameters", "b": "bytes"}
MOST_SETS = 2048
"""How many sets of choices are compared at a time."""


@dataclass(frozen=True)
class Budget:
    """What a whole model may cost: a number of a unit, or a ratio to what it costs now.

    >>> Budget.parse("4x"), Budget.parse("1.5 MB"), Budget.parse(300_000), Budget.parse("2x macs")
    (Budget('4x parameters'), Budget('1.5 MB'), Budget('300,000 parameters'), Budget('2x macs'))
    """

    amount: float
    unit: str = "parameters"
    is_ratio: bool = False

    @classmethod
    def parse(cls, given: object) -> Budget:
        """The budget that a user writes. Raises `TnmarsError` with examples."""
        if isinstance(given, Budget):
            return given
        given = own(given)
        if isinstance(given, int) and not isinstance(given, bool) and given > 0:
            return cls(float(given))
        found = _BUDGET.fullmatch(given) if isinstance(given, str) else None
        if found is None:
            raise _wrong(given)
        number = float(found["number"].replace(",", "").replace("_", "")) * _FACTORS[(found["factor"] or "").lower()]
        word = found["unit"] and found["unit"].lower()
        unit = _NAMES.get(word, word or "parameters")
        if not isfinite(number) or number <= 0 or (found["ratio"] and number <= 1):
            raise _wrong(given)
        return cls(number, unit, bool(found["ratio"]))

    def limit(self, now: float) -> float:
        """The largest cost that is allowed, for a model that costs `now`."""
        return now / self.amount if self.is_ratio else self.amount

    def __str__(self) -> str:
        if self.is_ratio:
            return f"{self.amount:g}x {self.unit}"
        return amount(self.amount, self.unit)

    def __repr__(self) -> str:
        return f"Budget('{self}')"


def amount(value: float, unit: str) -> str:
    """A number of a unit, as a person reads it."""
    if unit == "bytes":
        return byte_count(round(value))
    return f"{value:,.3g} ms" if unit == "ms" else f"{round(value):,} {unit}"


def _wrong(given: object) -> TnmarsError:
    text = f"budget is {given!r}, but must be a size, or a ratio above 1 that ends with 'x'."
    return TnmarsError(
        Problem(
            text, "Write '4x' (parameters), 250000, '1.5 MB', '2x macs', '30M macs' or '12 ms', for the whole model."
        )
    )


def allocate(curves: Sequence[Sequence[Point]], limit: float) -> list[int]:
    """The point of each curve that together cost at most `limit` and lose least; one index per curve.

    Dynamic programming over sets of choices that no other set beats in both cost and loss: exact while there are few,
    and with the best of each narrow range of costs where there are many. What is then left of the limit is filled.

    Raises `ValueError` if even the cheapest points cost more.

    >>> allocate([[(4, 0.0), (2, 1.0), (1, 5.0)], [(4, 0.0), (2, 0.1), (1, 0.2)]], 5)
    [0, 2]
    """
    fronts = [_front(curve) for curve in curves]
    least = [float(front[0][0]) for front in fronts]
    room = limit + 1e-9 * max(1.0, abs(limit)) - sum(least)
    if room < 0:
        raise ValueError("even the cheapest choices cost more than the limit")
    costs, losses = np.zeros(1), np.zeros(1)
    made: list[tuple[IntArray, IntArray]] = []
    for front, low in zip(fronts, least, strict=True):
        costs, losses, before, taken = _joined(costs, losses, front, low, room)
        made.append((before, taken))
    state, at = len(costs) - 1, [0] * len(fronts)
    spent = float(costs[state])
    for layer in reversed(range(len(fronts))):
        before, taken = made[layer]
        at[layer], state = int(taken[state]), int(before[state])
    _fill(fronts, at, room - spent)
    return [front[place][2] for front, place in zip(fronts, at, strict=True)]


_Front = list[tuple[float, float, int]]


def _front(curve: Sequence[Point]) -> _Front:
    """The points that no other beats in both cost and loss, cheapest first, with their places in the curve."""
    best, front = inf, []
    for place in sorted(range(len(curve)), key=lambda place: curve[place]):
        cost, loss = curve[place]
        if loss < best:
            front.append((cost, loss, place))
            best = loss
    return front


def _joined(
    costs: FloatArray, losses: FloatArray, front: _Front, low: float, room: float
) -> tuple[FloatArray, FloatArray, IntArray, IntArray]:
    """Sets of choices with one more layer: costs above the cheapest, losses, the set before, and the layer's point."""
    extra = np.array([cost - low for cost, _, _ in front])
    more = np.array([loss for _, loss, _ in front])
    total = (costs[:, None] + extra[None, :]).ravel()
    lost = (losses[:, None] + more[None, :]).ravel()
    order = np.flatnonzero(total <= room)
    order = order[np.lexsort((lost[order], total[order]))]
    best = np.minimum.accumulate(lost[order])
    order = order[np.concatenate([[True], best[1:] < best[:-1]])]
    if len(order) > MOST_SETS:  # the best of each range of costs is its last
        ranges = (total[order] * (MOST_SETS / max(room, 1e-300))).astype(np.int64)
        order = order[np.concatenate([ranges[1:] != ranges[:-1], [True]])]
    return total[order], lost[order], order // len(front), order % len(front)


def _fill(fronts: list[_Front], at: list[int], left: float) -> None:
    """Takes any more expensive point that fits into what is left, the best gain per cost first."""
    while True:
        best: tuple[float, int, int, float] | None = None
        for layer, front in enumerate(fronts):
            cost, loss, _ = front[at[layer]]
            for place in range(at[layer] + 1, len(front)):
                price = front[place][0] - cost
                if price > left:
                    break
                gain = (loss - front[place][1]) / max(price, 1e-300)
                if best is None or gain > best[0]:
                    best = (gain, layer, place, price)
        if best is None:
            return
        _, layer, place, price = best
        at[layer] = place
        left -= price
