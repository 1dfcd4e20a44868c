"""Layers of tensorly-torch: `FactorizedLinear`, `FactorizedConv` and `FactorizedEmbedding`, there and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.arguments import check_arguments
from tnmars.errors import Problem, TnmarsError, listing
from tnmars.graph import Graph, Role
from tnmars.interchange.labelled import (
    Labelled,
    Modes,
    arranged,
    as_tensor,
    frozen_like,
    layer_of,
    library,
    plain,
    refused,
)
from tnmars.interchange.layouts import hub, line, one_bond
from tnmars.interchange.tensorly_tensors import matrix_modes, tensor_modes
from tnmars.layer.module import TNModule

EXTRA = "interchange"
LAYERS = ("FactorizedLinear", "FactorizedConv", "FactorizedEmbedding")


def from_tensorly_torch(layer: nn.Module) -> TNModule:
    """A compiled layer that computes what a layer of tensorly-torch computes, with the same numbers.

    Args:
        layer: A `FactorizedLinear`, `FactorizedConv` or `FactorizedEmbedding` that holds one layer, of any
            factorization but complex ones.

    Returns:
        The layer, with options, bias, dtype and device of the given one.

    Raises:
        TnmarsError: It is none of these, or one weight of several layers.

    Example:
        >>> import tltorch, tnmars  # doctest: +SKIP
        >>> layer = tltorch.FactorizedLinear((4, 5), (3, 6), rank=4)  # doctest: +SKIP
        >>> tnmars.interchange.from_tensorly_torch(layer).graph.signature  # doctest: +SKIP
        '20 -> 18'
    """
    check_arguments(from_tensorly_torch, locals())
    tltorch = library("tltorch", EXTRA)
    if not isinstance(layer, tuple(getattr(tltorch, name) for name in LAYERS)):
        raise TnmarsError(Problem(f"{type(layer).__name__} is not known.", f"tnmars takes {listing(LAYERS)}."))
    held: Any = layer
    if held.n_layers not in (1, (1,)):
        raise TnmarsError(Problem("one weight serves several layers.", "Convert layers that hold one each."))
    weight = held.weight
    form = type(weight).__name__.removesuffix("Tensorized").removesuffix("Tensor") + "Tensor"
    options: dict[str, Any] = {}
    if isinstance(layer, tltorch.FactorizedConv):
        kind = "conv"
        modes = tensor_modes(kind, len(held.kernel_size) + 2)
        options = {name: tuple(getattr(held, name).tolist()) for name in ("stride", "padding", "dilation")}
        order = [*modes[1:], modes[0]] if form == "TTTensor" else list(modes)
        cores = _tensor(form, weight, order)
    else:
        kind = "linear" if isinstance(layer, tltorch.FactorizedLinear) else "embedding"
        rows, columns = weight.tensorized_shape
        modes = _matrix_modes(kind, len(rows), len(columns))
        cores = _matrix(form, weight, modes, len(rows))
    if cores is None:
        raise TnmarsError(f"the factorization {weight._name} of {type(weight).__name__} is not known.")
    made = layer_of(kind, modes, cores, bias=getattr(held, "bias", None), options=options)
    return made.train(layer.training)


def _matrix_modes(kind: str, rows: int, columns: int) -> Modes:
    first, second = matrix_modes(kind, rows)[:rows], matrix_modes(kind, columns)[columns:]
    return [*first, *second]


def _tensor(form: str, weight: Any, modes: Modes) -> Labelled | None:
    """The cores of a weight with one axis per mode."""
    names = [mode for mode, _ in modes]
    sites = [[name] for name in names]
    if form == "DenseTensor":
        return {"W": (names, weight.tensor.reshape([*weight.shape]))}
    arrays = [as_tensor(factor) for factor in weight.factors]
    if form == "CPTensor":
        is_plain = bool((weight.weights == 1).all())
        cores = one_bond(sites, weights=not is_plain)
        arrays += [] if is_plain else [weight.weights]
    elif form == "TuckerTensor":
        cores, arrays = hub(sites), [weight.core, *arrays]
    elif form == "TTTensor":
        cores = line(sites)
    else:
        return None
    return {name: (edges, array) for (name, edges), array in zip(cores.items(), arrays, strict=True)}


def _matrix(form: str, weight: Any, modes: Modes, rows: int) -> Labelled | None:
    """The cores of a weight that is a matrix, whose rows and columns have several modes each."""
    names = [mode for mode, _ in modes]
    if form == "DenseTensor":
        sizes = [size for axis in weight.tensorized_shape for size in axis]
        return {"W": (names, weight.tensor.reshape(sizes))}
    if form == "BlockTTTensor":
        cores = line([[names[at], names[rows + at]] for at in range(rows)])
        arrays = [as_tensor(factor) for factor in weight.factors]
        return {name: (edges, array) for (name, edges), array in zip(cores.items(), arrays, strict=True)}
    return _tensor(form, weight, modes)


def to_tensorly_torch(layer: TNModule) -> nn.Module:
    """A layer of tensorly-torch that computes what a compiled layer computes, with the same numbers.

    Args:
        layer: A linear layer, a convolution or an embedding, without gates and padding.

    Returns:
        A `FactorizedLinear`, `FactorizedConv` or `FactorizedEmbedding` with new parameters.

    Raises:
        TnmarsError: tensorly-torch has no factorization for the graph.

    Example:
        >>> import tnmars
        >>> layer = tnmars.Linear(20, 18, family="cp", rank=3, ways=2)
        >>> tnmars.interchange.to_tensorly_torch(layer).weight.rank  # doctest: +SKIP
        3
    """
    check_arguments(to_tensorly_torch, locals())
    tltorch = library("tltorch", EXTRA)
    layer = plain(layer, "tensorly-torch")
    graph = layer.graph
    options = dict(graph.options)
    if graph.kind not in MAKERS or len(graph.terms) != 1 or set(options) & {"mode", "padding_idx"}:
        raise refused(layer, "tensorly-torch", LAYERS)
    made = MAKERS[graph.kind](tltorch, layer)
    if made is None:
        raise refused(layer, "tensorly-torch", ("CPTensor", "TuckerTensor", "TTTensor for convolutions, else BlockTT"))
    return frozen_like(made, layer)


def _parameters(values: Sequence[Tensor]) -> list[nn.Parameter]:
    return [nn.Parameter(value) for value in values]


def _factorized(layer: TNModule, modes: Sequence[str], classes: Sequence[Any], shape: Sequence[Any]) -> Any:
    """The cores as the first of the classes CP and Tucker whose layout the graph has; None if it has neither."""
    sites = [[mode] for mode in modes]
    given = (tuple(shape),) if shape else ()
    found = arranged(layer, one_bond(sites)) or arranged(layer, one_bond(sites, weights=True))
    if found is not None:
        weights = found.pop("weights", None)
        rank = next(iter(found.values())).shape[-1]
        first = torch.ones(rank, dtype=layer.dtype, device=layer.device) if weights is None else weights
        return classes[0](nn.Parameter(first), _parameters(list(found.values())), *given)
    found = arranged(layer, hub(sites))
    if found is None:
        return None
    core, *factors = found.values()
    return classes[1](nn.Parameter(core), _parameters(factors), *given)


def _matrix_weight(layer: TNModule) -> tuple[Any, list[tuple[int, ...]]]:
    """The weight of a linear layer or a table, and the sizes of its rows and of its columns; None if there is none."""
    tensors = library("tltorch.factorized_tensors.tensorized_matrices", EXTRA)
    graph = layer.graph
    sizes = {mode.name: mode.size for mode in graph.modes}
    axes = graph.weight_axes
    shape = [tuple(sizes[name] for name in axis) for axis in axes]
    if len(axes[0]) == len(axes[1]):
        found = arranged(layer, line([list(pair) for pair in zip(*axes, strict=True)]))
        if found is not None:
            rank = (*(core.shape[0] for core in found.values()), 1)
            return tensors.BlockTT(_parameters(list(found.values())), tensorized_shape=tuple(shape), rank=rank), shape
    classes = (tensors.CPTensorized, tensors.TuckerTensorized)
    return _factorized(layer, [name for axis in axes for name in axis], classes, shape), shape


def _linear(tltorch: Any, layer: TNModule) -> nn.Module | None:
    weight, shape = _matrix_weight(layer)
    if weight is None:
        return None
    made: nn.Module = tltorch.FactorizedLinear(
        shape[1], shape[0], bias=layer.bias is not None, factorization=weight, rank=weight.rank, dtype=layer.dtype
    )
    return _with_bias(made, layer)


def _with_bias(made: nn.Module, layer: TNModule) -> nn.Module:
    if layer.bias is not None:
        made.bias = nn.Parameter(layer.bias.detach().clone())
    return made


def _embedding(tltorch: Any, layer: TNModule) -> nn.Module | None:
    weight, shape = _matrix_weight(layer)
    if weight is None:
        return None
    graph: Graph = layer.graph
    with torch.random.fork_rng(devices=[]):
        made: Any = tltorch.FactorizedEmbedding(
            graph.vocab,
            graph.out_features,
            auto_tensorize=False,
            tensorized_num_embeddings=shape[0],
            tensorized_embedding_dim=shape[1],
            factorization=weight._name,
            rank=1,
            dtype=layer.dtype,
        )
    made.weight, made.rank = weight, weight.rank
    module: nn.Module = made
    return module


def _conv(tltorch: Any, layer: TNModule) -> nn.Module | None:
    tensors = library("tltorch.factorized_tensors.factorized_tensors", EXTRA)
    graph = layer.graph
    out, inside, *kernel = ([mode.name for mode in graph.of_role(role)] for role in (Role.OUT, Role.IN, Role.KERNEL))
    taps = [name for names in kernel for name in names]
    if len(out) != 1 or len(inside) != 1 or len(taps) != len(graph.kernel_size):
        return None
    found = arranged(layer, line([[name] for name in (*inside, *taps, *out)]))
    weight = tensors.TTTensor(_parameters(list(found.values()))) if found is not None else None
    if weight is None:
        weight = _factorized(layer, [*out, *inside, *taps], (tensors.CPTensor, tensors.TuckerTensor), ())
    if weight is None or graph.window.padding == "same":
        return None
    settings: dict[str, Any] = {name: list(getattr(graph.window, name)) for name in ("stride", "padding", "dilation")}
    made: nn.Module = tltorch.FactorizedConv.from_factorization(
        weight, bias=None if layer.bias is None else layer.bias.detach().clone(), **settings
    )
    return made.to(layer.dtype)


MAKERS: dict[str, Callable[[Any, TNModule], nn.Module | None]] = {
    "linear": _linear,
    "conv": _conv,
    "embedding": _embedding,
}
"""For each kind of layer, what makes tensorly-torch's; None if the graph does not fit."""
