"""What torch is doing at the moment: tracing, transforming, or running as it is.

This is the only file of the package that uses private names of torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

functorch = torch._C._functorch


def is_plain() -> bool:
    """Whether torch runs as it is: not traced, not transformed by `torch.func`, without forward-mode derivatives."""
    return not (
        torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    )


def is_traced(value: Tensor) -> bool:
    """Whether shapes must not depend on values: under compile, export and vmap, also around a gradient."""
    if torch.compiler.is_compiling():
        return True
    while functorch.is_functorch_wrapped_tensor(value):
        if functorch.is_batchedtensor(value):
            return True
        value = functorch.get_unwrapped(value)
    return False


def unwrapped(value: Tensor) -> Tensor:
    """The tensor inside all wrappers of `torch.func`, whose entries can be read."""
    while functorch.is_functorch_wrapped_tensor(value):
        value = functorch.get_unwrapped(value)
    return value


def assert_in_graph(condition: Tensor, message: str) -> None:
    """An assertion that a compiled graph makes when it runs."""
    torch._assert_async(condition, message)


def add_all_(sums: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Adds values to sums in place, in one call."""
    torch._foreach_add_(list(sums), list(values))
