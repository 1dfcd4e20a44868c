"""Canonical form of any graph: the same weight, with every bond balanced and its slices sorted by their weight.

On a tree the weights of a bond are the singular values of its term across the bond, and both ends carry their square
roots. With cycles, messages between cores take the place of the rest of the network; they are iterated until they
settle. A bond with three or more ends cannot be transformed: its slices get equal norms on all ends. Terms are taken
one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from tnmars.arguments import check_arguments
from tnmars.decomposing.messages import gauges, settled
from tnmars.decomposing.sweep import Joint, upwards
from tnmars.decomposing.tensors import Labels, check_plain, conjugates, contract, labels
from tnmars.errors import Problem, ShapeError, TnmarsError
from tnmars.graph import Graph, Term
from tnmars.graph.topology import parts
from tnmars.layer.numbers import wide

ZERO = 1e-14
"""A singular value below this share of the largest is rounding: its slice is set to 0."""


@dataclass(frozen=True, eq=False)
class Canonical:
    """What `canonical` returns.

    Attributes:
        cores: The cores in float64 or complex128 by qualified name; they give the same weight.
        weights: For each bond the weights of its slices, largest first: the singular values of its term, exact on
            trees.

    Example:
        >>> import torch, tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(2,), outputs=(2,), rank=2)
        >>> cores = {"A": torch.eye(2), "B": torch.diag(torch.tensor([3.0, 5.0]))}
        >>> tnmars.canonical(graph, cores).weights["r"].tolist()
        [5.0, 3.0]
    """

    cores: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]


@torch.no_grad()
def canonical(graph: Graph, cores: Mapping[str, Tensor]) -> Canonical:
    """The canonical form of a decomposition: the weight stays the same, and slices are sorted by their weight.

    Slices with small weights can then be cut with little loss; see `tnmars.prune` with `ranks` or `energy`.

    Args:
        graph: The graph, of any shape.
        cores: A tensor for each core, by qualified name.

    Returns:
        The transformed cores, and for each bond the weights of its slices. On a tree they are the singular values of
        the weight (of one term) across the bond; with cycles an estimate of them, and on a bond with three or more ends
        the norms of its slices.

    Raises:
        ShapeError: A core has another shape than in the graph.
        TnmarsError: A core is missing, or has entries that are not finite.

    Example:
        >>> import torch, tnmars
        >>> graph = tnmars.families.tt("tensor", free=(3, 4, 5), ranks=(2, 3))
        >>> layer = tnmars.compile(graph)
        >>> cores = {name: layer.cores.get(name) for name in graph.cores}
        >>> form = tnmars.canonical(graph, cores)
        >>> exact = torch.linalg.svdvals(layer().detach().double().reshape(3, -1))[:2]
        >>> torch.allclose(form.weights["r1"], exact)
        True
    """
    check_arguments(canonical, locals())
    check_plain(graph, "a canonical form")
    values = conjugates(_checked(graph, cores), graph.conjugated)
    weights: dict[str, Tensor] = {}
    after = dict(values)
    for term, names in zip(graph.terms, labels(graph), strict=True):
        given = {name: values[name] for name in names}
        if _is_plain_forest(graph, term):
            found, singular = _forest(graph, term, given)
        else:
            found, singular = _with_cycles(graph, term, names, given)
        after |= found
        weights |= singular
    held = conjugates({name: after[name].resolve_conj().contiguous() for name in graph.cores}, graph.conjugated)
    return Canonical(held, {name: weights[name] for name in graph.bonds})


def _checked(graph: Graph, cores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = {}
    for name, shape in graph.cores.items():
        if name not in cores:
            raise TnmarsError(Problem(f"core '{name}' is missing.", "Give a tensor for every core of the graph."))
        value = wide(cores[name].detach().cpu())
        if tuple(value.shape) != shape:
            raise ShapeError(f"core '{name}' has shape {tuple(value.shape)}, but must have {shape}.")
        if not bool(torch.isfinite(value).all()):
            raise TnmarsError(f"core '{name}' has entries that are NaN or infinite.")
        found[name] = value
    return found


def _is_plain_forest(graph: Graph, term: Term) -> bool:
    """Whether a term has no cycles, bonds have two ends and modes one."""
    ends = term.ends()
    bonds = {bond.name for bond in term.bonds}
    is_single = all(len(cores) == (2 if edge in bonds else 1) for edge, cores in ends.items())
    return is_single and len(bonds) == len(term.cores) - len(parts(term))


# --- trees -----------------------------------------------------------------------------------------------------------


def _forest(graph: Graph, term: Term, cores: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Orthogonal factors up to the root of each tree, then singular values on the way down. Nothing is inverted."""
    joints = upwards(term, term.cores[-1].name)
    edges = {core.name: core.edges for core in term.cores}
    values = {core.name: cores[graph.qualified(term, core.name)] for core in term.cores}
    for joint in joints:
        if joint.is_virtual:
            continue
        axis = edges[joint.core].index(joint.bond)
        moved = values[joint.core].movedim(axis, -1)
        basis, rest = torch.linalg.qr(moved.reshape(-1, moved.shape[-1]))
        width = moved.shape[-1]
        basis, rest = _widened(basis, width, 1), _widened(rest, width, 0)
        values[joint.core] = basis.reshape(moved.shape).movedim(-1, axis)
        above = _other(term, joint.bond, joint.core)
        values[above] = _along(values[above], edges[above].index(joint.bond), rest)
    singular: dict[str, Tensor] = {}
    norms = {joint.core: float(values[joint.core].norm()) for joint in joints if joint.is_virtual}
    norms[term.cores[-1].name] = float(values[term.cores[-1].name].norm())
    for joint in reversed(joints):
        if not joint.is_virtual:
            above = _other(term, joint.bond, joint.core)
            singular[joint.bond] = _moved_down(values, edges, joint.core, above, joint.bond)
    for bond, weights in singular.items():
        least = ZERO * float(weights[0])
        inverse = torch.where(weights > least, weights.clamp(min=1e-300).rsqrt(), torch.zeros_like(weights))
        for core in term.ends()[bond]:
            values[core] = _scaled(values[core], edges[core].index(bond), inverse)
    whole = prod(norms.values())
    tops = _tops(term, joints)
    weights_of = {
        graph.qualified(term, bond): weights * (whole / norms[tops[bond]] if norms[tops[bond]] > 0.0 else 0.0)
        for bond, weights in singular.items()
    }
    return {graph.qualified(term, name): value for name, value in values.items()}, weights_of


def _moved_down(values: dict[str, Tensor], edges: Mapping[str, Labels], core: str, above: str, bond: str) -> Tensor:
    """Rotates a bond to its singular vectors, and gives the core below the singular values; returns them."""
    at = edges[above].index(bond)
    moved = values[above].movedim(at, -1)
    _, found, turned = torch.linalg.svd(moved.reshape(-1, moved.shape[-1]), full_matrices=True)
    width = moved.shape[-1]
    weights: Tensor = torch.cat([found, found.new_zeros(width - len(found))])
    values[above] = _along(values[above], at, turned.conj())
    below = edges[core].index(bond)
    values[core] = _scaled(_along(values[core], below, turned), below, weights)
    return weights


def _widened(matrix: Tensor, width: int, axis: int) -> Tensor:
    """The matrix with zeros added along an axis."""
    missing = width - matrix.shape[axis]
    if missing == 0:
        return matrix
    shape = list(matrix.shape)
    shape[axis] = missing
    return torch.cat([matrix, matrix.new_zeros(shape)], axis)


def _along(value: Tensor, axis: int, matrix: Tensor) -> Tensor:
    """The tensor with a matrix multiplied to an axis, whose index is the matrix's second."""
    result: Tensor = torch.tensordot(value, matrix, dims=([axis], [1])).movedim(-1, axis)
    return result


def _scaled(value: Tensor, axis: int, factors: Tensor) -> Tensor:
    result: Tensor = (value.movedim(axis, -1) * factors).movedim(-1, axis)
    return result


def _other(term: Term, bond: str, core: str) -> str:
    (other,) = (name for name in term.ends()[bond] if name != core)
    return other


def _tops(term: Term, joints: Sequence[Joint]) -> dict[str, str]:
    """For each bond the root of its tree."""
    roots = {joint.core for joint in joints if joint.is_virtual} | {term.cores[-1].name}
    found: dict[str, str] = {}
    for names in parts(term):
        (root,) = roots & set(names)
        held = {edge for core in term.cores if core.name in names for edge in core.edges}
        found |= {bond.name: root for bond in term.bonds if bond.name in held}
    return found


# --- cycles and hyperedges -------------------------------------------------------------------------------------------


def _with_cycles(
    graph: Graph, term: Term, axes: Mapping[str, Labels], cores: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Bonds with two ends by messages, then slices of all others by their norms."""
    ends = {
        f":{graph.qualified(term, bond.name)}": [graph.qualified(term, core) for core in term.ends()[bond.name]]
        for bond in term.bonds
    }
    values = dict(cores)
    wide = [bond for bond, names in ends.items() if len(names) > 2]
    for bond in wide:
        _balance(values, axes, ends[bond], bond)
    weights: dict[str, Tensor] = {}
    pairs = [bond for bond, names in ends.items() if len(names) == 2]
    if pairs:
        norm = _norm(axes, values)
        messages = settled(axes, values, ends)
        for bond in pairs:
            first, second = ends[bond]
            left, right, found = gauges(messages[first, bond], messages[second, bond])
            values[first] = _along(values[first], axes[first].index(bond), left.T)
            values[second] = _along(values[second], axes[second].index(bond), right)
            weights[bond[1:]] = found * (norm / max(float(found.norm()), 1e-300))
    for bond in wide:
        weights[bond[1:]] = _balance(values, axes, ends[bond], bond)
    for bond in wide:
        order = weights[bond[1:]].argsort(descending=True, stable=True)
        weights[bond[1:]] = weights[bond[1:]][order]
        for name in ends[bond]:
            values[name] = values[name].index_select(axes[name].index(bond), order)
    return values, weights


def _norm(axes: Mapping[str, Labels], cores: Mapping[str, Tensor]) -> float:
    """The norm of a term, from the network contracted with its conjugate."""
    copy = [tuple(f"{label}'" if label[0] == ":" else label for label in each) for each in axes.values()]
    found = contract(
        [*axes.values(), *copy], (), [*map(cores.__getitem__, axes), *(cores[name].conj() for name in axes)]
    )
    return float(max(float(found.real), 0.0) ** 0.5)


def _balance(values: dict[str, Tensor], axes: Mapping[str, Labels], ends: list[str], bond: str) -> Tensor:
    """Gives each slice of a bond the same norm on all its ends; returns the products of these norms."""
    first = [values[name].movedim(axes[name].index(bond), 0) for name in ends]
    norms = [value.reshape(len(value), -1).norm(dim=1) for value in first]
    whole = torch.stack(norms).prod(0)
    common = torch.stack([norm.clamp(min=1e-300).log() for norm in norms]).mean(0).exp()
    for name, norm in zip(ends, norms, strict=True):
        factors = torch.where(whole > 0.0, common / norm.clamp(min=1e-300), torch.zeros_like(norm))
        values[name] = _scaled(values[name], axes[name].index(bond), factors)
    return whole
