"""How wide a network may be that a search begins with, given how many entries there are.

A bond can be turned without a change of the tensor, so a network has fewer dimensions than parameters. Noise is fitted
by dimensions: of its mean square the share `spare` is left.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log, prod

from tnmars.fitting.removal import smaller
from tnmars.graph import Graph
from tnmars.graph.lint import has_bounds, useful_size


def parameters(graph: Graph) -> int:
    """The entries of all cores."""
    return sum(map(prod, graph.cores.values()))


def dimension(graph: Graph) -> int:
    """How many numbers the tensor of a network depends on: its parameters without those that turn bonds, and no more.

    For trees and CP that is so; with cycles, or terms that overlap, it is an estimate.

    >>> from tnmars import families
    >>> dimension(families.lowrank("tensor", free=(4, 5), rank=2))
    14
    """
    graph = _useful(graph)
    free = 0
    for term in graph.terms:
        ends = term.ends()
        for bond in term.bonds:
            count = len(ends[bond.name])
            free += bond.size**2 if count == 2 else (count - 1) * bond.size
    return parameters(graph) - free


def spare(graph: Graph, entries: int) -> float:
    """The share of noise that a fit of the network leaves."""
    return max(entries - dimension(graph), 1) / entries


def within(graph: Graph, most: int, size: Callable[[Graph], int] = parameters) -> Graph:
    """The graph with all bonds limited to the same size, the largest with which it has so many parameters or fewer."""
    widest = max((bond.size for bond in graph.bonds.values()), default=1)
    if size(graph) <= most:
        return graph
    low, high = 1, widest  # the first will do, or nothing will; the last is too wide
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(_limited(graph, middle)) <= most else (low, middle)
    return _limited(graph, low)


def widest(graph: Graph, entries: int) -> Graph:
    """The graph with bonds limited to where one more dimension, fitted to noise, makes a description longer (BIC).

    For D dimensions and N entries, N log(1 - D / N) + D log N rises with D up to D = N (1 - 1 / log N), and then falls:
    beyond, the criterion would rather describe noise.
    """
    return within(graph, int(entries * (1.0 - 1.0 / max(log(entries), 1.0))), dimension)


def _limited(graph: Graph, most: int) -> Graph:
    return smaller(graph, {name: min(bond.size, most) for name, bond in graph.bonds.items()})


def _useful(graph: Graph) -> Graph:
    """The graph with no bond wider than it can use."""
    while has_bounds(graph) and (found := _too_wide(graph)):
        graph = smaller(graph, found)
    return graph


def _too_wide(graph: Graph) -> dict[str, int]:
    """The first bond that is wider than it can use, and what it can; one at a time, for each bounds the others."""
    for term in graph.terms:
        for bond in term.bonds:
            most = useful_size(graph, term, bond.name)
            if most < bond.size:
                return {graph.qualified(term, bond.name): most}
    return {}
