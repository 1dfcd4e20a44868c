"""Two graphs compared: which bonds and cores were removed, added or changed, and what that does to the counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

from tnmars.graph.counts import Count, count
from tnmars.graph.graph import MAIN, Graph
from tnmars.graph.parts import axis_text
from tnmars.text.numbers import number
from tnmars.text.tables import aligned

Named = tuple[str, str]
"""The names of a term, and of a bond or core in it."""


@dataclass(frozen=True)
class BondChange:
    """A bond before and after: what `diff`, `summary`, `report` and `fit` say about one.

    Attributes:
        name: The name of the bond among those of its graph.
        before: Its size before; None if it is new.
        after: Its size after; None if it was removed, with its term or because one slice was left.
        useful: The largest useful size; None if it is not known.
        live: How many slices the gates keep; None without gates.
    """

    name: str
    before: int | None
    after: int | None
    useful: int | None = None
    live: int | None = None

    @property
    def size(self) -> int | None:
        """The size now."""
        return self.after

    @property
    def change(self) -> str:
        """What became of it: `added`, `removed`, `same`, `cut` or `grown`."""
        if self.before is None or self.after is None:
            return "added" if self.before is None else "removed"
        return "same" if self.after == self.before else "cut" if self.after < self.before else "grown"

    @property
    def words(self) -> str:
        """The change in a table: empty for no change, else a difference or a word."""
        if self.before is None or self.after is None:
            return self.change
        return "" if self.before == self.after else f"{self.after - self.before:+,}"


@dataclass(frozen=True)
class CoreChange:
    """A core with its edges and shape before and after; None if it was added or removed."""

    name: str
    before: tuple[tuple[str, ...], tuple[int, ...]] | None
    after: tuple[tuple[str, ...], tuple[int, ...]] | None

    @property
    def change(self) -> str:
        if self.before is None or self.after is None:
            return "added" if self.before is None else "removed"
        return "same" if self.before == self.after else "changed"


@dataclass(frozen=True)
class Difference:
    """What differs between two graphs."""

    heads: tuple[str, str]
    """The name and signature of each graph."""
    bonds: tuple[BondChange, ...]
    cores: tuple[CoreChange, ...]
    before: Count
    after: Count
    is_same: bool
    """Whether the graphs are equal."""
    notes: tuple[str, ...] = ()
    """Other parts that differ, such as the kind, modes or options."""

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "same": self.is_same,
            "graphs": list(self.heads),
            "bonds": [{"name": bond.name, "before": bond.before, "after": bond.after} for bond in self.bonds],
            "cores": [
                {
                    "name": core.name,
                    "change": core.change,
                    "before": _core_data(core.before),
                    "after": _core_data(core.after),
                }
                for core in self.cores
            ],
            "parameters": {"before": self.before.cores, "after": self.after.cores},
            "compression": {"before": finite(self.before.compression), "after": finite(self.after.compression)},
            "other": list(self.notes),
        }

    def __str__(self) -> str:
        rows = [("", "before", "after", ""), ("graph", *self.heads, "")]
        rows += [(f"bond {bond.name}", number(bond.before), number(bond.after), bond.words) for bond in self.bonds]
        rows += [
            (f"core {core.name}", _core(core.before), _core(core.after), core.change if core.change != "same" else "")
            for core in self.cores
        ]
        rows.append(("parameters", f"{self.before.cores:,}", f"{self.after.cores:,}", ""))
        rows.append(("compression", self.before.sentence, self.after.sentence, ""))
        lines = aligned(rows) + list(self.notes)
        return "\n".join([*lines, "the graphs are equal"] if self.is_same else lines)


def difference(before: Graph, after: Graph) -> Difference:
    """What differs between two graphs; terms, bonds and cores are matched by name.

    >>> from tnmars import families
    >>> large, small = (families.lowrank("linear", inputs=(8,), outputs=(6,), rank=rank) for rank in (4, 2))
    >>> [(bond.name, bond.before, bond.after) for bond in difference(large, small).bonds]
    [('r', 4, 2)]
    """
    bonds = [
        {(term.name, bond.name): bond.size for term in graph.terms for bond in term.bonds} for graph in (before, after)
    ]
    cores = [
        {(term.name, core.name): (core.edges, graph.shape(term, core)) for term in graph.terms for core in term.cores}
        for graph in (before, after)
    ]
    return Difference(
        (_head(before), _head(after)),
        tuple(BondChange(_shown(key), bonds[0].get(key), bonds[1].get(key)) for key in bonds[0] | bonds[1]),
        tuple(CoreChange(_shown(key), cores[0].get(key), cores[1].get(key)) for key in cores[0] | cores[1]),
        count(before),
        count(after),
        before == after,
        tuple(_notes(before, after)),
    )


def first_sizes(graph: Graph) -> dict[str, int]:
    """The sizes of bonds before the first cut, which a pruned graph keeps as its origin; nothing for other graphs."""
    origin = graph.origin or {}
    sizes = origin.get("first", origin.get("sizes"))
    if not isinstance(sizes, Mapping):
        return {}
    return {str(name): size for name, size in sizes.items() if isinstance(size, int)}


def _shown(key: Named) -> str:
    term, name = key
    return name if term == MAIN else f"{term}.{name}"


def _head(graph: Graph) -> str:
    return f"{graph.name or graph.kind}: {graph.signature}"


def _notes(before: Graph, after: Graph) -> list[str]:
    """The parts of a graph, other than terms, that differ."""
    found = []
    for name, first in _parts(before).items():
        second = _parts(after)[name]
        if first != second:
            found.append(f"the {name} differ: {first or 'none'} | {second or 'none'}")
    return found


def _parts(graph: Graph) -> dict[str, str]:
    return {
        "kinds": graph.kind,
        "modes": " ".join(map(str, graph.modes)),
        "shared modes": " ".join(graph.shared),
        "tied cores": " ".join(f"{name}={held}" for name, held in graph.nodes.items() if name != held),
        "dense shapes": " ".join(map(str, graph.dense_shape)),
        "inputs": " ".join(map(str, graph.inputs)),
        "outputs": ", ".join(map(axis_text, graph.output)),
        "options": " ".join(f"{key}={value}" for key, value in graph.options),
        "conjugates": " ".join(sorted(graph.conjugated)),
    }


def _core(core: tuple[tuple[str, ...], tuple[int, ...]] | None) -> str:
    if core is None:
        return "-"
    return " ".join(f"{edge}={size}" for edge, size in zip(*core, strict=True)) or "a number"


def _core_data(core: tuple[tuple[str, ...], tuple[int, ...]] | None) -> dict[str, Any] | None:
    return None if core is None else {"edges": list(core[0]), "shape": list(core[1]), "parameters": prod(core[1])}


def finite(value: float) -> float | None:
    """The value for JSON, which has no infinity."""
    return value if isfinite(value) else None
