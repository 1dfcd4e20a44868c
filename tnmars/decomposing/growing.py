"""Ranks of graphs that are no trees: bonds grow where a slice lowers the loss most, until the target is met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tnmars.decomposing.als import Goal, alternated
from tnmars.decomposing.search import Found, Search, searched
from tnmars.decomposing.tensors import Decomposition, with_sizes
from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph
from tnmars.graph.counts import count
from tnmars.layer.numbers import squared

TRIAL, SETTLE = 6, 25
"""Rounds over all cores that show what a wider bond gains, and that follow the decision."""
STRIDE = 8
"""A bond grows by this part of its size, or by 1."""
FRESH, NEWTON = 3, 12
"""Starts that are tried at every size, the grown decomposition among them, and Gauss-Newton steps of each."""


def grown(
    decomposition: Decomposition, sizes: dict[str, int], random: torch.Generator, share: float = 0.3
) -> Decomposition:
    """The decomposition with wider bonds; the new slices are random and small."""
    graph = with_sizes(decomposition.graph, sizes)
    cores = {}
    for name, shape in graph.cores.items():
        old = decomposition.cores[name]
        scale = share * float(squared(old).mean().sqrt())
        new = torch.randn(shape, generator=random, dtype=old.dtype) * scale
        new[tuple(slice(0, size) for size in old.shape)] = old
        cores[name] = new
    return Decomposition(graph, cores, decomposition.names)


@dataclass(frozen=True, eq=False)
class Grower:
    """A graph whose bonds grow, within a number of parameters."""

    goal: Goal
    search: Search
    most: int

    def grow(self, graph: Graph, is_done: Callable[[Found], bool]) -> Found:
        """The decomposition once it is done, or once no bond can grow."""
        found = self._settled(with_sizes(graph, dict.fromkeys(graph.bonds, 1)), None)
        while not is_done(found):
            wider = self._wider(found)
            if wider is None:
                break
            found = self._settled(wider.graph, wider)
        last = searched(
            found.decomposition.graph, self.goal, Search(self.search.seed, 1, self.search.steps), found.decomposition
        )
        return last if last.loss < found.loss else found

    def _settled(self, graph: Graph, start: Decomposition | None) -> Found:
        """The decomposition of these sizes: from the one before, and from a few random starts."""
        seed = int(torch.randint(2**31, (), generator=self.search.random))
        found = searched(graph, self.goal, Search(seed, FRESH, SETTLE, newton=NEWTON), start)
        self.search.saw((found.loss / max(self.goal.total, 1e-300)) ** 0.5)
        return found

    def _wider(self, found: Found) -> Decomposition | None:
        """The decomposition with one wider bond, which lowers the loss most per parameter. `None` if none fits."""
        held = found.decomposition.parameters
        best, most = None, -1.0
        for name, bond in found.decomposition.graph.bonds.items():
            tried = self._tried(found, {name: bond.size + max(1, bond.size // STRIDE)})
            if tried is not None and (tried.decomposition.parameters - held) > 0:
                value = (found.loss - tried.loss) / (tried.decomposition.parameters - held)
                best, most = (tried.decomposition, value) if value > most else (best, most)
        if best is None or most * held > 1e-3 * found.loss:
            return best
        every = self._tried(found, {name: bond.size + 1 for name, bond in found.decomposition.graph.bonds.items()})
        return best if every is None else every.decomposition

    def _tried(self, found: Found, sizes: dict[str, int]) -> Found | None:
        if count(with_sizes(found.decomposition.graph, sizes)).cores > self.most:
            name, size = next(iter(sizes.items()))
            if len(sizes) > 1 or size == found.decomposition.graph.bonds[name].size + 1:
                return None
            return self._tried(found, {name: found.decomposition.graph.bonds[name].size + 1})
        wider = grown(found.decomposition, sizes, self.search.random)
        return Found(*alternated(wider, self.goal, TRIAL))


def by_error(graph: Graph, goal: Goal, search: Search, tolerance: float) -> Found:
    """The decomposition with a relative error of at most `tolerance`, grown from bonds of size 1.

    Raises `TnmarsError` if that takes more parameters than the tensor has entries.
    """
    total, most = goal.total, max(goal.values.numel(), count(with_sizes(graph, dict.fromkeys(graph.bonds, 1))).cores)
    found = Grower(goal, search, most).grow(graph, lambda found: found.loss <= tolerance**2 * total)
    if found.loss > tolerance**2 * total:
        raise out_of_reach(tolerance, (found.loss / total) ** 0.5, found.decomposition.parameters)
    return found


def out_of_reach(tolerance: float, reached: float, parameters: int) -> TnmarsError:
    """The error for a target that a graph does not reach with as many parameters as the weight has entries."""
    text = f"a relative error of {tolerance:g} is out of reach: the graph gives {reached:.3g} with {parameters:,} "
    return TnmarsError(Problem(f"{text}parameters.", "Allow a larger error, or use another graph."))


def by_parameters(graph: Graph, goal: Goal, search: Search, most: int) -> Found:
    """The decomposition with at most this number of parameters, grown from bonds of size 1."""
    least = count(with_sizes(graph, dict.fromkeys(graph.bonds, 1))).cores
    if least > most:
        text = f"parameters is {most:,}, but the graph needs at least {least:,}, with every bond of size 1."
        raise TnmarsError(Problem(text, "Ask for more parameters, or use another graph."))
    return Grower(goal, search, most).grow(graph, lambda found: False)
