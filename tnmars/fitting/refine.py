"""Cores to the least squared error, by damped Gauss-Newton steps on all of them at once (Levenberg and Marquardt).

The damping also settles what the error leaves open: bonds may be turned by any invertible matrix, and a step does not
move along such directions. Networks with very many parameters are left to a quasi-Newton method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from tnmars.fitting.gram import gram
from tnmars.fitting.decomposition import Decomposition, dense
from tnmars.fitting.rows import jacobian_at, values_at
from tnmars.graph import Graph

LARGE = 3000
"""From how many parameters on there is no Gauss-Newton matrix."""
MOST_AT_ONCE = 2**22
"""How many derivatives at known entries are held at a time."""
FLOOR = 1e-13
"""A mean squared error that is rounding alone; the data have a mean square of 1."""


@dataclass(frozen=True, eq=False)
class Data:
    """What is fitted: a tensor with one axis per mode, its mean square 1, and which entries are known, if not all."""

    values: Tensor
    index: Tensor | None = None
    """Rows of indices of the known entries; none where all are known."""
    wanted: Tensor | None = None
    """The known entries, in the order of the rows."""

    @property
    def count(self) -> int:
        return self.values.numel() if self.wanted is None else self.wanted.numel()


def residual(graph: Graph, cores: Mapping[str, Tensor], data: Data) -> Tensor:
    """What is missing at the known entries: network minus data, as a vector."""
    if data.index is None or data.wanted is None:
        return (dense(graph, cores) - data.values).reshape(-1)
    return values_at(graph, cores, data.index) - data.wanted


def mean_square(decomposition: Decomposition, data: Data) -> float:
    return float(residual(decomposition.graph, decomposition.cores, data).square().mean())


def refined(decomposition: Decomposition, data: Data, steps: int, *, gain: float = 1e-4) -> tuple[Decomposition, float]:
    """The network with its cores fitted, and the mean squared error.

    It ends after so many steps, or where two in a row gain less than a share of the error, or at rounding.
    """
    if not decomposition.cores:
        return decomposition, mean_square(decomposition, data)
    if decomposition.parameters > LARGE:
        return _descended(decomposition, data, steps)
    names = list(decomposition.graph.cores)
    shapes = [decomposition.cores[name].shape for name in names]
    cores = balanced(decomposition)

    def split(flat: Tensor) -> dict[str, Tensor]:
        parts = torch.split(flat, [prod(shape) for shape in shapes])
        return {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}

    flat = torch.cat([cores[name].reshape(-1) for name in names])
    error, slope, matrix = _local(decomposition.graph, split(flat), names, data)
    damping, growth, slow = 1e-3 * float(matrix.diagonal().mean()), 2.0, 0
    for _ in range(steps):
        step = _solved(matrix, slope, damping)
        tried = flat + step
        value = float(residual(decomposition.graph, split(tried), data).square().sum())
        expected = float(step @ (damping * step - slope))
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
        error = residual(graph, leaves, data).square().sum()
        slopes = torch.autograd.grad(error, [leaves[name] for name in names])
    slope = torch.cat([part.reshape(-1) for part in slopes]) * 0.5
    return float(error.detach()), slope, gram(graph, cores)


def _local_at_rows(
    graph: Graph, cores: Mapping[str, Tensor], data: Data, index: Tensor
) -> tuple[float, Tensor, Tensor]:
    """The same from the derivatives at the known entries, some rows at a time."""
    count = sum(core.numel() for core in cores.values())
    missing = residual(graph, cores, data)
    slope, matrix = missing.new_zeros(count), missing.new_zeros(count, count)
    step = max(1, MOST_AT_ONCE // count)
    for rows, parts in zip(torch.split(index, step), torch.split(missing, step), strict=True):
        derivative = jacobian_at(graph, cores, rows)
        slope += derivative.T @ parts
        matrix.addmm_(derivative.T, derivative)
    return float(missing.square().sum()), slope, matrix


def _solved(matrix: Tensor, slope: Tensor, damping: float) -> Tensor:
    """The damped step."""
    while True:
        shifted = matrix.clone()
        shifted.diagonal().add_(damping)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not int(failed):
            return -torch.cholesky_solve(slope[:, None], factor)[:, 0]
        damping = max(10.0 * damping, 1e-12 * float(matrix.diagonal().max()))


def balanced(decomposition: Decomposition) -> dict[str, Tensor]:
    """The cores of every term scaled to equal norms, their product as it was."""
    found: dict[str, Tensor] = {}
    for term in decomposition.graph.terms:
        names = [decomposition.graph.qualified(term, core.name) for core in term.cores]
        norms = [float(decomposition.cores[name].norm()) / decomposition.cores[name].numel() ** 0.5 for name in names]
        whole = prod(norms) ** (1 / len(norms)) if min(norms) > 0.0 else 0.0
        for name, norm in zip(names, norms, strict=True):
            found[name] = decomposition.cores[name] * (whole / norm if whole else 1.0)
    return found


def _descended(decomposition: Decomposition, data: Data, steps: int) -> tuple[Decomposition, float]:
    """The same by L-BFGS, which needs no matrix."""
    leaves = {name: core.contiguous().clone().requires_grad_() for name, core in balanced(decomposition).items()}
    search = torch.optim.LBFGS(
        list(leaves.values()),
        max_iter=10 * steps,
        history_size=20,
        line_search_fn="strong_wolfe",
        tolerance_change=1e-12,
    )

    def closure() -> Tensor:
        search.zero_grad()
        error = residual(decomposition.graph, leaves, data).square().mean()
        error.backward()  # type: ignore[no-untyped-call]
        return error

    with torch.enable_grad():
        search.step(closure)  # type: ignore[no-untyped-call]
    found = decomposition.with_cores({name: core.detach() for name, core in leaves.items()})
    return found, mean_square(found, data)
