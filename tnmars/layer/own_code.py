"""Code objects of a layer's own, so that `torch.compile` keeps what it compiles for each layer apart.

Torch keeps compiled code by code object, eight versions of it at most. If all layers shared one, a model whose layers
are compiled one by one would use them up: an error with `fullgraph`, else layers that are not compiled.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from torch import nn

PASS, METHOD = "_pass", "_forward"


def give_own_code_(layer: nn.Module) -> None:
    """Gives a layer a copy of its class's `_forward`, which its `forward` calls."""
    layer.__dict__[PASS] = _copied(getattr(type(layer), METHOD))


def without_own_code(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a layer without it: a copy of the layer makes its own, and a pickle holds no code."""
    return {key: value for key, value in state.items() if key != PASS}


def _copied(function: FunctionType) -> FunctionType:
    code = function.__code__.replace()  # another object, although the two are equal
    copied = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copied.__qualname__, copied.__doc__ = function.__qualname__, function.__doc__
    return copied
