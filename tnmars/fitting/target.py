"""The tensor to fit: checked against the graph, and scaled to a mean square of 1.

The tensor has one axis per mode of the graph, or it is a weight in torch's layout, such as [out, in]. Masks have the
shape of the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import frexp, ldexp

import numpy as np
import torch
from torch import Tensor

from tnmars.decomposing.refine import Data
from tnmars.errors import Problem, ShapeError, TnmarsError
from tnmars.graph import Graph
from tnmars.layer.numbers import squared, wide
from tnmars.store.arrays import numbers, real

NAMED = 5
"""How many indices without data a warning names."""


@dataclass(frozen=True, eq=False)
class Target:
    """The data to fit, and the scale that they were divided by."""

    data: Data
    scale: float
    unseen_index: Tensor | None = None
    """Rows of indices of the entries that are known, but must not be fitted."""
    unseen: Tensor | None = None
    """These entries, scaled too."""
    doubts: tuple[str, ...] = ()
    """Sentences about the data that the user should see."""


def as_tensor(value: object, what: str, *, is_complex: bool = False) -> Tensor:
    """A tensor from a tensor, an array or nested lists; of complex numbers only where these are allowed."""
    if isinstance(value, Tensor):
        held = value.detach().cpu()
        return held.resolve_conj() if is_complex else real(held, what)
    try:
        array = np.asarray(value)
    except ValueError:
        raise TnmarsError(f"{what} is not an array: its rows differ in length.") from None
    return numbers(array, what, is_complex=is_complex)


def target(graph: Graph, given: Tensor, observed: Tensor | None = None, held_out: Tensor | None = None) -> Target:
    """The entries of a tensor to fit. Entries that are NaN are unknown.

    `observed` marks the entries that may be fitted, `held_out` those that may not. An entry that is known and may not
    be fitted is unseen.
    """
    _check_shape(graph, given)
    values = by_modes(graph, wide(given))
    known = ~values.isnan()
    seen = known.clone()
    for mask, what, used in ((observed, "observed", True), (held_out, "held_out", False)):
        if mask is not None:
            _check_mask(mask, given, what)
            seen &= by_modes(graph, _flags(mask, what)) == used
    _check_values(values, known, seen)
    values, scale = _scaled(values, values[seen])
    unseen = known & ~seen
    hidden = {"unseen_index": unseen.nonzero(), "unseen": values[unseen]} if bool(unseen.any()) else {}
    if bool(seen.all()):
        return Target(Data(values), scale)
    return Target(Data(values, seen.nonzero(), values[seen]), scale, **hidden, doubts=tuple(_gaps(graph, seen)))


def is_weight(graph: Graph, shape: tuple[int, ...]) -> bool:
    """Whether a shape is that of the dense weight in torch's layout, if the graph's kind has one."""
    return bool(graph.rules.layout) and shape == graph.dense_shape


def by_modes(graph: Graph, given: Tensor) -> Tensor:
    """The tensor with one axis per mode, in the graph's order: the inverse of the reordering in `layer.dense()`.

    A tensor with the shape of torch's weight is read in torch's layout, even if its axes could also be the modes.
    """
    if not is_weight(graph, tuple(given.shape)):
        return given
    sizes = {mode.name: mode.size for mode in graph.modes}
    order = [name for axis in graph.weight_axes for name in axis]
    split = given.reshape([sizes[name] for name in order])
    return split.permute([order.index(name) for name in sizes])


def _scaled(values: Tensor, seen: Tensor) -> tuple[Tensor, float]:
    """The values divided so that the mean square of the seen entries is 1, and the divisor.

    They are first divided by a power of 2 near the largest entry, which is exact: without it, the squares of very small
    or very large numbers would underflow or overflow.
    """
    unit = ldexp(1.0, frexp(float(seen.abs().max()))[1] - 1)
    values, rest = values / unit, float(squared(seen / unit).mean().sqrt())
    return values / rest, unit * rest


def _gaps(graph: Graph, seen: Tensor) -> Iterator[str]:
    """A sentence for each mode with indices that have no entry to fit: how many, and which."""
    for axis, mode in enumerate(graph.modes):
        empty = (~seen.movedim(axis, 0).flatten(1).any(1)).nonzero().flatten().tolist()
        if empty:
            first = ", ".join(map(str, empty[:NAMED])) + (", ..." if len(empty) > NAMED else "")
            yield (
                f"mode '{mode.name}': {len(empty):,} of its {mode.size:,} indices have no entry to fit ({first}), "
                "so the layer's values there are meaningless."
            )


def _check_shape(graph: Graph, given: Tensor) -> None:
    sizes = {mode.name: mode.size for mode in graph.modes}
    shape = tuple(given.shape)
    if shape == tuple(sizes.values()) or is_weight(graph, shape):
        return
    other = f" Or give a weight in torch's layout, of shape {graph.dense_shape}." if graph.rules.layout else ""
    raise ShapeError(Problem(f"the target has shape {shape}, but must have {_shown(sizes)}.", ORDER + other))


def _check_mask(mask: Tensor, given: Tensor, what: str) -> None:
    if mask.shape != given.shape:
        text = f"the mask '{what}' has shape {tuple(mask.shape)}, but must have the target's, {tuple(given.shape)}."
        raise ShapeError(text)


ORDER = "The target has one axis per mode of the spec, in the spec's order."


def _shown(sizes: Mapping[str, int]) -> str:
    return f"{tuple(sizes.values())} (modes {', '.join(f'{name}={size}' for name, size in sizes.items())})"


def _flags(mask: Tensor, what: str) -> Tensor:
    if mask.dtype is not torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
        raise TnmarsError(f"the mask '{what}' has entries other than 0 and 1.")
    return mask.bool()


def _check_values(values: Tensor, known: Tensor, seen: Tensor) -> None:
    if bool(values.isinf().any()):
        raise TnmarsError(Problem("the target has infinite entries.", "Mark unknown entries by NaN."))
    if not bool(known.any()):
        raise TnmarsError(Problem("every entry of the target is NaN.", "NaN marks an unknown entry."))
    if not bool(seen.any()):
        raise TnmarsError("the masks leave no known entry of the target to fit.")
    first = values[seen][0]
    if bool((values[seen] == first).all()):
        text = f"every known entry of the target is {first.item():g}, so there are no ranks to find."
        raise TnmarsError(text)
