"""From a graph with ranks too large to the network with the shortest description.

Elimination starts from a network that fits the data closely. On a tree one start is enough, for the directions that
are left out are the same whatever the start. Elsewhere it may end in a network that cannot be cut though a smaller one
exists: so there are further starts, with bonds just wide enough to fit, and the shortest description of all is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch

from tnmars.fitting.elimination import Fit, Told, eliminated, fitted, regrown, weighed
from tnmars.fitting.network import Network, random_network
from tnmars.fitting.refine import FLOOR, LARGE, Data, mean_square, refined
from tnmars.fitting.removal import smaller
from tnmars.fitting.trees import has_tree, tree_network
from tnmars.graph import Graph

Starter = Callable[[Graph, Data], Network]

ENOUGH = 15
"""Steps of the first fit, of a network that has more parameters than it needs."""
NEAR = 1.5
"""A fit is good enough to start from where its squared error is at most so many times the least seen."""
STARTS = 8
"""Most further starts."""
AGREE = 3
"""They end where so many starts have ended at the shortest description, by its parameters."""


def search(graph: Graph, data: Data, random: torch.Generator, starter: Starter, told: Told | None = None) -> Fit:
    """The network with the shortest description that is found, its cores fitted."""
    roomy = within(graph, data.count // 2)
    if has_tree(graph) and data.index is None:
        network = tree_network(roomy, data.values)
        best = eliminated(weighed(network, mean_square(network, data), data), data, told)
    else:
        start = random_network(roomy, random) if _parameters(roomy) <= LARGE else starter(roomy, data)
        best = _best_of_starts(roomy, fitted(start, data, ENOUGH), data, random, told)
    return _polished(_settled(best, data, graph, random, told), data)


def _best_of_starts(graph: Graph, roomy: Fit, data: Data, random: torch.Generator, told: Told | None) -> Fit:
    """The shortest description from starts with bonds just wide enough; from the wide one where none is."""
    freedom = max(data.count - roomy.network.parameters, 1) / data.count
    near = NEAR * max(roomy.error, FLOOR) / freedom
    start = _tight(graph, data, near, random, told)
    if start is None:
        return eliminated(roomy, data, told)
    return _shortest_of_starts(start, roomy, near, data, random, told)


def _shortest_of_starts(
    start: Fit, spare: Fit | None, near: float, data: Data, random: torch.Generator, told: Told | None
) -> Fit:
    """The shortest description from a start and from random ones of the same sizes, until enough of them agree."""
    limited, found = start.network.graph, []
    for _ in range(STARTS):
        found.append(eliminated(start, data, told))
        best = min(found, key=lambda fit: fit.bic)
        if sum(fit.network.parameters == best.network.parameters for fit in found) >= AGREE:
            break
        start = fitted(random_network(limited, random), data)
        if start.error > near and spare is not None:
            start, spare = spare, start  # a fit that failed is no start, but the spare one is, once
    return min(found, key=lambda fit: fit.bic)


def _tight(graph: Graph, data: Data, near: float, random: torch.Generator, told: Told | None) -> Fit | None:
    """A fit that is near the least error seen, with all bonds limited to the same size, the least that will do."""
    widest = max((bond.size for bond in graph.bonds.values()), default=1)
    for most in range(1, widest):
        limited = smaller(graph, {name: min(bond.size, most) for name, bond in graph.bonds.items()})
        for _ in range(2):
            found = fitted(random_network(limited, random), data)
            if told is not None:
                told(found)
            if found.error <= near:
                return found
    return None


def _settled(best: Fit, data: Data, graph: Graph, random: torch.Generator, told: Told | None) -> Fit:
    """Slices are put back where that makes the description shorter, and left out again."""
    most = {name: bond.size for name, bond in graph.bonds.items()}
    for _ in range(sum(most.values())):
        after = regrown(best, data, most, random)
        if after is best:
            break
        after = eliminated(after, data, told)
        if after.bic >= best.bic:
            break
        best = after
    return best


def _polished(fit: Fit, data: Data) -> Fit:
    network, error = refined(fit.network, data, 200, gain=1e-9)
    return weighed(network, error, data)


def within(graph: Graph, most: int) -> Graph:
    """The graph with all bonds limited to the same size, the largest with which it has so many parameters or fewer.

    With about as many parameters as entries everything fits, and no description length means anything.
    """
    limit = max((bond.size for bond in graph.bonds.values()), default=1)
    found = graph
    while limit > 1 and _parameters(found) > most:
        limit -= 1
        found = smaller(graph, {name: min(bond.size, limit) for name, bond in graph.bonds.items()})
    return found


def _parameters(graph: Graph) -> int:
    return sum(map(prod, graph.cores.values()))


def finished(network: Network, graph: Graph, data: Data, random: torch.Generator, told: Told | None = None) -> Fit:
    """What elimination leaves of a network whose gates were trained; but on trees, also of others of its sizes."""
    start = fitted(network, data)
    if has_tree(graph):
        best = eliminated(start, data, told)
    else:
        best = _shortest_of_starts(start, None, NEAR * max(start.error, FLOOR), data, random, told)
    return _polished(_settled(best, data, graph, random, told), data)


def pruned_only(network: Network, data: Data) -> Fit:
    """A network as its gates leave it, its cores fitted."""
    return _polished(weighed(network, mean_square(network, data), data), data)
