"""Straight-line code and the memory of its values: who reads what, who shares memory, and which buffers are reused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

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

    entries: list[int] = field(default_factory=list)
    """The largest number of entries that each buffer holds."""
    views: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    """For each value, its buffer and its shape, as source."""


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
    homes, outside = _apart(lines, leaving, large)
    last: dict[str, int] = {}
    for at, line in enumerate(lines):
        for name in read_by(line.text):
            last[name] = at
    ends: dict[str, int] = {}  # of memory
    for name, home in homes.items():
        ends[home] = max(ends.get(home, -1), last.get(name, -1))
    local = {*given, *homes} - leaving
    free = list(range(len(slots.entries)))
    busy: list[tuple[int, int]] = []  # end and buffer
    source: list[str] = []
    for at, line in enumerate(lines):
        is_own = line.out not in outside and homes[line.out] == line.out
        if is_own and line.into and line.entries >= large:
            free += [slot for end, slot in busy if end < at]
            busy = [(end, slot) for end, slot in busy if end >= at]
            slot = _fit(free, slots.entries, line.entries)
            busy.append((ends[line.out], slot))
            name = f"kept[{len(slots.views)}]"
            slots.views.append((slot, line.shape))
            source += [line.into.format(name), f"{line.out} = {name}"]
        else:
            source.append(f"{line.out} = {line.text}" if line.out else line.text)
        done = [name for name in dict.fromkeys(read_by(line.text)) if last[name] == at and name in local]
        source += [f"del {', '.join(done)}"] if done else []
    return source


def _apart(lines: Sequence[Line], leaving: set[str], large: int) -> tuple[dict[str, str], set[str]]:
    """The memory of each value, and the memory that leaves. What is copied into a buffer shares none."""
    copied = {line.out for line in lines if line.view_of and line.into and line.entries >= large}
    while True:
        homes = home_of([replace(line, view_of="") if line.out in copied else line for line in lines])
        outside = {homes.get(name, name) for name in leaving}
        if not copied & outside:
            return homes, outside
        copied -= outside


def _fit(free: list[int], entries: list[int], count: int) -> int:
    """The free buffer whose size is nearest; a new one if there is none."""
    if not free:
        entries.append(count)
        return len(entries) - 1
    slot = min(free, key=lambda at: abs(entries[at] - count))
    free.remove(slot)
    entries[slot] = max(entries[slot], count)
    return slot
