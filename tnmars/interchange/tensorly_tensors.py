"""Tensors of tensorly: `CPTensor`, `TuckerTensor`, `TTTensor`, `TRTensor` and `TTMatrix`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tnmars.arguments import check_arguments
from tnmars.errors import Problem, TnmarsError, listing
from tnmars.graph import Graph, Role
from tnmars.interchange.labelled import (
    Labelled,
    Modes,
    arranged,
    as_tensor,
    layer_of,
    library,
    plain,
    refused,
    weight_modes,
)
from tnmars.interchange.layouts import Cores, hub, line, one_bond, ring
from tnmars.layer.module import TNModule

EXTRA = "interchange"


@dataclass(frozen=True)
class Form:
    """A class of tensorly: where it is, its layout over the modes of a weight, and how it holds its arrays."""

    module: str
    layout: Callable[[Sequence[Sequence[str]]], Cores]
    is_matrix: bool = False
    """Whether each core has a mode of the rows and one of the columns."""
    has_weights: bool = False
    has_core: bool = False


FORMS = {
    "TTMatrix": Form("tt_matrix", line, is_matrix=True),
    "CPTensor": Form("cp_tensor", one_bond, has_weights=True),
    "TuckerTensor": Form("tucker_tensor", hub, has_core=True),
    "TTTensor": Form("tt_tensor", line),
    "TRTensor": Form("tr_tensor", ring),
}
"""The classes by name, in the order in which they are tried."""


def from_tensorly(value: Any, *, kind: str | None = None, outputs: int = 1) -> TNModule:
    """A compiled layer with the numbers of a tensor of tensorly.

    Args:
        value: A `CPTensor`, `TuckerTensor`, `TTTensor`, `TRTensor` or `TTMatrix`, of any backend.
        kind: `"tensor"`, by default, with a mode for each axis; or the layer whose weight the tensor is, in torch's
            order of axes: `"linear"` (outputs, then inputs) or `"conv"` (outputs, inputs, taps). A `TTMatrix` is
            `"linear"` by default, its rows the outputs, or `"embedding"`. A linear layer or convolution has no bias.
        outputs: How many axes at the start are outputs, for a tensor whose kind is `"linear"`.

    Returns:
        The layer. Weights of a `CPTensor` that are not all 1 become a core of their own, `weights`.

    Raises:
        TnmarsError: The value is none of these, or does not fit the kind.

    Example:
        >>> from tnmars.interchange import from_tensorly
        >>> from tensorly.random import random_tt  # doctest: +SKIP
        >>> print(from_tensorly(random_tt((4, 5, 6), 2)).graph.terms[0])  # doctest: +SKIP
        G1[n1, r1] G2[r1, n2, r2] G3[r2, n3]
    """
    check_arguments(from_tensorly, locals())
    library("tensorly", EXTRA)
    name = type(value).__name__
    if name not in FORMS:
        raise TnmarsError(Problem(f"{name} is not known.", f"tnmars takes {listing(list(FORMS))} of tensorly."))
    form = FORMS[name]
    arrays = [as_tensor(factor) for factor in value.factors]
    if form.is_matrix:
        modes = matrix_modes(kind or "linear", len(arrays))
        half = len(arrays)
        sites = [[modes[at][0], modes[half + at][0]] for at in range(half)]
        return layer_of(kind or "linear", modes, _labelled(form.layout(sites), arrays))
    modes = tensor_modes(kind or "tensor", len(arrays), outputs)
    sites = [[mode] for mode, _ in modes]
    cores = form.layout(sites)
    if form.has_core:
        arrays = [as_tensor(value.core), *arrays]
    if form.has_weights and value.weights is not None and not bool((as_tensor(value.weights) == 1).all()):
        cores, arrays = one_bond(sites, weights=True), [*arrays, as_tensor(value.weights)]
    return layer_of(kind or "tensor", modes, _labelled(cores, arrays))


def _labelled(cores: Cores, arrays: Sequence[Tensor]) -> Labelled:
    return {name: (edges, array) for (name, edges), array in zip(cores.items(), arrays, strict=True)}


def matrix_modes(kind: str, count: int) -> Modes:
    """The modes of a matrix, rows first: outputs by inputs of a linear layer, rows of a table by outputs."""
    roles = {"linear": (Role.OUT, Role.IN), "embedding": (Role.LOOKUP, Role.OUT)}
    if kind not in roles:
        raise TnmarsError(f"kind is {kind!r}, but a matrix can be {listing(list(roles))}.")
    letters = {Role.OUT: "o", Role.IN: "i", Role.LOOKUP: "v"}
    return [(f"{letters[role]}{at}", role) for role in roles[kind] for at in range(1, count + 1)]


def tensor_modes(kind: str, count: int, outputs: int = 1) -> Modes:
    """The modes of a tensor in the order of its axes, which is torch's order for the weight of a layer."""
    if kind == "tensor":
        return [(f"n{at}", Role.FREE) for at in range(1, count + 1)]
    if kind == "conv" and count > 2:
        return [("o1", Role.OUT), ("i1", Role.IN), *((f"k{at}", Role.KERNEL) for at in range(1, count - 1))]
    if kind == "linear" and 0 < outputs < count:
        first = [(f"o{at}", Role.OUT) for at in range(1, outputs + 1)]
        return [*first, *((f"i{at}", Role.IN) for at in range(1, count - outputs + 1))]
    text = f"a tensor of {count} axes cannot be the weight of kind {kind!r} with {outputs} of them outputs."
    raise TnmarsError(Problem(text, "Kinds: tensor, linear (with outputs=), conv (outputs, inputs, taps)."))


def to_tensorly(layer: TNModule, form: str | None = None) -> Any:
    """The weight of a compiled layer as a tensor of tensorly, whose full tensor or matrix is `layer.dense()`.

    Args:
        layer: A layer without gates and padding. Its bias, if any, is left out.
        form: The class: `"CPTensor"`, `"TuckerTensor"`, `"TTTensor"`, `"TRTensor"` or `"TTMatrix"`. By default the
            first that the graph fits, of which a `TTMatrix` comes first.

    Returns:
        The tensor, with arrays of tensorly's current backend. Its axes are the modes in the order of the weight in
        torch; full tensors of other kinds than `"tensor"` must be reshaped to the weight.

    Raises:
        TnmarsError: tensorly has no class for the graph.

    Example:
        >>> import tnmars
        >>> layer = tnmars.compile(tnmars.families.tt("tensor", free=(4, 5, 6), rank=2))
        >>> tnmars.interchange.to_tensorly(layer)  # doctest: +SKIP
        factors list : rank-(1, 2, 2, 1) matrix-product-state tensor of shape (4, 5, 6)
    """
    check_arguments(to_tensorly, locals())
    tensorly = library("tensorly", EXTRA)
    layer = plain(layer, "tensorly")
    if form is not None and form not in FORMS:
        raise TnmarsError(Problem(f"form is {form!r}, which is not known.", f"Forms: {listing(list(FORMS))}."))
    if len(layer.graph.terms) == 1:
        for name in FORMS if form is None else [form]:
            found = _found(layer, FORMS[name])
            if found is not None:
                arrays = {core: tensorly.tensor(value.cpu().numpy()) for core, value in found.items()}
                return _made(tensorly, name, arrays, layer)
    raise refused(layer, "tensorly", FORMS if form is None else [form])


def _found(layer: TNModule, form: Form) -> dict[str, Tensor] | None:
    sites = _sites(layer.graph, form)
    if sites is None or (len(sites) < 2 and form.layout is ring):
        return None
    found = arranged(layer, form.layout(sites))
    if found is None and form.has_weights:
        found = arranged(layer, one_bond(sites, weights=True))
    return found


def _sites(graph: Graph, form: Form) -> list[list[str]] | None:
    modes = weight_modes(graph)
    if not form.is_matrix:
        return [[mode] for mode in modes]
    axes = graph.weight_axes
    if graph.kind not in ("linear", "embedding") or len(axes[0]) != len(axes[1]):
        return None
    return [list(pair) for pair in zip(*axes, strict=True)]


def _made(tensorly: Any, name: str, arrays: dict[str, Any], layer: TNModule) -> Any:
    form = FORMS[name]
    made = getattr(library(f"tensorly.{form.module}", EXTRA), name)
    if form.has_core:
        core, *factors = arrays.values()
        return made((core, factors))
    if form.has_weights:
        weights = arrays.pop("weights", None)
        if weights is None:
            rank = next(iter(arrays.values())).shape[-1]
            weights = tensorly.tensor(torch.ones(rank, dtype=layer.dtype).numpy())
        return made((weights, list(arrays.values())))
    return made(list(arrays.values()))
