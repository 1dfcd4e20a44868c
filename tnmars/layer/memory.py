"""Memory that is not there: what torch says about bytes, said about cores, weights and inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from math import prod

import torch
from torch import Tensor, nn

from tnmars.errors import Problem, ShapeError, TnmarsError
from tnmars.graph import Graph
from tnmars.layer.kinds import kind_of
from tnmars.text.numbers import byte_count

LARGE = 2**31
"""A dense weight with at least this many entries is made only if there is memory for it."""
_SHORT = re.compile(r"can't allocate memory|not enough memory|size calculation overflowed|multiplication overflow")


def is_short(error: RuntimeError) -> bool:
    """Whether torch ran out of the memory of this machine. A GPU has its own error, which programs wait for."""
    return not isinstance(error, torch.OutOfMemoryError) and _SHORT.search(str(error)) is not None


def empty_core(graph: Graph, name: str, device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Parameter:
    """An uninitialized core of a graph. Raises `TnmarsError` with its size if there is no memory for it."""
    bonds = ", ".join(f"'{bond}' has size {graph.bonds[bond].size:,}" for bond in graph.bonds_of(name) if bond)
    fix = f"Make its bonds smaller: {bonds}." if bonds else "Make its modes smaller."
    return empty(graph.cores[name], device, dtype, f"core '{name}'", fix)


def empty(
    shape: Sequence[int], device: torch.device | str | None, dtype: torch.dtype | None, what: str, fix: str
) -> nn.Parameter:
    """An uninitialized parameter. Raises `TnmarsError` with its size if there is no memory for it."""
    try:
        return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
    except RuntimeError as error:
        if not is_short(error):
            raise
    size = byte_count(prod(shape) * (torch.get_default_dtype() if dtype is None else dtype).itemsize)
    text = f"there is no memory for {what}: it has shape {tuple(shape)}, which takes {size}."
    raise TnmarsError(Problem(text, fix))


def whole_weight(
    graph: Graph, anchor: Tensor, fold: Callable[..., tuple[Tensor, ...]], given: Sequence[Tensor]
) -> Tensor:
    """The dense weight of a graph, as emitted code makes it from cores and gates.

    Raises `ShapeError` if there is no memory for it; if it is large, before its parts fill the memory.
    """
    if prod(graph.dense_shape) >= LARGE:
        try:
            anchor.new_empty(graph.dense_shape)
        except RuntimeError:
            raise _no_weight(graph) from None
    try:
        return fold(*given)[0]
    except RuntimeError as error:
        if not is_short(error):
            raise
        raise _no_weight(graph) from error


def _no_weight(graph: Graph) -> ShapeError:
    fix = "ask for entries at index tuples" if kind_of(graph).is_weight else "use the layer on its inputs"
    return ShapeError(f"the whole weight has {prod(graph.dense_shape):,} entries, too many for the memory; {fix}.")


def no_output(error: RuntimeError, inputs: Iterable[object]) -> ShapeError:
    """The error that there is no memory to compute a layer for some inputs, from what torch said."""
    shapes = [str(tuple(value.shape)) for value in inputs if isinstance(value, Tensor)]
    asked = re.search(r"tried to allocate (\d+) bytes", str(error))
    size = f" A tensor of {byte_count(int(asked[1]))} was to be made." if asked else ""
    given = f"an input of shape {' and '.join(shapes)}" if shapes else "the whole weight"
    text = f"there is no memory to compute the layer for {given}.{size}"
    return ShapeError(Problem(text, "Use a smaller batch." if shapes else "Ask for entries at index tuples."))
