"""Boxes, segments and the room between them, in pixels: what a label costs where it is. Graphs are not known here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil, sqrt

from tnmars.draw.stress import Point, cross

_CELL = 64
_CROWDED = 40
"""A square with this many things notes no further lines: all places there are bad, and looking takes time."""


@dataclass(frozen=True)
class Box:
    """A box around its middle."""

    x: int
    y: int
    wide: int
    high: int

    @property
    def sides(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom."""
        half_wide, half_high = self.wide / 2, self.high / 2
        return self.x - half_wide, self.y - half_high, self.x + half_wide, self.y + half_high

    def grown(self, by: int) -> Box:
        return Box(self.x, self.y, self.wide + 2 * by, self.high + 2 * by)

    def meets(self, other: Box) -> bool:
        return abs(self.x - other.x) * 2 < self.wide + other.wide and abs(self.y - other.y) * 2 < self.high + other.high

    def beyond(self, dx: float, dy: float) -> float:
        """How far the box extends from its middle in a direction: the distance of its furthest corner along it."""
        return self.wide / 2 * abs(dx) + self.high / 2 * abs(dy)

    def exit(self, dx: float, dy: float) -> float:
        """How far from the middle a ray leaves the box."""
        return min(self.wide / 2 / max(abs(dx), 1e-6), self.high / 2 / max(abs(dy), 1e-6))


def crosses_box(box: Box, a: Point, b: Point) -> bool:
    """Whether a segment has a point inside a box."""
    left, top, right, bottom = box.sides
    low, high = 0.0, 1.0
    for start, end, least, most in ((a[0], b[0], left, right), (a[1], b[1], top, bottom)):
        step = end - start
        if abs(step) < 1e-9:
            if not least < start < most:
                return False
            continue
        one, other = (least - start) / step, (most - start) / step
        low, high = max(low, min(one, other)), min(high, max(one, other))
    return low < high


@dataclass(frozen=True)
class Thing:
    """What is in the way: a box or a segment, what it costs to cover it, and whose it is."""

    cost: float
    owner: str
    box: Box | None = None
    segment: tuple[Point, Point] | None = None


@dataclass
class Board:
    """Things by the squares of the plane that they lie in, so that only near ones are looked at."""

    cells: dict[tuple[int, int], list[Thing]] = field(default_factory=dict)

    def add_box(self, box: Box, cost: float, owner: str) -> None:
        self._add(Thing(cost, owner, box=box), box)

    def add_segment(self, a: Point, b: Point, cost: float, owner: str) -> None:
        for start, end in _pieces(a, b):
            self._add(Thing(cost, owner, segment=(start, end)), _around(start, end))

    def _add(self, thing: Thing, box: Box) -> None:
        for cell in _cells(box):
            there = self.cells.setdefault(cell, [])
            if thing.segment is None or len(there) < _CROWDED:
                there.append(thing)

    def _close(self, cells: Iterable[tuple[int, int]], spare: Collection[str]) -> Iterator[Thing]:
        seen = set()
        for cell in cells:
            for thing in self.cells.get(cell, ()):
                if thing.owner not in spare and id(thing) not in seen:
                    seen.add(id(thing))
                    yield thing

    def box_cost(self, box: Box, spare: Collection[str] = ()) -> float:
        """What it costs to put a box here; what belongs to those in `spare` costs nothing."""
        found = 0.0
        for thing in self._close(_cells(box), spare):
            met = thing.box is not None and thing.box.meets(box)
            if met or (thing.segment is not None and crosses_box(box, *thing.segment)):
                found += thing.cost
        return found

    def segment_cost(self, a: Point, b: Point, spare: Collection[str] = ()) -> float:
        """What it costs to draw a segment here."""
        found = 0.0
        cells = dict.fromkeys(cell for piece in _pieces(a, b) for cell in _cells(_around(*piece)))
        for thing in self._close(cells, spare):
            met = thing.box is not None and crosses_box(thing.box, a, b)
            if met or (thing.segment is not None and cross(a, b, *thing.segment)):
                found += thing.cost
        return found


def _around(a: Point, b: Point) -> Box:
    wide, high = ceil(abs(a[0] - b[0])) + 2, ceil(abs(a[1] - b[1])) + 2
    return Box(round((a[0] + b[0]) / 2), round((a[1] + b[1]) / 2), wide, high)


def _cells(box: Box) -> Iterator[tuple[int, int]]:
    left, top, right, bottom = (int(side // _CELL) for side in box.sides)
    return ((x, y) for x in range(left, right + 1) for y in range(top, bottom + 1))


def _pieces(a: Point, b: Point) -> Iterator[tuple[Point, Point]]:
    dx, dy = b[0] - a[0], b[1] - a[1]
    count = max(1, ceil(sqrt(dx * dx + dy * dy) / _CELL))
    for at in range(count):
        one, other = at / count, (at + 1) / count
        yield (a[0] + dx * one, a[1] + dy * one), (a[0] + dx * other, a[1] + dy * other)
