"""From a graph whose ranks are too large to the network with the shortest description.

Elimination starts from a network that fits the data closely. On a tree one start is enough, because every start leads
to the same directions to remove. On other graphs elimination may end in a network that cannot be cut further although a
smaller one exists. There we add starts with bonds just wide enough to fit, and take the shortest description of all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tnmars.decomposing.refine import FLOOR, LARGE, Data, mean_square, refined
from tnmars.decomposing.sweep import has_tree, hierarchical_svd
from tnmars.decomposing.tensors import Decomposition, random_decomposition
from tnmars.fitting.elimination import MORE, Fit, Record, eliminated, fitted, regrown, weighed
from tnmars.fitting.room import limited, parameters, spare, widest, within
from tnmars.fitting.targeted import by_spectra, is_large_tree
from tnmars.graph import Graph

Starter = Callable[[Graph, Data], Decomposition]

ENOUGH = 15
"""Steps of the first fit, of a decomposition with more parameters than it needs."""
NEAR = 1.5
"""A start must have a squared error of at most this factor times the smallest error seen."""
STARTS = 8
"""The maximum number of additional starts."""
AGREE = 3
"""No more starts are tried once this number of them ended with as many parameters as the shortest description."""


@dataclass(frozen=True, eq=False)
class Start:
    """Where a search begins."""

    graph: Graph
    """The graph, its bonds limited if there are few entries."""
    fit: Fit
    """A decomposition of this graph that fits the data closely."""
    room: int
    """The maximum number of parameters that it may grow to."""
    near: float | None = None
    """The largest error that the data make likely; `None` if bonds as wide as the user's could be tried."""


def search(
    graph: Graph, data: Data, random: torch.Generator, starter: Starter, record: Record | None = None
) -> tuple[Fit, float | None]:
    """The shortest description found, its cores fitted, and `near` of the start."""
    if is_large_tree(graph, data):
        return by_spectra(graph, data, record), None
    start = _begun(graph, data, random, starter)
    if _is_direct(graph, data):
        best = eliminated(start.fit, data, record)
    else:
        best = _best_of_starts(start.graph, start.fit, data, random, record)
    return _polished(_settled(best, data, graph, start.room, random, record), data), start.near


def _begun(graph: Graph, data: Data, random: torch.Generator, starter: Starter) -> Start:
    """A start with half as many parameters as there are entries, or more if the data need more.

    With about as many parameters as entries everything fits, and the description length is meaningless. But a start
    that is too narrow for the data loses information. So we also fit a decomposition as wide as the entries allow, and
    start from that if it fits far better. A fit of pure noise shows how much of the improvement is meaningless.
    """
    half, wide = within(graph, data.count // 2), widest(graph, data.count)
    copy = torch.Generator().set_state(random.get_state())  # trials must not change the numbers drawn later
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
    """Normal numbers in place of the data; how closely they are fitted shows how much of a fit is meaningless."""
    values = torch.randn(data.values.shape, generator=random, dtype=data.values.dtype)
    if data.index is None:
        return Data(values)
    return Data(values, data.index, values[data.index.unbind(1)])


def _near(fit: Fit, data: Data) -> float:
    """The largest error at which a narrower decomposition fits as well as `fit`, corrected for fitted noise."""
    return NEAR * max(fit.error, FLOOR) / spare(fit.decomposition.graph, data.count)


def _first(graph: Graph, data: Data, random: torch.Generator, starter: Starter | None, steps: int = ENOUGH) -> Fit:
    """A fit as wide as the graph: in one pass on a tree, otherwise from random cores or from trained gates."""
    if _is_direct(graph, data):
        decomposition = hierarchical_svd(graph, data.values)
        return weighed(decomposition, mean_square(decomposition, data), data)
    if starter is None or _is_small(graph, data):
        return fitted(_random(graph, random, data), data, steps)
    return fitted(starter(graph, data), data, steps)


def _random(graph: Graph, random: torch.Generator, data: Data) -> Decomposition:
    return random_decomposition(graph, random, dtype=data.values.dtype)


def _is_direct(graph: Graph, data: Data) -> bool:
    return has_tree(graph) and data.index is None


def _is_small(graph: Graph, data: Data) -> bool:
    """Whether the first fit needs no trained gates."""
    return _is_direct(graph, data) or parameters(graph) <= LARGE or not graph.bonds


def _best_of_starts(graph: Graph, roomy: Fit, data: Data, random: torch.Generator, record: Record | None) -> Fit:
    """The shortest description from starts with bonds just wide enough, or from `roomy` if none fits."""
    near = _near(roomy, data)
    start = _tight(graph, data, near, random, record)
    if start is None:
        return eliminated(roomy, data, record)
    return _shortest_of_starts(start, roomy, near, data, random, record)


def _shortest_of_starts(
    start: Fit, spare: Fit | None, near: float, data: Data, random: torch.Generator, record: Record | None
) -> Fit:
    """The shortest description from a start and from random ones of the same sizes, until enough of them agree."""
    graph, ends = start.decomposition.graph, []
    for _ in range(STARTS):
        ends.append(eliminated(start, data, record))
        best = min(ends, key=lambda fit: fit.bic)
        if sum(fit.decomposition.parameters == best.decomposition.parameters for fit in ends) >= AGREE:
            break
        start = fitted(_random(graph, random, data), data)
        if start.error > near and spare is not None:
            start, spare = spare, start  # a poor fit is not a start; use the spare one instead, once
    return min(ends, key=lambda fit: fit.bic)


def _tight(graph: Graph, data: Data, near: float, random: torch.Generator, record: Record | None) -> Fit | None:
    """A fit with an error of at most `near`, all bonds limited to the smallest common size that allows it."""
    widest = max((bond.size for bond in graph.bonds.values()), default=1)
    for most in range(1, widest):
        narrow = limited(graph, most)
        for _ in range(2):
            fit = fitted(_random(narrow, random, data), data)
            if record is not None:
                record(fit)
            if fit.error <= near:
                return fit
    return None


def _settled(best: Fit, data: Data, graph: Graph, room: int, random: torch.Generator, record: Record | None) -> Fit:
    """The fit after adding slices where that shortens the description, up to `room` parameters, and removing again."""
    most = {name: bond.size for name, bond in graph.bonds.items()}
    for _ in range(sum(most.values())):
        after = regrown(best, data, most, room, random)
        if after is best:
            break
        after = eliminated(after, data, record)
        if after.bic >= best.bic:
            break
        best = after
    return best


def _polished(fit: Fit, data: Data) -> Fit:
    decomposition, error = refined(fit.decomposition, data, 200, gain=1e-9)
    return weighed(decomposition, error, data)


def finished(
    decomposition: Decomposition, graph: Graph, data: Data, random: torch.Generator, record: Record | None = None
) -> Fit:
    """The shortest description by elimination, starting from what trained gates keep.

    The gates may have closed something that a shorter description needs, such as a whole term. So the starts of
    `search` are tried too if the graph is small enough, and random ones of the sizes that the gates left otherwise.
    """
    start, roomy = fitted(decomposition, data), within(graph, data.count // 2)
    if has_tree(graph):
        best = eliminated(start, data, record)
    elif parameters(roomy) > LARGE:
        best = _shortest_of_starts(start, None, NEAR * max(start.error, FLOOR), data, random, record)
    else:
        wide = fitted(_random(roomy, random, data), data, ENOUGH)
        others = _best_of_starts(roomy, wide, data, random, record)
        best = min(eliminated(start, data, record), others, key=lambda fit: fit.bic)
    return _polished(_settled(best, data, graph, data.count // 2, random, record), data)


def pruned_only(decomposition: Decomposition, data: Data) -> Fit:
    """The decomposition that gates keep, its cores fitted."""
    return _polished(weighed(decomposition, mean_square(decomposition, data), data), data)
