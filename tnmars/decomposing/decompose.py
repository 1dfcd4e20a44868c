"""`decompose`: from a dense weight to the cores of any graph, with ranks that are given or follow from a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tnmars.decomposing.factors import Weighting
from tnmars.decomposing.layout import by_modes, checked
from tnmars.decomposing.metric import Metric, weighting
from tnmars.decomposing.ranks import Aim, Ranks, Within, given_sizes, sizes_for_parameters
from tnmars.decomposing.spectra import below, spectrum
from tnmars.decomposing.sweep import Choose, Swept, sweep, up_to
from tnmars.decomposing.tensors import Decomposition, dense
from tnmars.graph import Graph

STARTS, STEPS = 4, 200
"""How many random starts a graph with cycles or hyperedges gets, and how many rounds over all cores each has."""

Watch = Callable[[int, float], None]
"""Called with the number of the step and the relative error so far."""


@dataclass(frozen=True, eq=False)
class Decomposed:
    """What `decompose` returns: a graph with its ranks, the cores, and how far their weight is from the given one.

    Attributes:
        graph: The given graph with the chosen sizes of bonds; nothing else changes.
        cores: The cores in float64 by qualified name, with the shapes of `graph.cores`.
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
    discarded: Mapping[str, float] = None  # type: ignore[assignment]

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
    """A weight to decompose: one axis per mode, the metric over the modes, and how to search."""

    graph: Graph
    values: Tensor
    metric: Weighting | None
    seed: int = 0
    starts: int = STARTS
    steps: int = STEPS
    watch: Watch | None = None

    @property
    def total(self) -> float:
        """The squared norm of the weight, in the metric."""
        return squared(self.values, self.graph, self.metric)


def squared(values: Tensor, graph: Graph, metric: Weighting | None) -> float:
    """The squared norm of a tensor with one axis per mode, in the metric."""
    if metric is None:
        return float(values.square().sum())
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
    starts: int = STARTS,
    steps: int = STEPS,
    watch: Watch | None = None,
) -> Decomposed:
    """The cores of a graph whose weight is closest to the given one, with ranks that are given or follow from a target.

    Args:
        weight: The dense weight.
        graph: The graph. Give at most one of `ranks`, `error`, `energy` and `parameters`; with none of them the bonds
            keep their sizes.

    Returns:
        The graph with its ranks, the cores, and the error.
    """
    aim = Aim(ranks, error, energy, parameters)
    weight = checked(graph, weight)
    task = Task(
        graph, by_modes(graph, weight), weighting(graph, weight, metric), seed, max(starts, 1), max(steps, 1), watch
    )
    swept = _tree(task, aim)
    return _result(task, swept.decomposition, swept)


def _tree(task: Task, aim: Aim) -> Swept:
    """A decomposition by a sweep."""
    total = task.total
    if aim.tolerance is not None:
        rule: Choose = Within(aim.tolerance**2 * total, len(task.graph.bonds))
    elif aim.parameters is not None:
        (term,) = task.graph.terms
        sides = below(task.graph, term)
        found = {name: spectrum(task.graph, task.values, sides[name], task.metric) for name in task.graph.bonds}
        rule = up_to(sizes_for_parameters(task.graph, found, aim.parameters))
    else:
        rule = up_to(given_sizes(task.graph, aim.ranks))
    return sweep(task.graph, task.values, rule, task.metric)


def _result(task: Task, found: Decomposition, swept: Swept | None) -> Decomposed:
    difference = dense(found.graph, found.cores) - task.values
    real = _real(task.graph, difference)
    norm = float(task.values.norm())
    total = task.total
    lost = swept.lost if swept is not None else 0.0
    metric_error = None
    if task.metric is not None:
        rest = lost if task.metric.responses is not None else squared(difference, task.graph, task.metric)
        metric_error = _relative(max(rest, 0.0) ** 0.5, total**0.5)
    is_bound = swept is not None and swept.is_bound
    return Decomposed(
        found.graph,
        found.cores,
        _relative(float(real.norm()), norm),
        metric_error,
        _relative(lost**0.5, total**0.5) if is_bound else None,
        dict(swept.discarded) if swept is not None else {},
    )


def _real(graph: Graph, values: Tensor) -> Tensor:
    """The entries of a tensor with one axis per mode that are not padding."""
    from tnmars.decomposing.layout import in_torch

    return in_torch(graph, values) if graph.padding else values


def _relative(value: float, norm: float) -> float:
    return value / norm if norm > 0.0 else 0.0 if value == 0.0 else float("inf")
