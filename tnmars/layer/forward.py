"""The face of a layer: for each kind, how inputs are checked and flattened, and the output shaped.

What is inside, cores or folded parts, is not known here: a face asks its layer to compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tnmars.errors import ShapeError
from tnmars.graph import Graph, Role
from tnmars.layer import bags

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
    for value in (*inputs, *named.values()):
        if value is not None and not isinstance(value, Tensor):
            raise ShapeError(f"input is of type {type(value).__name__}; give a torch.Tensor.")
    found = _FACES[layer.graph.kind](layer, *inputs, **named)
    return found.to(_autocast_dtype(layer, found)) if _is_autocast(found) else found


def _is_autocast(value: Tensor) -> bool:
    """Whether torch chooses types where a tensor is; on the meta device there is no such thing."""
    kind = value.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _autocast_dtype(layer: Layer, found: Tensor) -> torch.dtype:
    """What torch's own layer gives under autocast, whatever the last step of the plan is: entries stay as they are."""
    is_rows = layer.graph.of_role(Role.LOOKUP) or layer.graph.of_role(Role.FREE)
    return layer.dtype if is_rows or layer.dtype == torch.float64 else torch.get_autocast_dtype(found.device.type)


def _shown(graph: Graph, *roles: Role) -> str:
    return ", ".join(str(mode) for role in roles for mode in graph.of_role(role))


def _check_dtype(layer: Layer, value: Tensor, what: str = "input") -> None:
    if value.dtype != layer.dtype and not _is_autocast(value):
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
    if not torch.compiler.is_compiling():
        _check_image(layer, x.shape[-spatial:])
    if x.dim() == spatial + 2:
        return layer.compute(x.shape[0], x)
    return layer.compute(1, x.unsqueeze(0)).squeeze(0)


def _check_image(layer: Layer, image: Sequence[int]) -> None:
    """An image that is smaller than the kernel's reach has no output."""
    options = dict(layer.graph.options)
    padding = options.get("padding", 0)
    for axis, (length, taps) in enumerate(zip(image, layer.graph.kernel_size, strict=True)):
        dilation = _of_axis(options.get("dilation", 1), axis)
        reach = dilation * (taps - 1) + 1
        room = reach if padding == "same" and length else length + 2 * _of_axis(padding, axis)
        if room < reach or not length:
            raise ShapeError(
                f"input has length {length} along spatial axis {axis + 1}, but the kernel reaches over {reach}."
            )


def _of_axis(value: object, axis: int) -> int:
    found = value[axis] if isinstance(value, tuple) else value
    return found if isinstance(found, int) else 0


def _embedding(
    layer: Layer, index: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
) -> Tensor:
    if "mode" in dict(layer.graph.options):
        return _bags(layer, index, offsets, per_sample_weights)
    if offsets is not None or per_sample_weights is not None:
        raise ShapeError("offsets and per_sample_weights are for bags; give the layer the option mode='sum' or 'mean'.")
    _check_index(index, layer.graph.vocab, "row")
    flat = index.reshape(-1)
    rows, place = _rows(layer, flat)
    rows = rows if place is None else nn.functional.embedding(place, rows)
    skip = _skipped(layer)
    if skip is not None:
        rows = rows.masked_fill(flat.eq(skip).unsqueeze(-1), 0.0)
    return rows.reshape(*index.shape, layer.graph.out_features)


def _bags(layer: Layer, index: Tensor, offsets: Tensor | None, weights: Tensor | None) -> Tensor:
    mode = str(dict(layer.graph.options)["mode"])
    bags.check(index, offsets, weights, mode)
    _check_index(index, layer.graph.vocab, "row")
    if weights is not None:
        _check_dtype(layer, weights, "per_sample_weights")
    flat, first = index.reshape(-1), bags.starts(index, offsets)
    flat_weights = None if weights is None else weights.reshape(-1)
    skip = _skipped(layer)
    if _is_traced(flat) or _is_traced(first) or flat.is_meta:
        kept = None if skip is None else flat.ne(skip)
        return bags.spread(_taken(layer, flat), index, first, mode, flat_weights, kept)
    if offsets is not None:
        bags.check_offsets(first, flat.shape[0])
    if skip is not None:
        flat, first, flat_weights = bags.without(skip, flat, first, flat_weights)
    rows, place = _rows(layer, flat)
    if _is_traced(rows) or (flat_weights is not None and _is_traced(flat_weights)):
        rows = rows if place is None else nn.functional.embedding(place, rows)
        return bags.spread(rows, flat, first, mode, flat_weights, None)
    place = torch.arange(flat.shape[0], device=flat.device) if place is None else place
    return bags.pooled(rows, place, first, mode, flat_weights)


def _rows(layer: Layer, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """Rows of the table, and for each token the place of its own; none where there is a row for each token in turn."""
    if _is_traced(tokens) or layer.is_table or tokens.shape[0] < UNIQUE_FROM:
        return _taken(layer, tokens), None
    different, place = torch.unique(tokens, return_inverse=True)
    return _taken(layer, different), place


def _taken(layer: Layer, tokens: Tensor) -> Tensor:
    """Rows of the table, in the layer's own type under autocast too, as torch's tables give them."""
    return layer.compute(tokens.shape[0], tokens).to(layer.dtype)


def _skipped(layer: Layer) -> int | None:
    """The row that stays zero, if there is one."""
    found = dict(layer.graph.options).get("padding_idx")
    return found if isinstance(found, int) else None


def _is_traced(value: Tensor) -> bool:
    """Whether shapes may not depend on values here: under compile, export and vmap, also around a gradient."""
    if torch.compiler.is_compiling():
        return True
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(value):
        if functorch.is_batchedtensor(value):
            return True
        value = functorch.get_unwrapped(value)
    return False


def _check_index(index: Tensor, count: int, what: str) -> None:
    if index.dtype not in (torch.int64, torch.int32):
        raise ShapeError(f"index has dtype {index.dtype}, but should be int64 or int32.")
    if torch.compiler.is_compiling():
        if not torch.compiler.is_exporting():
            fits = ((index >= 0) & (index < count)).all()
            torch._assert_async(fits, f"index out of range: {what}s are from 0 to {count - 1}")
        return
    while torch._C._functorch.is_functorch_wrapped_tensor(index):
        index = torch._C._functorch.get_unwrapped(index)
    if index.numel() == 0 or index.is_meta:
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
            wanted = prod([sizes[name] for name in axis]) if is_mode else lengths.setdefault(axis[0], value.shape[at])
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
        return weight.new_zeros([prod([sizes[name] for name in axis]) for axis in graph.output])
    rows = inputs[0].shape[0]
    return weight.new_zeros(rows, graph.out_features) if graph.kind == "embedding" else weight.new_zeros(rows)


_FACES: dict[str, Callable[..., Tensor]] = {
    "linear": _linear,
    "conv": _conv,
    "embedding": _embedding,
    "tensor": _tensor,
    "map": _map,
}
