"""The page on the architecture with its table of rooms rewritten from the folders; the rest of it is kept."""

from __future__ import annotations

from pathlib import Path

from marks import code, codes, table
from rooms import ORDER, Room, in_order, uses

PAGE = Path(__file__).parent.parent / "architecture.md"
BEGIN, END = "<!-- rooms, made by `python docs/generate` -->\n", "<!-- end of rooms -->\n"
HEAD = ("room", "what it holds", "imports from")


def text() -> str:
    """The whole page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table(HEAD, map(_row, in_order())) + "\n" + END + after


def _row(room: Room) -> tuple[str, str, str]:
    above = [name for name in ORDER if name in uses()[room.name]]
    return code(room.label), room.meaning, codes(above) or "nothing"
