"""Transposed convolutions over one, two or three spatial axes, as `torch.nn.ConvTranspose1d` to `ConvTranspose3d`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional

from tnmars.errors import ShapeError
from tnmars.graph import Graph
from tnmars.layer.kinds import conv
from tnmars.layer.kinds.base import Layer, LayerKind


def forward(layer: Layer, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
    y = conv.forward(layer, x)
    places = tuple(y.shape[-len(layer.graph.kernel_size) :])
    if output_size is not None and tuple(output_size)[-len(places) :] != places:
        raise ShapeError(
            f"output_size is {tuple(output_size)}, but the output has {places}: the layer's output_padding decides, "
            "because the emitted code is made for it."
        )
    return y


def _options(graph: Graph) -> dict[str, Any]:
    return {key: value for key, value in graph.options if key != "bias"}


def dense(graph: Graph, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    functions = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
    return functions[len(graph.kernel_size) - 1](x, weight, bias, groups=graph.groups, **_options(graph))


def zero(graph: Graph, weight: Tensor, bias: Tensor | None, inputs: tuple[Tensor, ...]) -> Tensor:
    return dense(graph, weight, bias, *inputs)


def sizes(graph: Graph) -> dict[str, Any]:
    own = {"in_channels": graph.in_features, "out_channels": graph.out_features, "kernel_size": graph.kernel_size}
    defaults = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1}
    return {**own, **defaults, "groups": graph.groups, "padding_mode": "zeros", **_options(graph)}


CONV_TRANSPOSE = LayerKind(
    forward, conv.examples, zero, conv.source, dense, sizes, fitting=conv.fitting, settings=("output_size",)
)
