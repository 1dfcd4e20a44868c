"""Decompositions for graphs that no sweep solves: alternating least squares from several starts, then a polish.

Starts are random and seeded. The search stops early when a start fits exactly, or when several end with the same loss.
With a metric, starts come from a search without one: of the tensor itself, and of the tensor multiplied along each mode
by the root of the metric's partial trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tnmars.decomposing.als import Goal, alternated
from tnmars.decomposing.factors import Factor
from tnmars.decomposing.refine import LARGE, Data, refined
from tnmars.decomposing.tensors import Decomposition, random_decomposition
from tnmars.graph import Graph
from tnmars.graph.counts import count

STARTS, SUMS, FEW = 24, 36, 4
"""The random starts of a graph: with one term, with several, and with more parameters than `refine.LARGE`."""
STEPS = 100
"""The rounds over all cores for each start."""
SAME, AGREE = 1e-3, 3
"""The search stops when this number of starts end with the least loss, up to this share."""
SHORT, COARSE = 4, 1e-3
"""A start is tried with this part of the steps, and until steps gain less than this share; only the best go on."""
DONE = 1e-7
"""A relative error that counts as exact."""
LIFT = 1e-3
"""The share of the mean that is added to the partial trace of a metric before it is inverted."""
NEWTON = 60
"""The number of Gauss-Newton steps on all cores at once."""

Watch = Callable[[int, float], None]
"""Called with the number of the start or step, and the least relative error so far."""


@dataclass(eq=False)
class Search:
    """How to search: the random numbers, the number of starts and rounds, and who watches."""

    seed: int = 0
    starts: int | None = None
    steps: int = STEPS
    watch: Watch | None = None
    newton: int | None = None
    """Steps on all cores at once; by default in proportion to `steps`."""
    random: torch.Generator = field(init=False)
    seen: int = 0

    def __post_init__(self) -> None:
        self.random = torch.Generator().manual_seed(self.seed)

    @property
    def newton_steps(self) -> int:
        return NEWTON * self.steps // STEPS if self.newton is None else self.newton

    def starts_for(self, graph: Graph) -> int:
        """How many starts a graph gets."""
        if self.starts is not None:
            return self.starts
        return FEW if count(graph).cores > LARGE else STARTS if len(graph.terms) == 1 else SUMS

    def saw(self, error: float) -> None:
        self.seen += 1
        if self.watch is not None:
            self.watch(self.seen, error)


@dataclass(frozen=True, eq=False)
class Found:
    """A decomposition and its loss."""

    decomposition: Decomposition
    loss: float


def searched(graph: Graph, goal: Goal, search: Search, first: Decomposition | None = None) -> Found:
    """The best decomposition from several starts; `first` is one more, if given. The tensor has a mean square of 1."""
    if goal.metric is None:
        return _best(graph, goal, search, first)
    best: Found | None = None
    for start in _weighed_starts(graph, goal, search, first):
        found = Found(*alternated(start, goal, search.steps))
        best = found if best is None or found.loss < best.loss else best
        search.saw(_relative(best.loss, goal.total))
        if best.loss <= DONE**2 * goal.total:  # later starts could only be worse where the metric sees nothing
            break
    assert best is not None
    return best


def _best(graph: Graph, goal: Goal, search: Search, first: Decomposition | None) -> Found:
    total = goal.total
    ends: list[Found] = []
    for at in range(search.starts_for(graph)):
        start = first if at == 0 and first is not None else _random(graph, goal, search)
        found = climbed(start, goal, max(search.steps // SHORT, 1), max(search.newton_steps // SHORT, 1), gain=COARSE)
        if not ends or found.loss < min(end.loss for end in ends):
            found = climbed(found.decomposition, goal, search.steps, search.newton_steps)
        ends.append(found)
        least = min(found.loss for found in ends)
        search.saw(_relative(least, total))
        same = sum(found.loss <= (1.0 + SAME) * least for found in ends)
        if least <= DONE**2 * total or same >= AGREE or not graph.bonds:
            break
    best = min(ends, key=lambda found: found.loss)
    if best.loss <= DONE**2 * total or search.newton_steps < NEWTON:
        return best
    return climbed(best.decomposition, goal, 2 * search.steps, 2 * NEWTON, gain=1e-7)


def _random(graph: Graph, goal: Goal, search: Search) -> Decomposition:
    return random_decomposition(graph, search.random, dtype=goal.values.dtype)


def climbed(start: Decomposition, goal: Goal, steps: int, newton: int, *, gain: float = 1e-4) -> Found:
    """The decomposition after alternating least squares, and after steps on all cores at once if it is small."""
    found = Found(*alternated(start, goal, steps, gain=gain))
    if goal.metric is not None or found.decomposition.parameters > LARGE:
        return found
    moved, mean = refined(found.decomposition, Data(goal.values), newton, gain=gain)
    loss = mean * goal.values.numel()
    return Found(moved, loss) if loss < found.loss else found


def _weighed_starts(graph: Graph, goal: Goal, search: Search, first: Decomposition | None) -> Iterator[Decomposition]:
    if first is not None:
        yield first
    yield _best(graph, replace(goal, metric=None), search, None).decomposition
    whitened, back = _whitened(graph, goal)
    if back:
        plain = Goal(graph, whitened / max(float(whitened.square().mean().sqrt()), 1e-300))
        found = _best(graph, plain, search, None).decomposition
        factor = float(whitened.square().mean().sqrt())
        yield found.with_cores(_unwhitened(found.graph, scaled(found.graph, dict(found.cores), factor), back))


def _whitened(graph: Graph, goal: Goal) -> tuple[Tensor, list[Factor]]:
    """The tensor multiplied along each mode by the root of the metric's partial trace, and the inverse roots."""
    assert goal.metric is not None
    axes = [mode.name for mode in graph.modes]
    sizes = {mode.name: mode.size for mode in graph.modes}
    values, back = goal.values, []
    for factor in goal.metric.factors:
        for axis in factor.axes:
            if axis in graph.shared:
                continue
            root, inverse = _lifted(factor.traced([axis], sizes)).roots()
            values = root.applied(values, axes)
            back.append(inverse)
    return values, back


def _lifted(factor: Factor) -> Factor:
    """The factor with a share of its mean added to the diagonal, so that its inverse does not blow up small errors."""
    size = factor.matrix.shape[0]
    more = torch.full((size,), LIFT * factor.trace / size + 1e-300, dtype=torch.float64)
    return replace(factor, matrix=factor.matrix + (more if factor.matrix.dim() == 1 else torch.diag(more)))


def _unwhitened(graph: Graph, cores: dict[str, Tensor], back: list[Factor]) -> dict[str, Tensor]:
    for factor in back:
        (axis,) = factor.axes
        for name in cores:
            edges = graph.edges_of(name)
            at = next((at for at, (edge, bond) in enumerate(zip(edges, graph.bonds_of(name), strict=True))
                       if edge == axis and not bond), None)  # fmt: skip
            if at is not None:
                labels = [f"#{place}" for place in range(len(edges))]
                cores[name] = replace(factor, axes=(labels[at],)).applied(cores[name], labels)
    return cores


def scaled(graph: Graph, cores: dict[str, Tensor], factor: float) -> dict[str, Tensor]:
    """The cores of the weight times a positive factor, which is shared out over the cores of each term."""
    after = {}
    for term in graph.terms:
        share = factor ** (1 / len(term.cores))
        for core in term.cores:
            name = graph.qualified(term, core.name)
            after[name] = cores[name] * share
    return after


def _relative(loss: float, total: float) -> float:
    return float(loss / total) ** 0.5 if total > 0.0 else 0.0
