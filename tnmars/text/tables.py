"""Rows of text as a table: padded columns for a terminal, or Markdown."""

from __future__ import annotations

from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def aligned(rows: Rows, alignment: str = "") -> list[str]:
    """One line per row, columns padded and two spaces apart.

    `alignment` has one character per column, `<` or `>`; the last one applies to all further columns. If it is empty,
    columns are aligned left.

    >>> print("\\n".join(aligned([["bond", "size"], ["r1", "4"], ["r10", "1,024"]], "<>")))
    bond   size
    r1        4
    r10   1,024
    """
    widths = _widths(rows)
    sides = [(alignment or "<")[min(at, max(len(alignment), 1) - 1)] for at in range(len(widths))]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]


def markdown(rows: Rows, *, padded: bool = False) -> str:
    """A Markdown table; the first row is its head. Padded, it also reads well as plain text.

    >>> print(markdown([["figure", "target"], ["error", "at most 1|2"]]))
    | figure | target |
    | --- | --- |
    | error | at most 1\\|2 |
    """
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = _widths(cells) if padded else [0] * len(cells[0])
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) if padded else " --- " for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _widths(rows: Rows) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]
