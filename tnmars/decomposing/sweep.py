"""Trees: the best directions across every bond, from the leaves to the root, with or without a metric.

Every core except the root becomes a basis over its axes, orthonormal in the metric of its side, and the tensor shrinks
to coordinates. Nothing is inverted at the root, so that is where a core with many inputs belongs: their second moment
may be singular. Parts that no bond joins are joined by bonds of size 1 for the sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor

from tnmars.decomposing.factors import Factor, Weighting
from tnmars.decomposing.layout import outputs
from tnmars.decomposing.slices import axes_of, inner, is_apart, is_sliced, joined, parted
from tnmars.decomposing.tensors import Decomposition, with_sizes
from tnmars.graph import Graph, Term
from tnmars.graph.topology import is_tree, parts

Choose = Callable[[str, Tensor], int]
"""From a bond and all its squared singular values, largest first, how many to keep."""

SMALL = 1e-9
"""If the smallest kept eigenvalue of a Gram matrix is below this share of the largest, singular values are computed
from the matrix itself."""


@dataclass(frozen=True, eq=False)
class Swept:
    """A decomposition of a tree, and what was cut off on the way."""

    decomposition: Decomposition
    discarded: Mapping[str, float]
    """For each bond the sum of the squared singular values that were cut off, in the metric."""
    lost: float
    """The sum of all of them, and of what was cut off between parts that no bond joins."""
    is_bound: bool
    """Whether the squared error is at most the sum of what was discarded: the metric splits at every bond cut."""


@dataclass(frozen=True)
class Joint:
    """A core with its bond towards the root."""

    core: str
    bond: str
    is_virtual: bool = False


def has_tree(graph: Graph) -> bool:
    """Whether the graph is a single tree, and each mode is on one core."""
    return is_forest(graph) and is_tree(graph.terms[0])


def is_forest(graph: Graph) -> bool:
    """Whether one pass finds the decomposition: one term without cycles, bonds have two ends, modes one."""
    return not graph.shared and is_swept(graph)


def is_swept(graph: Graph) -> bool:
    """Whether a sweep solves the graph: as a forest, or as one for each value of modes that all cores share."""
    if not is_sliced(graph):
        return False
    term = inner(graph, graph.terms[0])
    ends = term.ends()
    return len(term.bonds) == len(term.cores) - len(parts(term)) and all(len(ends[b.name]) == 2 for b in term.bonds)


def hierarchical_svd(graph: Graph, values: Tensor) -> Decomposition:
    """The tensor projected onto its first singular vectors across every bond.

    A bond is as wide as declared, or as is useful.
    """
    return sweep(graph, values, up_to({name: bond.size for name, bond in graph.bonds.items()})).decomposition


def up_to(sizes: Mapping[str, int]) -> Choose:
    """The rule that keeps these sizes, or as many as there are."""
    return lambda bond, spectrum: min(sizes[bond], len(spectrum))


def sweep(graph: Graph, values: Tensor, choose: Choose, weighting: Weighting | None = None) -> Swept:
    """The decomposition of a tensor with one axis per mode by a tree, or by several.

    Slices along modes that all cores share are tensors of their own, whose bonds have the same sizes.
    """
    term = inner(graph, graph.terms[0])
    root = _root(graph, term, weighting)
    joints = upwards(term, root)
    edges = _edges(term, joints)
    axes = axes_of(graph)
    sizes = {mode.name: mode.size for mode in graph.modes}
    slices = parted(graph, values, weighting or Weighting(()))
    cores: dict[str, Tensor] = {}
    discarded: dict[str, float] = {}
    is_bound, lost = weighting is None or is_apart(graph, weighting), 0.0
    for joint in joints:
        inside = [edge for edge in edges[joint.core] if edge != joint.bond]
        order = [*inside, *(axis for axis in axes if axis not in inside)]
        turned = [(part.permute([axes.index(axis) for axis in order]), metric) for part, metric in slices]
        rule: Choose = (lambda bond, spectrum: 1) if joint.is_virtual else choose
        cuts = _cuts(turned, order, len(inside), sizes, partial(rule, joint.bond))
        here = sum(cut.lost for cut in cuts)
        is_bound &= here == 0.0 or all(metric.is_split(inside) for _, metric in slices)
        lost += here
        if not joint.is_virtual:
            discarded[joint.bond] = here
        metrics = [
            metric.cut(inside, joint.bond, cut.basis, cut.maps, sizes)
            for cut, (_, metric) in zip(cuts, slices, strict=True)
        ]
        sizes[joint.bond] = cuts[0].basis.shape[1]
        shaped = [_shaped(cut.basis, [*inside, joint.bond], edges[joint.core], sizes) for cut in cuts]
        cores[joint.core] = joined(graph, shaped)
        axes = [joint.bond, *order[len(inside) :]]
        coordinates = [cut.coordinates.reshape([sizes[axis] for axis in axes]) for cut in cuts]
        slices = list(zip(coordinates, metrics, strict=True))
    cores[root] = joined(graph, [part.permute([axes.index(edge) for edge in edges[root]]) for part, _ in slices])
    return Swept(_assembled(graph, edges, sizes, cores), discarded, lost, is_bound)


def _root(graph: Graph, term: Term, weighting: Weighting | None) -> str:
    """The core with the most entries of the axes that must not be inverted: the source's, or all without a metric."""
    sizes = {mode.name: mode.size for mode in graph.modes}
    outside: set[str] = set()
    if weighting is not None:
        outside = set(outputs(graph).modes)
    weight = {
        core.name: (
            prod(sizes[edge] for edge in core.edges if edge in sizes and edge not in outside),
            prod(sizes.get(edge, 1) for edge in core.edges),
        )
        for core in term.cores
    }
    return max(reversed(list(weight)), key=weight.__getitem__)


def upwards(term: Term, root: str) -> list[Joint]:
    """Every core except the root, with its bond towards the root; a core comes after all cores beyond it."""
    names = {bond.name for bond in term.bonds}
    ends = term.ends()
    left = {core.name: [edge for edge in core.edges if edge in names] for core in term.cores}
    joints: list[Joint] = []
    tops: list[str] = []
    while len(left) > 1:
        leaf = next(name for name, bonds in left.items() if len(bonds) <= 1 and name != root)
        bonds = left.pop(leaf)
        if not bonds:
            tops.append(leaf)
            joints.append(Joint(leaf, f"+{len(tops)}", is_virtual=True))
            continue
        (bond,) = bonds
        joints.append(Joint(leaf, bond))
        (other,) = (name for name in ends[bond] if name != leaf)
        left[other].remove(bond)
    return joints


def _edges(term: Term, joints: Sequence[Joint]) -> dict[str, tuple[str, ...]]:
    """The edges of each core, with the bonds of size 1 that join separate parts; they all end on the root."""
    edges = {core.name: core.edges for core in term.cores}
    (root,) = edges.keys() - {joint.core for joint in joints}
    for joint in joints:
        if joint.is_virtual:
            edges[joint.core] = (*edges[joint.core], joint.bond)
            edges[root] = (*edges[root], joint.bond)
    return edges


def _shaped(basis: Tensor, have: Sequence[str], want: Sequence[str], sizes: Mapping[str, int]) -> Tensor:
    return basis.reshape([sizes[edge] for edge in have]).permute([list(have).index(edge) for edge in want])


def _assembled(
    graph: Graph, edges: Mapping[str, tuple[str, ...]], sizes: Mapping[str, int], cores: Mapping[str, Tensor]
) -> Decomposition:
    """The cores in the order of their edges; each comes with the shared modes first, then with the edges of a slice."""
    (term,) = graph.terms
    limited = with_sizes(graph, {graph.qualified(term, bond.name): sizes[bond.name] for bond in term.bonds})
    ordered = {}
    for core in term.cores:
        name = graph.qualified(term, core.name)
        have = [*graph.shared, *edges[core.name]]
        more = [edge for edge in have if edge not in core.edges]  # bonds of size 1 that join parts
        value = cores[core.name].permute([have.index(edge) for edge in (*core.edges, *more)])
        ordered[name] = value.reshape(limited.cores[name]).contiguous()
    return Decomposition(limited, ordered, {name: name for name in limited.bonds})


# --- one bond --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cut:
    """A matrix cut to some directions: `basis @ coordinates` replaces it."""

    basis: Tensor
    coordinates: Tensor
    maps: Tensor
    """How coordinates are computed from rows: `maps @ matrix`."""
    lost: float


def _cuts(
    slices: Sequence[tuple[Tensor, Weighting]],
    axes: Sequence[str],
    count: int,
    sizes: Mapping[str, int],
    choose: Callable[[Tensor], int],
) -> list[Cut]:
    """All slices cut to the same number of directions, which the sum of their spectra decides."""
    if len(slices) == 1:
        return [_cut(slices[0][0], axes, count, sizes, slices[0][1], choose)]
    spectra: list[Tensor] = []

    def noted(spectrum: Tensor) -> int:
        spectra.append(spectrum)
        return len(spectrum)

    total: Tensor | float = 0.0
    for values, metric in slices:
        _cut(values, axes, count, sizes, metric, noted)
        total = total + spectra[-1]
    assert isinstance(total, Tensor)
    kept = choose(total)
    return [_cut(values, axes, count, sizes, metric, lambda spectrum: kept) for values, metric in slices]


def _cut(
    values: Tensor,
    axes: Sequence[str],
    count: int,
    sizes: Mapping[str, int],
    metric: Weighting,
    choose: Callable[[Tensor], int],
) -> Cut:
    """The tensor cut across its first `count` axes and the others."""
    inside = axes[:count]
    ours, theirs = metric.sides(inside, sizes)
    rows = prod(sizes[name] for name in inside)
    pairs = [factor.roots() for factor in ours]
    whitened = values
    for root, _ in pairs:
        whitened = root.applied(whitened, axes)
    matrix = whitened.reshape(rows, -1)
    if metric.has_responses(inside):
        gram = both_sides(metric.response_gram(inside, sizes), [root for root, _ in pairs], inside, sizes)
        spectrum, vectors = _eigen(gram)
    else:
        spectrum, vectors = directions(matrix, whitened, axes, theirs, metric.scale, choose)
    most = min(matrix.shape)
    spectrum = spectrum[:most]
    kept = choose(spectrum)
    if kept == most < rows:  # the whole matrix is kept, also what the metric does not see
        vectors = torch.linalg.qr(matrix)[0]
    vectors = vectors[:, :kept]
    basis = maps = vectors
    if pairs:
        shape = [sizes[name] for name in inside]
        basis = basis.reshape(*shape, kept)
        maps = basis
        for root, inverse in pairs:
            basis = inverse.applied(basis, [*inside, ""])
            maps = root.applied(maps, [*inside, ""])
        basis, maps = basis.reshape(rows, kept), maps.reshape(rows, kept)
    return Cut(basis, vectors.mH @ matrix, maps.mH, float(spectrum[kept:].sum()))


def directions(
    matrix: Tensor,
    tensor: Tensor,
    axes: Sequence[str],
    theirs: Sequence[Factor],
    scale: float,
    choose: Callable[[Tensor], int],
) -> tuple[Tensor, Tensor]:
    """Squared singular values of a matrix in the metric of its columns, largest first, and left singular vectors.

    `tensor` is the matrix with its axes; `theirs` are the factors of the metric of the columns.
    """
    rows, columns = matrix.shape
    if rows <= columns:
        other = matrix
        if theirs:
            weighed = tensor
            for factor in theirs:
                weighed = factor.applied(weighed, axes)
            other = weighed.reshape(rows, -1)
        spectrum, vectors = _eigen(matrix @ other.mH)
        kept = choose(spectrum * scale)
        if kept == rows or float(spectrum[kept - 1]) > SMALL * float(spectrum[0]):
            return spectrum * scale, vectors
    for factor in theirs:
        tensor = factor.roots()[0].applied(tensor, axes)
    matrix = tensor.reshape(rows, -1)
    if columns > rows:
        matrix = torch.linalg.qr(matrix.T, mode="r")[1].T
    vectors, values, _ = torch.linalg.svd(matrix, full_matrices=False)
    return values.square() * scale, vectors


def _eigen(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, largest first and at least 0, and eigenvectors."""
    values, vectors = torch.linalg.eigh(0.5 * (gram + gram.mH))
    return values.flip(0).clamp(min=0.0), vectors.flip(1)


def both_sides(gram: Tensor, roots: Sequence[Factor], inside: Sequence[str], sizes: Mapping[str, int]) -> Tensor:
    """A matrix over the axes inside, multiplied by the roots from both sides."""
    for _ in range(2):
        value = gram.reshape(*(sizes[name] for name in inside), -1)
        for root in roots:
            value = root.applied(value, [*inside, ""])
        gram = value.reshape(gram.shape).T
    return gram
