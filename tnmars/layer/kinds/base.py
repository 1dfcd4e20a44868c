"""What torch's side has to know about a kind of layer, and what the kinds share: checks of dtype, index and shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from tnmars.errors import ShapeError
from tnmars.graph import Graph, Role
from tnmars.layer.torch_state import assert_in_graph, is_exported, is_traced_whole, unwrapped


class Layer(Protocol):
    """What the forward pass of a kind needs from a layer, compiled or frozen."""

    graph: Graph

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def is_table(self) -> bool:
        """Whether rows come from one ready table, so that looking up repeated ones once does not pay."""

    def compute(self, batch: int, *inputs: Tensor) -> Tensor:
        """The result for inputs as the emitted code takes them."""

    def dense(self) -> Tensor:
        """The dense weight in torch's layout; for a tensor or a map, with one axis per mode."""


def _no_sizes(graph: Graph) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class LayerKind:
    """The torch side of a kind of layer. Its graph side is in `tnmars.graph.kinds`, under the same name."""

    forward: Callable[..., Tensor]
    """`forward(layer, *inputs, **named)`: checks the inputs, asks the layer to compute, and shapes the output."""
    examples: Callable[[Graph, int, int, torch.dtype | None], tuple[Tensor, ...]]
    """`examples(graph, batch, image, dtype)`: random inputs as `forward` takes them."""
    zero: Callable[[Graph, Tensor, Tensor | None, tuple[Tensor, ...]], Tensor]
    """`zero(graph, weight, bias, inputs)`: what the emitted code would compute if its weight were this one of zeros."""
    source: Callable[[Graph, tuple[str, ...]], str]
    """`source(graph, cores)`: the text of a `forward` method that calls the emitted `run`, for a file that needs torch
    alone. `cores` are those that the dense weight takes, in order."""
    dense: Callable[..., Tensor] | None = None
    """`dense(graph, weight, bias, *inputs)`: torch's own layer with a given weight; none where torch has no such
    layer."""
    sizes: Callable[[Graph], dict[str, Any]] = _no_sizes
    """The sizes and options of the layer under the names of torch's own layer."""
    probe: Callable[[Graph, Callable[[Tensor], Tensor], torch.device, torch.dtype], Tensor] | None = None
    """`probe(graph, run, device, dtype)`: the dense weight, from what `run` gives for unit inputs without a bias; none
    where that is not worth it."""
    fitting: Callable[[Graph], Callable[[Tensor], Tensor | None]] | None = None
    """`fitting(graph)` makes a quick function for the fast path: from an input to what the emitted code takes, which is
    the input itself, or its rows if the last axis holds the features; None if the shape does not fit. None where every
    input must be checked further."""
    settings: tuple[str, ...] = ()
    """The keywords of `forward` that are not tensors."""
    repeated: Callable[[Graph, Sequence[Tensor]], tuple[Tensor, ...]] | None = None
    """`repeated(graph, inputs)`: what the emitted code takes, where an input may be in several places; none where it
    takes the inputs as they are, or prepared by `forward`."""
    is_weight: bool = False
    """Whether the layer is the weight itself: its `forward` without inputs gives all of it."""
    is_indexed: bool = False
    """Whether the inputs are indices. The entries that they pick keep the layer's dtype under autocast."""


def modes_text(graph: Graph, *roles: Role) -> str:
    """The modes with some roles, as a message shows them."""
    return ", ".join(str(mode) for role in roles for mode in graph.of_role(role))


def is_autocast(value: Tensor) -> bool:
    """Whether torch chooses dtypes on a tensor's device; on the meta device it never does."""
    kind = value.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


def check_dtype(layer: Layer, value: Tensor, what: str = "input") -> None:
    is_cast = is_autocast(value) and not value.is_complex() and not layer.dtype.is_complex  # autocast leaves complex
    if value.dtype != layer.dtype and not is_cast:
        raise ShapeError(f"{what} has dtype {value.dtype}, but the layer has {layer.dtype}; convert one with .to().")


def check_index(index: Tensor, count: int, what: str) -> None:
    """Raises `ShapeError` where an entry is not an index below `count`.

    What is traced checks when it runs, and so does an accelerator: the host does not wait for it.
    """
    if index.dtype not in (torch.int64, torch.int32):
        raise ShapeError(f"index has dtype {index.dtype}, but must be int64 or int32.")
    if is_traced_whole():
        if not is_exported():
            fits = ((index >= 0) & (index < count)).all()
            assert_in_graph(fits, f"index out of range: {what}s are from 0 to {count - 1}")
        return
    index = unwrapped(index)
    if index.numel() == 0 or index.is_meta:
        return
    if index.device.type != "cpu":
        fits = ((index >= 0) & (index < count)).all()
        assert_in_graph(fits, f"index out of range: {what}s are from 0 to {count - 1}")
        return
    low, high = index.aminmax()
    if low < 0 or high >= count:
        wrong = int(low if low < 0 else high)
        raise ShapeError(f"index has {what} {wrong}, but {what}s must be from 0 to {count - 1:,}.")


def run_arguments(graph: Graph) -> str:
    """What the emitted `run` takes after the inputs, in the text of a `forward` method."""
    return "self.bias, *self.parts()" if graph.has_bias else "*self.parts()"
