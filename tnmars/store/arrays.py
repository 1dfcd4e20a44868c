"""Arrays of the user's own, from .npy and .safetensors files. Nothing is unpickled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tnmars.errors import Problem, TnmarsError, listing, nearest

ENDINGS = (".npy", ".safetensors")
MAGIC = b"\x93NUMPY"
NOT_AN_ARRAY = (
    *(ValueError, OSError, EOFError, SyntaxError, TypeError, MemoryError, OverflowError, RecursionError),
    TokenError,
)
"""What numpy raises for a file that it cannot read; it reads a header with Python's own tokenizer."""
MOST_LETTERS = 200
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
        _check_header(source)
        array = np.load(source, allow_pickle=False)
    except NOT_AN_ARRAY as error:
        reason = str(error).partition("\n")[0][:MOST_LETTERS]
        raise TnmarsError(f"{source}: cannot be read as a numpy array: {reason or type(error).__name__}.") from None
    if not isinstance(array, np.ndarray):
        raise TnmarsError(Problem(f"{source}: holds several arrays.", "Save a single one with numpy.save."))
    return numbers(array, str(source))


def _check_header(source: Path) -> None:
    """Raises `ValueError` if a .npy file does not have the bytes that its header claims, before memory is taken."""
    with source.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            return  # numpy says what else it is
        stream.seek(0)
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(stream)
        there = os.fstat(stream.fileno()).st_size - stream.tell()
    if min(shape, default=0) < 0 or (not dtype.hasobject and prod(shape) * dtype.itemsize != there):
        raise ValueError(f"its header says shape {shape} of {dtype}, but {there:,} bytes follow")


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


def numbers(array: Any, source: str, *, is_complex: bool = False) -> Tensor:
    """A numpy array as a tensor. Raises `TnmarsError` if its entries are not real numbers, or complex where allowed."""
    if is_complex and array.dtype.kind == "c" and array.dtype.itemsize <= 2 * WIDEST:
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
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
