"""Between torch's layout of a weight and one axis per mode: padding is added as zeros, and cut off on the way back.

A metric has two flat axes: the source (what the weight is multiplied with: inputs, taps, rows of a table) and the
outputs. This file says which modes lie on them; it does not know what a metric is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as functional
from torch import Tensor

from tnmars.errors import Problem, ShapeError, TnmarsError
from tnmars.graph import Graph
from tnmars.graph.kinds import Role
from tnmars.layer.numbers import computing, wide


@dataclass(frozen=True)
class Flat:
    """A flat axis of the dense weight: its modes in order, and for each of its parts the real and the padded length."""

    modes: tuple[str, ...]
    real: tuple[int, ...]
    held: tuple[int, ...]

    @property
    def length(self) -> int:
        """The length without padding."""
        return prod(self.real)


def source(graph: Graph) -> Flat:
    """The axis of the inputs and taps of a group, or of the rows of a table; it has no modes for a plain tensor."""
    return _flat(graph, (Role.IN, Role.PATCH), (Role.LOOKUP,), (Role.KERNEL,))


def outputs(graph: Graph) -> Flat:
    """The axis of outputs, of all groups; it has no modes for a plain tensor."""
    return _flat(graph, (Role.GROUP, Role.OUT))


def _flat(graph: Graph, *parts: tuple[Role, ...]) -> Flat:
    """The axis of some parts, each of which holds the modes of its roles; parts without modes are left out."""
    held = [modes for roles in parts if (modes := [mode for role in roles for mode in graph.of_role(role)])]
    rooms = [prod(mode.size for mode in modes) for modes in held]
    return Flat(
        tuple(mode.name for modes in held for mode in modes),
        tuple(graph.padding.get(modes[0].role, (room, room))[1] for modes, room in zip(held, rooms, strict=True)),
        tuple(rooms),
    )


def padded(value: Tensor, real: Sequence[int], held: Sequence[int]) -> Tensor:
    """A tensor with zeros added at the end of each axis; the axes have the real lengths before."""
    if tuple(real) == tuple(held):
        return value
    missing = [pair for old, new in zip(reversed(real), reversed(held), strict=True) for pair in (0, new - old)]
    return functional.pad(value, missing)


def by_modes(graph: Graph, weight: Tensor) -> Tensor:
    """The weight with one axis per mode in the graph's order, with the most digits; 0 where the modes hold padding."""
    sizes = {mode.name: mode.size for mode in graph.modes}
    order = [name for axis in graph.weight_axes for name in axis]
    held = [prod(sizes[name] for name in axis) for axis in graph.weight_axes]
    values = padded(wide(weight.detach().cpu()).reshape(graph.weight_lengths), graph.weight_lengths, held)
    return values.reshape([sizes[name] for name in order]).permute([order.index(name) for name in sizes])


def outputs_first(graph: Graph, weight: Tensor) -> Tensor:
    """A weight in torch's layout with the axis of all outputs in front, where a transposed convolution has inputs."""
    if not graph.rules.is_transposed:
        return weight
    split = weight.reshape(graph.groups, -1, *weight.shape[1:])
    return split.transpose(1, 2).flatten(0, 1)


def in_torch(graph: Graph, values: Tensor) -> Tensor:
    """The weight in torch's layout, without padding, from one axis per mode."""
    names = [mode.name for mode in graph.modes]
    sizes = {mode.name: mode.size for mode in graph.modes}
    order = [names.index(name) for axis in graph.weight_axes for name in axis]
    flat = values.permute(order).reshape([prod(sizes[name] for name in axis) for axis in graph.weight_axes])
    return flat[tuple(slice(length) for length in graph.weight_lengths)].reshape(graph.dense_shape)


def checked(graph: Graph, weight: object) -> Tensor:
    """The weight as a tensor, if it can be decomposed with this graph.

    Raises `ShapeError` for another shape, and `TnmarsError` for entries that are not finite, or a graph without
    terms.
    """
    if not isinstance(weight, Tensor):
        try:
            weight = torch.as_tensor(weight)
        except (TypeError, ValueError, RuntimeError):
            raise TnmarsError(f"the weight is {type(weight).__name__}, but must be a tensor or an array.") from None
    if tuple(weight.shape) != graph.dense_shape:
        text = f"the weight has shape {tuple(weight.shape)}, but must have {graph.dense_shape}."
        raise ShapeError(Problem(text, f"That is torch's layout for this graph: {graph.signature}."))
    if not graph.terms:
        raise TnmarsError("the graph has no terms, so there is nothing to decompose the weight into.")
    weight = weight.to(computing(weight.dtype))
    finite = torch.isfinite(weight)
    if not bool(finite.all()):
        wrong = int((~finite).sum())
        text = f"the weight has {wrong:,} of {weight.numel():,} entries that are NaN or infinite."
        raise TnmarsError(Problem(text, "Every entry must be a finite number; tnmars.fit takes NaN as unknown."))
    return weight.detach()
