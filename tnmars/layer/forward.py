"""The forward pass of a layer of any kind, compiled or frozen. What a kind does itself is in `tnmars.layer.kinds`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf, prod

import torch
from torch import Tensor

from tnmars.errors import ShapeError
from tnmars.graph import Graph
from tnmars.layer.kinds import Layer, kind_of
from tnmars.layer.kinds.base import is_autocast
from tnmars.layer.memory import is_short, no_output


def forward(layer: Layer, inputs: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> Tensor:
    """The output of a layer."""
    kind = kind_of(layer.graph)
    if "input" in named and not layer.graph.inputs:  # as torch's own layers name it
        if inputs:
            raise TypeError("forward() got multiple values for argument 'input'")
        inputs, named = (named["input"],), {name: value for name, value in named.items() if name != "input"}
    tensors = [value for name, value in named.items() if name not in kind.settings]
    given: tuple[Tensor | None, ...] = (*(inputs[:1] if kind.settings else inputs), *tensors)
    for at, value in enumerate(given):
        is_left_out = value is None and (kind.is_weight or (kind.is_indexed and (at > 0 or not inputs)))
        if not is_left_out and not isinstance(value, Tensor):
            raise ShapeError(f"input is of type {type(value).__name__}, but must be a torch.Tensor.")
    try:
        output = kind.forward(layer, *inputs, **named)
    except RuntimeError as error:
        if not is_short(error):
            raise
        raise no_output(error, (*inputs, *named.values())) from error
    if not is_autocast(output):
        return output
    # as torch's own layer gives it, whatever the last step of the plan is
    is_kept = kind.is_indexed or layer.dtype == torch.float64 or layer.dtype.is_complex
    return output.to(layer.dtype if is_kept else torch.get_autocast_dtype(output.device.type))


def example_inputs(graph: Graph, batch: int, image: int = 32, dtype: torch.dtype | None = None) -> tuple[Tensor, ...]:
    """Random inputs as `forward` takes them, with data axes of the given lengths."""
    return kind_of(graph).examples(graph, batch, image, dtype)


def code_inputs(graph: Graph, batch: int, image: int = 32, dtype: torch.dtype | None = None) -> tuple[Tensor, ...]:
    """Random inputs as the emitted code takes them: one that is in several places several times."""
    given = example_inputs(graph, batch, image, dtype)
    repeated = kind_of(graph).repeated
    return given if repeated is None else repeated(graph, given)


def dense_layer(graph: Graph, largest: float = inf) -> Callable[..., Tensor] | None:
    """Torch's own layer, as a function of weight, bias and inputs.

    None where torch has no such layer, or where its weight would have more than `largest` entries.
    """
    run = kind_of(graph).dense
    return None if run is None or prod(graph.dense_shape) > largest else partial(run, graph)
