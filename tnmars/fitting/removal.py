"""One slice less on a bond: what to remove so that the tensor changes least.

A bond with two ends may be transformed by any invertible matrix, so a single slice of it has no meaning. What is
removed is a direction: `I - u v'` is inserted into the bond, with `v'u = 1`. With the other cores fixed, u and v are
found in turn as those that change the tensor least; on a tree that truncates a singular value. Bonds with more ends
cannot be transformed so, and lose a slice.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tnmars.decomposing.tensors import Decomposition, Labels, contract, labels, with_sizes

TURNS = 6
"""How many times u and v are found in turn."""


def removals(decomposition: Decomposition, bond: str, most: int) -> list[Decomposition]:
    """Decompositions with one slice less on a bond; those that change the tensor least come first."""
    ends = [name for name in decomposition.cores if bond in decomposition.graph.bonds_of(name)]
    if len(ends) == 2:
        return [
            _without(decomposition, bond, (ends[0], ends[1]), u, v)
            for u, v in _directions(decomposition, bond, ends, most)
        ]
    size = decomposition.graph.bonds[bond].size
    order = _slices(decomposition, bond, ends)
    return [decomposition.cut({bond: [at for at in range(size) if at != gone]}) for gone in order[:most]]


def _slices(decomposition: Decomposition, bond: str, ends: list[str]) -> list[int]:
    """The slices of a bond by the product of their norms in all cores, smallest first."""
    total = torch.ones(decomposition.graph.bonds[bond].size, dtype=torch.float64)
    for name in ends:
        axis = decomposition.graph.bonds_of(name).index(bond)
        total = total * decomposition.cores[name].movedim(axis, 0).flatten(1).norm(dim=1)
    return [int(at) for at in total.argsort()]


def _directions(decomposition: Decomposition, bond: str, ends: list[str], most: int) -> list[tuple[Tensor, Tensor]]:
    """The directions u, v with v'u = 1 to remove, best first; of nearly equal ones only one is listed."""
    metric = _metric(decomposition, bond, ends)
    size = metric.shape[0]
    ridge = 1e-12 * float(metric.diagonal(dim1=0, dim2=2).sum().abs()) + 1e-300
    identity = ridge * torch.eye(size, dtype=metric.dtype)
    directions: list[tuple[float, Tensor, Tensor]] = []
    for start in range(size):
        v = torch.zeros(size, dtype=metric.dtype)
        v[start] = 1.0
        u = v
        cost = 0.0
        for _ in range(TURNS):
            u, _ = _least(torch.einsum("abcd,b,d->ac", metric, v.conj(), v) + identity, v)
            v, cost = _least(torch.einsum("abcd,a,c->bd", metric, u.conj(), u) + identity, u)
            scale = float(u.norm() / v.norm()) ** 0.5
            u, v = u / scale, v * scale
        if not any(_is_near(cost, other) for other, _, _ in directions):
            directions.append((cost, u, v))
    directions.sort(key=lambda entry: entry[0])
    return [(u, v) for _, u, v in directions[:most]]


def _is_near(first: float, second: float) -> bool:
    return abs(first - second) < 1e-3 * max(abs(first), abs(second))


def _least(matrix: Tensor, along: Tensor) -> tuple[Tensor, float]:
    """The vector x with `along' x = 1` that minimizes the quadratic form, and the minimum; nothing is conjugated."""
    solved = torch.linalg.lstsq(matrix, along.conj().resolve_conj()[:, None], driver="gelsd").solution[:, 0]
    product = float((along @ solved).real)
    if product <= 0.0:
        return along.conj() / float(along.norm()) ** 2, float("inf")
    return solved / product, 1.0 / product


def _metric(decomposition: Decomposition, bond: str, ends: list[str]) -> Tensor:
    """The inner products of the tensors that result when the two ends of a bond have separate indices;
    the first tensor conjugate."""
    term = next(term for term in labels(decomposition.graph) if ends[0] in term)
    label = f":{bond}"
    operands: list[tuple[Labels, Tensor]] = []
    for mark in ("", "'"):
        for name, axes in term.items():
            end = "<" if name == ends[0] else ">"
            marked = tuple(f"{each}{end if each == label else ''}{mark}" if each[0] == ":" else each for each in axes)
            value = decomposition.cores[name]
            operands.append((marked, value if mark else value.conj()))
    output = (f"{label}<", f"{label}>", f"{label}<'", f"{label}>'")
    return contract([axes for axes, _ in operands], output, [value for _, value in operands])


def _without(decomposition: Decomposition, bond: str, ends: tuple[str, str], u: Tensor, v: Tensor) -> Decomposition:
    """The decomposition with `I - u v'` in the bond, split over its two ends."""
    size = len(u)
    left, values, right = torch.linalg.svd(torch.eye(size, dtype=u.dtype) - torch.outer(u, v))
    root = values[: size - 1].sqrt()
    first, second = left[:, : size - 1] * root, right[: size - 1].T * root
    cores = dict(decomposition.cores)
    for name, turn in zip(ends, (first, second), strict=True):
        axis = decomposition.graph.bonds_of(name).index(bond)
        cores[name] = torch.tensordot(cores[name], turn, dims=([axis], [0])).movedim(-1, axis)
    return Decomposition(with_sizes(decomposition.graph, {bond: size - 1}), cores, decomposition.names)


def without_terms(decomposition: Decomposition) -> Iterator[Decomposition]:
    """The decomposition without each of its terms in turn, if there are several."""
    graph = decomposition.graph
    if len(graph.terms) < 2:
        return
    for term in graph.terms:
        if term.bonds:
            yield decomposition.cut({graph.bond_name(term, bond.name): () for bond in term.bonds})
