"""A map of the package: every file with the first sentence of its docstring, room by room."""

from __future__ import annotations

from marks import page, table
from rooms import PACKAGE, Room, first_paragraph, in_order

INTRO = """\
Every file of the package and what it is for, from the docstrings of the modules.
[Architecture](../architecture.md) shows how the rooms fit together."""


def text() -> str:
    """The page."""
    single = [(f"`{room.label}`", room.meaning) for room in in_order() if not room.is_folder]
    top = "\n\n".join(("## The top level", table(("file", "what it is for"), single)))
    return page("# Every file", INTRO, top, *(_section(room) for room in in_order() if room.is_folder))


def _section(room: Room) -> str:
    rows = [(f"`{name}.py`", first_paragraph(PACKAGE / room.name / f"{name}.py")) for name in room.files]
    return "\n\n".join((f"## `{room.label}`", room.meaning, table(("file", "what it is for"), rows)))
