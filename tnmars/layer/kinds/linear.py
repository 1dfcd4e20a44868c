"""Linear layers, as `torch.nn.Linear`."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tnmars.errors import ShapeError
from tnmars.graph import Graph, Role
from tnmars.layer.kinds.base import Layer, LayerKind, check_dtype, modes_text, run_arguments


def forward(layer: Layer, x: Tensor) -> Tensor:
    inside, outside = layer.graph.in_features, layer.graph.out_features
    if x.dim() == 0 or x.shape[-1] != inside:
        shape, modes = tuple(x.shape), modes_text(layer.graph, Role.IN)
        raise ShapeError(f"input has shape {shape}, but the last axis must be {inside} (modes {modes}).")
    check_dtype(layer, x)
    if x.dim() == 2:
        return layer.compute(x.shape[0], x)
    flat = x.reshape(prod(x.shape[:-1]), inside)
    return layer.compute(flat.shape[0], flat).reshape(*x.shape[:-1], outside)


def dense(graph: Graph, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    return functional.linear(x, weight, bias)


def zero(graph: Graph, weight: Tensor, bias: Tensor | None, inputs: tuple[Tensor, ...]) -> Tensor:
    return dense(graph, weight, bias, *inputs)


def examples(graph: Graph, batch: int, image: int, dtype: torch.dtype | None) -> tuple[Tensor, ...]:
    return (torch.randn(batch, graph.in_features, dtype=dtype),)


def sizes(graph: Graph) -> dict[str, Any]:
    return {"in_features": graph.in_features, "out_features": graph.out_features}


def source(graph: Graph, cores: tuple[str, ...]) -> str:
    flat = f"run(x.reshape(-1, {graph.in_features}), {run_arguments(graph)})"
    return f"def forward(self, x):\n    return {flat}.reshape(*x.shape[:-1], {graph.out_features})\n"


LINEAR = LayerKind(forward, examples, zero, source, dense, sizes)
