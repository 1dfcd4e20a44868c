"""The graph after pruning with traces of what was removed, for a drawing: dropped bonds and terms.

Only the two graphs are known, so the new home of a merged core is inferred from the edges that another core gained.
"""

from __future__ import annotations

from dataclasses import replace

from tnmars.draw.look import Look
from tnmars.errors import GraphError
from tnmars.graph import Edge, Graph, Term


def looks(before: Graph, after: Graph) -> tuple[tuple[Graph, Look], tuple[Graph, Look]]:
    """Both graphs as they are drawn, each with its look; removed parts are put back as traces."""
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
        here = {bond.name for other in after.terms if other.name == term.name for bond in other.bonds}
        gone |= {(term.name, bond.name) for bond in traced.bonds if bond.name not in here}
    first = (before, Look(widest))
    try:
        shown = before.with_terms([*terms, *kept.values()])
    except GraphError:  # graphs that are not of one layer: nothing to trace
        return first, (after, Look(widest, was))
    return first, (shown, Look(widest, was, frozenset(gone), frozenset(gone_terms)))


def _traced(before: Term, after: Term) -> Term:
    """A term with the removed bonds put back at size 1, if they still join two cores."""
    here = {bond.name for bond in after.bonds}
    home = homes(before, after)
    ends = before.ends()
    traces: dict[str, list[str]] = {}
    for bond in before.bonds:
        joined = list(dict.fromkeys(home[core] for core in ends[bond.name] if home[core]))
        if bond.name not in here and len(joined) > 1:
            traces[bond.name] = joined
    cores = [
        replace(core, edges=(*core.edges, *(bond for bond, joined in traces.items() if core.name in joined)))
        for core in after.cores
    ]
    order = {bond.name: at for at, bond in enumerate(before.bonds)}
    bonds = sorted(
        [*after.bonds, *(Edge(name, 1) for name in traces)], key=lambda bond: order.get(bond.name, len(order))
    )
    return Term(after.name, tuple(bonds), tuple(cores))


def homes(before: Term, after: Term) -> dict[str, str]:
    """For each core before, the core after that it became or is part of; empty if that is unknown."""
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
