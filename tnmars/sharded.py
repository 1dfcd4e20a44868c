"""Tensors that may be sharded over ranks (FSDP2's parameters, outside of a layer's own pass)."""

from __future__ import annotations

import torch
from torch import Tensor


def is_sharded(value: Tensor) -> bool:
    """Whether this rank holds only a part."""
    return hasattr(value, "full_tensor")


def whole(value: Tensor) -> Tensor:
    """The whole tensor, on every rank; differentiable."""
    found: Tensor = value.full_tensor() if is_sharded(value) else value  # type: ignore[attr-defined]
    return found


def squares(value: Tensor) -> Tensor:
    """The sum of the squared entries."""
    if is_sharded(value):
        return whole(value.square().sum())
    flat = value.reshape(-1)
    return torch.dot(flat, flat)


def from_first_rank(value: Tensor) -> Tensor:
    """Rank 0's value of a tensor, on every rank; without several processes, the value itself."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        value = value.clone()
        torch.distributed.broadcast(value, 0)
    return value
