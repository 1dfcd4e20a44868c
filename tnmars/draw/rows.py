"""Paths, combs and rings in characters: cores in a row, their modes and leaves above and below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tnmars.draw.canvas import BOND, CORE, Canvas
from tnmars.draw.layout import UP_ROLES
from tnmars.draw.view import SHARED, Token, View

_CUT = "┄"


@dataclass(frozen=True)
class Column:
    """A core in a row, and above and below it groups of texts, nearest first, each on a line of its own."""

    name: str
    above: tuple[tuple[Token, ...], ...] = ()
    below: tuple[tuple[Token, ...], ...] = ()

    @property
    def left(self) -> int:
        """How many columns it needs to the left of its middle."""
        return max(len(self.name) // 2, *((len(text) - 1) // 2 for text in self._texts()), 0)

    @property
    def right(self) -> int:
        return max((len(self.name) - 1) // 2, *(len(text) // 2 for text in self._texts()), 0)

    def _texts(self) -> list[str]:
        return ["", *(text for group in (*self.above, *self.below) for text, _ in group)]


@dataclass(frozen=True)
class Link:
    """A line to the next core: its text, and the character it is drawn with."""

    text: str
    stroke: str = "─"


def path_rows(view: View, order: Sequence[int], width: int, leaves: bool = False) -> Canvas | None:
    """A path in as many rows as it takes, or, with `leaves`, a comb; None if a core is too wide for any row."""
    roles = {view.roles[mode] in UP_ROLES for modes in view.modes for mode in modes}
    columns = []
    for vertex in order:
        tags = view.tags(vertex)
        hanging = [other for other in view.web.near[vertex] if len(view.web.near[other]) == 1] if leaves else []
        up = [tag for tag in tags if leaves or (len(roles) > 1 and tag[1] in UP_ROLES)]
        below = [tuple(tag for tag in tags if tag not in up)]
        for leaf in hanging:
            below += [((view.between(vertex, leaf), BOND),), (view.token(leaf),), tuple(view.tags(leaf))]
        groups = (tuple(group) for group in below if group and group[0][0])
        columns.append(Column(view.name(vertex), (tuple(reversed(up)),) if up else (), tuple(groups)))
    links = [Link(view.between(a, b), view.stroke(a, b)) for a, b in pairwise(order)]
    sheet, top, start = Canvas(), 0, 0
    while start < len(columns):
        stop = _fitting(columns, links, start, width)
        if stop == start:
            return None
        row = _row(columns[start:stop], links[start:stop], start > 0)
        sheet.paste(row, top, 0)
        top += row.height + 1
        start = stop
    return sheet


def _fitting(columns: Sequence[Column], links: Sequence[Link], start: int, width: int) -> int:
    """How many columns, from `start`, fit into a row with the line that leads on from it."""
    stop = start
    for end in range(start + 1, len(columns) + 1):
        at = _middles(columns[start:end], links[start:end])
        rest = len(links[end - 1].text) + 5 if end < len(columns) else 0
        lead = 3 if start else 0
        name = (len(columns[end - 1].name) - 1) // 2
        if lead + at[-1] + max(columns[end - 1].right, name + rest) + 1 > width:
            break
        stop = end
    return stop


def _middles(columns: Sequence[Column], links: Sequence[Link]) -> list[int]:
    """Where the middle of each core stands, such that no names or texts touch."""
    found = [columns[0].left]
    for before, column, link in zip(columns, columns[1:], links, strict=False):
        names = (len(before.name) - 1) // 2 + len(column.name) // 2
        step = max(names + max(len(link.text), 1) + 3, before.right + column.left + 3)
        # As many dashes before a text as after it.
        found.append(found[-1] + step + (step - 1 - names - len(link.text)) % 2)
    return found


def _row(columns: Sequence[Column], links: Sequence[Link], goes_on: bool) -> Canvas:
    shift = max(0, 3 - (columns[0].left - len(columns[0].name) // 2)) if goes_on else 0
    at = [middle + shift for middle in _middles(columns, links)]
    found = Canvas()
    top = max(sum(1 + len(group) for group in column.above) for column in columns)
    _draw(found, top, columns, links, at)
    if goes_on:
        found.put(top, at[0] - len(columns[0].name) // 2 - 3, _CUT + "──", BOND)
    if len(links) == len(columns):
        right = at[-1] + (len(columns[-1].name) - 1) // 2 + 1
        link = links[-1]
        found.put(top, right, f"{link.stroke * 2}{link.text}{link.stroke * 2}{_CUT}", BOND)
    return found


def _draw(found: Canvas, row: int, columns: Sequence[Column], links: Sequence[Link], at: Sequence[int]) -> None:
    """Names, links and stacks on one line of cores."""
    for index, (column, middle) in enumerate(zip(columns, at, strict=True)):
        end = found.put(row, middle - len(column.name) // 2, column.name, CORE)
        if index + 1 < len(columns):
            room = at[index + 1] - len(columns[index + 1].name) // 2 - end
            found.put(row, end, links[index].text.center(room, "\0").replace("\0", links[index].stroke), BOND)
        for way, groups in ((-1, column.above), (1, column.below)):
            line = row
            for group in groups:
                line += way
                dotted = all(text.endswith(SHARED) for text, _ in group)
                found.put(line, middle, "┊" if dotted else "│", group[0][1] if group[0][1] != CORE else BOND)
                for text, style in group:
                    line += way
                    found.put(line, middle - (len(text) - 1) // 2, text, style)


def ring_rows(view: View, order: Sequence[int], width: int) -> Canvas | None:
    """A ring as a rectangle, half of its cores on either long side; None if it is too wide."""
    half = (len(order) + 1) // 2
    near, far = order[:half], list(order[: half - 1 : -1])
    upper = [Column(view.name(v), (tuple(view.tags(v)[::-1]),) if view.tags(v) else ()) for v in near]
    lower = [Column(view.name(v), (), (tuple(view.tags(v)),) if view.tags(v) else ()) for v in far]
    lower = [Column("└"), *lower, Column("┘")]
    around = [near[0], *far, near[-1]]
    links = [[Link(view.between(a, b), view.stroke(a, b)) for a, b in pairwise(turn)] for turn in (near, around)]
    rows = [_middles(upper, links[0]), _middles(lower, links[1])]
    left = max(row[0] for row in rows)
    span = max(row[-1] - row[0] for row in rows)
    rows = [_stretched([left + middle - row[0] for middle in row], left + span) for row in rows]
    sheet = Canvas()
    top = max(sum(1 + len(group) for group in column.above) for column in upper)
    _draw(sheet, top, upper, links[0], rows[0])
    _draw(sheet, top + 2, lower, links[1], rows[1])
    for column, corner in ((left, "└"), (left + span, "┘")):
        sheet.put(top + 1, column, "│", BOND)
        sheet.put(top + 2, column, corner, BOND)
    return sheet if sheet.width <= width else None


def _stretched(at: Sequence[int], last: int) -> list[int]:
    """The places with the room up to `last` distributed evenly between them."""
    gaps, more = len(at) - 1, last - at[-1]
    return [middle + more * index // gaps for index, middle in enumerate(at)]
