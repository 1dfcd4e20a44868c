"""The kinds of layer on torch's side: one file each, and the table by which everything else asks them."""

from __future__ import annotations

from tnmars.graph import Graph
from tnmars.layer.kinds.base import Layer, LayerKind
from tnmars.layer.kinds.conv import CONV
from tnmars.layer.kinds.conv_transpose import CONV_TRANSPOSE
from tnmars.layer.kinds.embedding import EMBEDDING
from tnmars.layer.kinds.linear import LINEAR
from tnmars.layer.kinds.maps import MAP
from tnmars.layer.kinds.tensor import TENSOR

__all__ = ["LAYER_KINDS", "Layer", "LayerKind", "kind_of"]

LAYER_KINDS: dict[str, LayerKind] = {
    "linear": LINEAR,
    "conv": CONV,
    "conv_transpose": CONV_TRANSPOSE,
    "embedding": EMBEDDING,
    "tensor": TENSOR,
    "map": MAP,
}


def kind_of(graph: Graph) -> LayerKind:
    """The torch side of a graph's kind."""
    return LAYER_KINDS[graph.kind]
