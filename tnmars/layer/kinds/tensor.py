"""Plain tensors: the weight itself, or its entries at index tuples."""

from __future__ import annotations

import torch
from torch import Tensor

from tnmars.errors import ShapeError
from tnmars.graph import Graph, Role
from tnmars.layer.kinds.base import Layer, LayerKind, check_index, modes_text


def forward(layer: Layer, index: Tensor | None = None) -> Tensor:
    if index is None:
        return layer.dense()
    count = len(layer.graph.modes)
    if index.dim() == 0 or index.shape[-1] != count:
        shape, modes = tuple(index.shape), modes_text(layer.graph, Role.FREE)
        raise ShapeError(f"index has shape {shape}, but the last axis must be {count}, one for each mode ({modes}).")
    for at, mode in enumerate(layer.graph.modes):
        check_index(index[..., at], mode.size, f"'{mode.name}'")
    flat = index.reshape(-1, count)
    return layer.compute(flat.shape[0], flat).reshape(index.shape[:-1])


def dense(graph: Graph, weight: Tensor, bias: Tensor | None, index: Tensor) -> Tensor:
    return weight[index.unbind(-1)]


def zero(graph: Graph, weight: Tensor, bias: Tensor | None, inputs: tuple[Tensor, ...]) -> Tensor:
    return weight.new_zeros(inputs[0].shape[0])


def examples(graph: Graph, batch: int, image: int, dtype: torch.dtype | None) -> tuple[Tensor, ...]:
    return (torch.stack([torch.randint(0, mode.size, (batch,)) for mode in graph.modes], -1),)


def source(graph: Graph, cores: tuple[str, ...]) -> str:
    return _SOURCE.format(cores=cores, count=len(graph.modes), sizes=graph.dense_shape)


_SOURCE = """\
def forward(self, index=None):
    if index is None:
        cores = dict(self.cores.named_parameters())
        return whole(*[cores[name] for name in {cores}])[0]
    flat = index.reshape(-1, {count})
    check(flat, {sizes})
    return run(flat, *self.parts()).reshape(index.shape[:-1])
"""

TENSOR = LayerKind(forward, examples, zero, source, dense, is_weight=True, is_indexed=True)
