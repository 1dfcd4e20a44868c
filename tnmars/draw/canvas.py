"""A sheet of characters that grows as it is written on, each with a style. Nothing here knows about graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from unicodedata import east_asian_width

from tnmars.graph.kinds import Role

CORE, BOND, PLAIN = "core", "bond", ""

_CODES = {
    CORE: "1",
    BOND: "2",
    str(Role.GROUP): "31",
    str(Role.IN): "34",
    str(Role.LOOKUP): "35",
    str(Role.PATCH): "36",
    str(Role.KERNEL): "32",
    str(Role.OUT): "33",
    str(Role.FREE): "36",
}


@dataclass
class Canvas:
    """Characters by row and column; a wide one leaves the next column empty."""

    cells: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)

    def put(self, row: int, column: int, text: str, style: str = PLAIN) -> int:
        """Writes a text and returns the column after it."""
        for char in text:
            self.cells[row, column] = (char, style)
            column += 1
            if east_asian_width(char) in "WF":
                self.cells[row, column] = ("", style)
                column += 1
        return column

    def paste(self, other: Canvas, row: int, column: int) -> None:
        """Writes another sheet onto this one, its first cell at a place."""
        for (down, right), cell in other.cells.items():
            self.cells[row + down, column + right] = cell

    def cropped(self) -> Canvas:
        """The sheet without empty rows above and empty columns to the left."""
        top, left = (min((place[k] for place in self.cells), default=0) for k in (0, 1))
        return Canvas({(row - top, column - left): cell for (row, column), cell in self.cells.items()})

    @property
    def width(self) -> int:
        return 1 + max((column for _, column in self.cells), default=-1)

    @property
    def height(self) -> int:
        return 1 + max((row for row, _ in self.cells), default=-1)

    def render(self, colour: bool) -> str:
        """The lines without blanks at their ends; with `colour`, ANSI codes around each run of one style."""
        rows: list[dict[int, tuple[str, str]]] = [{} for _ in range(self.height)]
        for (row, column), cell in self.cells.items():
            rows[row][column] = cell
        return "\n".join(_line(row, colour) for row in rows)


def _line(cells: dict[int, tuple[str, str]], colour: bool) -> str:
    found, now = "", PLAIN
    for column in range(1 + max((at for at, (char, _) in cells.items() if char.strip()), default=-1)):
        char, style = cells.get(column, (" ", PLAIN))
        if colour and style != now:
            found += "\x1b[0m" * (now != PLAIN) + (f"\x1b[{_CODES[style]}m" if style != PLAIN else "")
            now = style
        found += char
    return found + ("\x1b[0m" if now != PLAIN else "")


def beside(blocks: Sequence[Canvas], width: int, gap: int = 4) -> Canvas:
    """The blocks in rows, as many to a row as the width allows."""
    found, top, left, high = Canvas(), 0, 0, 0
    for block in blocks:
        if left and left + block.width > width:
            top, left, high = top + high + 1, 0, 0
        found.paste(block, top, left)
        left, high = left + block.width + gap, max(high, block.height)
    return found
