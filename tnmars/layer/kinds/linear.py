"""Linear layers, as `torch.nn.Linear`."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tnmars.errors import ShapeError
from tnmars.graph import Graph, Role
from tnmars.layer.kinds.base import Layer, LayerKind, check_dtype, modes_text, run_arguments


def forward(layer: Layer, x: Tensor) -> Tensor:
    if x.is_nested:
        return _nested(layer, x)
    inside, outside = layer.graph.in_features, layer.graph.out_features
    if x.dim() == 0 or x.shape[-1] != inside:
        shape, modes = tuple(x.shape), modes_text(layer.graph, Role.GROUP, Role.IN)
        raise ShapeError(f"input has shape {shape}, but the last axis must be {inside} (modes {modes}).")
    check_dtype(layer, x)
    if x.dim() == 2:
        return layer.compute(x.shape[0], x)
    flat = x.reshape(prod(x.shape[:-1]), inside)
    return layer.compute(flat.shape[0], flat).reshape(*x.shape[:-1], outside)


def _nested(layer: Layer, x: Tensor) -> Tensor:
    """The rows of sequences of different lengths, as `nn.TransformerEncoder` passes them on in evaluation."""
    parts = x.unbind()
    rows = forward(layer, torch.cat([part.reshape(-1, part.shape[-1]) for part in parts]))
    found = torch.split(rows, [part[..., 0].numel() for part in parts])
    shaped = [rows.reshape(*part.shape[:-1], rows.shape[-1]) for rows, part in zip(found, parts, strict=True)]
    return torch.nested.as_nested_tensor(shaped, layout=x.layout)


def fitting(graph: Graph) -> Callable[[Tensor], Tensor | None]:
    inside = graph.in_features

    def fits(x: Tensor) -> Tensor | None:
        if x.is_nested or x.dim() == 0 or x.shape[-1] != inside:
            return None
        return x if x.dim() == 2 else x.reshape(-1, inside)

    return fits


def probe(graph: Graph, run: Callable[[Tensor], Tensor], device: torch.device, dtype: torch.dtype) -> Tensor:
    units = torch.eye(graph.in_features // graph.groups, device=device, dtype=dtype)
    return run(units.repeat(1, graph.groups)).T


def dense(graph: Graph, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    if graph.has_torch_layer:
        return functional.linear(x, weight, bias)
    blocks = weight.reshape(graph.groups, -1, weight.shape[1])
    parts = x.reshape(*x.shape[:-1], graph.groups, weight.shape[1])
    y = torch.einsum("...gi,goi->...go", parts, blocks).flatten(-2)
    return y if bias is None else y + bias


def zero(graph: Graph, weight: Tensor, bias: Tensor | None, inputs: tuple[Tensor, ...]) -> Tensor:
    return dense(graph, weight, bias, *inputs)


def examples(graph: Graph, batch: int, image: int, dtype: torch.dtype | None) -> tuple[Tensor, ...]:
    return (torch.randn(batch, graph.in_features, dtype=dtype),)


def sizes(graph: Graph) -> dict[str, Any]:
    return {"in_features": graph.in_features, "out_features": graph.out_features}


def source(graph: Graph, cores: tuple[str, ...]) -> str:
    flat = f"run(x.reshape(-1, {graph.in_features}), {run_arguments(graph)})"
    return _SOURCE.format(flat=flat, outside=graph.out_features, cores=cores)


_SOURCE = """\
def forward(self, x):
    return {flat}.reshape(*x.shape[:-1], {outside})

@property
def weight(self):
    \"\"\"The dense weight, for code that reads it, such as torch's transformer.\"\"\"
    cores = dict(self.cores.named_parameters())
    return whole(*[cores[name] for name in {cores}])[0]
"""


LINEAR = LayerKind(forward, examples, zero, source, dense, sizes, probe, fitting)
