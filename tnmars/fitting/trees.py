"""A first decomposition on a tree: the tensor's singular vectors across every bond, from the leaves to the root."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from tnmars.fitting.decomposition import Decomposition, with_sizes
from tnmars.graph import Graph, Term
from tnmars.graph.topology import is_tree


def has_tree(graph: Graph) -> bool:
    """Whether one pass finds the decomposition: the graph is a single tree, and each mode is on one core."""
    if len(graph.terms) != 1 or graph.shared:
        return False
    (term,) = graph.terms
    ends = term.ends()
    return is_tree(term) and all(len(ends[bond.name]) == 2 for bond in term.bonds)


def hierarchical_svd(graph: Graph, values: Tensor) -> Decomposition:
    """The tensor projected onto its first singular vectors across every bond (hierarchical SVD).

    From the leaves to the root, the axes of a core's subtree are replaced by coordinates along as many directions as
    its bond has slices, so the tensor shrinks on the way. A bond is as wide as declared, or as is useful.
    """
    (term,) = graph.terms
    edges = {core.name: core.edges for core in term.cores}
    sizes = {bond.name: bond.size for bond in term.bonds}
    axes: list[str] = [mode.name for mode in graph.modes]
    cores: dict[str, Tensor] = {}
    for name, above in _upwards(term):
        inside = [edge for edge in edges[name] if edge != above]
        order = [*inside, *(axis for axis in axes if axis not in inside)]
        moved = values.permute([axes.index(axis) for axis in order])
        shape = moved.shape[: len(inside)]
        matrix = moved.reshape(prod(shape), -1)
        basis = _directions(matrix, sizes[above])
        sizes[above] = basis.shape[1]
        core = basis.reshape(*shape, basis.shape[1])
        have = [*inside, above]
        cores[name] = core.permute([have.index(edge) for edge in edges[name]])
        values = (basis.T @ matrix).reshape(basis.shape[1], *moved.shape[len(inside) :])
        axes = [above, *order[len(inside) :]]
    (root,) = (name for name in edges if name not in cores)
    cores[root] = values.permute([axes.index(edge) for edge in edges[root]])
    return _assembled(graph, term, sizes, cores)


def _assembled(graph: Graph, term: Term, sizes: Mapping[str, int], cores: Mapping[str, Tensor]) -> Decomposition:
    limited = with_sizes(graph, {graph.qualified(term, name): size for name, size in sizes.items()})
    ordered = {graph.qualified(term, core.name): cores[core.name].contiguous() for core in term.cores}
    return Decomposition(limited, ordered, {name: name for name in limited.bonds})


def _directions(matrix: Tensor, most: int) -> Tensor:
    """The first left singular vectors."""
    if matrix.shape[1] > 2 * matrix.shape[0]:
        vectors: Tensor = torch.linalg.eigh(matrix @ matrix.T)[1].flip(1)
    else:
        vectors = torch.linalg.svd(matrix, full_matrices=False)[0]
    return vectors[:, :most]


def _upwards(term: Term) -> Sequence[tuple[str, str]]:
    """Every core except the root, with its bond towards the root; a core comes after all cores beyond it."""
    ends = term.ends()
    names = [bond.name for bond in term.bonds]
    left = {core.name: [edge for edge in core.edges if edge in names] for core in term.cores}
    order = []
    while len(left) > 1:
        leaf = min((name for name in left if len(left[name]) == 1), key=lambda name: list(left).index(name))
        (bond,) = left.pop(leaf)
        order.append((leaf, bond))
        (other,) = (name for name in ends[bond] if name != leaf)
        left[other].remove(bond)
    return order
