"""The bonds of a layer before and after: matched by term and name, with their gates and with what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tnmars.draw.traces import homes
from tnmars.graph import Graph, Term
from tnmars.graph.lint import has_bounds, useful_size
from tnmars.layer.module import TNModule
from tnmars.reporting.gates import BondGates, bond_gates
from tnmars.reporting.value import Bond


def bonds(before: TNModule, after: TNModule) -> list[Bond]:
    """The bonds before, then any that are new."""
    left = {term.name: term for term in after.graph.terms}
    gates = bond_gates(before)
    found = [bond for term in before.graph.terms for bond in _old(before.graph, term, left.get(term.name), gates)]
    known = {bond.key for bond in found}
    return [*found, *(bond for bond in _new(after.graph) if bond.key not in known)]


def _old(graph: Graph, term: Term, left: Term | None, gates: Mapping[str, BondGates]) -> Iterator[Bond]:
    """The bonds of a term before, and what is left of them."""
    sizes = {bond.name: bond.size for bond in left.bonds} if left else {}
    places = homes(term, left) if left else {}
    ends = term.ends()
    own = {bond.name: gates.get(graph.qualified(term, bond.name), BondGates((), ())) for bond in term.bonds}
    is_shut = any(gate.is_kept and not any(gate.is_kept) for gate in own.values())
    for bond in term.bonds:
        gate = own[bond.name]
        at = {places.get(core, "") for core in ends[bond.name]}
        yield Bond(
            term.name,
            bond.name,
            graph.qualified(term, bond.name),
            ends[bond.name],
            bond.size,
            useful_size(graph, term, bond.name) if has_bounds(graph) else None,
            sizes.get(bond.name),
            at.pop() if len(at) == 1 and bond.name not in sizes else "",
            gate.probabilities,
            gate.is_kept,
            is_shut and left is None,
        )


def _new(graph: Graph) -> Iterator[Bond]:
    """The bonds after, as if none had been there before."""
    for term in graph.terms:
        for bond in term.bonds:
            shown = graph.qualified(term, bond.name)
            yield Bond(term.name, bond.name, shown, term.ends()[bond.name], None, None, bond.size)
