"""The tensor that is fitted: read from a file, checked against the graph, and scaled to a mean square of 1.

It has one axis per mode of the graph, or is a weight in torch's layout; the masks are laid out as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import frexp, ldexp
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tnmars.errors import Problem, ShapeError, TnmarsError, listing, nearest
from tnmars.fitting.layout import by_modes, is_weight
from tnmars.fitting.refine import Data
from tnmars.graph import Graph

ENDINGS = (".npy", ".safetensors")
WIDEST = 8
"""Bytes of the widest number that torch has."""
NAMED = 5
"""How many indices are named that have no data."""


@dataclass(frozen=True, eq=False)
class Target:
    """The data as they are fitted, and by how much they were divided for it."""

    data: Data
    scale: float
    unseen_index: Tensor | None = None
    """Rows of indices of entries that are there, but were not to be fitted."""
    unseen: Tensor | None = None
    """These entries, scaled too."""
    doubts: tuple[str, ...] = ()
    """What should be said about the data."""


def read(path: str | Path, key: str | None = None) -> Tensor:
    """The array in a .npy file, or a tensor of a .safetensors file by its key (not needed where there is but one)."""
    source = Path(path)
    if source.suffix.lower() not in ENDINGS:
        raise TnmarsError(f"{path}: the ending is none of {', '.join(ENDINGS)}.")
    if not source.is_file():
        raise TnmarsError(f"{path}: there is no such file.")
    if source.suffix.lower() == ".safetensors":
        return _safetensor(source, key)
    if key is not None:
        raise TnmarsError(Problem(f"{path}: a .npy file holds one array, and no key '{key}'.", "Leave the key out."))
    try:
        found = np.load(source, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise TnmarsError(f"{path}: is not an array of numpy that can be read: {error}.") from None
    if not isinstance(found, np.ndarray):
        raise TnmarsError(Problem(f"{path}: holds several arrays.", "Save one alone with numpy.save."))
    return _numbers(found, str(path))


def _safetensor(source: Path, key: str | None) -> Tensor:
    try:
        with safe_open(source, framework="pt") as opened:
            keys = sorted(opened.keys())
            if key is None and len(keys) == 1:
                key = keys[0]
            if key is None or key not in keys:
                text = f"{source}: there is no tensor '{key}'." if key else f"{source}: holds {len(keys)} tensors."
                hint = f"Give the key of one: {listing(keys)}.{nearest(key or '', keys)}"
                raise TnmarsError(Problem(text, hint))
            found: Tensor = opened.get_tensor(key)
            return _real(found, str(source))
    except (SafetensorError, OSError) as error:
        raise TnmarsError(f"{source}: is not a file of safetensors that can be read: {error}.") from None


def _numbers(found: Any, source: str) -> Tensor:
    if found.dtype.kind not in "biuf":
        raise TnmarsError(f"{source}: has entries of type {found.dtype}, which are no real numbers.")
    kind = np.dtype("float64") if found.dtype.kind == "f" and found.dtype.itemsize > WIDEST else found.dtype
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as that
        plain = np.ascontiguousarray(found.astype(kind.newbyteorder("=")))
    return torch.from_numpy(plain.reshape(found.shape))


def _real(found: Tensor, source: str) -> Tensor:
    if found.is_complex():
        raise TnmarsError(f"{source}: has complex entries, and only real numbers are fitted.")
    return found


def as_tensor(value: object, what: str) -> Tensor:
    """A tensor from a tensor, an array or nested lists."""
    if isinstance(value, Tensor):
        return _real(value.detach().cpu(), what)
    try:
        array = np.asarray(value)
    except ValueError:
        raise TnmarsError(f"{what} is not an array: its rows differ in length.") from None
    return _numbers(array, what)


def target(graph: Graph, given: Tensor, observed: Tensor | None = None, held_out: Tensor | None = None) -> Target:
    """What is to be fitted of a tensor; entries that are NaN are not known.

    `observed` says which entries may be used, `held_out` which may not; what is known, but may not be used, is unseen.
    """
    _check_shape(graph, given)
    values = by_modes(graph, given.double())
    known = ~values.isnan()
    seen = known.clone()
    for mask, what, wanted in ((observed, "observed", True), (held_out, "held_out", False)):
        if mask is not None:
            _check_mask(mask, given, what)
            seen &= by_modes(graph, _flags(mask, what)) == wanted
    _check_values(values, known, seen)
    values, scale = _scaled(values, values[seen])
    unseen = known & ~seen
    hidden = {"unseen_index": unseen.nonzero(), "unseen": values[unseen]} if bool(unseen.any()) else {}
    if bool(seen.all()):
        return Target(Data(values), scale)
    return Target(Data(values, seen.nonzero(), values[seen]), scale, **hidden, doubts=tuple(_gaps(graph, seen)))


def _scaled(values: Tensor, seen: Tensor) -> tuple[Tensor, float]:
    """The values divided so that the mean square of those seen is 1, and by how much.

    First by a power of 2 about as large as the largest, which rounds nothing: the squares of very small or very large
    numbers are none.
    """
    unit = ldexp(1.0, frexp(float(seen.abs().max()))[1] - 1)
    values, rest = values / unit, float((seen / unit).square().mean().sqrt())
    return values / rest, unit * rest


def _gaps(graph: Graph, seen: Tensor) -> Iterator[str]:
    """For each mode that has indices without any entry to be fitted, a sentence that says how many and which."""
    for axis, mode in enumerate(graph.modes):
        empty = (~seen.movedim(axis, 0).flatten(1).any(1)).nonzero().flatten().tolist()
        if empty:
            first = ", ".join(map(str, empty[:NAMED])) + (", ..." if len(empty) > NAMED else "")
            yield (
                f"mode '{mode.name}': {len(empty):,} of its {mode.size:,} indices have no entry that is fitted "
                f"({first}), so what the layer gives there means nothing."
            )


def _check_shape(graph: Graph, given: Tensor) -> None:
    sizes = {mode.name: mode.size for mode in graph.modes}
    shape = tuple(given.shape)
    if shape == tuple(sizes.values()) or is_weight(graph, shape):
        return
    other = f" Or it is a weight in torch's layout, of shape {graph.dense_shape}." if graph.rules.layout else ""
    raise ShapeError(Problem(f"the target has shape {shape}, but should have {_shown(sizes)}.", ORDER + other))


def _check_mask(mask: Tensor, given: Tensor, what: str) -> None:
    if mask.shape != given.shape:
        text = f"the mask '{what}' has shape {tuple(mask.shape)}, but should have {tuple(given.shape)}."
        raise ShapeError(Problem(text, "A mask has the shape of the target."))


ORDER = "It has one axis per mode of the spec, in the spec's order."


def _shown(sizes: Mapping[str, int]) -> str:
    return f"{tuple(sizes.values())} (modes {', '.join(f'{name}={size}' for name, size in sizes.items())})"


def _flags(mask: Tensor, what: str) -> Tensor:
    if mask.dtype is not torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
        raise TnmarsError(f"the mask '{what}' has entries other than 0 and 1.")
    return mask.bool()


def _check_values(values: Tensor, known: Tensor, seen: Tensor) -> None:
    if bool(values.isinf().any()):
        raise TnmarsError(Problem("the target has infinite entries.", "Entries that are not known are NaN."))
    if not bool(known.any()):
        raise TnmarsError(Problem("every entry of the target is NaN.", "NaN stands for an entry that is not known."))
    if not bool(seen.any()):
        raise TnmarsError("the masks leave no known entry of the target to be fitted.")
    least, most = values[seen].aminmax()
    if float(least) == float(most):
        text = f"every known entry of the target is {float(least):g}, so there are no ranks to find."
        raise TnmarsError(text)
