"""Plain torch: what a careful user would write by hand for a graph.

Two ways work for every layer: pairwise `torch.einsum` over input and cores; and rebuilding the weight on each call,
then torch's own layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tnmars.bench.einsums import BATCH, Labels, contraction
from tnmars.graph import Graph, Role


@dataclass(frozen=True)
class Contender:
    """Something that computes a layer, with what it trains."""

    name: str
    origin: str
    """`ours`, `dense`, `plain`, or the package it comes from."""
    run: Callable[..., Tensor]
    parameters: tuple[Tensor, ...]
    is_same: bool = True
    """Whether it is the same decomposition; another one is shown, but not compared."""


def rebuilt_weight(graph: Graph) -> Callable[[Mapping[str, Tensor]], Tensor]:
    """Makes the weight in torch's layout from the cores, in pairs; padding is cut off."""
    groups = [[mode for mode in graph.modes if mode.role in _held(role)] for role in graph.rules.layout]
    groups = [group for group in groups if group] or [[mode] for mode in graph.modes]
    output = tuple(mode.name for group in groups for mode in group)
    contract = contraction(graph, [], {}, output)
    room = [prod(mode.size for mode in group) for group in groups]
    real = [graph.padding.get(group[0].role, (0, size))[1] for group, size in zip(groups, room, strict=True)]

    def run(cores: Mapping[str, Tensor]) -> Tensor:
        weight = contract(cores, []).reshape(room)
        for axis, size in enumerate(real):
            weight = weight.narrow(axis, 0, size) if size < room[axis] else weight
        return weight.reshape(graph.dense_shape)

    return run


def _held(role: Role) -> tuple[Role, ...]:
    return (Role.IN, Role.PATCH) if role is Role.IN else (role,)


def rebuild(graph: Graph, cores: Mapping[str, Tensor], bias: Tensor | None) -> Contender:
    """Rebuilds the weight on each call, then calls torch's own layer."""
    make = rebuilt_weight(graph)
    options: dict[str, Any] = {key: value for key, value in graph.options if key not in ("bias", "padding_idx")}

    def run(x: Tensor) -> Tensor:
        weight = make(cores)
        if graph.kind == "linear":
            return functional.linear(x, weight, bias)
        if graph.kind == "embedding":
            return looked_up(graph, x, weight)
        if graph.kind == "tensor":
            return weight[x.unbind(-1)]
        return (functional.conv1d, functional.conv2d, functional.conv3d)[len(graph.kernel_size) - 1](
            x, weight, bias, **options
        )

    return Contender("rebuild the weight", "plain", run, _trained(cores, bias))


def looked_up(graph: Graph, index: Tensor, table: Tensor, tokens: Tensor | None = None) -> Tensor:
    """Rows of a table, or where the graph has a mode, what torch makes of each bag of them.

    The table has all rows, or those of the tokens, which rise.
    """
    options: dict[str, Any] = dict(graph.options)
    if "mode" not in options:
        return functional.embedding(index, table)
    skip = options.get("padding_idx")
    if skip is not None and tokens is not None:
        place = int(torch.searchsorted(tokens, skip))
        skip = place if place < len(tokens) and tokens[place] == skip else None
    return functional.embedding_bag(index, table, mode=options["mode"], padding_idx=skip)


def _trained(cores: Mapping[str, Tensor], bias: Tensor | None) -> tuple[Tensor, ...]:
    return (*cores.values(), *([] if bias is None else [bias]))


def push(graph: Graph, cores: Mapping[str, Tensor], bias: Tensor | None, batch: int) -> Contender | None:
    """Pairwise einsum over the input and the cores; none for a convolution, which einsum cannot say."""
    made = {"linear": _push_linear, "embedding": _push_rows, "tensor": _push_rows, "map": _push_map}.get(graph.kind)
    if made is None:
        return None
    return Contender("pairwise einsum", "plain", made(graph, cores, bias, batch), _trained(cores, bias))


def _push_linear(graph: Graph, cores: Mapping[str, Tensor], bias: Tensor | None, batch: int) -> Callable[..., Tensor]:
    ins = [mode for mode in graph.modes if mode.role is Role.IN]
    outs = [mode for mode in graph.modes if mode.role is Role.OUT]
    labels: Labels = (BATCH, *(mode.name for mode in ins))
    contract = contraction(graph, [labels], {BATCH: batch}, (BATCH, *(mode.name for mode in outs)))
    shape = [mode.size for mode in ins]
    pad = prod(shape) - graph.in_features

    def run(x: Tensor) -> Tensor:
        spread = (functional.pad(x, (0, pad)) if pad else x).reshape(-1, *shape)
        y = contract(cores, [spread]).reshape(spread.shape[0], -1)[:, : graph.out_features]
        return y if bias is None else y + bias

    return run


def _push_rows(graph: Graph, cores: Mapping[str, Tensor], bias: Tensor | None, batch: int) -> Callable[..., Tensor]:
    """Distinct rows, a slice of each core for each, and the einsum of the slices."""
    rows = [mode for mode in graph.modes if mode.role in (Role.LOOKUP, Role.FREE)]
    outs = tuple(mode.name for mode in graph.modes if mode.role is Role.OUT)
    contract = contraction(graph, [], {BATCH: batch}, (BATCH, *outs), [mode.name for mode in rows])
    axes = {
        graph.qualified(term, core.name): [
            (core.edges.index(mode.name), at) for at, mode in enumerate(rows) if mode.name in core.edges
        ]
        for term in graph.terms
        for core in term.cores
    }
    strides = [(prod(mode.size for mode in rows[at + 1 :]), mode.size) for at, mode in enumerate(rows)]

    def taken(digits: Sequence[Tensor]) -> Tensor:
        slices = {name: _slices(cores[name], places, digits) for name, places in axes.items()}
        return contract(slices, [])

    def run(index: Tensor) -> Tensor:
        if graph.kind == "tensor":
            return taken(index.unbind(-1))
        tokens, place = torch.unique(index, return_inverse=True)
        found = taken([tokens // stride % size for stride, size in strides])
        table = found.reshape(len(tokens), -1)[:, : graph.out_features]
        return looked_up(graph, place, table, tokens)

    return run


def _slices(core: Tensor, places: Sequence[tuple[int, int]], digits: Sequence[Tensor]) -> Tensor:
    """The entries of a core at some digits, these first; each place is an axis and the digit that it takes."""
    if not places:
        return core
    if len(places) == 1:
        [(axis, at)] = places
        return core.index_select(axis, digits[at]).movedim(axis, 0)
    axes = [axis for axis, _ in places]
    return core.movedim(axes, list(range(len(axes))))[tuple(digits[at] for _, at in places)]


def _push_map(graph: Graph, cores: Mapping[str, Tensor], bias: Tensor | None, batch: int) -> Callable[..., Tensor]:
    sizes = {mode.name: mode.size for mode in graph.modes}
    flat = [tuple(name for axis in operand.axes for name in axis) for operand in graph.inputs]
    data = {name: batch for group in flat for name in group if name not in sizes}
    output = tuple(name for axis in graph.output for name in axis)
    contract = contraction(graph, flat, data, output)

    def run(*inputs: Tensor) -> Tensor:
        spread, lengths = [], dict(sizes)
        for operand, value in zip(graph.inputs, inputs, strict=True):
            lengths.update({axis[0]: value.shape[at] for at, axis in enumerate(operand.axes) if axis[0] not in sizes})
            spread.append(value.reshape([lengths[name] for axis in operand.axes for name in axis]))
        y = contract(cores, spread)
        return y.reshape([prod(lengths[name] for name in axis) for axis in graph.output])

    return run
