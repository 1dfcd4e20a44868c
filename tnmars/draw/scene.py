"""A term in whole pixels: from its layout to boxes, curves and labels that do not overlap.

Labels are placed greedily, each at the cheapest of some places; if overlaps are left, the same is tried at a
larger scale. No markup is written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from tnmars.draw.labels import (
    CORE_FONT,
    CORE_HIGH,
    DOT_RADIUS,
    ON_CORE,
    ON_DOT,
    ON_LINE,
    Label,
    Leg,
    Stroke,
    core_label,
    place_bond,
    place_dot,
    place_leg,
)
from tnmars.draw.layout import Layout, Line, layout
from tnmars.draw.place import Board, Box
from tnmars.draw.shapes import Pixel
from tnmars.draw.stress import Point
from tnmars.draw.text import text_width
from tnmars.graph import Graph, Term

_UNIT = 96.0
_LARGE = 400
"""A term with more cores, lines and legs than this gets little time for its labels."""
_GROWN = 1.5
"""What each step to a larger scale costs, to be weighed against overlaps."""
_EFFORT = 4000
"""How many parts are placed, over all scales tried, before the best so far is taken: no scale untangles thousands."""


@dataclass(frozen=True)
class Scene:
    """Everything that is drawn of a term; `cost` is what the remaining overlaps cost."""

    cores: Mapping[str, Box]
    dots: Mapping[str, Pixel]
    strokes: tuple[Stroke, ...]
    labels: Mapping[str, Label]
    legs: tuple[Leg, ...]
    cost: float

    def bounds(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of everything, labels included."""
        boxes = [*self.cores.values(), *(label.box for label in self.labels.values())]
        boxes += [leg.label.box for leg in self.legs]
        boxes += [Box(x, y, 2 * DOT_RADIUS, 2 * DOT_RADIUS) for x, y in self.dots.values()]
        boxes += [Box(round(x), round(y), 8, 8) for stroke in self.strokes for x, y in stroke.points()]
        boxes += [Box(*leg.end, 8, 8) for leg in self.legs]
        left, top, right, bottom = zip(*(box.sides for box in boxes), strict=True)
        return int(min(left)) - 1, int(min(top)) - 1, int(max(right)) + 1, int(max(bottom)) + 1


def scene(graph: Graph, term: Term, widths: Mapping[str, float] | None = None) -> Scene:
    """The term in pixels, at the smallest scale at which little overlaps and no label lies on a core.

    `widths` are those of the bonds' lines, in pixels; labels keep clear of them.
    """
    placed = layout(graph, term)
    sizes = graph.sizes(term)
    widths = widths or {}
    wide = {core.name: text_width(core_label(core), CORE_FONT) for core in term.cores}
    parts = len(placed.cores) + len(placed.lines) + len(placed.legs)
    large = parts > _LARGE
    tries, growth = (1, 1.3) if large else (14, 1.08) if parts < _LARGE // 5 else (6, 1.2)
    best, best_cost = None, 0.0
    for step in range(60):
        attempt = _attempt(placed, sizes, widths, wide, _UNIT * growth**step, 1 if large else 8)
        cost = attempt.cost + _GROWN * step
        if best is None or cost < best_cost:
            best, best_cost = attempt, cost
        enough = step + 1 >= tries and best.cost < ON_CORE
        enough |= (step + 2) * parts > _EFFORT
        if enough or best_cost <= _GROWN * (step + 1):
            break
    assert best is not None
    return best


def _attempt(
    placed: Layout,
    sizes: Mapping[str, int],
    widths: Mapping[str, float],
    wide: Mapping[str, int],
    unit: float,
    places: int,
) -> Scene:
    """Everything at one scale; `wide` are the widths of the cores' labels."""
    # Cores are circles of one size if their names are short, and long boxes otherwise.
    high = max(CORE_HIGH, max(wide.values()) + 14)
    high = high if high <= 1.3 * CORE_HIGH else CORE_HIGH
    # Long names make cores wide, never high: rows may then be closer than columns.
    unit_y = unit * max(0.6, min(1.0, CORE_HIGH * 1.3 / (sum(wide.values()) / len(wide))))

    def pixel(point: Point) -> Pixel:
        return round(point[0] * unit), round(point[1] * unit_y)

    cores = {n: Box(*pixel(point), max(high, wide[n] + 20 - high // 6), high) for n, point in placed.cores.items()}
    if len(placed.parts) == 1 and len({y for _, y in placed.cores.values()}) == 1 and not placed.dots:
        cores = _even(cores, unit)
    dots = {name: pixel(point) for name, point in placed.dots.items()}
    strokes = tuple(_stroke(line, cores, dots, unit) for line in placed.lines)
    board, cost = _board(cores, dots, strokes)
    legs = []
    for (core, mode), direction in placed.legs.items():
        leg, spent = place_leg(board, cores[core], core, mode, sizes[mode], direction)
        legs.append(leg)
        cost += spent
    labels = {}
    middles = _middles(placed, cores)
    for stroke in strokes:
        if stroke.bond not in dots:
            name = stroke.bond
            label, spent = place_bond(board, stroke, sizes[name], widths.get(name, 0.0), middles.get(name), places)
            labels[name] = label
            cost += spent
    for bond, (x, y) in dots.items():
        label, spent = place_dot(board, bond, sizes[bond], widths.get(bond, 0.0), (x, y))
        labels[bond] = label
        cost += spent
    return Scene(cores, dots, strokes, labels, tuple(legs), cost)


def _even(cores: Mapping[str, Box], unit: float) -> dict[str, Box]:
    """The cores of a level path with the same room between any two, however long their names are."""
    found: dict[str, Box] = {}
    right = 0
    for name, box in sorted(cores.items(), key=lambda item: item[1].x):
        found[name] = Box(right + box.wide // 2, box.y, box.wide, box.high)
        right += box.wide + round(unit) - CORE_HIGH
    return found


def _middles(placed: Layout, cores: Mapping[str, Box]) -> dict[str, Point]:
    """For each bond of a part with cycles the middle of that part: labels stand outside it."""
    part_of = {name: at for at, part in enumerate(placed.parts) for name in part}
    joined: list[set[tuple[str, str]]] = [set() for _ in placed.parts]
    dots: list[set[str]] = [set() for _ in placed.parts]
    for line in placed.lines:
        joined[part_of[line.end]].add((line.start or f"dot {line.bond}", line.end))
        dots[part_of[line.end]].update([line.bond] if line.start is None else [])
    middles: dict[int, Point] = {}
    for at, part in enumerate(placed.parts):
        if len(joined[at]) >= len(part) + len(dots[at]):
            boxes = [cores[name] for name in part]
            middles[at] = sum(box.x for box in boxes) / len(boxes), sum(box.y for box in boxes) / len(boxes)
    return {line.bond: middles[part_of[line.end]] for line in placed.lines if part_of[line.end] in middles}


def _stroke(line: Line, cores: Mapping[str, Box], dots: Mapping[str, Pixel], unit: float) -> Stroke:
    x0, y0 = dots[line.bond] if line.start is None else (cores[line.start].x, cores[line.start].y)
    x1, y1 = cores[line.end].x, cores[line.end].y
    if not line.bend:
        return Stroke(line.bond, (x0, y0), (x1, y1))
    length = max(1.0, sqrt((x1 - x0) ** 2 + (y1 - y0) ** 2))
    # A quadratic curve reaches halfway to its control point.
    off = 2 * line.bend * unit / length
    control = round((x0 + x1) / 2 - (y1 - y0) * off), round((y0 + y1) / 2 + (x1 - x0) * off)
    return Stroke(line.bond, (x0, y0), (x1, y1), control)


def _board(cores: Mapping[str, Box], dots: Mapping[str, Pixel], strokes: Iterable[Stroke]) -> tuple[Board, float]:
    """A board with the cores, dots and lines, and the cost of their overlaps."""
    board, cost = Board(), 0.0
    owners = {(box.x, box.y): f"core {name}" for name, box in cores.items()}
    owners |= {point: f"dot {name}" for name, point in dots.items()}
    for name, box in cores.items():
        cost += 10 * board.box_cost(box.grown(8))
        board.add_box(box.grown(3), ON_CORE, f"core {name}")
    for name, (x, y) in dots.items():
        cost += board.box_cost(Box(x, y, 24, 24))
        board.add_box(Box(x, y, 2 * DOT_RADIUS + 4, 2 * DOT_RADIUS + 4), ON_DOT, f"dot {name}")
    for stroke in strokes:
        own = (owners[stroke.start], owners[stroke.end])
        hit = sum(board.segment_cost(a, b, own) for a, b in pairwise(stroke.points()))
        cost += 50 * hit / ON_CORE
    for stroke in strokes:
        for a, b in pairwise(stroke.points()):
            board.add_segment(a, b, ON_LINE, f"bond {stroke.bond}")
    return board, cost
