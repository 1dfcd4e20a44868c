"""The rooms of the package as an SVG picture: their files in rows, and the path that data take through them.

Where a group of rooms stands is set here; titles and files are read from the folders, and boxes are as tall as their
content. A room imports only from its own row and from rows above it: `text` raises where an import does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from textwrap import wrap

from rooms import Group, groups, uses

ROWS = (
    (("ground",),),
    (("declare",), ("graph",), ("plan", "draw"), ("program",)),
    (("select",), ("pruning", "decomposing"), ("training", "timing"), ("layer",)),
    (
        ("compiler", "models", "ship"),
        ("store", "interchange", "integrations"),
        ("fitting", "shrinking", "searching"),
        ("reporting",),
    ),
    (("experiments",), ("bench",), ("cli",)),
)
"""The rows of the picture. A row has columns, a column has groups one below the other; a single column is wide."""
TORCH_ROW = 2
"""The first row that may import torch."""

PATH = (
    ("declare", "graph", "Graph"),
    ("graph", "plan", "Graph"),
    ("plan", "program", "Step"),
    ("program", "layer", "Form"),
    ("layer", "training", "TNModule"),
    ("training", "pruning", "gates"),
    ("pruning", "graph", "Keep: a smaller Graph"),
)
"""The path of the data: from a group to the next, with the value that is passed on."""

COLUMNS, MARGIN, TOP = 4, 18, 66
WIDTH_OF_BOX, GAP, SPACE, STACKED = 190, 76, 46, 20
"""The width of a box, the gaps between columns and rows, and the one between boxes of a column, in pixels."""
HEAD, LINE, FOOT = 30, 17, 10
"""The heights of a title, of a line of text, and of the space below the last line."""
LETTERS = 24
"""How many letters fit into a line of a box."""
WIDTH = 2 * MARGIN + COLUMNS * WIDTH_OF_BOX + (COLUMNS - 1) * GAP


@dataclass(frozen=True)
class Box:
    """A rectangle of the picture."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height


def lines(group: Group, letters: int = LETTERS) -> list[tuple[str, str]]:
    """The lines below a group's title, each with its style: labels of rooms, and the files of folders."""
    labels = [room.label for room in group.rooms if not room.is_folder]
    found = [("label", line) for line in wrap("  ".join(labels), letters)]
    for room in group.rooms:
        if room.is_folder:
            found.append(("label", room.label))
            found += [("files", line) for line in wrap(" ".join(room.files), letters, break_on_hyphens=False)]
    return found


def _wide_lines(group: Group) -> list[tuple[str, str]]:
    """The same on one line, for a group that is as wide as the picture."""
    parts = [room.label + "".join(f" {name}" for name in room.files) for room in group.rooms]
    return [("label", "      ".join(parts))]


@cache
def boxes() -> dict[str, Box]:
    """Where each group stands. Raises `LookupError` for one without a place."""
    known = {group.name: group for group in groups()}
    placed = {name for row in ROWS for column in row for name in column}
    for name in known.keys() - placed:
        raise LookupError(f"'{name}' is new: give it a place in ROWS of {Path(__file__).name}")
    found: dict[str, Box] = {}
    y = float(TOP)
    for row in ROWS:
        bottom = y
        for at, column in enumerate(row):
            width = WIDTH - 2 * MARGIN if len(row) == 1 else WIDTH_OF_BOX
            top, x = y, MARGIN + at * (WIDTH_OF_BOX + GAP)
            for group in (known[name] for name in column if name in known):
                shown = _wide_lines(group) if len(row) == 1 else lines(group)
                found[group.name] = Box(x, top, width, HEAD + LINE * len(shown) + FOOT)
                bottom = max(bottom, found[group.name].bottom)
                top = found[group.name].bottom + STACKED
        y = bottom + SPACE
    return found


def row_of(group: str) -> int:
    """The number of a group's row."""
    return next(at for at, row in enumerate(ROWS) if any(group in column for column in row))


def _check() -> None:
    """Raises `LookupError` where a room imports from a row below its own."""
    group_of = {room.name: group.name for group in groups() for room in group.rooms}
    for room, others in uses().items():
        for other in others:
            if row_of(group_of[other]) > row_of(group_of[room]):
                fault = f"'{room}' imports from '{other}', which stands in a row below it"
                raise LookupError(f"{fault}: move it in {Path(__file__).name}")


def text() -> str:
    """The picture."""
    _check()
    height = max(box.bottom for box in boxes().values()) + MARGIN
    page = f'<rect class="page" width="{WIDTH}" height="{height:g}" rx="10"/>'
    arrows = [_arrow(*step) for step in PATH]
    labels = [_label(*step) for step in PATH]
    parts = [_style(), _head(), page, *_legend(), *_torch_line(), *map(_drawn, groups()), *arrows, *labels]
    title = "The rooms of tnmars and the path of the data"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="rooms" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}"'
        f' height="{height:g}" role="img" aria-label="{title}">\n<title>{title}</title>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _drawn(group: Group) -> str:
    at = boxes()[group.name]
    is_wide = at.width > WIDTH_OF_BOX
    kind = "torch" if row_of(group.name) >= TORCH_ROW else "plain"
    size = f'x="{at.x:g}" y="{at.y:g}" width="{at.width:g}" height="{at.height:g}"'
    parts = [f'<rect class="room {kind}" {size} rx="8"/>', _text("name", at.x + 12, at.y + 22, group.title)]
    for number, (style, line) in enumerate(_wide_lines(group) if is_wide else lines(group)):
        parts.append(_text(style, at.x + 12, at.y + HEAD + 12 + LINE * number, line))
    return "\n".join(parts)


def _text(kind: str, x: float, y: float, words: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" xml:space="preserve">{escape(words)}</text>'


def ends(start: str, end: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where an arrow begins and ends: between two columns near their tops, or between two rows in the middle."""
    one, two = boxes()[start], boxes()[end]
    if row_of(start) == row_of(end):
        level = one.y + HEAD
        return ((one.right, level), (two.x, level)) if one.x < two.x else ((one.x, level), (two.right, level))
    level = (one.bottom, two.y) if one.y < two.y else (one.y, two.bottom)
    return (one.middle, level[0]), (one.middle, level[1])


def _arrow(start: str, end: str, _: str) -> str:
    (x, y), (to_x, to_y) = ends(start, end)
    return f'<path class="walk" d="M{x:g} {y:g} L{to_x:g} {to_y:g}" marker-end="url(#walk)"/>'


def _label(start: str, end: str, value: str) -> str:
    """What is passed on: above an arrow along a row, beside one along a column."""
    (x, y), (to_x, to_y) = ends(start, end)
    if y == to_y:
        return _text("value over", (x + to_x) / 2, y - 8, value)
    rows = wrap(value, 14)
    top = (y + to_y) / 2 + 4 - 8 * (len(rows) - 1)
    return "\n".join(_text("value", x + 10, top + 16 * at, row) for at, row in enumerate(rows))


def _legend() -> list[str]:
    """The title, and what arrows and rows mean."""
    key = "the path of the data, with the value that is passed on"
    rule = "A room imports only from its own row and from rows above it."
    return [
        _text("title", MARGIN, 28, "The rooms of tnmars"),
        _text("legend", MARGIN, 50, rule),
        f'<path class="walk" d="M{WIDTH / 2 + 50:g} 46 L{WIDTH / 2 + 86:g} 46" marker-end="url(#walk)"/>',
        _text("legend", WIDTH / 2 + 96, 50, key),
    ]


def _torch_line() -> list[str]:
    above = max(box.bottom for name, box in boxes().items() if row_of(name) < TORCH_ROW)
    level = above + SPACE / 2
    return [
        f'<path class="border" d="M{MARGIN} {level:g} L{WIDTH - MARGIN} {level:g}"/>',
        _text("legend", MARGIN, level - 6, "no torch above this line"),
    ]


COLORS = (
    (".page", "fill", "#ffffff", "#12161d"),
    (".room.plain", "fill", "#e9f0fb", "#1e2c42"),
    (".room.plain", "stroke", "#2f5fa8", "#7fb0f5"),
    (".room.torch", "fill", "#fcf1e8", "#3a291c"),
    (".room.torch", "stroke", "#b4541a", "#ff9a57"),
    (".name,.title,.value", "fill", "#14213a", "#eef3fb"),
    (".label", "fill", "#1d4e96", "#a9ccff"),
    (".files,.legend", "fill", "#465162", "#bcc6d4"),
    (".value,.legend", "stroke", "#ffffff", "#12161d"),
    (".border", "stroke", "#8b95a3", "#7d899a"),
    (".walk", "stroke", "#0a8560", "#3fcf9f"),
    (".walkhead", "fill", "#0a8560", "#3fcf9f"),
)
"""For each kind of part: what is colored, and its colors on a light and on a dark page."""

RULES = """\
.rooms text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}
.rooms .value.over{text-anchor:middle}
.rooms .title{font-size:19px;font-weight:700}
.rooms .name{font-size:15px;font-weight:650}
.rooms .label{font-size:12.5px;font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}
.rooms .files{font-size:12.5px}
.rooms .legend{font-size:13px;stroke-width:4px;stroke-linejoin:round;paint-order:stroke}
.rooms .value{font-size:12.5px;font-weight:600;stroke-width:4px;stroke-linejoin:round;paint-order:stroke}
.rooms .room{stroke-width:1.3}
.rooms .walk{fill:none;stroke-width:3}
.rooms .border{fill:none;stroke-width:1.3;stroke-dasharray:7 5}"""


def _style() -> str:
    light = [_rule(names, f"{what}:{day}") for names, what, day, _ in COLORS]
    dark = [_rule(names, f"{what}:{night}") for names, what, _, night in COLORS]
    return "\n".join(("<style>", RULES, *light, "@media (prefers-color-scheme:dark){", *dark, "}", "</style>"))


def _rule(names: str, rule: str) -> str:
    return ",".join(f".rooms {name}" for name in names.split(",")) + "{" + rule + "}"


def _head() -> str:
    """The head of an arrow."""
    size = 'viewBox="0 0 10 10" refX="9" refY="5" markerUnits="userSpaceOnUse" orient="auto"'
    shape = '<path class="walkhead" d="M0 0 L10 5 L0 10 z"/>'
    return f'<marker id="walk" {size} markerWidth="13" markerHeight="13">{shape}</marker>'
