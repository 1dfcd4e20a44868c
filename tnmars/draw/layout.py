"""Where to draw what: positions of the cores, dots, lines and legs of a term.

The shape follows from the topology alone. Pixels, characters and text are not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import atan2, cos, pi, sin, sqrt

from tnmars.arguments import check_arguments
from tnmars.draw.arrange import Arranged, arrange
from tnmars.draw.legs import STEP, around, fan, into_gaps
from tnmars.draw.stress import Point, from_line
from tnmars.draw.web import Web, parts, web
from tnmars.graph import Core, Graph, Role, Term

UP_ROLES = (Role.GROUP, Role.IN, Role.LOOKUP, Role.PATCH)
"""The roles whose legs point up; those of the others point down."""
REACH = 0.8
"""About how far a leg and its label reach, in units."""
_BOW = 0.3
_PART_GAP = 0.6
_TOO_NEAR, _CLEAR = 0.24, 0.34
_ROOM = 0.4 * pi


@dataclass(frozen=True)
class Line:
    """A line of a bond from a core, or from the bond's dot if `start` is None, to a core.

    `bend` is how far its middle lies off the straight line: to the right when going from start to end, in units.
    """

    bond: str
    start: str | None
    end: str
    bend: float = 0.0


@dataclass(frozen=True)
class Layout:
    """Positions in units of the distance between neighboring cores, y growing downwards.

    `dots` holds the bonds with three or more ends; `legs` the direction, of length 1, of every `(core, mode)`.
    """

    cores: Mapping[str, Point]
    dots: Mapping[str, Point]
    lines: tuple[Line, ...]
    legs: Mapping[tuple[str, str], Point]
    parts: tuple[tuple[str, ...], ...]
    """The cores of each connected part."""

    def ends(self, line: Line) -> tuple[Point, Point]:
        """The positions that a line joins."""
        return self.dots[line.bond] if line.start is None else self.cores[line.start], self.cores[line.end]


def layout(graph: Graph, term: Term) -> Layout:
    """The positions of everything in a term.

    >>> from tnmars.graph import Edge
    >>> a, b, c = Core("A", ("i", "r")), Core("B", ("r", "s")), Core("C", ("s", "j"))
    >>> term = Term("main", (Edge("r", 2), Edge("s", 3)), (a, c, b))
    >>> graph = Graph("tensor", (Edge("i", 4, Role.FREE), Edge("j", 5, Role.FREE)), (term,))
    >>> found = layout(graph, term)
    >>> found.cores
    {'A': (0.0, 0.0), 'C': (2.0, 0.0), 'B': (1.0, 0.0)}
    >>> found.legs[("A", "i")]
    (0.0, 1.0)
    """
    check_arguments(layout, locals())
    view = web(term)
    points: dict[int, Point] = {}
    angles: dict[tuple[str, str], float] = {}
    blocks = []
    for part in parts(view.near):
        arranged = arrange(view.near, part)
        legs = _legs(graph, [term.cores[at] for at in part if at < len(term.cores)], view, arranged)
        blocks.append((arranged.points, legs))
    for (shift_x, shift_y), (placed, legs) in zip(_packed(blocks, view), blocks, strict=True):
        points |= {at: (round(x + shift_x, 6), round(y + shift_y, 6)) for at, (x, y) in placed.items()}
        angles |= legs
    number = {name: at for at, name in enumerate(view.cores)}
    return Layout(
        {name: points[at] for name, at in number.items()},
        {name: points[len(number) + at] for at, name in enumerate(view.dots)},
        _lines(view, points),
        {leg: (round(cos(angle), 6) + 0.0, round(sin(angle), 6) + 0.0) for leg, angle in angles.items()},
        tuple(tuple(view.cores[at] for at in placed if at < len(number)) for placed, _ in blocks),
    )


def _legs(graph: Graph, cores: Sequence[Core], view: Web, arranged: Arranged) -> dict[tuple[str, str], float]:
    """The angle of every leg of a part."""
    roles = {mode.name: mode.role for mode in graph.modes}
    both = len({role in UP_ROLES for role in roles.values()}) == 2
    number = {name: at for at, name in enumerate(view.cores)}
    points = arranged.points
    middle = sum(x for x, _ in points.values()) / len(points), sum(y for _, y in points.values()) / len(points)
    angles = {}
    for core in cores:
        at = number[core.name]
        modes = [edge for edge in core.edges if edge in roles]
        lines = [_angle(points[at], points[other]) for other in view.near[at]]
        if arranged.by_role and both:
            up = [mode for mode in modes if roles[mode] in UP_ROLES]
            down = [mode for mode in modes if mode not in up]
            step = STEP if lines else pi / 3
            legs = dict(zip(up, fan(-pi / 2, len(up), _ROOM, step), strict=True))
            legs |= zip(down, fan(pi / 2, len(down), _ROOM, step), strict=True)
        elif not lines:
            legs = dict(zip(modes, around(len(modes)), strict=True))
        elif arranged.by_role or at in arranged.legs:
            wish = _angle((0.0, 0.0), arranged.legs.get(at, (0.0, 1.0)))
            room = min(abs((line - wish + pi) % (2 * pi) - pi) for line in lines) * 0.75
            legs = dict(zip(modes, fan(wish, len(modes), room), strict=True))
        else:
            away = None if _near(points[at], middle) else _angle(middle, points[at])
            legs = dict(zip(modes, into_gaps(lines, away, len(modes)), strict=True))
        angles.update({(core.name, mode): angle for mode, angle in legs.items()})
    return angles


def _angle(start: Point, end: Point) -> float:
    return atan2(end[1] - start[1], end[0] - start[0])


def _near(one: Point, other: Point) -> bool:
    return abs(one[0] - other[0]) + abs(one[1] - other[1]) < 1e-6


def _packed(blocks: Sequence[tuple[dict[int, Point], dict[tuple[str, str], float]]], view: Web) -> list[Point]:
    """How far to move each part so that they stand side by side, in rows if there are many."""
    boxes = []
    for points, legs in blocks:
        names = {view.cores[at]: point for at, point in points.items() if at < len(view.cores)}
        tips = [(names[core][0] + REACH * cos(a), names[core][1] + REACH * sin(a)) for (core, _), a in legs.items()]
        xs, ys = zip(*points.values(), *tips, strict=True)
        boxes.append((min(xs), min(ys), max(xs), max(ys)))
    sides = [(x1 - x0 + _PART_GAP, y1 - y0 + _PART_GAP) for x0, y0, x1, y1 in boxes]
    limit = max(7.0, 1.8 * sqrt(sum(wide * high for wide, high in sides)))
    rows: list[list[int]] = [[]]
    for at, (wide, _) in enumerate(sides):
        if rows[-1] and sum(sides[other][0] for other in rows[-1]) + wide > limit:
            rows.append([])
        rows[-1].append(at)
    moves, top = [], 0.0
    for row in rows:
        left, high = 0.0, max(sides[at][1] for at in row)
        for at in row:
            moves.append((left - boxes[at][0], top + (high - sides[at][1]) / 2 - boxes[at][1]))
            left += sides[at][0]
        top += high
    return moves if len(blocks) > 1 else [(0.0, 0.0)]


def _lines(view: Web, points: Mapping[int, Point]) -> tuple[Line, ...]:
    """The lines of every bond: bowed where several join the same two vertices, or where a vertex is in the way."""
    parallel: dict[tuple[int, int], int] = {}
    for _, one, other in view.lines:
        parallel[(min(one, other), max(one, other))] = parallel.get((min(one, other), max(one, other)), 0) + 1
    met: dict[tuple[int, int], int] = {}
    crowded = len(view.lines) * len(points) > 100_000
    lines = []
    for bond, one, other in view.lines:
        pair = (min(one, other), max(one, other))
        at = met.get(pair, 0)
        met[pair] = at + 1
        bend = _BOW * (at - (parallel[pair] - 1) / 2) * (1 if one < other else -1)
        if parallel[pair] == 1 and not crowded:
            bend = _around(view, points, one, other)
        start = view.cores[one] if one < len(view.cores) else None
        lines.append(Line(bond, start, view.cores[other], round(bend, 6)))
    return tuple(lines)


def _around(view: Web, points: Mapping[int, Point], one: int, other: int) -> float:
    """How far a line must bow to pass by the vertices on it; 0 if there are none."""
    (x0, y0), (x1, y1) = points[one], points[other]
    dx, dy = x1 - x0, y1 - y0
    length = sqrt(dx * dx + dy * dy)
    bend = 0.0
    for at, (x, y) in points.items():
        if at in (one, other) or from_line((x, y), (x0, y0), (x1, y1)) >= _TOO_NEAR:
            continue
        off = (dx * (y - y0) - dy * (x - x0)) / length
        along = ((x - x0) * dx + (y - y0) * dy) / (length * length)
        # A bow of 1 lies 4t(1 - t) off its chord at t.
        need = min(0.9, (_CLEAR + abs(off)) / max(0.3, 4 * along * (1 - along)))
        need = -need if off > 1e-6 else need
        bend = need if abs(need) > abs(bend) else bend
    return bend
