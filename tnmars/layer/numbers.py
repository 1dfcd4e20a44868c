"""Real and complex numbers: the types that go with a type, and squared sizes. A gate is real, also on complex cores."""

from __future__ import annotations

import torch
from torch import Tensor

REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""The type of the two parts of a complex number."""


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of the parts of a complex number; a real type is its own.

    >>> real_dtype(torch.complex64), real_dtype(torch.float16)
    (torch.float32, torch.float16)
    """
    return REAL.get(dtype, dtype)


def computing(dtype: torch.dtype) -> torch.dtype:
    """The type that numbers of a type compute in. Torch computes nothing in 8 bits: they become float32.

    >>> computing(torch.float8_e4m3fn), computing(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.float32 if dtype.is_floating_point and dtype.itemsize == 1 else dtype


def dtype_name(dtype: torch.dtype) -> str:
    """The name of the type that numbers of a type compute in.

    >>> dtype_name(torch.float64), dtype_name(torch.float8_e5m2)
    ('float64', 'float32')
    """
    return str(computing(dtype)).removeprefix("torch.")


def gate_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """The type of a layer's gates: real, with at least the digits of float32. With fewer they would not learn."""
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type with the most digits, complex if the given one is."""
    return torch.complex128 if dtype.is_complex else torch.float64


def wide(value: Tensor) -> Tensor:
    """A tensor with the most digits: in float64 or complex128.

    >>> wide(torch.ones(1, dtype=torch.complex64)).dtype
    torch.complex128
    """
    return value.to(wide_dtype(value.dtype))


def squared(value: Tensor) -> Tensor:
    """The squared absolute value of each entry, which is real; differentiable.

    >>> squared(torch.tensor([3.0 + 4.0j, 1.0j])).tolist()
    [25.0, 1.0]
    """
    return (value.abs() if value.is_complex() else value).square()
