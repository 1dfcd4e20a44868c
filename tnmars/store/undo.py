"""A model as it was before a change, to put it back if the change fails in the middle."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

OURS = ("torch", "tnmars")
"""The packages whose own code loads a state dict that fits without failing."""


@contextmanager
def all_or_nothing(model: nn.Module) -> Iterator[None]:
    """Within the block a model may change; if the block raises, the model is again what it was before.

    Modules, parameters and buffers are remembered, not copied. Their values are copied only if code of the user's own
    takes part in loading, because nothing else can fail once the shapes are known to fit. Without copies a signal, such
    as Ctrl-C, waits until the block ends.
    """
    before = [(module, type(module), _copied(module)) for module in model.modules()]
    is_copied = any(map(_has_own_code, model.modules()))
    values = _values(model) if is_copied else []
    try:
        with ExitStack() as stack:
            if not is_copied:
                stack.enter_context(uninterrupted())
            yield
    except BaseException:
        for module, kind, held in before:
            module.__class__ = kind  # torch's parametrize gives a module a class of its own
            module.__dict__.clear()
            for key, (value, inside) in held.items():
                module.__dict__[key] = value
                _refill(value, inside)
        with torch.no_grad():
            for value, copy in values:
                value.copy_(copy)
        raise


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Within the block Ctrl-C and SIGTERM wait; what they do is done once it ends. In other threads nothing changes."""
    waiting: list[tuple[int, Any]] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        before = {int(number): handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in before:
            signal.signal(number, lambda *call: waiting.append(call))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for received, frame in waiting:
        before[received](received, frame)


def _copied(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Each attribute of a module, with what it holds if it is a table, a list or a set, which may change in place."""
    return {
        key: (value, value.copy() if isinstance(value, (dict, list, set)) else None)
        for key, value in module.__dict__.items()
    }


def _refill(value: Any, inside: Any) -> None:
    if isinstance(value, (dict, set)):
        value.clear()
        value.update(inside)
    elif isinstance(value, list):
        value[:] = inside


def _values(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    held = {id(value): value for value in (*model.parameters(), *model.buffers())}
    return [(value, value.detach().clone()) for value in held.values()]


def _has_own_code(module: nn.Module) -> bool:
    """Whether loading a state dict into a module calls functions of the user's."""
    if module._load_state_dict_pre_hooks or module._load_state_dict_post_hooks:
        return True
    loaders = (type(module).load_state_dict, type(module)._load_from_state_dict)
    return any(loader.__module__.partition(".")[0] not in OURS for loader in loaders)
