"""The graph after pruning with traces of what is gone, for a drawing: dropped bonds, and terms that were removed.

Only the two graphs are known, so where a merged core went is told from the edges that another has gained.
"""

from __future__ import annotations

from tnmars.draw.look import Look
from tnmars.errors import GraphError
from tnmars.graph import Core, Edge, Graph, Term


def looks(before: Graph, after: Graph) -> tuple[tuple[Graph, Look], tuple[Graph, Look]]:
    """Both graphs as they are drawn, and how."""
    was = {(term.name, bond.name): bond.size for term in before.terms for bond in term.bonds}
    widest = max([*was.values(), *(bond.size for term in after.terms for bond in term.bonds)], default=1)
    kept = {term.name: term for term in after.terms}
    terms, gone, gone_terms = [], set(), set()
    for term in before.terms:
        if term.name not in kept:
            terms.append(term)
            gone_terms.add(term.name)
            continue
        traced = _traced(term, kept.pop(term.name))
        terms.append(traced)
        here = {bond.name for found in after.terms if found.name == term.name for bond in found.bonds}
        gone |= {(term.name, bond.name) for bond in traced.bonds if bond.name not in here}
    first = (before, Look(widest))
    try:
        shown = before.with_terms([*terms, *kept.values()])
    except GraphError:  # graphs that are not of one layer: nothing to trace
        return first, (after, Look(widest, was))
    return first, (shown, Look(widest, was, frozenset(gone), frozenset(gone_terms)))


def _traced(before: Term, after: Term) -> Term:
    """A term with the bonds that are gone put back at size 1, where they still join two cores."""
    here = {bond.name for bond in after.bonds}
    found = homes(before, after)
    ends = before.ends()
    traces: dict[str, list[str]] = {}
    for bond in before.bonds:
        joined = list(dict.fromkeys(found[core] for core in ends[bond.name] if found[core]))
        if bond.name not in here and len(joined) > 1:
            traces[bond.name] = joined
    cores = [
        Core(core.name, (*core.edges, *(bond for bond, joined in traces.items() if core.name in joined)))
        for core in after.cores
    ]
    order = {bond.name: at for at, bond in enumerate(before.bonds)}
    bonds = sorted(
        [*after.bonds, *(Edge(name, 1) for name in traces)], key=lambda bond: order.get(bond.name, len(order))
    )
    return Term(after.name, tuple(bonds), tuple(cores))


def homes(before: Term, after: Term) -> dict[str, str]:
    """For each core before the one after that it is, or is part of; nothing where that cannot be told."""
    first = {core.name: set(core.edges) for core in before.cores}
    gained = {core.name: set(core.edges) - first.get(core.name, set()) for core in after.cores}
    found = {}
    for name, edges in first.items():
        if name in gained:
            found[name] = name
            continue
        best = max(gained, key=lambda other: len(gained[other] & edges), default="")
        found[name] = best if best and gained[best] & edges else ""
    return found
