"""Exact counts of parameters: of the cores, of the dense weight, of the bias; and the compression that they give.

Compression is counted in two ways (the MARS paper uses both): over weights alone, or with all other parameters of a
model, such as biases, added on both sides. Gate logits never count; padding never counts as dense.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isinf, prod

from tnmars.arguments import check_arguments
from tnmars.graph.graph import Graph

MOST_WRITTEN_OUT = 1e12
"""Above this a ratio is printed in scientific notation."""


@dataclass(frozen=True)
class Count:
    """The number of parameters of a layer. Counts add up, so that a model's is the sum of its layers'.

    Args:
        cores: Parameters of the cores.
        dense: Parameters of the dense weight that the cores stand for, without padding.
        other: Parameters that are not decomposed and are the same before and after: biases, normalization, other
            layers.

    Example:
        >>> layer = Count(cores=23100, dense=490000, other=625)
        >>> f"{layer.compression:.4f} {layer.compression_with_other:.4f}"
        '21.2121 20.6797'
    """

    cores: int = 0
    dense: int = 0
    other: int = 0

    def __add__(self, more: Count) -> Count:
        return Count(self.cores + more.cores, self.dense + more.dense, self.other + more.other)

    @property
    def compression(self) -> float:
        """The dense size over the size of the cores; infinite if no core is left, or if it overflows a float."""
        return _ratio(self.dense, self.cores)

    @property
    def compression_with_other(self) -> float:
        """The same with all other parameters added on both sides, as in the paper's notebooks."""
        return _ratio(self.dense + self.other, self.cores + self.other)

    @property
    def sentence(self) -> str:
        """The compression in words.

        >>> Count(cores=2, dense=9).sentence, Count(cores=9, dense=2).sentence, Count(cores=2, dense=2**90).sentence
        ('4.50x smaller than dense', '4.50x larger than dense', '6.19e+26x smaller than dense')
        """
        if not self.cores:
            return "no cores"
        smaller = self.dense >= self.cores
        ratio = self.compression if smaller else _ratio(self.cores, self.dense)
        shown = "over 1e+308" if isinf(ratio) else f"{ratio:,.2f}" if ratio < MOST_WRITTEN_OUT else f"{ratio:.3g}"
        return f"{shown}x {'smaller' if smaller else 'larger'} than dense"


def _ratio(before: int, after: int) -> float:
    """The ratio; infinite if nothing is left, or if it overflows a float."""
    try:
        return before / after if after else inf
    except OverflowError:
        return inf


def count(graph: Graph) -> Count:
    """The counts of one layer, its bias as `other`.

    Args:
        graph: The decomposed weight.

    Returns:
        The counts. Add those of several layers for a model.

    Example:
        >>> from tnmars import families
        >>> count(families.lowrank("linear", inputs=(8,), outputs=(6,), rank=2))
        Count(cores=28, dense=48, other=6)
    """
    check_arguments(count, locals())
    cores = sum(prod(shape) for shape in graph.cores.values())
    return Count(cores, prod(graph.dense_shape), graph.out_features if graph.has_bias else 0)


def total(graphs: Iterable[Graph], *, other: int = 0) -> Count:
    """The counts of a model: its decomposed layers and `other` parameters."""
    return sum((count(graph) for graph in graphs), Count(other=other))
