"""Contraction trees as values. A tree may be as deep as a graph has cores, so nothing here recurses."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, eq=False)
class Pair:
    """Two trees whose results are contracted. Equal pairs have equal parts; comparing them does not recurse."""

    left: Tree
    right: Tree
    members: int = field(init=False)
    """The leaves below, as bits."""
    has_rows: bool = field(init=False)
    """Whether rows are taken from a table somewhere below."""
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        parts = (self.left, self.right)
        object.__setattr__(self, "members", members(self.left) | members(self.right))
        object.__setattr__(self, "has_rows", any(not isinstance(part, int) and part.has_rows for part in parts))
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pair):
            return NotImplemented
        todo: list[tuple[Tree, Tree]] = [(self, other)]
        while todo:
            one, two = todo.pop()
            if one is two:
                continue
            if isinstance(one, Rows) and isinstance(two, Rows):
                todo.append((one.part, two.part))
            elif isinstance(one, Pair) and isinstance(two, Pair):
                if one._hash != two._hash or one.members != two.members:
                    return False
                todo += [(one.left, two.left), (one.right, two.right)]
            elif not isinstance(one, int) or one != two:
                return False
        return True


@dataclass(frozen=True)
class Rows:
    """A part of a tree whose looked-up modes are replaced by the tokens: rows taken from a table."""

    part: Tree
    has_rows = True

    @property
    def members(self) -> int:
        return members(self.part)


Tree = int | Pair | Rows
"""The position of a leaf, or what is made of several."""


def members(tree: Tree) -> int:
    """The leaves below a tree, as bits.

    >>> members(Pair(0, 2))
    5
    """
    return 1 << tree if isinstance(tree, int) else tree.members


def leaves_of(tree: Tree) -> frozenset[int]:
    """The leaves below a tree."""
    return frozenset(members_of(members(tree)))


def inside_out(tree: Tree, known: Container[Tree]) -> Iterator[Tree]:
    """The parts of a tree, each after its own parts and the tree itself last; what is known is left out.

    >>> [members(part) for part in inside_out(Pair(Pair(0, 1), 2), known=[0])]
    [2, 3, 4, 7]
    """
    todo: list[tuple[Tree, bool]] = [(tree, False)]
    while todo:
        part, is_open = todo.pop()
        if is_open or isinstance(part, int):
            yield part
        elif part not in known:
            todo.append((part, True))
            inner = (part.part,) if isinstance(part, Rows) else (part.right, part.left)
            todo += [(one, False) for one in inner if one not in known]


def bits(numbers: Iterable[int]) -> int:
    """A set of small numbers, as the bits of one.

    >>> bits([0, 2])
    5
    """
    found = 0
    for number in numbers:
        found |= 1 << number
    return found


def members_of(found: int) -> Iterator[int]:
    """The numbers whose bits are set.

    >>> list(members_of(5))
    [0, 2]
    """
    while found:
        lowest = found & -found
        yield lowest.bit_length() - 1
        found ^= lowest
