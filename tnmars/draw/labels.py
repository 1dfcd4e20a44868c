"""Places for the labels of bonds, dots and legs: of several candidates, the one that covers least.

Each function puts what it has placed on the board, so that the next one keeps clear of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import cos, pi, sin, sqrt

from tnmars.draw.place import Board, Box
from tnmars.draw.shapes import Pixel
from tnmars.draw.stress import Point
from tnmars.draw.text import shorten, text_width
from tnmars.graph.parts import Core

CORE_HIGH, CORE_FONT, LABEL_FONT, DOT_RADIUS = 40, 14, 12, 5
LONGEST_NAME = 18
ON_CORE, ON_DOT, ON_LABEL, ON_LINE = 1e7, 300.0, 60.0, 8.0
"""What it costs to cover something: a core more than everything else together."""
_LABEL_HIGH, _GAP = 16, 4
_ALONG = ((0.5, 0.0), (0.44, 0.3), (0.56, 0.3), (0.37, 0.6), (0.63, 0.6), (0.3, 1.0), (0.7, 1.0), (0.24, 1.6))
_LEG_LENGTHS = ((22, 0.0), (30, 0.5), (40, 1.0), (52, 1.8), (68, 2.6))
_LEG_TURNS = ((0, 0.0), (8, 0.6), (-8, 0.6), (16, 1.2), (-16, 1.2), (28, 2.4), (-28, 2.4))


@dataclass(frozen=True)
class Label:
    """The name and the size of an edge, as shown, in a box."""

    name: str
    size: str
    box: Box


@dataclass(frozen=True)
class Stroke:
    """A line of a bond: from, to, and the control point of a quadratic curve if it is bowed."""

    bond: str
    start: Pixel
    end: Pixel
    control: Pixel | None = None

    def at(self, along: float) -> Point:
        back = 1 - along
        if self.control is None:
            return self.start[0] * back + self.end[0] * along, self.start[1] * back + self.end[1] * along
        x, y = (
            back * back * self.start[k] + 2 * back * along * self.control[k] + along * along * self.end[k]
            for k in (0, 1)
        )
        return x, y

    def points(self) -> list[Point]:
        return [self.at(step / 8) for step in range(9)] if self.control else [self.start, self.end]


@dataclass(frozen=True)
class Leg:
    """The open end of a mode at a core."""

    core: str
    mode: str
    start: Pixel
    end: Pixel
    label: Label


def core_label(core: Core) -> str:
    """The name of a core as shown, with a star for a conjugate, and with the core whose tensor it is.

    >>> core_label(Core("A", ("i",))), core_label(Core("B", ("j",), tied="A", conj=True))
    ('A', 'B* = A')
    """
    shown = shorten(core.name, LONGEST_NAME) + "*" * core.conj
    return f"{shown} = {shorten(core.tied, LONGEST_NAME)}" if core.tied else shown


def _label(name: str, size: int) -> Label:
    """A label that is not yet placed."""
    shown, number = shorten(name, LONGEST_NAME), f"{size:,}"
    return Label(shown, number, Box(0, 0, text_width(f"{shown} {number}", LABEL_FONT), _LABEL_HIGH))


def _cheapest(
    board: Board, label: Label, owner: str, places: Iterable[tuple[Point, float]], clear: int = 2
) -> tuple[Label, float]:
    """The label at the cheapest place, and the cost of what it covers there; `clear` pixels around it count too."""
    best, best_cost, overlap = label, -1.0, 0.0
    for (x, y), extra in places:
        if 0 <= best_cost <= extra:
            continue
        box = Box(round(x), round(y), label.box.wide, label.box.high)
        cost = board.box_cost(box.grown(clear), (owner,))
        if best_cost < 0 or cost + extra < best_cost:
            best, best_cost, overlap = Label(label.name, label.size, box), cost + extra, cost
    board.add_box(best.box.grown(2), ON_LABEL, f"label of {owner}")
    return best, overlap


def place_bond(
    board: Board, stroke: Stroke, size: int, width: float, middle: Point | None, tries: int
) -> tuple[Label, float]:
    """The label of a bond beside its line, away from `middle` if possible, else above; and what it covers."""
    label = _label(stroke.bond, size)
    places = _beside(stroke, label.box, _GAP + max(0.0, width / 2 - 1.5), middle, tries)
    return _cheapest(board, label, f"bond {stroke.bond}", places)


def _beside(stroke: Stroke, box: Box, gap: float, middle: Point | None, tries: int) -> Iterator[tuple[Point, float]]:
    for along, extra in _ALONG[:tries]:
        x, y = stroke.at(along)
        (x0, y0), (x1, y1) = stroke.at(along - 0.05), stroke.at(along + 0.05)
        length = max(1e-6, sqrt((x1 - x0) ** 2 + (y1 - y0) ** 2))
        nx, ny = (y1 - y0) / length, -(x1 - x0) / length
        if stroke.control is not None:
            straight = (stroke.start[0] + stroke.end[0]) / 2, (stroke.start[1] + stroke.end[1]) / 2
            away = nx * (stroke.control[0] - straight[0]) + ny * (stroke.control[1] - straight[1])
        else:
            away = nx * (x - middle[0]) + ny * (y - middle[1]) if middle is not None else 0.0
        if away < -1 or (abs(away) <= 1 and (ny > 1e-6 or (abs(ny) <= 1e-6 and nx < 0))):
            nx, ny = -nx, -ny
        off = box.beyond(nx, ny) + gap
        yield (x + nx * off, y + ny * off), extra
        yield (x - nx * off, y - ny * off), extra + 0.8
        yield (x, y), extra + 4.0


def place_dot(board: Board, bond: str, size: int, width: float, at: Pixel) -> tuple[Label, float]:
    """The label of a hyperedge near its dot, and what it covers."""
    label = _label(bond, size)
    places = []
    for far in (0, 8, 18, 30):
        for turn in range(24):
            angle = -pi / 4 + pi * turn / 12
            off = label.box.beyond(cos(angle), sin(angle)) + max(DOT_RADIUS, width / 2) + 2 + far
            places.append(((at[0] + off * cos(angle), at[1] + off * sin(angle)), far / 10))
    # Its own lines are in the way here: the label stands between them.
    return _cheapest(board, label, "", places, 1 + round(max(1.0, width / 2)))


def place_leg(board: Board, box: Box, core: str, mode: str, size: int, direction: Point) -> tuple[Leg, float]:
    """The leg of a mode with its label at the tip, and what both cover."""
    label, owner = _label(mode, size), f"core {core}"
    best: Leg | None = None
    best_cost = overlap = 0.0
    for degrees, turn_cost in _LEG_TURNS:
        turn = degrees * pi / 180
        dx = direction[0] * cos(turn) - direction[1] * sin(turn)
        dy = direction[0] * sin(turn) + direction[1] * cos(turn)
        for length, length_cost in _LEG_LENGTHS:
            extra = turn_cost + length_cost
            if best is not None and best_cost <= extra:
                continue
            far = box.exit(dx, dy) if box.wide > box.high else box.high / 2
            end = round(box.x + dx * (far + length)), round(box.y + dy * (far + length))
            off = label.box.beyond(dx, dy) + _GAP - 1 + 3 * abs(dx)
            spot = Box(round(end[0] + dx * off), round(end[1] + dy * off), label.box.wide, label.box.high)
            cost = board.box_cost(spot) + board.segment_cost((box.x, box.y), end, (owner,))
            if best is None or cost + extra < best_cost:
                best_cost, overlap = cost + extra, cost
                best = Leg(core, mode, (box.x, box.y), end, Label(label.name, label.size, spot))
    assert best is not None
    board.add_box(best.label.box.grown(2), ON_LABEL, f"leg {core} {mode}")
    board.add_segment(best.start, best.end, ON_LINE, f"leg {core} {mode}")
    return best, overlap
