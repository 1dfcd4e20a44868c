"""Programs for the slices that this step's gates leave open.

A sample of hard concrete gates is mostly exact zeros, and a slice whose gate is 0 takes no part: cores are cut to the
open slices before they are contracted. Values and gradients are the same, to rounding. Plans are made for a few levels
of openness and fitted to the sizes at hand; sizes are rounded up with shut slices, so that programs are used again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil

import torch
from torch import Tensor

from tnmars.graph import Edge, Graph
from tnmars.layer.code import WEIGHT, Code, code
from tnmars.plan.layout import Weighing
from tnmars.plan.network import groups
from tnmars.program.candidates import weight_forms
from tnmars.program.choice import Planner
from tnmars.program.form import Form

STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)
"""Numbers of open slices are rounded up to these sizes."""
MANY = 4
"""With more bonds than this, all are rounded to the same share, because there would be too many programs otherwise."""
MOST = 4096
"""The number of programs that are kept."""


class Opening:
    """Finds the open slices of a step and the code for them."""

    def __init__(self, planner: Planner):
        self.planner = planner
        self._buckets = planner.buckets
        self._codes: dict[tuple[object, ...], Code] = {}

    def __call__(
        self,
        mode: str,
        batch: int,
        cores: Mapping[str, Tensor],
        gates: Mapping[str, Tensor],
        is_open: Mapping[str, Sequence[bool]],
    ) -> tuple[Code, list[Tensor]]:
        """The code for the open slices, and the cores and gates that it takes."""
        taken = open_slices(self.planner.graph, is_open)
        sizes = {name: len(indices) for name, indices in taken.items()}
        made = self._code(mode, batch, sizes)
        return made, _arguments(self.planner.graph, made, cores, gates, taken)

    def _code(self, mode: str, batch: int, sizes: Mapping[str, int]) -> Code:
        graph = self.planner.graph
        share = sum(sizes.values()) / sum(bond.size for bond in graph.bonds.values())
        level = level_of(share)
        key = (mode, 0 if mode == WEIGHT else self._bucket(batch), level, *sizes.values())
        if key not in self._codes:
            if len(self._codes) >= MOST:
                self._codes.clear()
            every = {
                graph.qualified(term, bond.name): sizes[graph.bond_name(term, bond.name)]
                for term in graph.terms
                for bond in term.bonds
            }
            self._codes[key] = code(_fitted(self._form(mode, batch, level), every), resized(graph, sizes))
        return self._codes[key]

    def _bucket(self, batch: int) -> int:
        """The batch whose plan another takes."""
        return next(entry.batch for entry in self._buckets if batch <= entry.limit)

    def _form(self, mode: str, batch: int, level: int) -> Form:
        near = nearby(self.planner, level)
        if mode == WEIGHT:
            return weight_forms(near.graph, Weighing(near.model), near.optimizer)[0]
        return near.plan(mode, self._bucket(batch))


def level_of(share: float) -> int:
    """How often the full size is halved before a share of open slices is more than half of what is left.

    >>> level_of(1.0), level_of(0.5), level_of(0.3)
    (0, 1, 1)
    """
    level = 0
    while share <= 0.5 ** (level + 1):
        level += 1
    return level


def nearby(planner: Planner, level: int) -> Planner:
    """The planner of the graph with bonds halved `level` times. It times nothing: a resumed run must plan the same."""
    return replace(planner, graph=resized(planner.graph, _sizes_at(planner.graph, 0.5**level)), decide=None)


def open_slices(graph: Graph, gates: Mapping[str, Sequence[bool]]) -> dict[str, list[int]]:
    """The slices of each bond to contract: the open ones, padded with closed slices up to one of a few sizes.

    Terms of equal shape are computed together, so they take as many slices of a bond as the one with the most.
    """
    found = {name: [at for at, value in enumerate(values) if value] for name, values in gates.items()}
    counts = {name: _rounded(len(indices), len(gates[name])) for name, indices in found.items()}
    if len(counts) > MANY:
        share = max(count / len(gates[name]) for name, count in counts.items())
        counts = {name: _rounded(ceil(share * len(values)), len(values)) for name, values in gates.items()}
    before: dict[str, int] = {}
    while counts != before:  # once, unless tied cores join groups of terms
        before = dict(counts)
        for terms in groups(graph):
            for bond in terms[0].bonds:
                names = [graph.bond_name(term, bond.name) for term in terms]
                most = max(counts[name] for name in names)
                counts.update(dict.fromkeys(names, most))
    for name, indices in found.items():
        spare = [at for at, value in enumerate(gates[name]) if not value]
        found[name] = sorted(indices + spare[: counts[name] - len(indices)])
    return found


def _sizes_at(graph: Graph, share: float) -> dict[str, int]:
    """Sizes of bonds to plan for: that share of each, but at least 2, so that a plan fits any.

    Terms that differ must still differ, or they would be computed together: the first bond is made wider then. Where
    tied cores join bonds, all have their full sizes.
    """
    if len(graph.nodes) > len(graph.cores):
        return {name: bond.size for name, bond in graph.bonds.items()}
    found: dict[str, int] = {}
    seen: list[object] = []
    for terms in groups(graph):
        sizes = {bond.name: max(min(bond.size, 2), ceil(bond.size * share)) for bond in terms[0].bonds}
        while (sizes, terms[0].cores) in seen:
            sizes[terms[0].bonds[0].name] += 1
        seen.append((sizes, terms[0].cores))
        found |= {graph.bond_name(term, name): size for term in terms for name, size in sizes.items()}
    return found


def _rounded(count: int, size: int) -> int:
    return min(next((step for step in STEPS if step >= count), size), size)


def resized(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph with other sizes of its bonds."""
    terms = []
    for term in graph.terms:
        bonds = tuple(Edge(bond.name, sizes[graph.bond_name(term, bond.name)]) for bond in term.bonds)
        terms.append(replace(term, bonds=bonds))
    return replace(graph, terms=tuple(terms))


def _fitted(form: Form, sizes: Mapping[str, int]) -> Form:
    """A form for other sizes of bonds than those that it was planned for."""
    fitted = {label: sizes.get(label, size) for label, size in form.program.sizes}
    read_by = form.program.read_by
    program = replace(
        form.program,
        fold=tuple(entry.resized(read_by(entry), fitted) for entry in form.program.fold),
        run=tuple(entry.resized(read_by(entry), fitted) for entry in form.program.run),
        sizes=tuple(fitted.items()),
    )
    return replace(form, program=program)


def _arguments(
    graph: Graph, made: Code, cores: Mapping[str, Tensor], gates: Mapping[str, Tensor], taken: Mapping[str, list[int]]
) -> list[Tensor]:
    """The cores and gates that `fold` takes, cut to the slices taken."""
    index = {
        name: torch.tensor(indices, device=gates[name].device)
        for name, indices in taken.items()
        if len(indices) < gates[name].shape[0]
    }
    found = []
    for name in made.cores:
        value = cores[name]
        for axis, bond in enumerate(graph.bonds_of(name)):
            if bond in index:
                value = value.index_select(axis, index[bond])
        found.append(value)
    for name in made.gates:
        found.append(gates[name].index_select(0, index[name]) if name in index else gates[name])
    return found
