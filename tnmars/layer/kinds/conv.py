"""Convolutions over one, two or three spatial axes, as `torch.nn.Conv1d`, `Conv2d` and `Conv3d`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import ge
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tnmars.errors import ShapeError
from tnmars.graph import Graph, Role
from tnmars.layer.kinds.base import Layer, LayerKind, check_dtype, modes_text, run_arguments
from tnmars.layer.torch_state import is_traced_whole


def forward(layer: Layer, x: Tensor) -> Tensor:
    spatial = len(layer.graph.kernel_size)
    inside = layer.graph.in_features
    if x.dim() not in (spatial + 1, spatial + 2) or x.shape[-spatial - 1] != inside:
        axes = ", ".join(["batch", str(inside), *("depth", "height", "width")[3 - spatial :]])
        modes = modes_text(layer.graph, Role.GROUP, Role.IN, Role.PATCH)
        raise ShapeError(
            f"input has shape {tuple(x.shape)}, but must be ({axes}), the batch being optional (modes {modes})."
        )
    check_dtype(layer, x)
    if not is_traced_whole():
        _check_image(layer.graph, x.shape[-spatial:])
    if x.dim() == spatial + 2:
        return layer.compute(x.shape[0], x)
    return layer.compute(1, x.unsqueeze(0)).squeeze(0)


def _check_image(graph: Graph, image: Sequence[int]) -> None:
    """An image that is smaller than the kernel's reach has no output."""
    window = graph.window
    for axis, length in enumerate(image):
        if not window.out_length(length, axis):
            why = f"the kernel reaches over {window.reach(axis)}"
            if window.is_transposed:
                why = f"padding cuts off {sum(window.sides(axis))} entries of its output, which leaves none"
            raise ShapeError(f"input has length {length} along spatial axis {axis + 1}, but {why}.")
        if length < window.least_length(axis):
            raise ShapeError(
                f"input has length {length} along spatial axis {axis + 1}, but padding_mode '{window.border}' needs at "
                f"least {window.least_length(axis)} to add {max(window.sides(axis))} entries on a side."
            )


def fitting(graph: Graph) -> Callable[[Tensor], Tensor | None]:
    window = graph.window
    least = [window.least_length(axis) for axis in range(window.ndim)]
    ndim, inside = window.ndim + 2, graph.in_features

    def fits(x: Tensor) -> Tensor | None:
        shape = x.shape
        return x if len(shape) == ndim and shape[1] == inside and all(map(ge, shape[2:], least)) else None

    return fits


def _options(graph: Graph) -> dict[str, Any]:
    return {key: value for key, value in graph.options if key not in ("bias", "padding_mode")}


def dense(graph: Graph, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[len(graph.kernel_size) - 1]
    options, window = _options(graph), graph.window
    if window.padded():
        x = functional.pad(x, [size for sides in reversed(window.padded()) for size in sides], mode=window.border)
        options["padding"] = 0
    return function(x, weight, bias, groups=graph.groups, **options)


def zero(graph: Graph, weight: Tensor, bias: Tensor | None, inputs: tuple[Tensor, ...]) -> Tensor:
    return dense(graph, weight, bias, *inputs)


def examples(graph: Graph, batch: int, image: int, dtype: torch.dtype | None) -> tuple[Tensor, ...]:
    return (torch.randn(batch, graph.in_features, *[image] * len(graph.kernel_size), dtype=dtype),)


def sizes(graph: Graph) -> dict[str, Any]:
    own = {"in_channels": graph.in_features, "out_channels": graph.out_features, "kernel_size": graph.kernel_size}
    other = {"groups": graph.groups, "padding_mode": graph.window.border}
    return {**own, "stride": 1, "padding": 0, "dilation": 1, **other, **_options(graph)}


def source(graph: Graph, cores: tuple[str, ...]) -> str:
    return _SOURCE.format(axes=len(graph.kernel_size) + 1, more=run_arguments(graph))


_SOURCE = """\
def forward(self, x):
    if x.dim() == {axes}:
        return run(x.unsqueeze(0), {more}).squeeze(0)
    return run(x, {more})
"""

CONV = LayerKind(forward, examples, zero, source, dense, sizes, fitting=fitting)
