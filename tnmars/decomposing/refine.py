"""Cores that minimize the squared error: damped Gauss-Newton steps on all cores at once (Levenberg-Marquardt).

A bond with two ends may be transformed by any invertible matrix without a change of the tensor. The error does not
determine a step along such directions; the damping keeps it at 0. Decompositions with very many parameters use L-BFGS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from tnmars.decomposing.gram import gram
from tnmars.decomposing.rows import jacobian_at, values_at
from tnmars.decomposing.tensors import Decomposition, balanced, dense, inner
from tnmars.graph import Graph
from tnmars.layer.numbers import squared

LARGE = 3000
"""Decompositions with more parameters are refined without a Gauss-Newton matrix."""
MOST_AT_ONCE = 2**22
"""How many derivatives at known entries are in memory at a time."""
FLOOR = 1e-13
"""A mean squared error that is only rounding; the data have a mean square of 1."""


@dataclass(frozen=True, eq=False)
class Data:
    """The data to fit: a tensor with one axis per mode and mean square 1, and the known entries, if not all are."""

    values: Tensor
    index: Tensor | None = None
    """The index of each known entry, one row per entry; `None` if all are known."""
    known: Tensor | None = None
    """The known entries, in the order of `index`."""

    @property
    def count(self) -> int:
        return self.values.numel() if self.known is None else self.known.numel()


def residual(graph: Graph, cores: Mapping[str, Tensor], data: Data) -> Tensor:
    """The tensor of the cores minus the data, at the known entries, as a vector."""
    if data.index is None or data.known is None:
        return (dense(graph, cores) - data.values).reshape(-1)
    return values_at(graph, cores, data.index) - data.known


def mean_square(decomposition: Decomposition, data: Data) -> float:
    return float(squared(residual(decomposition.graph, decomposition.cores, data)).mean())


def refined(decomposition: Decomposition, data: Data, steps: int, *, gain: float = 1e-4) -> tuple[Decomposition, float]:
    """The decomposition with its cores fitted, and the mean squared error.

    It stops after `steps` steps, after two in a row that reduce the error by less than the share `gain`, or when only
    rounding is left.
    """
    if not decomposition.cores:
        return decomposition, mean_square(decomposition, data)
    if decomposition.parameters > LARGE:
        return _descended(decomposition, data, steps)
    names = list(decomposition.graph.cores)
    shapes = [decomposition.cores[name].shape for name in names]
    cores = balanced(decomposition.graph, decomposition.cores)

    def split(flat: Tensor) -> dict[str, Tensor]:
        parts = torch.split(flat, [prod(shape) for shape in shapes])
        return {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}

    flat = torch.cat([cores[name].reshape(-1) for name in names])
    error, slope, matrix = _local(decomposition.graph, split(flat), names, data)
    damping, growth, slow = 1e-3 * float(matrix.diagonal().real.mean()), 2.0, 0
    for _ in range(steps):
        step = _solved(matrix, slope, damping)
        tried = flat + step
        value = float(squared(residual(decomposition.graph, split(tried), data)).sum())
        expected = inner(step, damping * step - slope)
        if value < error and expected > 0.0:
            ratio = (error - value) / expected
            is_small = error - value < gain * error
            slow = slow + 1 if is_small else 0
            flat = tried
            damping *= max(1 / 3, 1 - (2 * ratio - 1) ** 3)
            growth = 2.0
            done = slow > 1 or value < FLOOR * data.count
            if done:
                error = value
                break
            error, slope, matrix = _local(decomposition.graph, split(flat), names, data)
        else:
            damping *= growth
            growth *= 2.0
            if growth > 1e6:
                break
    return decomposition.with_cores(split(flat)), error / data.count


def _local(graph: Graph, cores: Mapping[str, Tensor], names: list[str], data: Data) -> tuple[float, Tensor, Tensor]:
    """The squared error, half its gradient, and the Gauss-Newton matrix."""
    if data.index is not None:
        return _local_at_rows(graph, cores, data, data.index)
    leaves = {name: cores[name].detach().requires_grad_() for name in names}
    with torch.enable_grad():
        error = squared(residual(graph, leaves, data)).sum()
        slopes = torch.autograd.grad(error, [leaves[name] for name in names])
    slope = torch.cat([part.reshape(-1) for part in slopes]) * 0.5
    return float(error.detach()), slope, gram(graph, cores)


def _local_at_rows(
    graph: Graph, cores: Mapping[str, Tensor], data: Data, index: Tensor
) -> tuple[float, Tensor, Tensor]:
    """The same from the derivatives at the known entries, a block of rows at a time."""
    count = sum(core.numel() for core in cores.values())
    difference = residual(graph, cores, data)
    slope, matrix = difference.new_zeros(count), difference.new_zeros(count, count)
    step = max(1, MOST_AT_ONCE // count)
    for rows, parts in zip(torch.split(index, step), torch.split(difference, step), strict=True):
        derivative = jacobian_at(graph, cores, rows)
        slope += derivative.mH @ parts
        matrix.addmm_(derivative.mH, derivative)
    return float(squared(difference).sum()), slope, matrix


def _solved(matrix: Tensor, slope: Tensor, damping: float) -> Tensor:
    """The damped step. The damping grows until the matrix is positive definite."""
    while True:
        shifted = matrix.clone()
        shifted.diagonal().add_(damping)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not int(failed):
            return -torch.cholesky_solve(slope[:, None], factor)[:, 0]
        damping = max(10.0 * damping, 1e-12 * float(matrix.diagonal().real.max()))


def _descended(decomposition: Decomposition, data: Data, steps: int) -> tuple[Decomposition, float]:
    """The same as `refined`, by L-BFGS, which needs no matrix."""
    start = balanced(decomposition.graph, decomposition.cores)
    leaves = {  # a complex core as its two parts, which are numbers of their own to the search
        name: (torch.view_as_real(core) if core.is_complex() else core).contiguous().clone().requires_grad_()
        for name, core in start.items()
    }

    def cores() -> dict[str, Tensor]:
        pairs = {name for name, core in start.items() if core.is_complex()}
        return {name: torch.view_as_complex(leaf) if name in pairs else leaf for name, leaf in leaves.items()}

    search = torch.optim.LBFGS(
        list(leaves.values()),
        max_iter=10 * steps,
        history_size=20,
        line_search_fn="strong_wolfe",
        tolerance_change=1e-12,
    )

    def closure() -> Tensor:
        search.zero_grad()
        error = squared(residual(decomposition.graph, cores(), data)).mean()
        error.backward()  # type: ignore[no-untyped-call]
        return error

    with torch.enable_grad():
        search.step(closure)  # type: ignore[no-untyped-call]
    after = decomposition.with_cores({name: core.detach() for name, core in cores().items()})
    return after, mean_square(after, data)
