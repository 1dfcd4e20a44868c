"""The face of a layer: for each kind, how inputs are checked and flattened, and the output shaped.

What is inside, cores or folded parts, is not known here: a face asks its layer to compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tnmars.errors import ShapeError
from tnmars.graph import Graph, Role

UNIQUE_FROM = 256
"""From how many tokens on repeated ones are looked up once."""


class Layer(Protocol):
    """What a face needs of a layer."""

    graph: Graph

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def is_table(self) -> bool:
        """Whether rows come from one ready table, so that looking up repeated ones once does not pay."""

    def compute(self, batch: int, *inputs: Tensor) -> Tensor:
        """The result for inputs as the emitted code takes them."""

    def dense(self) -> Tensor:
        """The whole weight in torch's layout; for a tensor or a map, with one axis per mode."""


def public_sizes(graph: Graph) -> dict[str, Any]:
    """What torch's own layer of the kind calls its sizes and options."""
    if graph.kind == "linear":
        return {"in_features": graph.in_features, "out_features": graph.out_features}
    if graph.kind == "conv":
        sizes = {"in_channels": graph.in_features, "out_channels": graph.out_features, "kernel_size": graph.kernel_size}
        options = {key: value for key, value in graph.options if key != "bias"}
        return {**sizes, "stride": 1, "padding": 0, "dilation": 1, **options}
    if graph.kind == "embedding":
        return {
            "num_embeddings": graph.vocab,
            "embedding_dim": graph.out_features,
            "padding_idx": None,
            **dict(graph.options),
        }
    return {}


def forward(layer: Layer, inputs: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> Tensor:
    """The output of a layer of any kind."""
    return _FACES[layer.graph.kind](layer, *inputs, **named)


def _shown(graph: Graph, *roles: Role) -> str:
    return ", ".join(str(mode) for role in roles for mode in graph.of_role(role))


def _check_dtype(layer: Layer, value: Tensor, what: str = "input") -> None:
    if value.dtype != layer.dtype and not torch.is_autocast_enabled(value.device.type):
        raise ShapeError(f"{what} has dtype {value.dtype}, but the layer has {layer.dtype}; convert one with .to().")


def _linear(layer: Layer, x: Tensor) -> Tensor:
    inside, outside = layer.graph.in_features, layer.graph.out_features
    if x.dim() == 0 or x.shape[-1] != inside:
        shape, modes = tuple(x.shape), _shown(layer.graph, Role.IN)
        raise ShapeError(f"input has shape {shape}, but the last axis should be {inside} (modes {modes}).")
    _check_dtype(layer, x)
    if x.dim() == 2:
        return layer.compute(x.shape[0], x)
    flat = x.reshape(prod(x.shape[:-1]), inside)
    return layer.compute(flat.shape[0], flat).reshape(*x.shape[:-1], outside)


def _conv(layer: Layer, x: Tensor) -> Tensor:
    spatial = len(layer.graph.kernel_size)
    inside = layer.graph.in_features
    if x.dim() not in (spatial + 1, spatial + 2) or x.shape[-spatial - 1] != inside:
        wanted = ", ".join(["batch", str(inside), *("depth", "height", "width")[3 - spatial :]])
        modes = _shown(layer.graph, Role.IN, Role.PATCH)
        raise ShapeError(
            f"input has shape {tuple(x.shape)}, but should be ({wanted}), the batch being optional (modes {modes})."
        )
    _check_dtype(layer, x)
    if x.dim() == spatial + 2:
        return layer.compute(x.shape[0], x)
    return layer.compute(1, x.unsqueeze(0)).squeeze(0)


def _embedding(layer: Layer, index: Tensor) -> Tensor:
    _check_index(index, layer.graph.vocab, "row")
    flat = index.reshape(-1)
    if flat.shape[0] >= UNIQUE_FROM and not layer.is_table and not _is_traced(flat):
        tokens, place = torch.unique(flat, return_inverse=True)
        rows = nn.functional.embedding(place, layer.compute(tokens.shape[0], tokens))
    else:
        rows = layer.compute(flat.shape[0], flat)
    skip = dict(layer.graph.options).get("padding_idx")
    if isinstance(skip, int):
        rows = rows.masked_fill(flat.eq(skip).unsqueeze(-1), 0.0)
    return rows.reshape(*index.shape, layer.graph.out_features)


def _is_traced(value: Tensor) -> bool:
    """Whether shapes may not depend on values here: under compile, export and vmap."""
    return torch.compiler.is_compiling() or torch._C._functorch.is_batchedtensor(value)


def _check_index(index: Tensor, count: int, what: str) -> None:
    if index.dtype not in (torch.int64, torch.int32):
        raise ShapeError(f"index has dtype {index.dtype}, but should be int64 or int32.")
    if _is_traced(index) or index.numel() == 0 or index.is_meta:
        return
    low, high = index.aminmax()
    if low < 0 or high >= count:
        wrong = int(low if low < 0 else high)
        raise ShapeError(f"index has {what} {wrong}, but {what}s are from 0 to {count - 1:,}.")


def _tensor(layer: Layer, index: Tensor | None = None) -> Tensor:
    if index is None:
        return layer.dense()
    count = len(layer.graph.modes)
    if index.dim() == 0 or index.shape[-1] != count:
        shape, modes = tuple(index.shape), _shown(layer.graph, Role.FREE)
        raise ShapeError(f"index has shape {shape}, but the last axis should be {count}, one for each mode ({modes}).")
    for at, mode in enumerate(layer.graph.modes):
        _check_index(index[..., at], mode.size, f"'{mode.name}'")
    flat = index.reshape(-1, count)
    return layer.compute(flat.shape[0], flat).reshape(index.shape[:-1])


def _map(layer: Layer, *inputs: Tensor, **named: Tensor) -> Tensor:
    names = [operand.name for operand in layer.graph.inputs]
    given = dict(zip(names, inputs, strict=False))
    if len(inputs) > len(names) or set(given) & set(named) or set(given) | set(named) != set(names):
        raise ShapeError(f"the layer takes inputs {', '.join(names)}, each once, by position or by name.")
    given |= named
    lengths = _lengths(layer, given)
    return layer.compute(next(iter(lengths.values()), 1), *(given[name] for name in names))


def _lengths(layer: Layer, given: Mapping[str, Tensor]) -> dict[str, int]:
    """The lengths of the data axes, alike on all inputs."""
    sizes = {mode.name: mode.size for mode in layer.graph.modes}
    lengths: dict[str, int] = {}
    for operand in layer.graph.inputs:
        value = given[operand.name]
        _check_dtype(layer, value, f"input '{operand.name}'")
        if value.dim() != len(operand.axes):
            raise ShapeError(f"input '{operand.name}' has {value.dim()} axes, but should be {operand}.")
        for at, axis in enumerate(operand.axes):
            is_mode = axis[0] in sizes
            wanted = prod(sizes[name] for name in axis) if is_mode else lengths.setdefault(axis[0], value.shape[at])
            if value.shape[at] != wanted:
                shape = tuple(value.shape)
                raise ShapeError(
                    f"input '{operand.name}' has shape {shape}, but axis {at} of {operand} should be {wanted}."
                )
    return lengths


def without_terms(layer: Layer, bias: Tensor | None, inputs: tuple[Tensor, ...]) -> Tensor:
    """What a layer computes whose weight is zero, because no term is left: its bias, if it has one."""
    graph = layer.graph
    weight = layer.dense()
    if graph.kind == "linear":
        return nn.functional.linear(inputs[0], weight, bias)
    if graph.kind == "conv":
        function = (nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d)[len(graph.kernel_size) - 1]
        options: dict[str, Any] = {key: value for key, value in graph.options if key != "bias"}
        return function(inputs[0], weight, bias, **options)
    if graph.kind == "map":
        lengths = _lengths(layer, dict(zip((operand.name for operand in graph.inputs), inputs, strict=True)))
        sizes = {**{mode.name: mode.size for mode in graph.modes}, **lengths}
        return weight.new_zeros([prod(sizes[name] for name in axis) for axis in graph.output])
    rows = inputs[0].shape[0]
    return weight.new_zeros(rows, graph.out_features) if graph.kind == "embedding" else weight.new_zeros(rows)


_FACES: dict[str, Callable[..., Tensor]] = {
    "linear": _linear,
    "conv": _conv,
    "embedding": _embedding,
    "tensor": _tensor,
    "map": _map,
}
