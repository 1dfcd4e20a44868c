"""The result: the points of the path, each a finished model with its size and score, and the one that is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from tnmars.arguments import check_arguments
from tnmars.errors import CheckpointError, Problem, TnmarsError
from tnmars.graph.parts import is_int
from tnmars.models.budget import Budget, amount
from tnmars.shrinking.folder import TABLE, Make, read_table, stored, write_model, write_table
from tnmars.shrinking.page import write_page
from tnmars.spec.nodes import shorten
from tnmars.text.numbers import brief, dashed, times
from tnmars.text.tables import aligned

HEAD = ("", "parameters", "ratio", "ranks", "MACs", "predicted", "score")


@dataclass(frozen=True, eq=False)
class Point:
    """A point of the curve: a finished model of one size.

    Attributes:
        stage: The number of its stage, from 0. Where the score of the model given is known, that model is point 0.
        parameters: The parameters of the whole model.
        bytes: Their bytes.
        macs: The multiply-adds of one pass over a training batch.
        ms: The predicted milliseconds of the frozen compiled layers in this pass. With a budget in ms, those of all
            other parts, as measured, are added.
        ratio: How many times smaller the whole model is than with dense weights in place of the compiled layers.
        ranks: For each compiled layer the sizes of its bonds: 1 for a bond that has vanished, 0 for one whose term has.
        score: What `evaluate` returned.
        error: The standard error of the score; None if it is not known.
        steps: The number of training steps of the whole path so far, those that led to smaller models included.
        seconds: The seconds that the path took so far.

    Example:
        >>> import tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=3)
        >>> path = tnmars.Stages(tnmars.compile(graph), budget="2x")
        >>> stage = next(iter(path))
        >>> stage.report(0.9)
        >>> path.curve.points[0].ranks, path.curve.points[0].score
        ({'': {'r': 3}}, 0.9)
    """

    stage: int
    parameters: int
    bytes: int
    macs: int
    ms: float
    ratio: float
    ranks: Mapping[str, Mapping[str, int]]
    score: float
    error: float | None
    steps: int
    seconds: float
    make: Make = field(repr=False)
    """Makes the model; it is called once."""

    @cached_property
    def model(self) -> nn.Module:
        """The model, in evaluation mode. Bonds of size 1 are dropped; it can be trained, saved and frozen."""
        return self.make().eval()

    def cost(self, unit: str) -> float:
        """What the point costs in parameters, bytes, macs or ms."""
        check_arguments(Point.cost, locals())
        costs = {"parameters": self.parameters, "bytes": self.bytes, "macs": self.macs, "ms": self.ms}
        if unit not in costs:
            raise TnmarsError(f"unit is '{unit}', but must be one of {', '.join(costs)}.")
        return float(costs[unit])


@dataclass(frozen=True, eq=False)
class Curve:
    """What `tnmars.shrink` returns: size against score along one training. It prints as a table.

    Attributes:
        points: The points in the order of their training, each smaller than the one before. The last ones are points
            that were taken, trained once more.
        start: The score of the model given, which is then the first point; None if it was not evaluated.
        chosen_at: The place of the chosen point.
        reason: Why it was chosen, in a sentence.
        budgets: The budgets that were asked for, in words, each with the place of its point.
        dense: What the model would cost with dense weights, by unit; ratios in budgets refer to it.
        is_finished: Whether the path came to its end.

    Example:
        >>> import tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=3)
        >>> path = tnmars.Stages(tnmars.compile(graph), budget="2x")
        >>> for stage in path:
        ...     stage.report(0.9)
        >>> print(path.curve.reason.partition(". ")[0])
        it has at most 18 parameters (budget 2x parameters)
        >>> path.curve.chosen.parameters, path.curve.chosen is path.curve.at("2x")
        (16, True)
    """

    points: tuple[Point, ...]
    start: float | None
    chosen_at: int
    reason: str
    budgets: Mapping[str, int]
    dense: Mapping[str, float]
    is_finished: bool = True

    @property
    def chosen(self) -> Point:
        """The chosen point. With several budgets it is that of the smallest."""
        return self.points[self.chosen_at]

    def at(self, budget: int | str) -> Point:
        """The largest point that meets a budget, such as `"10x"`, `"2x macs"` or 30000. Raises `TnmarsError`."""
        asked = Budget.parse(budget)
        limit = asked.limit(self.dense[asked.unit])
        found = meeting(self.points, asked.unit, limit)
        if found is None:
            least = min(point.cost(asked.unit) for point in self.points)
            text = f"no point of the curve meets the budget of {asked}; the smallest has {amount(least, asked.unit)}."
            raise TnmarsError(Problem(text, "Give this budget to shrink."))
        return self.points[found]

    def save(self, folder: str | Path) -> None:
        """Writes the curve and all its models to a folder, for `tnmars.load_curve`. Nothing is pickled.

        Raises `TnmarsError` if the folder is the checkpoint of a path.
        """
        check_arguments(Curve.save, locals())
        if "run" in (read_table(folder) or {}):
            text = f"{folder}: is the checkpoint of a path, which this curve would overwrite."
            raise TnmarsError(Problem(text, "Give another folder. tnmars.load_curve reads a checkpoint too."))
        for point in self.points:
            write_model(folder, point.stage, point.model)
        write_table(folder, self.table())

    def report(self, path: str | Path) -> None:
        """Writes an HTML page with a picture of the curve, the table of its points and the reason for the choice."""
        check_arguments(Curve.report, locals())
        order = sorted(range(len(self.points)), key=lambda at: self.points[at].ratio)
        scores = [(self.points[at].ratio, self.points[at].score) for at in order]
        rows = [self.row(self.points[at]) for at in order]
        write_page(path, scores, order.index(self.chosen_at), [HEAD, *rows], self.reason)

    def table(self) -> dict[str, Any]:
        """The curve as plain data, without its models."""
        own = {name: getattr(self, name) for name in ("start", "chosen_at", "reason", "is_finished")}
        points = [{name: _plain(getattr(point, name)) for name in FIGURES} for point in self.points]
        return {**own, "budgets": dict(self.budgets), "dense": dict(self.dense), "points": points}

    def __str__(self) -> str:
        rows = [HEAD, *map(self.row, self.points)]
        start = [] if self.start is None else [f"score of the model given: {self.start:.5g}"]
        end = [f"chosen: {self.reason}"] if self.is_finished else ["not finished"]
        return "\n".join([*aligned(rows, "<>><>>>"), *start, *end])

    def row(self, point: Point) -> tuple[str, ...]:
        """The cells of a point in a table."""
        check_arguments(Curve.row, locals())
        mark = "*" if point is self.chosen and self.is_finished else ""
        ranks = " ".join(dashed(sizes.values()) for sizes in point.ranks.values())
        return (
            mark,
            f"{point.parameters:,}",
            times(point.ratio),
            ranks,
            brief(point.macs),
            f"{point.ms:.3g} ms",
            f"{point.score:.5g}",
        )


def is_same(score: float, point: Point) -> bool:
    """Whether a score is that of a point, on this machine or another, which rounds differently."""
    slack = 1e-5 * abs(point.score) if point.error is None else 0.1 * point.error
    return abs(score - point.score) <= slack


def fits(cost: float, limit: float) -> bool:
    """Whether a cost is within a limit, up to rounding."""
    return cost <= limit * (1 + 1e-12)


def meeting(points: Sequence[Point], unit: str, limit: float) -> int | None:
    """The place of the largest point within a limit, of several such the best (the last); None if there is none."""
    found = [at for at, point in enumerate(points) if fits(point.cost(unit), limit)]
    return max(found, key=lambda at: (points[at].cost(unit), points[at].score, at), default=None)


def _is_figure(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return is_int(value, 0)


def _is_table(value: object, entry: Callable[[object], bool]) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) and entry(each) for key, each in value.items())


POINT: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("stage", "parameters", "bytes", "macs", "steps"), _is_count),
    **dict.fromkeys(("ms", "ratio", "score", "seconds"), _is_figure),
    "error": lambda value: value is None or _is_figure(value),
    "ranks": lambda value: _is_table(value, lambda sizes: _is_table(sizes, _is_count)),
}
CURVE: Mapping[str, Callable[[Any], bool]] = {
    "start": lambda value: value is None or _is_figure(value),
    "chosen_at": _is_count,
    "reason": lambda value: isinstance(value, str),
    "budgets": lambda value: _is_table(value, _is_count),
    "dense": lambda value: _is_table(value, _is_figure),
    "is_finished": lambda value: isinstance(value, bool),
}
"""What each entry of a saved point, and of a saved curve, must be."""


def _check(table: Any, kinds: Mapping[str, Callable[[Any], bool]], what: str) -> None:
    """Raises `KeyError` and `TypeError` for a table of a file that is not one of ours."""
    for name, is_right in kinds.items():
        if not is_right(table[name]):
            raise TypeError(f"{name} of {what} is {shorten(repr(table[name]))}")


FIGURES = tuple(entry.name for entry in fields(Point) if entry.name != "make")
"""What is saved of a point, besides its model."""


def _plain(value: Any) -> Any:
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, Mapping) else value


def curve_of(table: Mapping[str, Any], make: Callable[[int], Make]) -> Curve:
    """The curve of a table; `make` gives, for a stage, what makes its model. Raises `KeyError` and `TypeError`."""
    for entry in table["points"]:
        _check(entry, POINT, "a point")
    _check(table, CURVE, "the curve")
    if table["chosen_at"] >= max(len(table["points"]), 1):
        raise TypeError(f"chosen_at is {table['chosen_at']}, but there are {len(table['points'])} points")
    points = tuple(
        Point(**{name: entry[name] for name in FIGURES}, make=make(entry["stage"])) for entry in table["points"]
    )
    own = {entry.name: table[entry.name] for entry in fields(Curve) if entry.name != "points"}
    return Curve(points=points, **own)


def load_curve(folder: str | Path, model: nn.Module) -> Curve:
    """The curve in a folder that `Curve.save` wrote, or that is the `checkpoint` of a path, finished or not.

    Args:
        folder: The folder.
        model: A model with the module names of the one that was shrunk, such as a fresh instance. It is not changed:
            each point's model is a copy of it.

    Returns:
        The curve. A model is read when it is first asked for: `curve.points[3].model`.

    Raises:
        CheckpointError: If the folder has no curve, or its table is damaged; and where a model is read, if its file is.

    Example:
        >>> import tempfile, tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=3)
        >>> path = tnmars.Stages(tnmars.compile(graph), budget="2x")
        >>> for stage in path:
        ...     stage.report(0.9)
        >>> folder = tempfile.mkdtemp()
        >>> path.curve.save(folder)
        >>> tnmars.load_curve(folder, nn.Linear(6, 5)).chosen.ranks
        {'': {'r': 1}}
    """
    check_arguments(load_curve, locals())
    table = read_table(folder)
    if table is None:
        raise CheckpointError(f"{Path(folder) / TABLE}: does not exist.")
    try:
        return curve_of(table, lambda stage: stored(folder, stage, model))
    except (LookupError, TypeError) as error:
        raise CheckpointError(f"{Path(folder) / TABLE}: is not a curve: {type(error).__name__} {error}.") from None
