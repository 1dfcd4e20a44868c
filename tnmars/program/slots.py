"""Straight-line code and the memory of its values: who reads what, who shares memory, and which buffers are reused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*")


@dataclass(frozen=True)
class Line:
    """One assignment; without a name, a statement."""

    out: str
    text: str
    into: str = ""
    """How the value is written into a given tensor, `{}`; empty if it cannot be."""
    shape: tuple[str, ...] = ()
    """The length of each axis of such a tensor, as source."""
    entries: int = 0
    """The number of its entries, at the lengths that the program was made for."""
    view_of: str = ""
    """The value whose memory it may share."""


@dataclass
class Slots:
    """Buffers that are kept, and the values that are written into them."""

    room: int
    """The most entries of all buffers together."""
    entries: list[int] = field(default_factory=list)
    """The largest number of entries that each buffer holds."""
    views: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    """For each value, its buffer and its shape, as source."""

    def fit(self, free: list[int], count: int) -> int | None:
        """The free buffer whose size is nearest, or a new one; None if there is no room."""
        slot = min(free, key=lambda at: abs(self.entries[at] - count), default=len(self.entries))
        have = self.entries[slot] if slot < len(self.entries) else 0
        if sum(self.entries) + max(count - have, 0) > self.room:
            return None
        self.entries[slot:] = [max(have, count), *self.entries[slot + 1 :]]
        return slot


def read_by(text: str) -> list[str]:
    """The names in an expression that are not attributes.

    >>> read_by("torch.mm(v1, x0.t(), out=v2)")
    ['torch', 'v1', 'x0', 'out', 'v2']
    """
    return _NAME.findall(text)


def home_of(lines: Sequence[Line]) -> dict[str, str]:
    """For each value, the one whose memory it may lie in; arguments are their own."""
    homes: dict[str, str] = {}
    for line in lines:
        homes[line.out] = homes.get(line.view_of, line.view_of) if line.view_of else line.out
    return homes


def assign(lines: Sequence[Line], given: Sequence[str], leaving: set[str], slots: Slots, large: int) -> list[str]:
    """The lines as source: each value is deleted after its last use, and those of `large` entries go to buffers.

    `given` are other values to delete. A value that leaves the function, or whose memory one that leaves may share, has
    no buffer. A buffer is used again once nothing reads its value any more.
    """
    homes = home_of(lines)
    outside = {homes.get(name, name) for name in leaving}
    last: dict[str, int] = {}
    for at, line in enumerate(lines):
        for name in read_by(line.text):
            last[name] = at
    ends: dict[str, int] = {}  # of memory
    for name, home in homes.items():
        ends[home] = max(ends.get(home, -1), last.get(name, -1))
    local = {*given, *homes} - leaving
    busy: dict[int, int] = {}  # the end of what a buffer holds
    source: list[str] = []
    for at, line in enumerate(lines):
        slot = None
        if line.into and line.entries >= large and line.out not in outside and homes[line.out] == line.out:
            free = [slot for slot in range(len(slots.entries)) if busy.get(slot, -1) < at]
            slot = slots.fit(free, line.entries)
        if slot is None:
            source.append(f"{line.out} = {line.text}" if line.out else line.text)
        else:
            busy[slot] = ends[line.out]
            name = f"kept[{len(slots.views)}]"
            slots.views.append((slot, line.shape))
            source += [line.into.format(name), f"{line.out} = {name}"]
        done = [name for name in dict.fromkeys(read_by(line.text)) if last[name] == at and name in local]
        source += [f"del {', '.join(done)}"] if done else []
    return source
