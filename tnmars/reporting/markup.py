"""Small pieces of HTML. Text is escaped here, wherever it comes from; what is already markup is of type `Html`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NewType

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
    told = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items())
    return Html(f"<{name}{told}>{''.join(inner)}</{name}>")


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
    """A whole number with separators; very large ones as a power of two.

    >>> number(23100), number(2**80), number(None)
    ('23,100', 'about 2^80', '–')
    """
    if value is None:
        return "–"
    bits = value.bit_length()
    return f"{value:,}" if bits < 64 else f"about 2^{bits - 1}"


def brief(value: int) -> str:
    """A whole number in a few digits.

    >>> brief(23100), brief(73_080_000), brief(2**80)
    ('23,100', '73.1 M', 'about 2^80')
    """
    for power, unit in ((10**9, "G"), (10**6, "M")):
        if 1000 * power > value >= power:
            return f"{value / power:.1f} {unit}"
    return number(value)


def size(count: int) -> str:
    """Bytes.

    >>> size(400), size(93_400), size(4_000_000_000)
    ('400 B', '93.4 kB', '4.0 GB')
    """
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} TB"


def duration(seconds: float | None) -> str:
    """A time.

    >>> duration(None), duration(3.21e-5), duration(0.0214), duration(3)
    ('–', '32.1 µs', '21.4 ms', '3.00 s')
    """
    if seconds is None:
        return "–"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def ratio(before: float | None, after: float | None) -> str:
    """How many times smaller the second is.

    >>> ratio(12, 4), ratio(4, 12), ratio(None, 1), ratio(0, 0), ratio(3, 0)
    ('3.00×', '0.33×', '–', '–', '∞')
    """
    if before is None or after is None or (not before and not after):
        return "–"
    if not after:
        return "∞"
    try:
        found = before / after
    except OverflowError:
        return "over 1e308×"
    return f"{found:,.0f}×" if 100 <= found < 1e9 else f"{found:.2e}×" if found >= 1e9 else f"{found:.2f}×"


def change(before: float, after: float, less: str, more: str) -> str:
    """How the second compares with the first, in words: `less` where it is smaller.

    >>> change(12, 4, "fewer", "more"), change(4, 12, "faster", "slower"), change(7, 7, "fewer", "more")
    ('3.00× fewer', '3.00× slower', 'as before')
    """
    if before == after:
        return "as before"
    return f"{ratio(before, after)} {less}" if after < before else f"{ratio(after, before)} {more}"
