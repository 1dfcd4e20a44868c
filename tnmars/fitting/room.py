"""How wide the first network of a search may be, given the number of entries.

A bond can be transformed without a change of the tensor, so a network has fewer dimensions than parameters. Each
dimension fits some of the noise; the share `spare` of its mean square is left.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log

from tnmars.decomposing.tensors import with_sizes
from tnmars.graph import Graph
from tnmars.graph.counts import count
from tnmars.graph.lint import has_bounds, useful_size


def parameters(graph: Graph) -> int:
    """The number of entries of all cores."""
    return count(graph).cores


def dimension(graph: Graph) -> int:
    """The dimension of the set of tensors: the parameters minus those that only transform bonds.

    This is exact for trees and CP, and an estimate for cycles and for terms that overlap.

    >>> from tnmars import families
    >>> dimension(families.lowrank("tensor", free=(4, 5), rank=2))
    14
    """
    graph = _useful(graph)
    free = 0
    for term in graph.terms:
        ends = term.ends()
        for bond in term.bonds:
            ndim = len(ends[bond.name])
            free += bond.size**2 if ndim == 2 else (ndim - 1) * bond.size
    return parameters(graph) - free


def spare(graph: Graph, entries: int) -> float:
    """The share of noise that a fit of the network leaves."""
    return max(entries - dimension(graph), 1) / entries


def within(graph: Graph, most: int, size: Callable[[Graph], int] = parameters) -> Graph:
    """The graph with all bonds limited to one common size, the largest for which `size(graph)` is at most `most`."""
    widest = max((bond.size for bond in graph.bonds.values()), default=1)
    if size(graph) <= most:
        return graph
    low, high = 1, widest  # `high` is too wide; `low` fits, or no size does
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(limited(graph, middle)) <= most else (low, middle)
    return limited(graph, low)


def widest(graph: Graph, entries: int) -> Graph:
    """The graph with bonds limited so that one more dimension, fitted to noise, makes a description longer (BIC).

    For D dimensions and N entries, N log(1 - D / N) + D log N rises with D up to D = N (1 - 1 / log N) and then falls.
    Beyond that point the criterion prefers to describe noise.
    """
    return within(graph, int(entries * (1.0 - 1.0 / max(log(entries), 1.0))), dimension)


def limited(graph: Graph, most: int) -> Graph:
    """The graph with no bond wider than `most`."""
    return with_sizes(graph, {name: min(bond.size, most) for name, bond in graph.bonds.items()})


def _useful(graph: Graph) -> Graph:
    """The graph with no bond wider than is useful."""
    while has_bounds(graph) and (narrower := _too_wide(graph)):
        graph = with_sizes(graph, narrower)
    return graph


def _too_wide(graph: Graph) -> dict[str, int]:
    """The first bond wider than is useful, and its useful size; one at a time, because each bounds the others."""
    for term in graph.terms:
        for bond in term.bonds:
            most = useful_size(graph, term, bond.name)
            if most < bond.size:
                return {graph.bond_name(term, bond.name): most}
    return {}
