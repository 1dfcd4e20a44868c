"""A dense weight that is made only if something computes with it, for code that looks for `layer.weight`.

Torch's layers and users' code often read the dtype, shape or device of another layer's weight, which costs nothing
here. `nn.TransformerEncoderLayer` has a fused path in evaluation that takes the weights of its layers; it does not
take tensors with `__torch_function__`, so that compiled layers compute themselves there too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

_FREE = {
    Tensor.shape.__get__,  # type: ignore[attr-defined]
    Tensor.dtype.__get__,  # type: ignore[attr-defined]
    Tensor.ndim.__get__,  # type: ignore[attr-defined]
    Tensor.dim,
    Tensor.size,
    Tensor.numel,
}
"""What can be answered from the shape and the dtype."""


class LazyWeight(Tensor):
    """A weight that is made when it is first used, and kept then.

    It is made under the gradient mode in which it was asked for, as if it had been made at once.
    """

    _make: Callable[[], Tensor]
    _where: torch.device
    _modes: tuple[bool, bool]
    _value: Tensor | None

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _FREE:
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        if func == Tensor.device.__get__:
            return args[0]._where
        plain, named = tree_map_only(LazyWeight, _made, (args, dict(kwargs or {})))
        return func(*plain, **named)


def lazy_weight(
    make: Callable[[], Tensor], shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> LazyWeight:
    """The result of `make`, which has this shape and dtype on this device, once something computes with it."""
    weight = torch.empty(tuple(shape), dtype=dtype, device="meta").as_subclass(LazyWeight)
    weight._make, weight._where = make, device
    weight._modes = (torch.is_inference_mode_enabled(), torch.is_grad_enabled())
    weight._value = None
    return weight


def _made(weight: LazyWeight) -> Tensor:
    if weight._value is None:
        is_inference, has_grad = weight._modes
        with torch.inference_mode(is_inference), torch.set_grad_enabled(has_grad):
            weight._value = weight._make()
    return weight._value
