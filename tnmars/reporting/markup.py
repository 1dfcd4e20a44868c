"""Small pieces of HTML. Text is escaped here, wherever it comes from; markup has the type `Html`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NewType

from tnmars.text import numbers

Html = NewType("Html", str)

FEW = 24
"""A table with at most this many rows fits on a sheet of paper."""


def text(value: object) -> Html:
    """Any text, escaped."""
    return Html(escape(str(value)))


def tag(name: str, *inner: Html, **attributes: object) -> Html:
    """An element. `class_` is written `class`, other underscores become hyphens.

    >>> tag("td", text("<b>"), class_="number", data_key='"r"')
    '<td class="number" data-key="&quot;r&quot;">&lt;b&gt;</td>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items()
    )
    return Html(f"<{name}{written}>{''.join(inner)}</{name}>")


def join(pieces: Iterable[Html]) -> Html:
    return Html("\n".join(pieces))


@dataclass(frozen=True)
class Row:
    """A row of a table; the first cell is its head."""

    cells: tuple[Html, ...]
    attributes: Mapping[str, object]


def row(cells: Sequence[Html], **attributes: object) -> Row:
    """A row of a table, with the attributes of its element."""
    return Row(tuple(cells), attributes)


def table(heads: Sequence[str], rows: Iterable[Row], caption: str = "", *, stacks: bool = True) -> Html:
    """A table; all columns but the first hold numbers.

    On a narrow screen the cells of a row stand below each other, each with its head, or with `stacks=False` the table
    scrolls by itself. One with few rows is not broken across printed pages.
    """
    lines = [_line(heads, line) for line in rows]
    first = tag("tr", *(tag("th", text(head), scope="col") for head in heads))
    title = tag("caption", text(caption)) if caption else Html("")
    inner = tag("table", title, tag("thead", first), tag("tbody", join(lines)))
    kind = f"scroll{' short' if len(lines) <= FEW else ''}{' stacks' if stacks else ''}"
    return tag("div", inner, class_=kind, tabindex="0", role="region", aria_label=caption or ", ".join(heads))


def _line(heads: Sequence[str], line: Row) -> Html:
    first, *rest = line.cells
    cells = (tag("td", cell, data_head=head) for head, cell in zip(heads[1:], rest, strict=True))
    return tag("tr", tag("th", first, scope="row"), *cells, **line.attributes)


def number(value: int | None) -> str:
    """An integer with separators; an unknown one is a dash.

    >>> number(23100), number(None)
    ('23,100', '–')
    """
    return numbers.typographic(numbers.number(value))


def duration(seconds: float | None) -> str:
    """A time in three digits.

    >>> duration(3.21e-5), duration(None)
    ('32.1 µs', '–')
    """
    return numbers.typographic(numbers.duration(seconds))


def ratio(before: float | None, after: float | None) -> str:
    """How many times smaller the second is.

    >>> ratio(12, 4), ratio(None, 1), ratio(3, 0)
    ('3.00×', '–', '∞')
    """
    return numbers.typographic(numbers.ratio(before, after))


def change(before: float, after: float, less: str, more: str) -> str:
    """How the second compares with the first, in words: `less` if it is smaller.

    >>> change(12, 4, "fewer", "more"), change(4, 12, "faster", "slower"), change(7, 7, "fewer", "more")
    ('3.00× fewer', '3.00× slower', 'as before')
    """
    factor, _, word = numbers.change(before, after, less, more).rpartition(" ")
    return f"{numbers.typographic(factor)} {word}"
