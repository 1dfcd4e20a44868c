"""`decompose`: from a dense weight to the cores of any graph, with ranks that are given or follow from a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

import torch
from torch import Tensor

from tnmars.arguments import check_arguments, own, own_seed
from tnmars.decomposing.als import Goal, alternated
from tnmars.decomposing.evbmf import evbmf_rank
from tnmars.decomposing.factors import Weighting
from tnmars.decomposing.growing import by_error, by_parameters, out_of_reach
from tnmars.decomposing.layout import by_modes, checked, in_torch
from tnmars.decomposing.metric import Metric, weighting
from tnmars.decomposing.ranks import EVBMF, Aim, Ranks, Within, given_sizes, sizes_for_parameters
from tnmars.decomposing.search import STEPS, Search, Watch, scaled, searched
from tnmars.decomposing.sweep import Choose, Swept, is_forest, is_swept, sweep, up_to
from tnmars.decomposing.tensors import Decomposition, check_plain, conjugates, dense, with_sizes
from tnmars.decomposing.unfolding import below, spectrum
from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph
from tnmars.graph.rewrite import conjugated, unconjugated
from tnmars.layer import numbers
from tnmars.layer.memory import memory_to

ROUNDS, GAIN = 12, 1e-3
"""On a tree whose metric does not split: rounds over all cores, and the share of the loss below which they stop."""
ROUNDING = 1e-9
"""An error above the target by less than this meets it."""
TIGHTER = 20
"""How often a sweep is repeated with less to discard, if its error is above the target."""


@dataclass(frozen=True, eq=False)
class Decomposed:
    """What `decompose` returns: a graph with its ranks, the cores, and how far their weight is from the given one.

    Attributes:
        graph: The given graph with the chosen sizes of bonds; nothing else changes.
        cores: The cores in float64, or complex128 for a complex weight, by qualified name. They have the shapes of
            `graph.cores`.
        error: The relative error, the norm of the difference over the norm of the weight.
        metric_error: The same in the metric, or `None` without one. If the metric has responses but no inputs, it is
            what was discarded.
        bound: On trees, a bound of `error` (with a metric: of `metric_error`) from what was discarded; `None` if there
            is none.
        discarded: On trees, for each bond the sum of the squared singular values that were cut off, in the metric.

    Example:
        >>> import torch, tnmars
        >>> weight = torch.outer(torch.arange(1.0, 7.0), torch.arange(1.0, 9.0))
        >>> graph = tnmars.families.lowrank("linear", inputs=(8,), outputs=(6,), rank=3)
        >>> result = tnmars.decompose(weight, graph, error=1e-3)
        >>> result.ranks, result.parameters, result.error < 1e-12
        ({'r': 1}, 14, True)
    """

    graph: Graph
    cores: Mapping[str, Tensor]
    error: float
    metric_error: float | None = None
    bound: float | None = None
    discarded: Mapping[str, float] = field(default_factory=dict)

    @property
    def ranks(self) -> dict[str, int]:
        """The sizes of the bonds."""
        return {name: bond.size for name, bond in self.graph.bonds.items()}

    @property
    def parameters(self) -> int:
        """The number of entries of all cores."""
        return sum(core.numel() for core in self.cores.values())


@dataclass(frozen=True, eq=False)
class Task:
    """A weight to decompose: one axis per mode, the metric over the modes, the target, and how to search."""

    graph: Graph
    values: Tensor
    metric: Weighting | None
    aim: Aim
    search: Search

    @property
    def total(self) -> float:
        """The squared norm of the weight, in the metric."""
        return squared(self.values, self.graph, self.metric)


def squared(values: Tensor, graph: Graph, metric: Weighting | None) -> float:
    """The squared norm of a tensor with one axis per mode, in the metric."""
    if metric is None:
        return float(numbers.squared(values).sum())
    axes = [mode.name for mode in graph.modes]
    if metric.responses is not None:
        return float(metric.response_gram([], {mode.name: mode.size for mode in graph.modes}))
    weighed = values
    for factor in metric.factors:
        weighed = factor.applied(weighed, axes)
    return metric.scale * float((weighed * values).sum())


@torch.no_grad()
def decompose(
    weight: Tensor,
    graph: Graph,
    *,
    ranks: Ranks | None = None,
    error: float | None = None,
    energy: float | None = None,
    parameters: int | None = None,
    metric: Metric | None = None,
    seed: int = 0,
    starts: int | None = None,
    steps: int = STEPS,
    watch: Watch | None = None,
) -> Decomposed:
    """The cores of a graph whose weight is closest to the given one, with ranks that are given or follow from a target.

    A graph without cycles is solved by singular values, from its leaves to its root; modes that all cores share, such
    as groups, have a solution for each value. Any other graph (with hyperedges, cycles, several terms or modes on some
    cores) is solved by alternating least squares from several random starts.

    Args:
        weight: The dense weight.
        graph: The graph. Its bonds keep their sizes if neither `ranks` nor another target is given.
        ranks: The sizes of the bonds: one for all, one for each by name or in the order of `graph.bonds`, or `"evbmf"`,
            which finds them from the noise of each bond's singular values (graphs without cycles). On a tree a bond is
            never wider than is useful.
        error: The largest relative error. Ranks are as small as a sweep allows; a graph with cycles grows to it.
        energy: The share of the squared norm to keep, from 0 to 1.
        parameters: The maximum number of parameters of the cores. Slices with the largest weight per parameter stay.
        metric: What errors matter; by default all entries count equally. Targets then refer to the error in the metric.
        seed: The seed of all random numbers. The global random state of torch is not changed.
        starts: The maximum number of random starts of a graph with cycles; fewer if they agree. By default 24, 36 for
            several terms, and 4 for more than 3,000 parameters.
        steps: The maximum number of rounds over all cores for each start.
        watch: Called with the number of each start or step and the least relative error so far.

    Shape:
        weight: The shape of the dense weight in torch's layout, `graph.dense_shape`.

    Returns:
        The graph with its ranks, the cores, the error, and on trees a bound of the error.

    Raises:
        ShapeError: The weight or a part of the metric has a wrong shape.
        TnmarsError: Entries are not finite, more than one target is given, ranks do not fit the graph, or a target is
            out of reach.

    Example:
        >>> import torch, tnmars
        >>> weight = torch.randn(12, 20, generator=torch.Generator().manual_seed(0))
        >>> graph = tnmars.families.lowrank("linear", inputs=(20,), outputs=(12,), rank=4)
        >>> result = tnmars.decompose(weight, graph, parameters=200)
        >>> result.ranks, result.parameters
        ({'r': 6}, 192)
    """
    check_arguments(decompose, locals())
    check_plain(graph, "a decomposition")
    ranks, error, energy, parameters, starts, steps = own(
        (ranks, error, energy, parameters, starts, steps), arrays=True
    )
    seed = own_seed(seed)
    aim = Aim(ranks, error, energy, parameters)
    memory = partial(memory_to, f"decompose a weight of shape {graph.dense_shape}", "Give smaller ranks.")
    with memory():
        weight = checked(graph, weight)
    if weight.is_complex() and metric is not None and not metric.is_empty:
        text = f"the weight has type {weight.dtype}, but a metric is for real weights."
        raise TnmarsError(Problem(text, "Leave the metric or the data out."))
    plain = unconjugated(graph)  # with the conjugates of the cores that are used so
    most = None if starts is None else max(starts, 1)
    with memory():
        values, metrics = by_modes(graph, weight), weighting(graph, weight, metric)
        task = Task(plain, values, metrics, aim, Search(seed, most, max(steps, 1), watch))
        is_direct = is_forest(graph) or (is_swept(graph) and aim.ranks != EVBMF)
        found = _swept(task) if is_direct else _searched(task)
    if plain is graph:
        return found
    cores = conjugates(found.cores, graph.conjugated)
    return replace(found, graph=conjugated(found.graph, graph.conjugated), cores=cores)


def _swept(task: Task) -> Decomposed:
    """A decomposition by a sweep; improved by alternating least squares if the metric does not split at every bond."""
    tolerance = task.aim.tolerance
    rule = _rule(task)
    swept = sweep(task.graph, task.values, rule, task.metric)
    is_final = swept.is_bound or task.metric is None or task.metric.responses is not None
    found = _result(task, swept.decomposition, swept) if is_final else _improved(task, swept)
    if tolerance is None:
        return found
    for _ in range(0 if is_final else TIGHTER):
        if _counted(found) <= tolerance:
            break
        assert isinstance(rule, Within)
        rule = Within(0.6 * rule.allowed, rule.bonds)
        found = _improved(task, sweep(task.graph, task.values, rule, task.metric))
    if _counted(found) > tolerance + ROUNDING:
        raise out_of_reach(tolerance, _counted(found), found.parameters)
    return found


def _counted(found: Decomposed) -> float:
    """The error that targets refer to."""
    return found.error if found.metric_error is None else found.metric_error


def _improved(task: Task, swept: Swept) -> Decomposed:
    """A sweep in the metric, or one without it if that is better, and rounds of alternating least squares."""
    goal = Goal(task.graph, task.values, task.metric)
    sizes = {name: bond.size for name, bond in swept.decomposition.graph.bonds.items()}
    plain = sweep(task.graph, task.values, up_to(sizes)).decomposition
    starts = [swept.decomposition, plain]
    best = min(starts, key=lambda start: goal.loss(start.graph, start.cores))
    after, loss = alternated(best, goal, min(task.search.steps, ROUNDS), gain=GAIN)
    task.search.saw(_relative(loss**0.5, task.total**0.5))
    return _result(task, after, swept)


def _rule(task: Task) -> Choose:
    """How many slices a sweep keeps of each bond."""
    graph, aim = task.graph, task.aim
    if aim.tolerance is not None:
        return Within(aim.tolerance**2 * task.total, len(graph.bonds))
    if aim.parameters is None and aim.ranks != EVBMF:
        return up_to(given_sizes(graph, aim.ranks))
    (term,) = graph.terms
    sides = below(graph, term)
    metric = task.metric if aim.parameters is not None else None
    found = {name: spectrum(graph, task.values, sides[name], metric) for name in graph.bonds}
    if aim.parameters is not None:
        return up_to(sizes_for_parameters(graph, found, aim.parameters))
    lengths = {mode.name: mode.size for mode in graph.modes}
    sizes = {}
    for name, squares in found.items():
        rows = prod(lengths[mode] for mode in sides[name])
        sizes[name] = max(evbmf_rank(squares, rows, task.values.numel() // rows), 1)
    return up_to(sizes)


def _searched(task: Task) -> Decomposed:
    """A decomposition by alternating least squares, for a graph that no sweep solves."""
    graph, aim = task.graph, task.aim
    if aim.ranks == EVBMF:
        text = "ranks is 'evbmf', but the graph has cycles, hyperedges, several terms or modes on several cores."
        raise TnmarsError(Problem(text, "Give error, energy or parameters; EVBMF is for graphs without cycles."))
    size = float(numbers.squared(task.values).mean().sqrt())
    metric = task.metric if task.metric is None or task.metric.factors else None
    metric = None if metric is None else replace(metric, responses=None)
    goal = Goal(graph, task.values / (size or 1.0), metric)
    if aim.tolerance is None and aim.parameters is None:
        sized = with_sizes(graph, given_sizes(graph, aim.ranks))
    else:
        sized = with_sizes(graph, dict.fromkeys(graph.bonds, 1))
    if size == 0.0 or goal.total == 0.0:
        zeros = {name: torch.zeros(shape, dtype=task.values.dtype) for name, shape in sized.cores.items()}
        return _result(task, Decomposition(sized, zeros, {}), None)
    if aim.tolerance is not None:
        found = by_error(graph, goal, task.search, aim.tolerance)
    elif aim.parameters is not None:
        found = by_parameters(graph, goal, task.search, aim.parameters)
    else:
        found = searched(sized, goal, task.search)
    after = found.decomposition
    return _result(task, after.with_cores(scaled(after.graph, dict(after.cores), size)), None)


def _result(task: Task, found: Decomposition, swept: Swept | None) -> Decomposed:
    difference = dense(found.graph, found.cores) - task.values
    if task.graph.padding:  # what the cores give there does not count
        difference = by_modes(task.graph, in_torch(task.graph, difference))
    total = task.total
    lost = swept.lost if swept is not None else 0.0
    metric_error = None
    if task.metric is not None and (swept is not None or task.metric.responses is None):
        rest = lost if task.metric.responses is not None else squared(difference, task.graph, task.metric)
        metric_error = _relative(max(rest, 0.0) ** 0.5, total**0.5)
    is_bound = swept is not None and swept.is_bound
    return Decomposed(
        found.graph,
        found.cores,
        _relative(float(difference.norm()), float(task.values.norm())),
        metric_error,
        _relative(lost**0.5, total**0.5) if is_bound else None,
        dict(swept.discarded) if swept is not None else {},
    )


def _relative(value: float, norm: float) -> float:
    return value / norm if norm > 0.0 else 0.0 if value == 0.0 else float("inf")
