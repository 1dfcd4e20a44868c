"""When the path ends and which point is chosen: by budgets, by a drop that is allowed, or by standard errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from tnmars.errors import Problem, TnmarsError
from tnmars.models.budget import Budget, amount
from tnmars.shrinking.curve import Curve, Point, fits, meeting
from tnmars.shrinking.scores import Score, Tolerance, tolerance, unknown_error
from tnmars.shrinking.settings import Staircase


@dataclass(frozen=True)
class Goals:
    """What is asked of a path."""

    budgets: tuple[Budget, ...]
    max_drop: float | None
    settings: Staircase

    @classmethod
    def of(cls, budget: object, max_drop: object, settings: Staircase) -> Goals:
        """The goals that a user writes. Raises `TnmarsError`."""
        given = list(budget) if isinstance(budget, (list, tuple)) else [] if budget is None else [budget]
        budgets = tuple(map(Budget.parse, given))
        if budget is not None and not budgets:
            raise TnmarsError("budget is an empty list.\n  Leave it out, or give sizes such as ['4x', '10x'].")
        if budgets and max_drop is not None:
            raise TnmarsError("budget and max_drop are both given.\n  Give one of them.")
        units = sorted({one.unit for one in budgets})
        if len(units) > 1:
            text = f"the budgets are in {' and '.join(units)}, but slices compete for one unit."
            raise TnmarsError(Problem(text, "Give all budgets in one unit, or call shrink for each."))
        if max_drop is None:
            return cls(budgets, None, settings)
        is_number = isinstance(max_drop, (int, float)) and not isinstance(max_drop, bool)
        if not is_number or not isfinite(max_drop) or max_drop < 0:  # type: ignore[arg-type, operator]
            raise TnmarsError(f"max_drop is {max_drop!r}, but must be a number of at least 0, in units of the score.")
        return cls(budgets, float(max_drop), settings)  # type: ignore[arg-type]

    @property
    def unit(self) -> str:
        """What slices compete for."""
        return self.budgets[0].unit if self.budgets else "parameters"

    @property
    def needs_error(self) -> bool:
        """Whether the standard error of a score is needed."""
        return not self.budgets and self.max_drop is None

    @property
    def words(self) -> str:
        """The goals as text, to compare with those of a checkpoint."""
        if self.budgets:
            return "budget " + ", ".join(map(str, self.budgets))
        return "within standard errors" if self.max_drop is None else f"max_drop {self.max_drop!r}"

    def limits(self, dense: Mapping[str, float]) -> list[float]:
        """The budgets as numbers of their unit, the largest first."""
        return sorted((one.limit(dense[self.unit]) for one in self.budgets), reverse=True)

    def check(self, dense: Mapping[str, float], least: float) -> None:
        """Raises `TnmarsError` if even the smallest ranks, which cost `least`, do not meet a budget."""
        for one in self.budgets:
            limit = one.limit(dense[self.unit])
            if not fits(least, limit):
                ratio = f", {dense[self.unit] / least:.3g}x" if least > 0 else ""
                text = f"the budget of {one} cannot be met: with all ranks 1 the model has {amount(least, self.unit)}"
                hint = "Parts that are not compiled count too. Ask for less, or compile more layers."
                raise TnmarsError(Problem(f"{text}{ratio}. Nothing was changed.", hint))

    def is_reached(self, points: Sequence[Point], start: float | None, dense: Mapping[str, float]) -> bool:
        """Whether the path ends with its last point."""
        if self.budgets:
            return fits(points[-1].cost(self.unit), self.limits(dense)[-1])
        best, allowed = _allowed(points, start, self)
        return points[-1].score < best - allowed.stop


def _allowed(points: Sequence[Point], start: float | None, goals: Goals) -> tuple[float, Tolerance]:
    """The best score, the start's included, and what is allowed below it."""
    found = tolerance([Score(point.score, point.error) for point in points], goals.max_drop, goals.settings)
    if found is None:
        raise unknown_error()
    best = max(point.score for point in points)
    return (best if start is None else max(best, start)), found


def curve_for(
    points: Sequence[Point], start: float | None, goals: Goals, dense: Mapping[str, float], is_finished: bool
) -> Curve:
    """The curve of some points, with the one that is chosen."""
    if goals.budgets:
        limits = {str(one): one.limit(dense[goals.unit]) for one in goals.budgets}
        met = {words: meeting(points, goals.unit, limit) for words, limit in limits.items()}
        budgets = {words: at for words, at in met.items() if at is not None}
        words = min(budgets, key=lambda words: limits[words], default="")
        chosen = budgets.get(words, len(points) - 1)
        reason = (
            f"it has at most {amount(limits[words], goals.unit)} (budget {words})." if words else "no budget is met."
        )
    else:
        budgets = {}
        best, allowed = _allowed(points, start, goals)
        near = [at for at, point in enumerate(points) if point.score >= best - allowed.accept]
        chosen = min(near, key=lambda at: points[at].parameters, default=_best(points))
        reason = f"it is the smallest of {len(points)} points whose score is {allowed.words} the best, {best:.5g}."
        if not near:
            reason = f"no point has a score {allowed.words} the best, {best:.5g}: it is the best of the path."
    return Curve(tuple(points), start, chosen, reason, budgets, dict(dense), is_finished)


def _best(points: Sequence[Point]) -> int:
    return max(range(len(points)), key=lambda at: points[at].score)
