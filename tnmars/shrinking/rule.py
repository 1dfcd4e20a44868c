"""When the path ends and which point is chosen: by budgets, by a drop that is allowed, or by standard errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from tnmars.errors import Problem, TnmarsError, listing
from tnmars.models.budget import Budget, amount
from tnmars.shrinking.curve import Curve, Point, fits, meeting
from tnmars.shrinking.scores import Score, Tolerance, tolerance
from tnmars.shrinking.settings import Staircase


class ShrinkWarning(UserWarning):
    """A path of `tnmars.shrink` on which training made a trained model worse.

    Example:
        >>> import tnmars
        >>> issubclass(tnmars.ShrinkWarning, UserWarning)
        True
    """


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

    def check(self, dense: Mapping[str, float], least: float, rest: float, uncut: Sequence[str]) -> None:
        """Raises `TnmarsError` if even the smallest ranks, which cost `least`, do not meet a budget.

        `rest` is the share of that which is not cut; the parts of the model in `uncut` hold its parameters.
        """
        for one in self.budgets:
            if one.is_ratio and not dense[self.unit] > 0:
                text = f"the budget of {one} has no meaning: with dense weights the model has no {self.unit}."
                hint = f"Give a ratio of parameters: '{one.amount:g}x'."
                raise TnmarsError(Problem(f"{text} Nothing was changed.", hint))
            limit = one.limit(dense[self.unit])
            if not fits(least, limit):
                ratio = f", {dense[self.unit] / least:.3g}x" if least > 0 else ""
                planned = ", as planned for speed" if self.unit in ("macs", "ms") else ""
                text = f"the budget of {one} cannot be met: with all ranks 1 the model has {amount(least, self.unit)}"
                hint = "Ask for less."
                if rest > 0:
                    own = amount(rest, self.unit)
                    where = f", in {listing(uncut, 4)}" if uncut and self.unit in ("parameters", "bytes") else ""
                    hint = f"Parts that are not cut count too: {own}{where}. Ask for less, or compile more layers."
                raise TnmarsError(Problem(f"{text}{ratio}{planned}. Nothing was changed.", hint))

    def margin(self, start: Point) -> float:
        """How far below the model given a score may be before it counts as worse: a standard error, if it is known."""
        if self.max_drop is not None:
            return self.max_drop / max(self.settings.accept, 1.0)
        return start.error or 0.0

    def is_reached(self, points: Sequence[Point], dense: Mapping[str, float]) -> bool:
        """Whether the path ends with its last point."""
        if self.budgets:
            return fits(points[-1].cost(self.unit), self.limits(dense)[-1])
        best, allowed = _allowed(points, self)
        return points[-1].score < best - allowed.stop


def lost_words(points: Sequence[Point], start: Point | None, goals: Goals) -> str | None:
    """What to tell a user whose trained model only became worse; None if it did not."""
    later = [point.score for point in points if point is not start]
    if start is None or max(later) >= start.score - goals.margin(start):
        return None
    text = f"every stage ended below the score of the model given, {start.score:.5g}; the best has {max(later):.5g}."
    return f"{text} Give more training data, or longer stages: settings=tnmars.Staircase(first=800)."


def _allowed(points: Sequence[Point], goals: Goals) -> tuple[float, Tolerance]:
    """The best score, and what is allowed below it."""
    found = tolerance([Score(point.score, point.error) for point in points], goals.max_drop, goals.settings)
    assert found is not None, "scores are checked when they are reported"
    return max(point.score for point in points), found


def curve_for(
    points: Sequence[Point],
    start: Point | None,
    goals: Goals,
    dense: Mapping[str, float],
    is_finished: bool,
    *,
    lower: int = 1,
    ended: str = "",
    uncut: str = "",
) -> Curve:
    """The curve of some points, with the one that is chosen.

    `lower` is what the rates were divided by, `ended` says what ended the path early, if anything did, and `uncut`
    which parts keep the model large, if they do.
    """
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
        best, allowed = _allowed(points, goals)
        near = [at for at, point in enumerate(points) if point.score >= best - allowed.accept]
        chosen = min(near, key=lambda at: (points[at].parameters, -points[at].score, -at))
        reason = f"it is the smallest of {len(points)} points whose score is {allowed.words} the best, {best:.5g}."
    if any(point.ranks == points[chosen].ranks for point in points[:chosen] if point is not start):
        reason += " It was trained once more at the end."
    if points[chosen] is start:
        reason += " It is the model given, untrained by this path."
    if lower > 1:
        reason += f" All rates were divided by {lower}, because the first stage made the model given worse."
    if ended:
        reason += f" The path ended early: {ended}"
    if uncut and not goals.budgets:
        reason += f" {uncut}"
    score = None if start is None else start.score
    return Curve(tuple(points), score, chosen, reason, budgets, dict(dense), is_finished)
