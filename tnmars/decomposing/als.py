"""Alternating least squares for any graph: one core at a time, with the others fixed, in a metric or without.

With the environment E of a core and the metric M, a core solves `(E'ME) a = E'Mw`, where E' is the conjugate transpose.
The left side is the network without the core, contracted with its conjugate through the metric. It is solved as a
matrix, or by conjugate gradients if it is large. A term to stay close to the core before makes it regular; it never
lets the loss rise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from tnmars.decomposing.factors import Weighting
from tnmars.decomposing.tensors import Decomposition, Labels, balanced, contract, dense, inner, labels
from tnmars.graph import Graph

NEAR = 1e-9
"""The weight of the distance to the core before, as a share of the mean diagonal of the matrix."""
LARGE, MUCH = 3000, 2**25
"""A core is found by conjugate gradients if its matrix has more rows, or more entries over all batches."""
ROUNDS = 30
"""The number of rounds of conjugate gradients."""


@dataclass(frozen=True, eq=False)
class Goal:
    """A tensor with one axis per mode, and the metric of errors; the metric knows all its factors."""

    graph: Graph
    values: Tensor
    metric: Weighting | None = None

    def weighed(self, tensor: Tensor) -> Tensor:
        """The metric applied to a tensor with one axis per mode."""
        if self.metric is None:
            return tensor
        axes = [mode.name for mode in self.graph.modes]
        for factor in self.metric.factors:
            tensor = factor.applied(tensor, axes)
        return tensor * self.metric.scale

    def loss(self, graph: Graph, cores: Mapping[str, Tensor]) -> float:
        """The squared norm of the error, in the metric."""
        difference = dense(graph, cores) - self.values
        return max(inner(difference, self.weighed(difference)), 0.0)

    @property
    def total(self) -> float:
        """The squared norm of the tensor, in the metric."""
        return max(inner(self.values, self.weighed(self.values)), 0.0)


def alternated(start: Decomposition, goal: Goal, steps: int, *, gain: float = 1e-5) -> tuple[Decomposition, float]:
    """The decomposition after some rounds over all cores, and its loss, which is never above that of the start.

    It stops after `steps` rounds, after three in a row that reduce the loss by less than the share `gain`, or when the
    rest is rounding.
    """
    best = dict(start.cores)
    least = goal.loss(start.graph, best)
    floor = 1e-24 * goal.total
    cores, before, slow = dict(best), least, 0
    for _ in range(steps):
        if least <= floor:
            break
        cores = _round(start.graph, cores, goal)
        loss = goal.loss(start.graph, cores)
        if not loss < before:
            slow += 1
        else:
            slow = slow + 1 if before - loss < gain * before else 0
        if loss < least:
            best, least = dict(cores), loss
        before = loss
        if slow >= 3:
            break
    return start.with_cores(best), least


def _round(graph: Graph, cores: dict[str, Tensor], goal: Goal) -> dict[str, Tensor]:
    """Every core once."""
    cores = balanced(graph, cores)
    terms = labels(graph)
    aim = goal.weighed(goal.values)
    for at, term in enumerate(terms):
        rest = aim
        if len(terms) > 1:
            others = [_term(graph, other, cores) for place, other in enumerate(terms) if place != at]
            rest = aim - goal.weighed(torch.stack(others).sum(0))
        for name in term:
            cores[name] = solved(graph, term, name, cores, rest, goal.metric)
    return cores


def _term(graph: Graph, term: Mapping[str, Labels], cores: Mapping[str, Tensor]) -> Tensor:
    return contract(list(term.values()), tuple(mode.name for mode in graph.modes), [cores[name] for name in term])


def solved(
    graph: Graph,
    term: Mapping[str, Labels],
    name: str,
    cores: Mapping[str, Tensor],
    aim: Tensor,
    metric: Weighting | None,
) -> Tensor:
    """The core that minimizes the loss of its term, given the others. `aim` is the metric applied to the tensor."""
    system = System.of(graph, term, name, cores, metric)
    others = [(axes, cores[other].conj()) for other, axes in term.items() if other != name]
    modes = tuple(mode.name for mode in graph.modes)
    operands = [*others, (modes, aim)]
    right = contract([axes for axes, _ in operands], system.order, [value for _, value in operands])
    core = cores[name].permute([term[name].index(label) for label in system.order])
    found = system.solution(right, core)
    return found.permute([system.order.index(label) for label in term[name]]).contiguous()


@dataclass(frozen=True, eq=False)
class System:
    """The linear equations of one core: `batch` labels have a matrix each, `inner` labels are coupled by it.

    All other labels of the core, `free`, are columns: they share the matrix.
    """

    batch: Labels
    inner: Labels
    free: Labels
    sizes: Mapping[str, int]
    operands: Sequence[tuple[Labels, Tensor]]
    """The conjugate of the network without the core, and its copy through the metric, whose labels are primed."""

    @staticmethod
    def of(
        graph: Graph, term: Mapping[str, Labels], name: str, cores: Mapping[str, Tensor], metric: Weighting | None
    ) -> System:
        sizes = {mode.name: mode.size for mode in graph.modes}
        factors = metric.factors if metric is not None else ()
        coupled = {axis for factor in factors if factor.matrix.dim() == 2 for axis in factor.axes}
        others = [(axes, cores[other]) for other, axes in term.items() if other != name]
        copies = [(tuple(_primed(label, coupled) for label in axes), value) for axes, value in others]
        operands: list[tuple[Labels, Tensor]] = [*((axes, value.conj()) for axes, value in others), *copies]
        for factor in factors:
            shape = [sizes[axis] for axis in factor.axes]
            if factor.matrix.dim() == 1:
                operands.append((factor.axes, factor.matrix.reshape(shape)))
            else:
                both = (*factor.axes, *(_primed(axis, coupled) for axis in factor.axes))
                operands.append((both, factor.matrix.reshape(shape * 2)))
        scale = metric.scale if metric is not None else 1.0
        operands.append(((), cores[name].new_tensor(scale)))
        present = {label for axes, _ in operands for label in axes}
        own = dict(zip(term[name], cores[name].shape, strict=True))
        inner = tuple(label for label in own if label.startswith(":") or label in coupled)
        batch = tuple(label for label in own if label not in inner and label in present)
        free = tuple(label for label in own if label not in inner and label not in batch)
        return System(batch, inner, free, own, operands)

    @property
    def order(self) -> Labels:
        """The labels of the core in the order of the equations."""
        return (*self.batch, *self.inner, *self.free)

    def solution(self, right: Tensor, before: Tensor) -> Tensor:
        """The core for a right side, near the core before; both have the labels of `order`."""
        side = prod(self.sizes[label] for label in self.inner)
        count = prod(self.sizes[label] for label in self.batch)
        if side > LARGE or count * side * side > MUCH:
            return self._by_gradients(right, before)
        matrix = self._matrix().reshape(count, side, side)
        columns, start = right.reshape(count, side, -1), before.reshape(count, side, -1)
        near = NEAR * float(matrix.diagonal(dim1=1, dim2=2).real.mean().clamp(min=1e-300))
        found = _regular(matrix, columns, start, near)
        return found.reshape(right.shape)

    def _matrix(self) -> Tensor:
        output = (*self.batch, *self.inner, *(_primed(label, set(self.inner)) for label in self.inner))
        return contract([axes for axes, _ in self.operands], output, [value for _, value in self.operands])

    def _product(self, core: Tensor) -> Tensor:
        """The matrix times a core, without the matrix."""
        primed = (*self.batch, *(_primed(label, set(self.inner)) for label in self.inner), *self.free)
        operands = [*self.operands, (primed, core)]
        return contract([axes for axes, _ in operands], self.order, [value for _, value in operands])

    def _by_gradients(self, right: Tensor, before: Tensor) -> Tensor:
        """Conjugate gradients from the core before; each step lowers the loss."""
        found = before.clone()
        rest = right - self._product(found)
        along, size = rest, inner(rest, rest)
        first = size
        for _ in range(ROUNDS):
            if size <= 1e-20 * first or size == 0.0:
                break
            image = self._product(along)
            curve = inner(along, image)
            if curve <= 0.0:
                break
            step = size / curve
            found = found + step * along
            rest = rest - step * image
            after = inner(rest, rest)
            along, size = rest + (after / size) * along, after
        return found


def _primed(label: str, coupled: set[str]) -> str:
    return f"{label}'" if label.startswith(":") or label in coupled else label


def _regular(matrix: Tensor, right: Tensor, start: Tensor, near: float) -> Tensor:
    """The solutions of symmetric (Hermitian) systems, near the start where a matrix does not determine them."""
    rest = right - matrix @ start
    while True:
        shifted = matrix.clone()
        shifted.diagonal(dim1=1, dim2=2).add_(near)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not bool(failed.any()):
            return start + torch.cholesky_solve(rest, factor)
        near = 10.0 * near
