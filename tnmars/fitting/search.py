"""From a graph with ranks too large to the network with the shortest description.

Elimination starts from a network that fits the data closely. On a tree one start is enough, for the directions that
are left out are the same whatever the start. Elsewhere it may end in a network that cannot be cut though a smaller one
exists: so there are further starts, with bonds just wide enough to fit, and the shortest description of all is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tnmars.fitting.elimination import MORE, Fit, Told, eliminated, fitted, regrown, weighed
from tnmars.fitting.decomposition import Decomposition, random_decomposition
from tnmars.fitting.refine import FLOOR, LARGE, Data, mean_square, refined
from tnmars.fitting.removal import smaller
from tnmars.fitting.room import parameters, spare, widest, within
from tnmars.fitting.trees import has_tree, hierarchical_svd
from tnmars.graph import Graph

Starter = Callable[[Graph, Data], Decomposition]

ENOUGH = 15
"""Steps of the first fit, of a network that has more parameters than it needs."""
NEAR = 1.5
"""A fit is good enough to start from where its squared error is at most so many times the least seen."""
STARTS = 8
"""Most further starts."""
AGREE = 3
"""They end where so many starts have ended at the shortest description, by its parameters."""


@dataclass(frozen=True, eq=False)
class Start:
    """Where a search begins."""

    graph: Graph
    """The graph, its bonds limited where there are few entries."""
    fit: Fit
    """A network of it that fits the data closely."""
    room: int
    """Up to how many parameters it may grow."""
    near: float | None = None
    """Which error the data make likely, at most; none where bonds as wide as the user's could be tried."""


def search(
    graph: Graph, data: Data, random: torch.Generator, starter: Starter, told: Told | None = None
) -> tuple[Fit, float | None]:
    """The network with the shortest description that is found, its cores fitted, and `near` of the start."""
    start = _begun(graph, data, random, starter)
    if _is_direct(graph, data):
        best = eliminated(start.fit, data, told)
    else:
        best = _best_of_starts(start.graph, start.fit, data, random, told)
    return _polished(_settled(best, data, graph, start.room, random, told), data), start.near


def _begun(graph: Graph, data: Data, random: torch.Generator, starter: Starter) -> Start:
    """A start that has half as many parameters as there are entries, or more where the data ask for more.

    With about as many parameters as entries everything fits, and no description length means anything. But a network
    that cannot hold what is in the data loses the rest too. So a network as wide as the entries allow is fitted beside
    it, and taken where it fits far better; how much of that means nothing is seen from a fit of noise.
    """
    half, wide = within(graph, data.count // 2), widest(graph, data.count)
    copy = torch.Generator().set_state(random.get_state())  # so that what is not taken leaves no trace
    first = _first(half, data, random, starter)
    if half == graph:
        return Start(half, first, data.count // 2)
    if parameters(wide) <= parameters(half):
        wide = half
    tries = 1 if _is_direct(wide, data) else 2
    wider = min((_first(wide, data, copy, None, MORE) for _ in range(tries)), key=lambda fit: fit.error)
    noise = _first(wide, _noise(data, copy), copy, None, MORE)
    near = NEAR * max(wider.error, FLOOR) / max(noise.error, FLOOR)
    room = max(data.count // 2, parameters(wide))
    limit = None if wide == graph else near
    if first.error <= near:
        return Start(half, first, room, limit)
    return Start(wide, wider if _is_small(wide, data) else _first(wide, data, random, starter), room, limit)


def _noise(data: Data, random: torch.Generator) -> Data:
    """Normal numbers in place of the data: how closely they are fitted is how much of a fit means nothing."""
    values = torch.randn(data.values.shape, generator=random, dtype=torch.float64)
    if data.index is None:
        return Data(values)
    return Data(values, data.index, values[data.index.unbind(1)])


def _near(fit: Fit, data: Data) -> float:
    """Up to which error a network fits the data as well as a wider one, of whose error noise is but a share."""
    return NEAR * max(fit.error, FLOOR) / spare(fit.decomposition.graph, data.count)


def _first(graph: Graph, data: Data, random: torch.Generator, starter: Starter | None, steps: int = ENOUGH) -> Fit:
    """A fit of a network as wide as the graph: direct on a tree, else from random cores, or from trained gates."""
    if _is_direct(graph, data):
        decomposition = hierarchical_svd(graph, data.values)
        return weighed(decomposition, mean_square(decomposition, data), data)
    if starter is None or _is_small(graph, data):
        return fitted(random_decomposition(graph, random), data, steps)
    return fitted(starter(graph, data), data, steps)


def _is_direct(graph: Graph, data: Data) -> bool:
    return has_tree(graph) and data.index is None


def _is_small(graph: Graph, data: Data) -> bool:
    """Whether the first network needs no trained gates."""
    return _is_direct(graph, data) or parameters(graph) <= LARGE or not graph.bonds


def _best_of_starts(graph: Graph, roomy: Fit, data: Data, random: torch.Generator, told: Told | None) -> Fit:
    """The shortest description from starts with bonds just wide enough; from the wide one where none is."""
    near = _near(roomy, data)
    start = _tight(graph, data, near, random, told)
    if start is None:
        return eliminated(roomy, data, told)
    return _shortest_of_starts(start, roomy, near, data, random, told)


def _shortest_of_starts(
    start: Fit, spare: Fit | None, near: float, data: Data, random: torch.Generator, told: Told | None
) -> Fit:
    """The shortest description from a start and from random ones of the same sizes, until enough of them agree."""
    limited, found = start.decomposition.graph, []
    for _ in range(STARTS):
        found.append(eliminated(start, data, told))
        best = min(found, key=lambda fit: fit.bic)
        if sum(fit.decomposition.parameters == best.decomposition.parameters for fit in found) >= AGREE:
            break
        start = fitted(random_decomposition(limited, random), data)
        if start.error > near and spare is not None:
            start, spare = spare, start  # a fit that failed is no start, but the spare one is, once
    return min(found, key=lambda fit: fit.bic)


def _tight(graph: Graph, data: Data, near: float, random: torch.Generator, told: Told | None) -> Fit | None:
    """A fit that is near the least error seen, with all bonds limited to the same size, the least that will do."""
    widest = max((bond.size for bond in graph.bonds.values()), default=1)
    for most in range(1, widest):
        limited = smaller(graph, {name: min(bond.size, most) for name, bond in graph.bonds.items()})
        for _ in range(2):
            found = fitted(random_decomposition(limited, random), data)
            if told is not None:
                told(found)
            if found.error <= near:
                return found
    return None


def _settled(best: Fit, data: Data, graph: Graph, room: int, random: torch.Generator, told: Told | None) -> Fit:
    """Slices are put back where that makes the description shorter, up to so many parameters, and left out again."""
    most = {name: bond.size for name, bond in graph.bonds.items()}
    for _ in range(sum(most.values())):
        after = regrown(best, data, most, room, random)
        if after is best:
            break
        after = eliminated(after, data, told)
        if after.bic >= best.bic:
            break
        best = after
    return best


def _polished(fit: Fit, data: Data) -> Fit:
    decomposition, error = refined(fit.decomposition, data, 200, gain=1e-9)
    return weighed(decomposition, error, data)


def finished(decomposition: Decomposition, graph: Graph, data: Data, random: torch.Generator, told: Told | None = None) -> Fit:
    """The shortest description that elimination leaves of a network whose gates were trained.

    Gates may have shut what a shorter description needs, such as a whole term: so there are the starts of `search` too,
    where the graph is small enough for them, and else random ones of the sizes that the gates left.
    """
    start, roomy = fitted(decomposition, data), within(graph, data.count // 2)
    if has_tree(graph):
        best = eliminated(start, data, told)
    elif parameters(roomy) > LARGE:
        best = _shortest_of_starts(start, None, NEAR * max(start.error, FLOOR), data, random, told)
    else:
        wide = fitted(random_decomposition(roomy, random), data, ENOUGH)
        others = _best_of_starts(roomy, wide, data, random, told)
        best = min(eliminated(start, data, told), others, key=lambda fit: fit.bic)
    return _polished(_settled(best, data, graph, data.count // 2, random, told), data)


def pruned_only(decomposition: Decomposition, data: Data) -> Fit:
    """A network as its gates leave it, its cores fitted."""
    return _polished(weighed(decomposition, mean_square(decomposition, data), data), data)
