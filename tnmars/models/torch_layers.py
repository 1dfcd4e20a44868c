"""Torch's own layers as tnmars sees them: kind, sizes, options and weight, or why a layer cannot be replaced.

One table says for each class of torch what it is. Nothing here knows about graphs or budgets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tnmars.graph import Graph
from tnmars.graph.kinds import KINDS, Role
from tnmars.layer.module import Shell


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """A layer of torch that a compiled one can replace."""

    kind: str
    inside: int
    """Input features or channels; rows of an embedding."""
    outside: int
    kernel: tuple[int, ...]
    options: dict[str, Any]
    """The options under the names of the graph's kind."""
    weight: Tensor
    bias: Tensor | None = None
    groups: int = 1

    @property
    def width(self) -> int:
        """The number of inputs that an output is computed from, taps included: the columns of the weight."""
        return self.inside // self.groups * prod(self.kernel)

    @property
    def is_transposed(self) -> bool:
        """Whether the inputs come first in the weight."""
        return KINDS[self.kind].is_transposed

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape)

    def fits(self, graph: Graph) -> bool:
        """Whether a graph has this layer's kind and sizes."""
        return graph.kind == self.kind and graph.dense_shape == self.shape and graph.groups == self.groups


def fingerprint(weight: Tensor) -> str:
    """A text that differs for weights that differ in a bit.

    >>> len({fingerprint(torch.zeros(2)), fingerprint(torch.zeros(2)), fingerprint(torch.ones(2))})
    2
    """
    plain = weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return blake2b(plain.numpy().data, digest_size=16).hexdigest()


def _linear(layer: nn.Linear) -> DenseLayer | str:
    has_bias = layer.bias is not None
    return DenseLayer("linear", layer.in_features, layer.out_features, (), {"bias": has_bias}, layer.weight, layer.bias)


def _conv(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> DenseLayer | str:
    padding = layer.padding if isinstance(layer.padding, str) else tuple(layer.padding)
    options: dict[str, Any] = {"stride": tuple(layer.stride), "dilation": tuple(layer.dilation), "padding": padding}
    kernel = tuple(layer.kernel_size)
    options |= {"bias": layer.bias is not None, "padding_mode": layer.padding_mode}
    inside, outside = layer.in_channels, layer.out_channels
    return DenseLayer("conv", inside, outside, kernel, options, layer.weight, layer.bias, layer.groups)


def _conv_transpose(layer: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d) -> DenseLayer | str:
    names = ("stride", "padding", "output_padding", "dilation")
    options: dict[str, Any] = {name: tuple(getattr(layer, name)) for name in names}
    options["bias"] = layer.bias is not None
    inside, outside, kernel = layer.in_channels, layer.out_channels, tuple(layer.kernel_size)
    return DenseLayer("conv_transpose", inside, outside, kernel, options, layer.weight, layer.bias, layer.groups)


def _table(layer: nn.Embedding | nn.EmbeddingBag, options: dict[str, Any]) -> DenseLayer | str:
    if layer.sparse:
        return "it has the option sparse, and gradients of cores, which all rows share, are dense"
    if layer.max_norm is not None:
        options |= {"max_norm": float(layer.max_norm), "norm_type": float(layer.norm_type)}
    if layer.scale_grad_by_freq:
        options["scale_grad_by_freq"] = True
    skipped = layer.padding_idx
    if skipped is not None and ("mode" in options or not bool(layer.weight[skipped].any())):
        options["padding_idx"] = skipped  # a row that is not zero, as in many pretrained tables, is a row like others
    return DenseLayer("embedding", layer.num_embeddings, layer.embedding_dim, (), options, layer.weight)


def _embedding(layer: nn.Embedding) -> DenseLayer | str:
    return _table(layer, {})


def _bag(layer: nn.EmbeddingBag) -> DenseLayer | str:
    if layer.mode == "max" and layer.weight.is_complex():
        return "its mode is 'max', and its complex numbers have no order"
    return _table(layer, {"mode": layer.mode, "include_last_offset": layer.include_last_offset})


TRANSPOSED = ("transformers.pytorch_utils", "Conv1D")
"""The linear layer of GPT-2 in transformers, whose weight is [in, out]. The library itself is not imported."""
_views: WeakKeyDictionary[nn.Module, tuple[Tensor, Tensor]] = WeakKeyDictionary()
"""For each transposed layer its weight and the view of it as [out, in], so that a weight stays one object."""


def is_transposed(module: nn.Module) -> bool:
    """Whether a module is a linear layer with a weight [in, out]."""
    return any((kind.__module__, kind.__name__) == TRANSPOSED for kind in type(module).__mro__)


def _transposed(layer: Any) -> DenseLayer | str:
    base: Any = next(kind for kind in type(layer).__mro__ if kind.__name__ == TRANSPOSED[1])
    if type(layer).forward is not base.forward:
        return f"{type(layer).__name__} has a forward method of its own"
    weight, view = _views.get(layer, (None, None))
    if weight is None or weight is not layer.weight or view is None or not _is_view(view, weight):
        view = layer.weight.T
        _views[layer] = layer.weight, view
    inside, outside = layer.weight.shape
    return DenseLayer("linear", inside, outside, (), {"bias": True}, view, layer.bias)


def _is_view(view: Tensor, weight: Tensor) -> bool:
    """Whether a view shows what a weight holds now: `model.double()` and `model.to()` give parameters other data."""
    return (view.data_ptr(), view.dtype, view.device) == (weight.data_ptr(), weight.dtype, weight.device)


TORCH_LAYERS: dict[type[nn.Module], Callable[[Any], DenseLayer | str]] = {
    nn.Linear: _linear,
    nn.Conv1d: _conv,
    nn.Conv2d: _conv,
    nn.Conv3d: _conv,
    nn.ConvTranspose1d: _conv_transpose,
    nn.ConvTranspose2d: _conv_transpose,
    nn.ConvTranspose3d: _conv_transpose,
    nn.Embedding: _embedding,
    nn.EmbeddingBag: _bag,
}
"""For each class of torch, what it is, or in words why it cannot be replaced."""


def describe(module: nn.Module) -> DenseLayer | str | None:
    """What a module is; in words why it cannot be replaced; None if it is no layer of the table.

    A subclass counts if it computes what its base class does: its `forward` is the base class's own.
    """
    for base, found in TORCH_LAYERS.items():
        if isinstance(module, base):
            if parametrize.is_parametrized(module):
                return "its weight is parametrized"
            if "weight" not in module._parameters:
                return "its weight is computed by a hook; remove that first (remove_weight_norm, prune.remove)"
            if type(module).forward is not base.forward:
                return f"{type(module).__name__} has a forward method of its own"
            if isinstance(module.weight, nn.parameter.UninitializedParameter):
                return "its weight is not initialized; run the model once first"
            return found(module)
    return _transposed(module) if is_transposed(module) else None


def holders(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules of a model by name, except those inside compiled layers."""
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module in inside:
            continue
        if isinstance(module, Shell):
            inside |= set(module.modules())
            continue
        yield name, module


def as_matrix(kind: str, weight: Tensor, groups: int = 1) -> Tensor:
    """A dense weight as a matrix of outputs by inputs (and taps, or rows of an embedding)."""
    if KINDS[kind].is_transposed:
        return weight.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2).flatten(0, 1).flatten(1)
    return weight.T if Role.LOOKUP in KINDS[kind].layout else weight.flatten(1)
