"""For one weight the ways to decompose it, from wide to narrow: ranks, size and loss of each. The layers' choices.

Ranks of a tree follow from its singular values in the metric of the data: cutting a bond to k slices loses the sum of
the squared values that go. Slices go one after the other, the least loss per parameter saved first. Slices of any other
graph are not orthogonal: their weights only decide the order in which they go. There a few sizes are decomposed, and
losses between them are interpolated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

import numpy as np
from torch import Tensor

from tnmars.decomposing.canonical import canonical
from tnmars.decomposing.decompose import Decomposed, decompose
from tnmars.decomposing.metric import Metric
from tnmars.decomposing.spectra import spectra
from tnmars.decomposing.sweep import is_swept
from tnmars.decomposing.tensors import with_sizes
from tnmars.decomposing.unfolding import below
from tnmars.graph import Graph
from tnmars.graph.counts import count
from tnmars.graph.kinds import Role
from tnmars.layer.numbers import wide_dtype
from tnmars.models.rules import Candidate
from tnmars.models.torch_layers import as_matrix
from tnmars.program.expected import evaluate, parameter_terms

Sizes = Mapping[str, int]
STEPS = 10
"""Rounds of least squares over the cores of a graph that is not a tree, to see what it loses."""
SIZES = 5
"""The number of sizes of such a graph that are decomposed, from the widest to the narrowest."""


@dataclass(frozen=True, eq=False)
class Choice:
    """One way to decompose a weight."""

    candidate: Candidate
    sizes: Sizes
    parameters: int
    """Of the cores."""
    loss: float
    """The expected squared change of the model's outputs, to second order."""

    @property
    def graph(self) -> Graph:
        return with_sizes(self.candidate.graph, self.sizes)


def choices(candidate: Candidate, weight: Tensor, metric: Metric) -> list[Choice]:
    """The ways to decompose a weight by one graph, narrowest last; only those with fewer parameters than the weight."""
    graph = candidate.graph
    if not graph.bonds:
        return []
    if not is_swept(graph) and not candidate.has_ranks:
        graph = widest(graph, weight.numel())
        candidate = replace(candidate, graph=graph)
    if is_swept(graph):
        base, found = 0.0, spectra(weight, graph, metric)
    else:
        return _searched(candidate, weight, metric)
    if candidate.has_ranks:
        base += sum(float(values[graph.bonds[name].size :].sum()) for name, values in found.items())
        found = {name: values[: graph.bonds[name].size] for name, values in found.items()}
    return list(_path(candidate, {name: values.tolist() for name, values in found.items()}, weight.numel(), base))


def _searched(candidate: Candidate, weight: Tensor, metric: Metric) -> list[Choice]:
    """The choices of a graph that is not a tree: the order of its slices from the widest, losses from a few sizes."""
    values = weight.to(wide_dtype(weight.dtype))
    norm = _norm(as_matrix(candidate.graph.kind, values, candidate.graph.groups), metric)

    def made(graph: Graph) -> tuple[Decomposed, float]:
        found = decompose(weight, graph, metric=metric, starts=1, steps=STEPS)
        return found, norm * (found.error if found.metric_error is None else found.metric_error) ** 2

    wide, lost = made(candidate.graph)
    weights = {name: value.square().tolist() for name, value in canonical(wide.graph, wide.cores).weights.items()}
    path = _path(candidate, weights, weight.numel(), lost)
    if not path:
        return []
    marks = sorted(
        {round((len(path) - 1) * (at / (SIZES - 1)) ** 0.5) for at in range(SIZES)}
    )  # denser at the narrow end
    losses = [lost if path[at].graph == wide.graph else made(path[at].graph)[1] for at in marks]
    rising = np.maximum.accumulate(np.maximum(losses, np.finfo(float).tiny))
    sizes = np.log([choice.parameters for choice in path])
    between = np.exp(np.interp(-sizes, -sizes[marks], np.log(rising)))
    return [replace(choice, loss=float(loss)) for choice, loss in zip(path, between, strict=True)]


def _norm(matrix: Tensor, metric: Metric) -> float:
    """The squared norm of a weight in a metric."""
    responses = metric.responses
    if responses is None:
        inputs = metric.inputs
        half = matrix if inputs is None else matrix * inputs if inputs.dim() == 1 else matrix @ inputs
        responses = (half @ matrix.mH).real
    return float(responses.trace() if metric.outputs is None else (metric.outputs * responses).sum())


def needs_inputs(graph: Graph) -> bool:
    """Whether the ranks of a graph depend on the full second moment of the inputs.

    Not if every bond has a side without inputs: the second moment of the outputs is enough there.
    """
    if not is_swept(graph):
        return True
    outside = {mode.name for mode in graph.modes if mode.role in (Role.GROUP, Role.OUT)}
    inside = {mode.name for mode in graph.modes} - outside
    (term,) = graph.terms
    sides = (set(side) & inside for side in below(graph, term).values())
    return any(side and side != inside for side in sides)


def widest(graph: Graph, room: int) -> Graph:
    """The graph with the largest common size of its bonds that has fewer parameters than `room`."""
    size = 1
    while count(with_sizes(graph, dict.fromkeys(graph.bonds, size + 1))).cores < room:
        size += 1
    return with_sizes(graph, dict.fromkeys(graph.bonds, size))


def _path(candidate: Candidate, values: Mapping[str, list[float]], most: int, base: float) -> list[Choice]:
    """All slices to one of each bond, one slice less at a time."""
    terms = parameter_terms(candidate.graph)
    sizes = {name: len(entries) for name, entries in values.items()}
    lost = base
    path: list[Choice] = []

    def price(name: str) -> tuple[float, int, str]:
        size = sizes[name]
        saved = int(evaluate(terms, sizes)) - int(evaluate(terms, {**sizes, name: size - 1}))
        return max(values[name][size - 1], 0.0) / max(saved, 1), size, name

    def note() -> None:
        parameters = int(evaluate(terms, sizes))
        if parameters < most:
            path.append(Choice(candidate, dict(sizes), parameters, lost))

    heap = [price(name) for name, size in sizes.items() if size > 1]
    heapify(heap)
    note()
    while heap:
        _, size, name = heappop(heap)
        current = price(name)
        if size != sizes[name] or (heap and current > heap[0]):
            heappush(heap, current)  # what it saves has changed since
            continue
        lost += max(values[name][size - 1], 0.0)
        sizes[name] = size - 1
        note()
        if sizes[name] > 1:
            heappush(heap, price(name))
    return path
