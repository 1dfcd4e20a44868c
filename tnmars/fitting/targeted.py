"""Fits that need no search: ranks from a target that the user names, and trees that are too large for elimination."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import log

from tnmars.decomposing.decompose import Decomposed, decompose
from tnmars.decomposing.ranks import Aim
from tnmars.decomposing.ranks import parameters as size_of
from tnmars.decomposing.refine import FLOOR, LARGE, Data, mean_square
from tnmars.decomposing.sweep import has_tree, hierarchical_svd
from tnmars.decomposing.tensors import Decomposition, dense, with_sizes
from tnmars.decomposing.unfolding import below, spectrum
from tnmars.errors import Problem, TnmarsError
from tnmars.fitting.elimination import Fit, Record, weighed
from tnmars.fitting.room import parameters
from tnmars.graph import Graph
from tnmars.layer.numbers import squared
from tnmars.text.numbers import dashed

LITTLE = 0.5
"""If a fit explains less than this share of the squared norm, we look at what is left over."""
BEYOND = 1.3
"""Noise has no squared singular value above this factor times its expected edge (Marchenko and Pastur)."""
SHOWN = 12
"""How many networks of a path of sizes are recorded."""


def by_target(graph: Graph, data: Data, aim: Aim, seed: int) -> Fit:
    """The decomposition with the ranks that a target asks for.

    Raises `TnmarsError` if some entries are unknown, or if the target is out of reach.
    """
    if data.index is not None:
        text = "some entries are unknown or must not be fitted, but a target for the ranks needs them all."
        raise TnmarsError(Problem(text, "Leave out ranks, error, energy and parameters; fit then finds the ranks."))
    found = decompose(
        data.values,
        graph,
        ranks=aim.ranks,
        error=aim.error,
        energy=aim.energy,
        parameters=aim.parameters,
        seed=seed,
    )
    return _fit(found, data)


def _fit(found: Decomposed, data: Data) -> Fit:
    decomposition = Decomposition(found.graph, found.cores, {name: name for name in found.graph.bonds})
    return weighed(decomposition, mean_square(decomposition, data), data)


def is_large_tree(graph: Graph, data: Data) -> bool:
    """Whether slices of a fit are better removed by singular values than one at a time with a refit after each."""
    return has_tree(graph) and data.index is None and bool(graph.bonds) and parameters(graph) > LARGE


def by_spectra(graph: Graph, data: Data, record: Record | None) -> Fit:
    """The shortest description of a tree along a path of sizes, from the singular values of its bonds alone.

    One slice after the other is removed, where that changes the description least. Sizes with more parameters than half
    the entries do not count: there everything fits.
    """
    (term,) = graph.terms
    sides = below(graph, term)
    tails = {}
    for bond in term.bonds:
        squares = spectrum(graph, data.values, sides[bond.name], None)
        tails[bond.name] = [*squares.flip(0).cumsum(0).flip(0).tolist(), 0.0]
    sizes = {bond.name: min(bond.size, len(tails[bond.name]) - 1) for bond in term.bonds}
    path = list(_path(graph, sizes, tails, data.count))
    allowed = [point for point in path if 2 * point[2] <= data.count] or path[-1:]
    best = min(allowed, key=lambda point: point[0])
    step = max(len(allowed) // SHOWN, 1)
    for _, tried, _ in allowed[::step]:
        if record is not None:
            record(_swept(graph, tried, data))
    return _swept(graph, best[1], data)


def _path(
    graph: Graph, sizes: Mapping[str, int], tails: Mapping[str, list[float]], entries: int
) -> Iterator[tuple[float, dict[str, int], int]]:
    """Description length, sizes and parameters, with one slice less at each step."""

    def length(tried: Mapping[str, int]) -> tuple[float, int]:
        error = sum(tails[name][size] for name, size in tried.items()) / entries
        held = size_of(graph, tried)
        return entries * log(max(error, FLOOR)) + held * log(entries), held

    now = dict(sizes)
    while True:
        value, held = length(now)
        yield value, dict(now), held
        less = [{**now, name: size - 1} for name, size in now.items() if size > 1]
        if not less:
            return
        now = min(less, key=lambda tried: length(tried)[0])


def _swept(graph: Graph, sizes: Mapping[str, int], data: Data) -> Fit:
    decomposition = hierarchical_svd(with_sizes(graph, sizes), data.values)
    return weighed(decomposition, mean_square(decomposition, data), data)


def left_over(fit: Fit, data: Data) -> Iterator[str]:
    """A sentence if a fit explains less than half of the norm, and what is left over is not noise."""
    explained = 1.0 - fit.error
    ranks = list(fit.decomposition.sizes.values())
    if not ranks or explained >= LITTLE or data.index is not None or not _has_structure(fit, data):
        return
    what = f"rank {ranks[0]} explains" if len(ranks) == 1 else f"ranks {dashed(ranks)} explain"
    yield (
        f"{what} {max(100.0 * explained, 0.0):.0f} % of the norm, and the rest is not just noise; to ask for a size or "
        "an error use --parameters or --error (in Python parameters=, error=)."
    )


def _has_structure(fit: Fit, data: Data) -> bool:
    """Whether the residual, unfolded along some mode, has a larger singular value than noise of its size would."""
    graph = fit.decomposition.graph
    rest = data.values - dense(graph, fit.decomposition.cores)
    level = float(squared(rest).mean())
    for mode in graph.modes:
        columns = rest.numel() // mode.size
        edge = level * (mode.size**0.5 + columns**0.5) ** 2
        if float(spectrum(graph, rest, (mode.name,), None)[0]) > BEYOND * edge:
            return True
    return False
