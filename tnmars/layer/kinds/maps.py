"""Multilinear maps of named inputs, whose axes the user lays out."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from tnmars.errors import ShapeError
from tnmars.graph import Graph
from tnmars.layer.kinds.base import Layer, LayerKind, check_dtype, run_arguments

OTHER_AXES = 16
"""The length of every data axis but the first in an example, as the planner assumes it."""


def forward(layer: Layer, *inputs: Tensor, **named: Tensor) -> Tensor:
    names = [operand.name for operand in layer.graph.inputs if not operand.same]
    given = dict(zip(names, inputs, strict=False))
    if len(inputs) > len(names) or set(given) & set(named) or set(given) | set(named) != set(names):
        raise ShapeError(f"the layer takes inputs {', '.join(names)}, each once, by position or by name.")
    given = {**given, **named}
    for name, value in given.items():
        check_dtype(layer, value, f"input '{name}'")
    every = repeated(layer.graph, [given[name] for name in names])
    return layer.compute([*_lengths(layer.graph, every).values(), 1][0], *every)


def repeated(graph: Graph, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What the emitted code takes, from what callers give: a tensor for each place of an input."""
    names = [operand.name for operand in graph.inputs if not operand.same]
    values = dict(zip(names, given, strict=True))
    return tuple(values[operand.same or operand.name] for operand in graph.inputs)


def _lengths(graph: Graph, given: Sequence[Tensor]) -> dict[str, int]:
    """The lengths of the data axes, which must be equal on all inputs."""
    sizes = {mode.name: mode.size for mode in graph.modes}
    lengths: dict[str, int] = {}
    for operand, value in zip(graph.inputs, given, strict=True):
        name = operand.same or operand.name
        if value.dim() != len(operand.axes):
            raise ShapeError(f"input '{name}' has {value.dim()} axes, but must be {operand}.")
        for at, axis in enumerate(operand.axes):
            is_mode = axis[0] in sizes
            length = prod([sizes[name] for name in axis]) if is_mode else lengths.setdefault(axis[0], value.shape[at])
            if value.shape[at] != length:
                shape = tuple(value.shape)
                raise ShapeError(f"input '{name}' has shape {shape}, but axis {at} of {operand} must be {length}.")
    return lengths


def zero(graph: Graph, weight: Tensor, bias: Tensor | None, inputs: tuple[Tensor, ...]) -> Tensor:
    sizes = {**{mode.name: mode.size for mode in graph.modes}, **_lengths(graph, inputs)}
    return weight.new_zeros([prod([sizes[name] for name in axis]) for axis in graph.output])


def examples(graph: Graph, batch: int, image: int, dtype: torch.dtype | None) -> tuple[Tensor, ...]:
    sizes = {mode.name: mode.size for mode in graph.modes}
    given = [operand for operand in graph.inputs if not operand.same]
    data = [name for operand in given for axis in operand.axes for name in axis if name not in sizes]
    lengths = {**dict.fromkeys(data, OTHER_AXES), **sizes, **dict.fromkeys(data[:1], batch)}
    shapes = [[prod(lengths[name] for name in axis) for axis in operand.axes] for operand in given]
    return tuple(torch.randn(shape, dtype=dtype) for shape in shapes)


def source(graph: Graph, cores: tuple[str, ...]) -> str:
    place = {operand.name: f"x{at}" for at, operand in enumerate(graph.inputs)}
    given = ", ".join(place[operand.name] for operand in graph.inputs if not operand.same)
    taken = ", ".join(place[operand.same or operand.name] for operand in graph.inputs)
    comment = ", ".join(map(str, graph.inputs))
    return f"def forward(self, {given}):  # {comment}\n    return run({taken}, {run_arguments(graph)})\n"


MAP = LayerKind(forward, examples, zero, source, repeated=repeated)
