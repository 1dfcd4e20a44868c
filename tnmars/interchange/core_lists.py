"""Lists of cores with axes (rank, mode, rank) or (rank, row, column, rank), as tt-pytorch has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tnmars.arguments import check_arguments
from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Role
from tnmars.interchange.labelled import arranged, as_tensor, layer_of, plain, refused, weight_modes
from tnmars.interchange.layouts import line
from tnmars.interchange.tensorly_tensors import tensor_modes
from tnmars.layer.module import TNModule


def from_core_list(cores: Any, *, kind: str | None = None, bias: Tensor | None = None) -> TNModule:
    """A compiled layer of a list of cores, each joined to the next by its last axis.

    Args:
        cores: Arrays `(rank, mode, rank)` of a tensor, or `(rank, row, column, rank)` of a matrix; the first and the
            last rank are 1. Or an object of tt-pytorch, which has the list as `tt_cores`.
        kind: What a matrix is: `"linear"`, by default, whose rows are the inputs and columns the outputs, as in
            tt-pytorch; or `"embedding"`, whose rows are those of the table. A list of a tensor is a `"tensor"`.
        bias: The bias of a linear layer; by default it has none.

    Returns:
        The layer. For a matrix that is linear, `layer.dense()` is its transpose, `[out, in]`.

    Raises:
        TnmarsError: The arrays do not have these axes.

    Example:
        >>> import torch, tnmars
        >>> cores = [torch.ones(1, 4, 3, 2), torch.ones(2, 5, 6, 1)]
        >>> layer = tnmars.interchange.from_core_list(cores)
        >>> print(layer.graph.signature, layer.graph.terms[0])
        20 -> 18 G1[i1, o1, r1] G2[r1, i2, o2]
    """
    check_arguments(from_core_list, locals())
    arrays = [as_tensor(core) for core in getattr(cores, "tt_cores", cores)]
    axes = {array.dim() for array in arrays}
    if len(axes) != 1 or axes - {3, 4}:
        raise TnmarsError(
            Problem(
                "the arrays are not cores of a list: all of them must have 3 axes, or all 4.",
                "Axes: (rank, mode, rank) for a tensor, (rank, row, column, rank) for a matrix.",
            )
        )
    if axes == {3}:
        if kind not in (None, "tensor") or bias is not None:
            raise TnmarsError("cores of 3 axes make a tensor, which has no other kind and no bias.")
        modes = tensor_modes("tensor", len(arrays))
        sites: Sequence[Sequence[str]] = [[mode] for mode, _ in modes]
    else:
        rows = {"linear": ("i", Role.IN), "embedding": ("v", Role.LOOKUP)}
        if (kind or "linear") not in rows:
            raise TnmarsError(f"kind is {kind!r}, but a matrix can be linear or embedding.")
        letter, role = rows[kind or "linear"]
        counts = range(1, len(arrays) + 1)
        modes = [*((f"{letter}{at}", role) for at in counts), *((f"o{at}", Role.OUT) for at in counts)]
        sites = [[f"{letter}{at}", f"o{at}"] for at in counts]
    labelled = {name: (edges, array) for (name, edges), array in zip(line(sites).items(), arrays, strict=True)}
    kind = "tensor" if axes == {3} else kind or "linear"
    return layer_of(kind, modes, labelled, bias=bias)


def to_core_list(layer: TNModule) -> list[Tensor]:
    """The cores of a layer as a list of arrays, each joined to the next by its last axis.

    Args:
        layer: A layer whose graph is a line of cores, each with one mode of each role. Its bias is left out.

    Returns:
        Copies of the cores with axes `(rank, mode, rank)` for a tensor, `(rank, in, out, rank)` for a linear layer and
        `(rank, row, out, rank)` for an embedding.

    Raises:
        TnmarsError: The graph is not such a line.

    Example:
        >>> import tnmars
        >>> graph = tnmars.families.tt("linear", inputs=(4, 5), outputs=(3, 6), rank=2)
        >>> cores = tnmars.interchange.to_core_list(tnmars.compile(graph))
        >>> [tuple(core.shape) for core in cores]
        [(1, 4, 3, 2), (2, 5, 6, 1)]
    """
    check_arguments(to_core_list, locals())
    layer = plain(layer, "a list of cores")
    graph = layer.graph
    columns = [[mode] for mode in weight_modes(graph)]
    if graph.kind in ("linear", "embedding"):
        outside = [mode.name for mode in graph.of_role(Role.OUT)]
        inside = [mode.name for mode in graph.modes if mode.role is not Role.OUT]
        columns = [[one, other] for one, other in zip(inside, outside, strict=False)]
        if len(inside) != len(outside):
            raise refused(layer, "a list of cores", ["cores with an input and an output each"])
    found = arranged(layer, line(columns)) if len(graph.terms) == 1 and graph.kind != "map" else None
    if found is None:
        raise refused(layer, "a list of cores", ["a line of cores, each with one mode of each role"])
    return list(found.values())
