"""Arrays of the user's own, from .npy and .safetensors files. Nothing is unpickled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tnmars.errors import Problem, TnmarsError, listing, nearest

ENDINGS = (".npy", ".safetensors")
WIDEST = 8
"""Bytes of the widest real number that torch has."""


def read(path: str | Path, key: str | None = None) -> Tensor:
    """The array in a .npy file, or the tensor under `key` in a .safetensors file.

    The key may be left out if the file holds one tensor. Raises `TnmarsError`.
    """
    source = _existing(path)
    if source.suffix.lower() == ".safetensors":
        return _safetensor(source, key)
    if key is not None:
        text = f"{path}: a .npy file holds one array, so it has no key '{key}'."
        raise TnmarsError(Problem(text, "Leave the key out."))
    return _array(source)


def read_all(path: str | Path) -> dict[str, Tensor]:
    """All tensors of a .safetensors file by name, or the array of a .npy file under an empty name.

    Raises `TnmarsError`.
    """
    source = _existing(path)
    if source.suffix.lower() != ".safetensors":
        return {"": _array(source)}
    with _opened(source) as held:
        found = {key: real(held.get_tensor(key), f"{source}: '{key}'") for key in held.keys()}  # noqa: SIM118
    if not found:
        raise TnmarsError(f"{path}: holds no tensor.")
    return found


def _existing(path: str | Path) -> Path:
    source = Path(path)
    if source.suffix.lower() not in ENDINGS:
        raise TnmarsError(f"{path}: the file must end in {' or '.join(ENDINGS)}.")
    if not source.is_file():
        raise TnmarsError(f"{path}: there is no such file.")
    return source


def _array(source: Path) -> Tensor:
    try:
        array = np.load(source, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise TnmarsError(f"{source}: cannot be read as a numpy array: {error}.") from None
    if not isinstance(array, np.ndarray):
        raise TnmarsError(Problem(f"{source}: holds several arrays.", "Save a single one with numpy.save."))
    return numbers(array, str(source))


@contextmanager
def _opened(source: Path) -> Iterator[Any]:
    try:
        with safe_open(source, framework="pt") as held:
            yield held
    except (SafetensorError, OSError) as error:
        raise TnmarsError(f"{source}: cannot be read as a safetensors file: {error}.") from None


def _safetensor(source: Path, key: str | None) -> Tensor:
    with _opened(source) as held:
        keys = sorted(held.keys())
        if key is None and len(keys) == 1:
            key = keys[0]
        if key is None or key not in keys:
            text = f"{source}: there is no tensor '{key}'." if key else f"{source}: holds {len(keys)} tensors."
            hint = f"Give the key of one: {listing(keys)}.{nearest(key or '', keys)}"
            raise TnmarsError(Problem(text, hint))
        return real(held.get_tensor(key), str(source))


def numbers(array: Any, source: str) -> Tensor:
    """A numpy array as a tensor. Raises `TnmarsError` if its entries are not real numbers."""
    if array.dtype.kind not in "biuf":
        raise TnmarsError(f"{source}: entries must be real numbers, but have type {array.dtype}.")
    kind = np.dtype("float64") if array.dtype.kind == "f" and array.dtype.itemsize > WIDEST else array.dtype
    with np.errstate(over="ignore"):  # a number that is too large becomes infinite, and infinite entries are refused
        plain = np.ascontiguousarray(array.astype(kind.newbyteorder("=")))
    return torch.from_numpy(plain.reshape(array.shape))


def real(tensor: Tensor, source: str) -> Tensor:
    """The tensor given. Raises `TnmarsError` if its entries are not real numbers."""
    if tensor.is_complex():
        raise TnmarsError(f"{source}: entries must be real numbers, but have type {tensor.dtype}.")
    return tensor
