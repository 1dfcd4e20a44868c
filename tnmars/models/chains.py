"""A compiled layer to a chain of torch's own layers, where its graph is one: `nn.Linear`, `nn.Conv` or `nn.Embedding`.

The input goes through the cores one after another, in an order that is searched for. Each core must take all channels
that there are at its turn. Which of torch's layers it becomes follows from the roles of its edges alone: taps make a
convolution, rows a table, and a label that a later core needs too makes groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.errors import listing
from tnmars.graph import Graph, Role
from tnmars.layer.module import TNModule
from tnmars.plan.network import flat_modes

MOST = 8
"""Graphs with more cores are not searched."""
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

Labels = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Piece:
    """A core, with small cores that only scale it multiplied in."""

    name: str
    edges: Labels
    value: Tensor
    is_trained: bool


@dataclass(frozen=True, eq=False)
class Step:
    """What one core does to the channels: those that it keeps (groups), sums, and makes; and the taps that it sums."""

    piece: Piece
    kept: Labels
    summed: Labels
    made: Labels
    taps: Labels


@dataclass(frozen=True, eq=False)
class Part:
    """A layer of torch without its tensors, and its weight."""

    blank: nn.Module
    weight: Tensor
    is_trained: bool


def chain(layer: TNModule) -> list[Part] | str:
    """The layers that a compiled layer becomes, in order, or the reason why it cannot.

    Gates must be cut off before. No part has a bias: that of the layer belongs on the last.
    """
    graph = layer.graph
    reason = _refusal(graph)
    if reason:
        return reason
    steps = _steps(graph, _pieces(layer))
    if steps is None:
        return _why(graph)
    return [_part(graph, step, at) for at, step in enumerate(steps)]


def _refusal(graph: Graph) -> str:
    """Why a graph cannot be a chain, whatever its cores are; empty if it may."""
    if graph.kind not in ("linear", "conv", "conv_transpose", "embedding"):
        return f"torch has no layer of kind {graph.kind}"
    if "mode" in dict(graph.options):
        return "its bags may be given with offsets, and nn.Sequential takes one input"
    if len(graph.terms) != 1:
        return "it has no term left" if not graph.terms else f"its weight is a sum of {len(graph.terms)} terms"
    if not graph.has_torch_layer:
        return f"it has {graph.groups} groups, and nn.Linear has none"
    if not graph.is_plain:
        return "it has tied cores" if len(graph.nodes) > len(graph.cores) else "it has a trace"
    if len(graph.cores) > MOST:
        return f"it has {len(graph.cores)} cores, more than {MOST}"
    return ""


def _why(graph: Graph) -> str:
    """The reason why no order of the cores is a chain, in the names of the graph."""
    (term,) = graph.terms
    inside = {mode.name for mode in graph.modes if mode.role in (Role.IN, Role.PATCH, Role.LOOKUP)}
    outside = {mode.name for mode in graph.of_role(Role.OUT)}
    for words, names in (("input", inside), ("output", outside)):
        spread = [core.name for core in term.cores if names & set(core.edges)]
        if len(spread) > 1:
            return f"its {words} modes are on the cores {listing(spread)}, and torch's layers take all channels at once"
    return "its cores are not a chain from the inputs to the outputs"


# --- cores -----------------------------------------------------------------------------------------------------------


def _pieces(layer: TNModule) -> list[Piece]:
    """The cores of a layer with one term. A core that lies along the bonds of another is multiplied into it."""
    (term,) = layer.graph.terms
    bonds = {bond.name for bond in term.bonds}
    pieces = []
    for core in term.cores:
        held = layer.cores.get(layer.graph.qualified(term, core.name))
        value = held.detach().conj().resolve_conj() if core.conj else held.detach()
        pieces.append(Piece(core.name, core.edges, value, held.requires_grad))
    while (pair := _scaled(pieces, bonds)) is not None:
        small, large = pair
        others = [piece for piece in pieces if piece is not small and piece is not large]
        needed = {edge for piece in others for edge in piece.edges}
        edges = tuple(edge for edge in large.edges if edge not in small.edges or edge in needed)
        place = {edge: at for at, edge in enumerate(large.edges)}
        operands: list[Any] = [large.value, [*place.values()], small.value, [place[edge] for edge in small.edges]]
        value = torch.einsum(*operands, [place[edge] for edge in edges])
        product = Piece(large.name, edges, value, large.is_trained or small.is_trained)
        pieces = [product if piece is large else piece for piece in pieces if piece is not small]
    return pieces


def _scaled(pieces: Sequence[Piece], bonds: set[str]) -> tuple[Piece, Piece] | None:
    """A core without modes whose edges another core has too, and that other core."""
    for small in pieces:
        if set(small.edges) <= bonds:
            for large in pieces:
                if large is not small and set(small.edges) <= set(large.edges):
                    return small, large
    return None


# --- the order of the cores ------------------------------------------------------------------------------------------


def _steps(graph: Graph, pieces: Sequence[Piece]) -> list[Step] | None:
    """The cores in an order in which each takes all channels; None if there is none."""
    start = flat_modes(graph, Role.GROUP, Role.IN, Role.PATCH, Role.LOOKUP)
    return next(_orders(graph, list(pieces), start), None)


def _orders(graph: Graph, pieces: list[Piece], live: Labels) -> Iterator[list[Step]]:
    """Every way to take the channels `live` through all pieces to the outputs."""
    if not pieces:
        if live == flat_modes(graph, Role.GROUP, Role.OUT):
            yield []
        return
    for piece in pieces:
        others = [other for other in pieces if other is not piece]
        step = _step(graph, piece, others, live)
        if step is not None:
            for rest in _orders(graph, others, (*step.kept, *step.made)):
                yield [step, *rest]


def _step(graph: Graph, piece: Piece, others: Sequence[Piece], live: Labels) -> Step | None:
    """What a core does to the channels, if one of torch's layers does it."""
    roles = {mode.name: mode.role for mode in graph.modes}
    if not set(live) <= set(piece.edges):
        return None
    count = {edge: sum(edge in other.edges for other in others) for edge in piece.edges}
    is_needed = {edge: bool(count[edge]) or roles.get(edge) in (Role.GROUP, Role.OUT) for edge in piece.edges}
    taps = tuple(mode.name for mode in graph.of_role(Role.KERNEL) if mode.name in piece.edges)
    kept = tuple(edge for edge in live if is_needed[edge])
    summed = tuple(edge for edge in live if not is_needed[edge])
    made = [edge for edge in piece.edges if edge not in live and edge not in taps]
    order = [mode.name for mode in graph.modes]
    # what later cores keep comes first, because groups are the slowest part of the channels
    made.sort(key=lambda edge: (-count[edge], order.index(edge) if edge in roles else -1))
    if any(count[edge] for edge in taps) or (kept and not _may_group(graph, roles, kept, live)):
        return None
    return Step(piece, kept, summed, tuple(made), taps)


def _may_group(graph: Graph, roles: Mapping[str, Role], kept: Labels, live: Labels) -> bool:
    """Whether a convolution with groups can keep these of its channels."""
    is_padded = any(roles.get(edge) in graph.padding or roles.get(edge) is Role.PATCH for edge in kept)
    return graph.rules.is_spatial and live[: len(kept)] == kept and not is_padded


# --- torch's layers --------------------------------------------------------------------------------------------------


def _part(graph: Graph, step: Step, at: int) -> Part:
    """The layer of torch for a step."""
    axes = (*step.kept, *step.made, *step.summed, *step.taps)
    value = step.piece.value.permute([step.piece.edges.index(edge) for edge in axes])
    sizes = dict(zip(axes, value.shape, strict=True))
    into, out = prod(sizes[edge] for edge in step.summed), prod(sizes[edge] for edge in (*step.kept, *step.made))
    weight = value.reshape(out, into, -1)
    weight = weight[: _real(graph, step.made, out), : _real(graph, step.summed, into)]
    if graph.rules.is_spatial:
        return _convolution(graph, step, weight, prod(sizes[edge] for edge in step.kept), is_first=at == 0)
    weight = weight.squeeze(-1)
    if graph.kind == "embedding" and at == 0:
        return _table(graph, step, weight.t())
    blank = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    return Part(blank, weight, step.piece.is_trained)


def _real(graph: Graph, labels: Labels, length: int) -> int:
    """The length of a flat axis without its padding."""
    for role, (held, real) in graph.padding.items():
        if held == length and labels == tuple(mode.name for mode in graph.of_role(role)):
            return real
    return length


def _table(graph: Graph, step: Step, weight: Tensor) -> Part:
    skip = dict(graph.options).get("padding_idx")
    assert skip is None or isinstance(skip, int)
    blank = nn.Embedding(weight.shape[0], weight.shape[1], padding_idx=skip, device="meta")
    if skip is not None:
        weight = weight.index_fill(0, torch.tensor([skip], device=weight.device), 0.0)
    return Part(blank, weight, step.piece.is_trained)


def _convolution(graph: Graph, step: Step, weight: Tensor, groups: int, *, is_first: bool) -> Part:
    """A convolution over the taps of a core; stride, padding and dilation go with the taps of each spatial axis."""
    window, kernel = graph.window, graph.kernel_size
    held = dict(zip((mode.name for mode in graph.of_role(Role.KERNEL)), graph.tap_groups, strict=True))
    axes = {axis for name in step.taps for axis in held[name]}
    if any(mode.role is Role.PATCH for mode in graph.modes if mode.name in step.summed):
        axes = set(range(len(kernel)))
    elif is_first:  # axes of one tap may have a stride too, but no core
        axes |= set(range(len(kernel))) - {axis for group in held.values() for axis in group}
    sizes = [size if axis in axes else 1 for axis, size in enumerate(kernel)]
    weight = weight.reshape(weight.shape[0], -1, *sizes)

    def there(values: Sequence[int], otherwise: int) -> tuple[int, ...]:
        return tuple(value if axis in axes else otherwise for axis, value in enumerate(values))

    inside, outside = weight.shape[1] * groups, weight.shape[0]
    if window.is_transposed and axes:
        weight = weight.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2).flatten(0, 1)
        upward: Any = TRANSPOSED[len(kernel) - 1]
        made: nn.Module = upward(
            inside,
            outside,
            tuple(sizes),
            stride=there(window.stride, 1),
            padding=there(tuple(window.padding), 0),  # type: ignore[arg-type]
            output_padding=there(window.extra, 0),
            dilation=there(window.dilation, 1),
            groups=groups,
            bias=False,
            device="meta",
        )
        return Part(made, weight, step.piece.is_trained)
    kind: Any = CONVOLUTIONS[len(kernel) - 1]
    blank: nn.Module = kind(
        inside,
        outside,
        tuple(sizes),
        stride=there(window.stride, 1),
        padding=window.padding if isinstance(window.padding, str) else there(window.padding, 0),
        dilation=there(window.dilation, 1),
        groups=groups,
        bias=False,
        padding_mode=window.border if axes else "zeros",
        device="meta",
    )
    return Part(blank, weight, step.piece.is_trained)
