"""The call of torch's own layer with a dense weight, as an instruction that no program lists: a frame makes it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tnmars.graph import Graph
from tnmars.graph.window import Window
from tnmars.plan import prices
from tnmars.plan.cost import CostModel
from tnmars.plan.network import BATCH, spatial
from tnmars.plan.steps import flat, shape, volume
from tnmars.program.base import Instruction, Site, Sizes, Work


@dataclass(frozen=True)
class Dense(Instruction):
    """The call of torch's own layer with a dense weight.

    Its axes are the batch and, for a convolution, the spatial axes; channels are those of the weight.
    """

    weight_shape: tuple[int, ...]
    """The shape of the weight in torch's layout."""
    groups: int = 1
    is_upward: bool = False
    """Whether it is a transposed convolution: the inputs come first in its weight."""

    @property
    def _channels(self) -> tuple[int, int]:
        """The channels of input and output."""
        first, second = self.weight_shape[:2]
        return (first, second * self.groups) if self.is_upward else (second * self.groups, first)

    def extents(self, sizes: Sizes) -> tuple[int, ...]:
        batch, *places = shape(self.axes, sizes)
        return (batch, self._channels[1], *places)

    def lengths(self, read: tuple[Instruction, ...], window: Window, sizes: Sizes) -> dict[str, int]:
        return {label: window.out_length(sizes[label], axis) for axis, (label,) in enumerate(self.axes[1:])}

    def work(self, site: Site) -> Work:
        out = prod(self.extents(site.after))
        if self.is_upward:  # every entry of the input goes to the taps and outputs of its group
            source = self._channels[0] * volume(flat(self.axes), site.before)
            return Work(macs=source * prod(self.weight_shape[1:]), written=out)
        return Work(macs=out * prod(self.weight_shape[1:]), written=out)

    def seconds(self, site: Site, model: CostModel, grad: bool) -> float:
        rows, columns, *_ = self.weight_shape
        if len(self.axes) == 1:
            return prices.product(model, 1, volume(self.axes[0], site.before), rows, columns, grad=grad)
        source = self._channels[0] * volume(flat(self.axes), site.before)
        out, inside = prod(self.extents(site.after)), prod(self.weight_shape[1:])
        channels = min(rows // self.groups, columns)
        price = prices.transposed if self.is_upward else prices.convolution
        return price(model, out, source, rows * inside, inside, channels, grad=grad)

    def words(self, read: tuple[Instruction, ...], taken: frozenset[str] = frozenset()) -> str:
        return "torch's own layer with the dense weight"


def dense_call(shape: tuple[int, ...], groups: int = 1, *, is_upward: bool = False) -> Dense:
    """The call of torch's linear layer or convolution with a weight of this shape."""
    return Dense("y", ((BATCH,), *((spatial(axis),) for axis in range(len(shape) - 2))), shape, groups, is_upward)


def dense_layer(graph: Graph) -> Dense:
    """The call of torch's own layer in place of a graph's."""
    return dense_call(graph.dense_shape, graph.groups, is_upward=graph.rules.is_transposed)


def dense_at(graph: Graph, batch: int, image: int) -> tuple[Dense, Site]:
    """The same, and the lengths of its data axes."""
    call = dense_layer(graph)
    before = {BATCH: batch, **{spatial(axis): image for axis in range(graph.window.ndim)}}
    return call, Site((), before, {**before, **call.lengths((), graph.window, before)})
