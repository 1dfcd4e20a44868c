"""The rooms of the package as an SVG picture: what imports from what, and the way that data walk.

Where a room stands is set here; the thin arrows are read from the imports. One leads from a room to a room that imports
from it. What follows from two thin arrows is left out, and so is a thin arrow beside a thick one.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import wrap

from rooms import Room, arrows, rooms

PLACES = {
    "ground": (0, 0),
    "declare": (0, 1),
    "graph": (1, 1),
    "draw": (3, 1),
    "plan": (1, 2),
    "program": (1, 3),
    "layer": (1, 4),
    "select": (2, 4),
    "timing": (0, 5),
    "training": (1, 5),
    "pruning": (2, 5),
    "compiler": (0, 6),
    "store": (1, 6),
    "ship": (2, 6),
    "fitting": (1, 7),
    "reporting": (3, 7),
    "bench": (0, 8),
    "experiments": (2, 8),
    "cli": (0, 9),
}
"""Column and row of each room."""
WIDE = ("ground", "cli")
"""Rooms that are as wide as the picture."""
TORCH_ROW = 4
"""The first row that may import torch."""

WALK = (
    ("declare", "graph", "Graph"),
    ("graph", "plan", "Graph"),
    ("plan", "program", "Step"),
    ("program", "layer", "Form, source"),
    ("layer", "training", "TNModule"),
    ("training", "pruning", "gates"),
    ("pruning", "graph", "Keep: a smaller Graph"),
)
"""The way that data walk: from a room to the next, with what is handed on."""

COLUMNS, MARGIN, TOP = 4, 16, 56
ROOM_WIDTH, ROOM_HEIGHT = 200, 78
GAP, PITCH = 48, 114
WIDE_HEIGHT = 52
SPACE = PITCH - ROOM_HEIGHT
LETTERS = 27
"""How many letters fit into a line of a room; into one of a wide room, four times as many."""
PORT = 88
"""How far from the middle of a room an arrow to another column leaves or arrives."""


@dataclass(frozen=True)
class Box:
    """A rectangle of the picture."""

    x: float
    y: float
    width: float
    height: float = ROOM_HEIGHT

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height


WIDTH = 2 * MARGIN + COLUMNS * ROOM_WIDTH + (COLUMNS - 1) * GAP
HEIGHT = TOP + max(row for _, row in PLACES.values()) * PITCH + WIDE_HEIGHT + MARGIN


def box(room: str) -> Box:
    """Where a room stands."""
    column, row = PLACES[room]
    x, y = MARGIN + column * (ROOM_WIDTH + GAP), TOP + row * PITCH
    if room in WIDE:
        return Box(x, y + (0 if row else ROOM_HEIGHT - WIDE_HEIGHT), WIDTH - 2 * MARGIN, WIDE_HEIGHT)
    return Box(x, y, ROOM_WIDTH)


def text() -> str:
    """The picture."""
    walked = {frozenset((start, end)) for start, end, _ in WALK}
    thin = [_line(*pair, "thin") for pair in _downward() if frozenset(pair) not in walked]
    thick = [_line(start, end, "walk") for start, end, _ in WALK]
    parts = [_style(), _heads(), f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="10"/>', *_legend()]
    parts += [*_torch_line(), *thin, *thick, *map(_drawn, rooms()), *(_label(*step) for step in WALK)]
    title = "The rooms of tnmars and the way that data walk through them"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="rooms" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        f' height="{HEIGHT}" role="img" aria-label="{title}">\n<title>{title}</title>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _downward() -> list[tuple[str, str]]:
    """The imports between rooms. Raises `LookupError` where one would lead up."""
    found = sorted(arrows())
    for start, end in found:
        if PLACES[start][1] > PLACES[end][1]:
            raise LookupError(
                f"'{end}' imports from '{start}', which stands below it: move it in {Path(__file__).name}"
            )
    return found


def _drawn(room: Room) -> str:
    at = box(room.name)
    torch = "torch" if PLACES[room.name][1] >= TORCH_ROW else "plain"
    lines = wrap(" ".join(room.modules), LETTERS * (COLUMNS if room.name in WIDE else 1))
    first = at.y + at.height / 2 - 8 * len(lines) + 4
    rows = [f'<rect class="room {torch}" x="{at.x:g}" y="{at.y:g}" width="{at.width:g}" height="{at.height}" rx="7"/>']
    rows.append(_text("name", at.middle, first, room.title))
    rows += [_text("modules", at.middle, first + 17 + 16 * row, line) for row, line in enumerate(lines)]
    return "\n".join(rows)


def _text(kind: str, x: float, y: float, words: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


def _line(start: str, end: str, kind: str) -> str:
    points = _points(start, end)
    path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path class="{kind}" d="{path}" marker-end="url(#{kind})"/>'


def _points(start: str, end: str) -> list[tuple[float, float]]:
    """The corners of an arrow: straight along a row or a column, else through the space between rows."""
    one, two = box(start), box(end)
    (column, row), (other, below) = PLACES[start], PLACES[end]
    if row > below:  # data alone walk up
        out, beside, level = one.y + ROOM_HEIGHT / 2, one.right + GAP / 2, two.y + ROOM_HEIGHT * 0.7
        return [(one.right, out), (beside, out), (beside, level), (two.right, level)]
    if row == below:
        level = one.y + ROOM_HEIGHT * (0.3 if abs(other - column) > 1 else 0.5)
        return [(one.right, level), (two.x, level)] if column < other else [(one.x, level), (two.right, level)]
    if column == other or start in WIDE or end in WIDE:
        x = two.middle if start in WIDE else one.middle
        return [(x, one.bottom), (x, two.y)]
    side = PORT if column < other else -PORT
    free = not any(at == other and row < between < below for at, between in PLACES.values())
    level = one.bottom + SPACE / 2 if free else two.y - SPACE / 2
    leave, arrive = one.middle + side, two.middle - side
    return [(leave, one.bottom), (leave, level), (arrive, level), (arrive, two.y)]


def _label(start: str, end: str, value: str) -> str:
    """What is handed on, beside the middle of its arrow."""
    points = _points(start, end)
    (x, y), (to_x, to_y) = points[len(points) // 2 - 1], points[len(points) // 2]
    if y == to_y:
        return _text("value over", (x + to_x) / 2, y - 7, value)
    lines = wrap(value, 14)
    top = (y + to_y) / 2 + 4 - 8 * (len(lines) - 1)
    return "\n".join(_text("value", x + 9, top + 16 * at, line) for at, line in enumerate(lines))


def _legend() -> list[str]:
    """The title, and what the arrows mean."""
    walk, thin = (
        "the way that data walk, with what is handed on",
        "to a room that imports from it; what follows from two is left out",
    )
    return [
        _text("title", MARGIN, 30, "The rooms of tnmars"),
        f'<path class="walk" d="M{MARGIN} 56 L{MARGIN + 38} 56" marker-end="url(#walk)"/>',
        _text("legend", MARGIN + 50, 60, walk),
        f'<path class="thin" d="M{WIDTH / 2:g} 56 L{WIDTH / 2 + 38:g} 56" marker-end="url(#thin)"/>',
        _text("legend", WIDTH / 2 + 50, 60, thin),
    ]


def _torch_line() -> list[str]:
    level = TOP + TORCH_ROW * PITCH - SPACE / 2
    return [
        f'<path class="border" d="M{MARGIN} {level:g} L{WIDTH - MARGIN} {level:g}"/>',
        _text("legend", MARGIN + ROOM_WIDTH / 2 + 14, level - 6, "no torch above this line"),
    ]


COLOURS = (
    (".page", "fill", "#ffffff", "#12161d"),
    (".room.plain", "fill", "#e6eefb", "#24354f"),
    (".room.plain", "stroke", "#2f5fa8", "#7fb0f5"),
    (".room.torch", "fill", "#fbeee3", "#46301f"),
    (".room.torch", "stroke", "#b4541a", "#ff9a57"),
    (".name,.title,.value", "fill", "#14213a", "#eef3fb"),
    (".modules,.legend", "fill", "#4a5565", "#b6c0cf"),
    (".value,.legend", "stroke", "#ffffff", "#12161d"),
    (".thin,.border", "stroke", "#8b95a3", "#7d899a"),
    (".thinhead", "fill", "#8b95a3", "#7d899a"),
    (".walk", "stroke", "#0a8560", "#3fcf9f"),
    (".walkhead", "fill", "#0a8560", "#3fcf9f"),
)
"""Of each kind of part what is coloured, on a light page and on a dark one."""

RULES = """\
.rooms text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;text-anchor:middle}
.rooms .title,.rooms .legend,.rooms .value{text-anchor:start}
.rooms .value.over{text-anchor:middle}
.rooms .title{font-size:18px;font-weight:700}
.rooms .name{font-size:15px;font-weight:600}
.rooms .modules{font-size:12px}
.rooms .legend{font-size:13px;stroke-width:4px;stroke-linejoin:round;paint-order:stroke}
.rooms .value{font-size:13px;font-weight:600;stroke-width:4px;stroke-linejoin:round;paint-order:stroke}
.rooms .room{stroke-width:1.4}
.rooms .thin{fill:none;stroke-width:1.3}
.rooms .walk{fill:none;stroke-width:3.2}
.rooms .border{fill:none;stroke-width:1.3;stroke-dasharray:7 5}"""


def _style() -> str:
    light = [_rule(names, f"{what}:{day}") for names, what, day, _ in COLOURS]
    dark = [_rule(names, f"{what}:{night}") for names, what, _, night in COLOURS]
    return "\n".join(("<style>", RULES, *light, "@media (prefers-color-scheme:dark){", *dark, "}", "</style>"))


def _rule(names: str, rule: str) -> str:
    return ",".join(f".rooms {name}" for name in names.split(",")) + "{" + rule + "}"


def _heads() -> str:
    """The heads of both kinds of arrow."""
    size = 'viewBox="0 0 10 10" refX="9" refY="5" markerUnits="userSpaceOnUse" orient="auto"'
    return "\n".join(
        f'<marker id="{kind}" {size} markerWidth="{width}" markerHeight="{width}">'
        f'<path class="{kind}head" d="M0 0 L10 5 L0 10 z"/></marker>'
        for kind, width in (("thin", 9), ("walk", 13))
    )
