"""Plain torch: what a careful user would write by hand for a graph.

Two ways work for every layer: pairwise `torch.einsum` over input and cores; and rebuilding the weight on each call,
then torch's own layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tnmars.bench.einsums import BATCH, Labels, contraction
from tnmars.graph import Graph, Role
from tnmars.layer.forward import dense_layer
from tnmars.layer.kinds.embedding import looked_up


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
    sizes = {mode.name: mode.size for mode in graph.modes}
    contract = contraction(graph, [], {}, tuple(name for axis in graph.weight_axes for name in axis))
    full = [prod(sizes[name] for name in axis) for axis in graph.weight_axes]

    def run(cores: Mapping[str, Tensor]) -> Tensor:
        weight = contract(cores, []).reshape(full)
        for axis, size in enumerate(graph.weight_lengths):
            weight = weight.narrow(axis, 0, size) if size < full[axis] else weight
        return weight.reshape(graph.dense_shape)

    return run


def rebuild(graph: Graph, cores: Mapping[str, Tensor], bias: Tensor | None, largest: float = inf) -> Contender | None:
    """Rebuilds the weight on each call, then calls torch's own layer; `None` if torch has no such layer."""
    layer = dense_layer(graph, largest)
    if layer is None:
        return None
    make = rebuilt_weight(graph)
    return Contender(
        "rebuild the weight", "plain", lambda *inputs: layer(make(cores), bias, *inputs), _trained(cores, bias)
    )


def _trained(cores: Mapping[str, Tensor], bias: Tensor | None) -> tuple[Tensor, ...]:
    return (*cores.values(), *([] if bias is None else [bias]))


def push(graph: Graph, cores: Mapping[str, Tensor], bias: Tensor | None, batch: int) -> Contender | None:
    """Pairwise einsum over the input and the cores; `None` for a convolution, which einsum cannot express."""
    made = _PUSHED.get(graph.kind)
    if made is None:
        return None
    return Contender("pairwise einsum", "plain", made(graph, cores, bias, batch), _trained(cores, bias))


def _push_linear(graph: Graph, cores: Mapping[str, Tensor], bias: Tensor | None, batch: int) -> Callable[..., Tensor]:
    ins = [*graph.of_role(Role.GROUP), *graph.of_role(Role.IN)]
    outs = [*graph.of_role(Role.GROUP), *graph.of_role(Role.OUT)]
    labels: Labels = (BATCH, *(mode.name for mode in ins))
    contract = contraction(graph, [labels], {BATCH: batch}, (BATCH, *(mode.name for mode in outs)))
    shape = [mode.size for mode in ins]
    pad = prod(shape) - graph.in_features

    def run(x: Tensor) -> Tensor:
        spread = (functional.pad(x, (0, pad)) if pad else x).reshape(-1, *shape)
        y = contract(cores, [spread]).reshape(spread.shape[0], -1)[:, : graph.out_features]
        return y if bias is None else y + bias

    return run


def _entries(graph: Graph, cores: Mapping[str, Tensor], batch: int) -> Callable[[Sequence[Tensor]], Tensor]:
    """The weight at some indices, one for each looked-up mode: slices of the cores, and the einsum of the slices."""
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

    def run(digits: Sequence[Tensor]) -> Tensor:
        return contract({name: _slices(cores[graph.nodes[name]], places, digits) for name, places in axes.items()}, [])

    return run


def _push_tensor(graph: Graph, cores: Mapping[str, Tensor], bias: Tensor | None, batch: int) -> Callable[..., Tensor]:
    entries = _entries(graph, cores, batch)
    return lambda index: entries(index.unbind(-1))


def _push_rows(graph: Graph, cores: Mapping[str, Tensor], bias: Tensor | None, batch: int) -> Callable[..., Tensor]:
    """A table of the distinct rows, looked up by torch."""
    entries = _entries(graph, cores, batch)
    rows = graph.of_role(Role.LOOKUP)
    strides = [(prod(mode.size for mode in rows[at + 1 :]), mode.size) for at, mode in enumerate(rows)]
    padding: Any = dict(graph.options).get("padding_idx")

    def run(index: Tensor) -> Tensor:
        tokens, place = torch.unique(index, return_inverse=True)
        made = entries([tokens // stride % size for stride, size in strides])
        skip = None
        if padding is not None and (tokens == padding).any():
            skip = int(torch.searchsorted(tokens, padding))
        return looked_up(graph, made.reshape(len(tokens), -1)[:, : graph.out_features], place, skip)

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
        given = dict(zip((operand.name for operand in graph.inputs if not operand.same), inputs, strict=True))
        for operand in graph.inputs:
            value = given[operand.same or operand.name]
            lengths.update({axis[0]: value.shape[at] for at, axis in enumerate(operand.axes) if axis[0] not in sizes})
            spread.append(value.reshape([lengths[name] for axis in operand.axes for name in axis]))
        y = contract(cores, spread)
        return y.reshape([prod(lengths[name] for name in axis) for axis in graph.output])

    return run


_PUSHED = {"linear": _push_linear, "embedding": _push_rows, "tensor": _push_tensor, "map": _push_map}
