"""Tensors that may be sharded over ranks (FSDP2's parameters, outside of a layer's own pass)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tnmars.layer.numbers import squared
from tnmars.layer.torch_state import all_norms, all_times, is_plain


def is_sharded(value: Tensor) -> bool:
    """Whether this rank holds only a part."""
    return hasattr(value, "full_tensor")


def whole(value: Tensor) -> Tensor:
    """The full tensor, on every rank; differentiable."""
    found: Tensor = value.full_tensor() if is_sharded(value) else value  # type: ignore[attr-defined]
    return found


def squares(values: Sequence[Tensor]) -> Tensor:
    """The sum of the squared absolute values of the entries of some tensors, on every rank."""
    if any(map(is_sharded, values)) or not is_plain():
        return torch.stack([whole(squared(value).sum()) for value in values]).sum()
    found: Tensor = _Squares.apply(*values)  # type: ignore[no-untyped-call]
    return found


class _Squares(torch.autograd.Function):
    """One node of the autograd graph for all of them: the bookkeeping would cost more than the numbers."""

    @staticmethod
    def forward(ctx: Any, *values: Tensor) -> Tensor:
        ctx.save_for_backward(*values)
        if values[0].dtype not in (torch.float16, torch.bfloat16):  # in these a norm is rounded before it is squared
            norms = torch.stack(all_norms(values))
            return torch.dot(norms, norms)
        flat = [value.reshape(-1) for value in values]
        return torch.stack([torch.dot(value, value) for value in flat]).sum()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        twice = 2.0 * slope
        if torch.is_grad_enabled():  # gradients of gradients are requested
            return tuple(value * twice for value in ctx.saved_tensors)
        return all_times(ctx.saved_tensors, twice)


def is_first_rank() -> bool:
    """Whether this process writes files: rank 0, or the only process."""
    return rank() == 0


def rank() -> int:
    """The number of this process; 0 for the only one."""
    return torch.distributed.get_rank() if has_ranks() else 0


def has_ranks() -> bool:
    """Whether this is one of several processes that train together."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def from_first_rank(value: Tensor) -> Tensor:
    """Rank 0's value of a tensor, on every rank; without several processes, the value itself. All ranks call it."""
    if not has_ranks():
        return value
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    shared = value.to(device, copy=True)
    torch.distributed.broadcast(shared, 0)
    return shared.to(value.device)
