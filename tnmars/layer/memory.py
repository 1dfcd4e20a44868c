"""Memory that is not there: what torch says about bytes, said about cores, weights and inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod

import torch
from torch import Tensor, nn

from tnmars.errors import Problem, ShapeError, TnmarsError
from tnmars.graph import Graph
from tnmars.layer.kinds import kind_of
from tnmars.text.numbers import byte_count

LARGE = 2**31
"""A dense weight with at least this many entries is made only if there is memory for it."""
NO_TRIAL = 2**62
"""No machine has as many bytes, and torch takes no larger numbers."""
_SHORT = re.compile(r"can't allocate memory|not enough memory|size calculation overflowed|multiplication overflow")


def is_short(error: RuntimeError) -> bool:
    """Whether torch ran out of the memory of this machine. A GPU has its own error, which programs wait for."""
    return not isinstance(error, torch.OutOfMemoryError) and _SHORT.search(str(error)) is not None


class NoMemoryError(TnmarsError):
    """There is no memory for what was asked."""


@contextmanager
def memory_to(what: str, fix: str = "") -> Iterator[None]:
    """Within the block a lack of memory is a `TnmarsError` that there is no memory to do `what`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not is_short(error):
            raise
        raise NoMemoryError(Problem(f"there is no memory to {what}.{_asked(error)}", fix)) from error


def check_room(shapes: Iterable[Sequence[int]], dtype: torch.dtype | None, what: str, fix: str) -> None:
    """Raises `TnmarsError` if the memory of this machine is smaller than some tensors together.

    One by one the system would grant them, and end the process when they are filled.
    """
    size = sum(map(prod, shapes)) * (torch.get_default_dtype() if dtype is None else dtype).itemsize
    try:
        if size < NO_TRIAL:
            torch.empty(size, dtype=torch.uint8, device="cpu")
            return
    except RuntimeError as error:
        if not is_short(error):
            raise
    raise NoMemoryError(Problem(f"there is no memory for {what}, which take {byte_count(size)} in all.", fix))


def empty_cores(graph: Graph, device: torch.device | str | None, dtype: torch.dtype | None) -> dict[str, nn.Parameter]:
    """The uninitialized cores of a graph. Raises `TnmarsError` with the sizes if there is no memory for them."""
    short = None
    if torch.device(device or torch.get_default_device()).type == "cpu":
        try:
            bonds = ", ".join(f"'{name}' has size {bond.size:,}" for name, bond in graph.bonds.items())
            what = f"the {len(graph.cores):,} cores"
            check_room(graph.cores.values(), dtype, what, f"Make bonds smaller: {bonds}." if bonds else "")
        except NoMemoryError as error:
            short = error
    cores = {name: empty_core(graph, name, device, dtype) for name in graph.cores}  # first: a single core is too large
    if short is not None:
        raise short
    return cores


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
    raise NoMemoryError(Problem(text, fix))


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
    size = _asked(error)
    given = f"an input of shape {' and '.join(shapes)}" if shapes else "the whole weight"
    text = f"there is no memory to compute the layer for {given}.{size}"
    return ShapeError(Problem(text, "Use a smaller batch." if shapes else "Ask for entries at index tuples."))


def _asked(error: BaseException) -> str:
    """The size of the tensor that there was no memory for, as a sentence, if torch says it."""
    asked = re.search(r"tried to allocate (\d+) bytes", str(error))
    return f" A tensor of {byte_count(int(asked[1]))} was to be made." if asked else ""
