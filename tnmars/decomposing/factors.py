"""A metric as a product of matrices over groups of axes, and what becomes of it when axes are replaced by a bond.

Axes that no factor names have the identity. Two sides of a bond are independent if no factor lies on both; otherwise a
factor is replaced by the product of its partial traces.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from tnmars.decomposing.tensors import contract

TINY = 1e-12
"""Eigenvalues below this share of the largest are raised to it before a root is inverted."""
MOST = 4096
"""Rows of a matrix over a bond and other axes, above which partial traces are taken."""


@dataclass(frozen=True, eq=False)
class Factor:
    """A positive semi-definite matrix over some axes, flattened in this order; a vector is a diagonal."""

    axes: tuple[str, ...]
    matrix: Tensor

    @property
    def trace(self) -> float:
        return float(self.matrix.sum() if self.matrix.dim() == 1 else self.matrix.diagonal().sum())

    def applied(self, value: Tensor, axes: Sequence[str]) -> Tensor:
        """The product with a tensor along the factor's axes; the tensor keeps the order of its axes."""
        order = [axes.index(name) for name in self.axes] + [at for at, name in enumerate(axes) if name not in self.axes]
        moved = value.permute(order)
        flat = moved.reshape(self.matrix.shape[0], -1)
        flat = self.matrix[:, None] * flat if self.matrix.dim() == 1 else self.matrix @ flat
        back = sorted(range(len(order)), key=order.__getitem__)
        return flat.reshape(moved.shape).permute(back)

    def traced(self, kept: Collection[str], sizes: Mapping[str, int]) -> Factor:
        """The partial trace: only the kept axes are left."""
        shape = [sizes[name] for name in self.axes]
        left = tuple(name for name in self.axes if name in kept)
        if self.matrix.dim() == 1:
            gone = [at for at, name in enumerate(self.axes) if name not in kept]
            return Factor(left, self.matrix.reshape(shape).sum(gone).reshape(-1))
        second = tuple(f"{name}'" if name in kept else name for name in self.axes)
        primed = tuple(f"{name}'" for name in left)
        value = contract([(*self.axes, *second)], (*left, *primed), [self.matrix.reshape(shape * 2)])
        side = prod(sizes[name] for name in left)
        return Factor(left, value.reshape(side, side))

    def roots(self) -> tuple[Factor, Factor]:
        """The square root and its inverse; tiny eigenvalues are raised first."""
        return self._roots

    @cached_property
    def _roots(self) -> tuple[Factor, Factor]:
        if self.matrix.dim() == 1:
            values = self.matrix.clamp(min=TINY * max(float(self.matrix.max()), 1e-300)).sqrt()
            return replace(self, matrix=values), replace(self, matrix=1.0 / values)
        found, vectors = torch.linalg.eigh(self.matrix)
        values = found.clamp(min=TINY * max(float(found[-1]), 1e-300)).sqrt()
        root, inverse = (vectors * values) @ vectors.T, (vectors / values) @ vectors.T
        return replace(self, matrix=root), replace(self, matrix=inverse)


@dataclass(frozen=True, eq=False)
class Weighting:
    """The metric of a tensor: the product of its factors times a scale.

    `responses` is the tensor's own second moment over the axes that it names, all other axes summed in the metric. It
    stands for a factor over these other axes that is not known.
    """

    factors: tuple[Factor, ...]
    scale: float = 1.0
    responses: Factor | None = None

    def is_split(self, inside: Collection[str]) -> bool:
        """Whether the axes inside and all others are independent, and the metric of both sides is known."""
        if any(0 < sum(name in inside for name in factor.axes) < len(factor.axes) for factor in self.factors):
            return False
        return self.responses is None or all(name in self.responses.axes for name in inside)

    def sides(self, inside: Collection[str], sizes: Mapping[str, int]) -> tuple[list[Factor], list[Factor]]:
        """The factors of the axes inside and of all others, by partial traces where a factor has both."""
        ours, theirs = [], []
        for factor in self.factors:
            common = [name for name in factor.axes if name in inside]
            if len(common) == len(factor.axes):
                ours.append(factor)
            elif not common:
                theirs.append(factor)
            else:
                others = [name for name in factor.axes if name not in inside]
                rest = factor.traced(others, sizes)
                total = factor.trace
                ours.append(factor.traced(common, sizes))
                theirs.append(replace(rest, matrix=rest.matrix / total if total > 0.0 else rest.matrix))
        return ours, theirs

    def has_responses(self, inside: Collection[str]) -> bool:
        """Whether responses say what a bond needs that has these axes on one side."""
        return self.responses is not None and all(name in self.responses.axes for name in inside)

    def response_gram(self, inside: Sequence[str], sizes: Mapping[str, int]) -> Tensor:
        """The second moment over the axes inside, from the responses; other axes of the responses are summed."""
        assert self.responses is not None
        shape = [sizes[name] for name in self.responses.axes]
        rest = [name for name in self.responses.axes if name not in inside]
        value = self.responses.matrix.reshape(shape * 2)
        axes = (*self.responses.axes, *(f"{name}'" for name in self.responses.axes))
        operands, labels = [value], [axes]
        metrics = self.sides(inside, sizes)[1]
        for factor in (factor for factor in metrics if factor.axes[0] in rest):
            operands.append(factor.matrix.reshape([sizes[name] for name in factor.axes] * 2))
            labels.append((*factor.axes, *(f"{name}'" for name in factor.axes)))
        plain = {name for name in rest if not any(name in axes for axes in labels[1:])}
        labels[0] = (*self.responses.axes, *(name if name in plain else f"{name}'" for name in self.responses.axes))
        output = (*inside, *(f"{name}'" for name in inside))
        side = prod(sizes[name] for name in inside)
        return contract(labels, output, operands).reshape(side, side)

    def cut(self, inside: Sequence[str], bond: str, basis: Tensor, maps: Tensor, sizes: Mapping[str, int]) -> Weighting:
        """The metric of the coordinates once the axes inside are replaced by a bond.

        Args:
            inside: The axes that are replaced.
            bond: The axis of the coordinates.
            basis: One column for each coordinate, over the axes inside.
            maps: One row for each coordinate: how it is computed from the axes inside.
            sizes: The sizes of the axes.
        """
        touching = [factor for factor in self.factors if any(name in inside for name in factor.axes)]
        apart = [factor for factor in self.factors if not any(name in inside for name in factor.axes)]
        wide = [factor for factor in touching if not all(name in inside for name in factor.axes)]
        if len(wide) == 1 and _can_project(wide[0], inside, basis.shape[1], sizes):
            within = [factor for factor in touching if factor is not wide[0]]
            apart.append(_projected(wide[0], within, inside, bond, basis, sizes))
        elif wide:
            for factor in wide:
                rest = factor.traced([name for name in factor.axes if name not in inside], sizes)
                apart.append(replace(rest, matrix=rest.matrix / max(factor.trace, 1e-300)))
        responses = self.responses
        if responses is not None and self.has_responses(inside):
            responses = _projected(responses, [], inside, bond, maps.T, sizes)
        elif responses is not None and any(name in responses.axes for name in inside):
            responses = None
        return Weighting(tuple(apart), self.scale, responses)


def _projected(
    factor: Factor, within: Sequence[Factor], inside: Sequence[str], bond: str, basis: Tensor, sizes: Mapping[str, int]
) -> Factor:
    """The factor over the bond and its axes that are not inside: the basis from both sides."""
    first = basis.reshape(*(sizes[name] for name in inside), basis.shape[1])
    second = first
    for each in within:
        second = each.applied(second, [*inside, bond])
    primed = tuple(f"{name}'" if name in factor.axes else name for name in inside)
    matrix = factor.matrix.reshape([sizes[name] for name in factor.axes] * 2)
    labels = [(*inside, bond), (*primed, f"{bond}'"), (*factor.axes, *(f"{name}'" for name in factor.axes))]
    rest = tuple(name for name in factor.axes if name not in inside)
    output = (bond, *rest, f"{bond}'", *(f"{name}'" for name in rest))
    side = basis.shape[1] * prod(sizes[name] for name in rest)
    return Factor((bond, *rest), contract(labels, output, [first, second, matrix]).reshape(side, side))


def _can_project(factor: Factor, inside: Sequence[str], count: int, sizes: Mapping[str, int]) -> bool:
    """Whether the factor over a bond and the axes that are left is a matrix of moderate size."""
    side = count * prod(sizes[name] for name in factor.axes if name not in inside)
    return factor.matrix.dim() == 2 and side <= max(MOST, factor.matrix.shape[0])
