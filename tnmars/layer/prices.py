"""Prices of slices: what the bonds of a layer cost, where a selector weighs slices by what they hold."""

from __future__ import annotations

from collections.abc import Callable

from tnmars.graph import Graph
from tnmars.program.expected import Monomial, evaluate, parameter_terms

Macs = Callable[[], tuple[Monomial, ...]]
"""Counts the multiply-adds of a layer; called only where slices are priced by them."""


def average_price(graph: Graph, what: str, macs: Macs) -> float:
    """The average price of a slice, where slices are priced by what they hold."""
    if what not in ("parameters", "macs"):
        return 1.0
    sizes = {name: bond.size for name, bond in graph.bonds.items()}
    terms = parameter_terms(graph) if what == "parameters" else macs()
    return float(evaluate(terms, sizes)) / sum(sizes.values()) or 1.0  # a table of one factor has no multiply-adds


def slice_costs(graph: Graph, what: str, macs: Macs) -> list[float]:
    """What one slice of each bond costs while all others are there: 1, or the parameters or MACs that it holds."""
    if what == "uniform":
        return [1.0] * len(graph.bonds)
    terms = macs() if what == "macs" else parameter_terms(graph)
    sizes = {name: bond.size for name, bond in graph.bonds.items()}
    full = float(evaluate(terms, sizes))
    return [full - float(evaluate(terms, {**sizes, name: size - 1})) for name, size in sizes.items()]
