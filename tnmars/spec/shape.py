"""What a walk over a spec file notes, and what every shape has: a way to read a node and its own JSON Schema.

A shape that finds a problem reports it and returns the best stand-in it has, so that reading continues and every
problem of a file is found in one run. The shapes themselves are in `scalars` and `grammar`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from tnmars.errors import Path, Place, Problem, closest
from tnmars.spec.nodes import Broken, Items, Node, Scalar, Table, shorten

Schema = dict[str, Any]

KEY_CUTOFF = 0.65
"""How similar a key must be to a known one to count as a misspelling, from 0 to 1."""
MAX_HINTS = 100
"""The number of problems of a file for which the intended name is searched: the search is slow."""

WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,99})")
DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_CONSTANTS = {"true": True, "false": False, "null": None, "~": None, "": None}
_CONSTANTS.update({word.title(): value for word, value in _CONSTANTS.items()})
_CONSTANTS.update({word.upper(): value for word, value in _CONSTANTS.items()})


class Bad:
    """Returned where nothing usable could be read."""


BAD = Bad()


@dataclass(eq=False, repr=False)
class Reading:
    """What a walk over the tree has found so far.

    `lost` and `guessed` keep one mistake from being reported twice: a rule that fails because of something that could
    not be read is not reported, see `tnmars.spec.consequences`.
    """

    params: Mapping[str, int] = field(default_factory=dict)
    params_lost: bool = False
    """Whether a parameter may have been declared that could not be read."""
    used: set[str] = field(default_factory=set)
    places: dict[Path, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    lost: set[Path] = field(default_factory=set)
    """Paths of names, or of parts with names in them, that could not be read."""
    guessed: set[Path] = field(default_factory=set)
    """Paths of numbers that could not be read; 1 stands in for each."""

    def report(self, node: Node, path: Path, text: str, hint: str = "") -> None:
        self.problems.append(Problem(text, hint, path, node.place))

    def lose(self, node: Node, path: Path, text: str, hint: str = "") -> Bad:
        """Reports a problem with a value that nothing can stand in for."""
        self.report(node, path, text, hint)
        self.lost.add(path)
        return BAD

    def lose_gaps(self, table: Table, path: Path) -> None:
        """Notes what is missing because an entry was refused, and has been reported, before."""
        self.lost.update((*path, key) if key else path for key in table.gaps)

    def guess(self, node: Node, path: Path, text: str, hint: str = "") -> int:
        """Reports a problem with a number; 1 stands in for it."""
        self.report(node, path, text, hint)
        self.guessed.add(path)
        return 1

    def no_parameter(self, node: Node) -> str:
        """The hint for a parameter in a place where none is allowed, or an empty text. It then counts as used."""
        if not isinstance(node, Scalar) or node.text not in self.params:
            return ""
        self.used.add(node.text)
        return "Parameters stand for sizes only: write the value itself."

    def meant(self, name: str, known: Iterable[str]) -> str:
        """The known name that `name` may misspell, or an empty text."""
        return closest(name, known, KEY_CUTOFF) if len(self.problems) < MAX_HINTS else ""


def did_you_mean(name: str) -> str:
    return f" Did you mean '{name}'?" if name else ""


def constant(node: Node) -> object:
    """The value of a scalar under the strict reading: whole number, decimal, true, false, null, or its own text.

    Only what JSON would write as a number is one: `010`, `1_000`, `0x10` and `12:30` are text.
    """
    assert isinstance(node, Scalar)
    if not node.plain:
        return node.text
    if node.text in _CONSTANTS:
        return _CONSTANTS[node.text]
    if WHOLE.fullmatch(node.text):
        return int(node.text)
    if DECIMAL.fullmatch(node.text) and isfinite(float(node.text)):
        return float(node.text)
    return node.text


def describe(node: Node) -> str:
    """A node in words."""
    if isinstance(node, Items):
        return "a list"
    if isinstance(node, Table):
        return "a table"
    assert isinstance(node, Scalar)
    if not node.plain:
        return f"the quoted text '{shorten(node.text)}'"
    return f"'{shorten(node.text)}'" if node.text else "nothing"


class Shape:
    """What may stand at a place."""

    @property
    def example(self) -> str:
        """What to write, for hints."""
        raise NotImplementedError  # only for shapes that a hint may show

    def read(self, node: Node, path: Path, into: Reading) -> Any:
        """The value at a node, or `BAD`; notes places and problems on the way."""
        if isinstance(node, Broken):
            into.lost.add(path)
            return BAD
        into.places.setdefault(path, node.place)
        return self._read(node, path, into)

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        raise NotImplementedError  # every shape has its own

    def schema(self) -> Schema:
        raise NotImplementedError  # every shape has its own


def label(path: Path) -> str:
    """What messages call the value at a path.

    >>> label(("cores", "G1", 1)), label(("rank",)), label(())
    ("entry 2 of 'G1'", "'rank'", 'the file')
    """
    if not path:
        return "the file"
    if isinstance(path[-1], int):
        named = [part for part in path if isinstance(part, str)]
        return f"entry {path[-1] + 1} of '{shorten(named[-1])}'" if named else f"entry {path[-1] + 1}"
    return f"'{shorten(path[-1])}'"
