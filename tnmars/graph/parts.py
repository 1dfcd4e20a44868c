"""The parts of a graph: edges, cores, terms and the operands of a map. Frozen values, checked when built.

A part does not know the graph around it: whether an edge is declared, or how many cores it joins, is checked by
`tnmars.graph.rules` where the parts come together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import inf, prod
from operator import index
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from tnmars.arguments import LARGE, own, shown
from tnmars.errors import GraphError, Problem
from tnmars.graph.kinds import Role

if TYPE_CHECKING:
    from typing_extensions import TypeIs

MAX_SIZE = 2**31 - 1
MAX_STRIDE = 2**24
"""The largest stride, dilation or padding. Torch computes sizes with 32 bits, wrongly where these are too few."""
MAX_ENTRIES = 2**63 - 1
MAX_DENSE = 2**900
"""The largest dense tensor that is planned, in entries; it need not be made. Costs stay below what a float holds."""
MAX_CORES = 1024
"""The largest number of cores of one term that is planned. Larger ones would take minutes."""
MAIN = "main"
"""The name of the only term of a graph that was not written as a sum."""

NAME_RULE = "Names are made of letters, digits and '_', do not start with a digit, and have at most 100 characters."

WORD = "[A-Za-z_][A-Za-z0-9_]*"
"""A name as a regular expression."""
IDENTIFIER = WORD.replace("*", "{0,99}")
"""A name as a regular expression that also limits its length."""
CORE_NAME = rf"(?:{IDENTIFIER}\.)?{IDENTIFIER}"
"""The name of a core, with that of its term in front if it is another one."""

Axis = tuple[str, ...]
"""One axis of an operand: one name, or several flattened together, first slowest."""


def is_identifier(name: object) -> bool:
    """Whether `name` may name an edge, a core, a term or a parameter.

    >>> is_identifier("r1"), is_identifier("1r"), is_identifier("r-1")
    (True, False, False)
    """
    return isinstance(name, str) and re.fullmatch(IDENTIFIER, name) is not None


def name_problem(what: str, name: object) -> Problem | None:
    """The problem of a name, or None."""
    if is_identifier(name):
        return None
    shown = repr(name) if len(repr(name)) < 60 else repr(name)[:57] + "..."
    return Problem(
        f"{what} name {shown} is not an identifier.",
        NAME_RULE,
    )


def size_problem(what: str, size: object) -> Problem | None:
    """The problem of a size, or None."""
    if is_int(size, 1, MAX_SIZE):
        return None
    text = f"{size:,}" if is_int(size, -LARGE, LARGE) else shown(size) if is_int(size) else repr(size)
    return Problem(f"{what} has size {text}.", f"A size must be a whole number from 1 to {MAX_SIZE:,}.")


def is_int(value: object, least: float = -inf, most: float = inf) -> TypeIs[int]:
    """Whether a value is an integer between two bounds. A bool is not one, although Python says so.

    >>> is_int(4), is_int(4, least=5), is_int(True), is_int(4.0)
    (True, False, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def as_int(value: object) -> object:
    """An integer of any library, such as NumPy, as Python's own; any other value unchanged, a bool included.

    >>> import numpy
    >>> as_int(numpy.int64(4)), as_int(4.0), as_int(True)
    (4, 4.0, True)
    """
    if isinstance(value, bool):
        return value
    try:
        return index(value)  # type: ignore[arg-type]  # anything else raises, and is returned as it is
    except TypeError:
        return value


Part = TypeVar("Part")


def is_list(value: object) -> bool:
    """Whether a value has entries and is not text, whose entries would be letters."""
    return isinstance(value, Iterable) and not isinstance(value, str) and getattr(value, "ndim", 1) != 0


def name_list(what: str, given: Iterable[str]) -> tuple[str, ...]:
    """The entries of a list of names. Raises `GraphError` for text, which would be a list of letters."""
    if is_list(given):
        names = tuple(given)
        if not any(getattr(name, "ndim", 0) for name in names):  # rows of an array are no names
            return names
    raise GraphError(Problem(f"{what} {given!r}, which is not a list of names.", 'Write ["i", "r"].'))


def parts_of(what: str, given: Iterable[Part], kind: type[Any] = object) -> tuple[Part, ...]:
    """The entries of a list of parts, such as edges. Raises `GraphError` for anything else."""
    found = tuple(given) if is_list(given) else None
    if found is None or not all(isinstance(part, kind) for part in found):
        shown = repr(given) if len(repr(given)) < 100 else f"of type {type(given).__name__}"
        hint = f"Write a tuple of {kind.__name__} values." if kind is not object else "Write a tuple."
        raise GraphError(Problem(f"{what} is {shown}, which is not a list of parts.", hint))
    return found


def table_of(what: str, given: Iterable[tuple[Any, Any]] | Mapping[Any, Any]) -> dict[Any, Any]:
    """The entries of a mapping or a list of pairs. Raises `GraphError` for anything else."""
    try:
        return dict(given)
    except (TypeError, ValueError):
        raise GraphError(Problem(f"{what} is {given!r}, which is not a table.", 'Write {"name": value}.')) from None


def _raise(problems: Iterator[Problem | None]) -> None:
    found = [problem for problem in problems if problem is not None]
    if found:
        raise GraphError(found)


class Value:
    """A frozen dataclass with cached properties, which stay out of pickles and copies as they do out of equality."""

    def __getstate__(self) -> dict[str, object]:
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}  # type: ignore[arg-type]


@dataclass(frozen=True)
class Edge:
    """A named index with a size: a bond, or a mode with a role.

    Args:
        name: An identifier of at most 100 characters.
        size: The number of values of the index, at least 1. For a bond, users call it the rank.
        role: What the edge is for: `Role.BOND`, the default, or the role of a mode, also as text such as `"in"`.

    Raises:
        GraphError: If the name, the size or the role is not valid.

    Example:
        >>> Edge("r", 4).is_bond, str(Edge("i", 8, "in"))
        (True, 'i=8')
    """

    name: str
    size: int
    role: Role = Role.BOND

    def __post_init__(self) -> None:
        known = [role.value for role in Role]
        if self.role not in known:
            raise GraphError(Problem(f"edge '{self.name}' has role {self.role!r}.", f"Roles: {', '.join(known)}."))
        object.__setattr__(self, "role", Role(self.role))
        object.__setattr__(self, "size", as_int(self.size))
        _raise(self._problems())

    def _problems(self) -> Iterator[Problem | None]:
        what = "bond" if self.is_bond else "mode"
        yield name_problem(what, self.name)
        yield size_problem(f"{what} '{self.name}'", self.size)

    @property
    def is_bond(self) -> bool:
        return self.role is Role.BOND

    def __str__(self) -> str:
        return f"{self.name}={self.size}"


@dataclass(frozen=True)
class Core:
    """A learned tensor with one axis for each edge that it lists, in that order.

    Args:
        name: An identifier; with the term's name in front if there are several terms, it is the state-dict key.
        edges: The names of the edges. Sizes belong to the edges, so that they cannot disagree. A bond that is listed
            twice is a trace: only the entries on the diagonal of the two axes are used.
        tied: The core whose tensor this one is, in another place: `"G1"`, or `"t1.G1"` for a core of another term.
            Empty if it has a tensor of its own.
        conj: Whether the complex conjugate of the tensor is used here. Real cores are their own.

    Raises:
        GraphError: If a name is not an identifier.

    Example:
        >>> print(Core("A", ("i", "r")), Core("B", ("j", "r"), tied="A", conj=True))
        A[i, r] B*=A[j, r]
    """

    name: str
    edges: tuple[str, ...]
    tied: str = ""
    conj: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", name_list(f"core '{self.name}' lists", self.edges))
        object.__setattr__(self, "conj", own(self.conj))
        _raise(self._problems())

    def _problems(self) -> Iterator[Problem | None]:
        yield name_problem("core", self.name)
        conj: object = self.conj
        if not isinstance(conj, bool):
            yield Problem(f"conj of core '{self.name}' is {conj!r}.", "It must be True or False.")
        for at, edge in enumerate(self.edges):
            wrong = name_problem("edge", edge)
            if wrong is not None:
                yield wrong.under(at)
        if not isinstance(self.tied, str) or (self.tied and re.fullmatch(CORE_NAME, self.tied) is None):
            text = f"core '{self.name}' is tied to {self.tied!r}, which is not the name of a core."
            yield Problem(text, "Write 'G1', or 't1.G1' for a core of another term.")

    @property
    def has_trace(self) -> bool:
        """Whether an edge is listed more than once."""
        return len(set(self.edges)) < len(self.edges)

    @property
    def label(self) -> str:
        """The name, with a star for a conjugate, and with the core whose tensor this one is: `B*=A`."""
        return f"{self.name}{'*' * self.conj}{'=' if self.tied else ''}{self.tied}"

    def __str__(self) -> str:
        return f"{self.label}[{', '.join(self.edges)}]"


@dataclass(frozen=True)
class Term(Value):
    """One summand of the weight: its own bonds and cores, over the modes of the graph.

    Args:
        name: An identifier. The only term of a graph that is not a sum is called `"main"`.
        bonds: The bonds of this term, each with its size.
        cores: The cores. An edge that two or more of them list is summed over; a bond may have any number of ends.

    Raises:
        GraphError: If two bonds or two cores have the same name, or an edge among the bonds is a mode.

    Example:
        >>> term = Term("main", (Edge("r", 2),), (Core("A", ("i", "r")), Core("B", ("r", "o"))))
        >>> term.ends()["r"]
        ('A', 'B')
    """

    name: str
    bonds: tuple[Edge, ...]
    cores: tuple[Core, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "bonds", parts_of(f"bonds of term '{self.name}'", self.bonds, Edge))
        object.__setattr__(self, "cores", parts_of(f"cores of term '{self.name}'", self.cores, Core))
        _raise(self._problems())
        if any(core.tied for core in self.cores):
            object.__setattr__(self, "cores", tuple(map(self._shortened, self.cores)))

    def _shortened(self, core: Core) -> Core:
        """The core with the term's own name left out of what it is tied to; one that is tied to itself is not tied."""
        tied = core.tied.removeprefix(f"{self.name}.")
        return replace(core, tied="" if tied == core.name else tied)

    def _problems(self) -> Iterator[Problem | None]:
        yield name_problem("term", self.name)
        for key, parts in (("bonds", self.bonds), ("cores", self.cores)):
            seen: set[str] = set()
            for part in parts:
                if part.name in seen:
                    yield Problem(f"two {key} are named '{part.name}'.", "Rename one.", path=(key, part.name))
                seen.add(part.name)
        for bond in self.bonds:
            if not bond.is_bond:
                yield Problem(
                    f"edge '{bond.name}' has role '{bond.role}', but a term must hold bonds only.",
                    "Modes belong to the graph: every term has the same ones.",
                    path=("bonds", bond.name),
                )

    def ends(self) -> Mapping[str, tuple[str, ...]]:
        """The cores that list each edge, in the order of the cores; bonds first, in their own order.

        A core that lists an edge twice is there twice.
        """
        return self._ends

    @cached_property
    def _ends(self) -> Mapping[str, tuple[str, ...]]:
        ends: dict[str, list[str]] = {bond.name: [] for bond in self.bonds}
        for core in self.cores:
            for edge in core.edges:
                ends.setdefault(edge, []).append(core.name)
        return MappingProxyType({edge: tuple(cores) for edge, cores in ends.items()})

    @cached_property
    def bond_sizes(self) -> Mapping[str, int]:
        """The size of every bond by its name."""
        return MappingProxyType({bond.name: bond.size for bond in self.bonds})

    def __str__(self) -> str:
        return " ".join(map(str, self.cores))


@dataclass(frozen=True)
class Operand:
    """A named input of a layer of kind `"map"`, with the names on its axes.

    Args:
        name: The name by which the input is passed.
        axes: One tuple of names for each axis. A name is a mode with role `in`, or any other name, which is then a data
            axis such as a batch, of any length. Several names on one axis are modes flattened together, first slowest.
        same: The input whose tensor this one is, in another place; then callers do not give it. Empty if it is given.

    Raises:
        GraphError: If the name is not an identifier, or an axis has no name.

    Example:
        >>> print(Operand("x", (("batch",), ("i1", "i2"))))
        x[batch, (i1 i2)]
        >>> print(Operand("y", (("batch",), ("j",)), same="x"))
        y=x[batch, j]
    """

    name: str
    axes: tuple[Axis, ...]
    same: str = ""

    def __post_init__(self) -> None:
        has = f"input '{self.name}' has axis"
        axes = parts_of(f"axes of input '{self.name}'", self.axes)
        object.__setattr__(self, "axes", tuple(name_list(has, axis) for axis in axes))
        empty = Problem(
            f"input '{self.name}' has an axis without a name.",
            "An axis must be a name, or several names flattened together.",
        )
        names = [self.name, self.same] if self.same != "" else [self.name]
        _raise(iter([*(name_problem("input", name) for name in names), *(empty for axis in self.axes if not axis)]))

    def __str__(self) -> str:
        return f"{self.name}{'=' if self.same else ''}{self.same}[{', '.join(map(axis_text, self.axes))}]"


def axis_text(axis: Axis) -> str:
    """An axis as a spec file writes it.

    >>> axis_text(("i1",)), axis_text(("i1", "i2"))
    ('i1', '(i1 i2)')
    """
    return axis[0] if len(axis) == 1 else f"({' '.join(axis)})"


def parse_axis(text: str) -> Axis | None:
    """The axis that `text` describes, or None if it describes none: the inverse of `axis_text`."""
    stripped = text.strip()
    if stripped.startswith("(") and stripped.endswith(")"):
        names = tuple(stripped[1:-1].split())
        return names if len(names) > 1 and all(map(is_identifier, names)) else None
    return (stripped,) if is_identifier(stripped) else None


def flat_size(edges: tuple[Edge, ...]) -> int:
    """The product of the sizes of some edges."""
    return prod(edge.size for edge in edges)
