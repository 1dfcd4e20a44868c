"""What an optimizer or a learning-rate scheduler of a file would fail on, found before anything is changed.

Settings are compared with those that the live object has. For torch's own optimizers one step is tried too, on corners
of the parameters with zero gradients: that is the only thing that knows which state a class needs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.errors import Problem
from tnmars.spec.nodes import shorten

LARGEST = 2**63
"""Integers from here on do not fit torch's."""
CORNER = 2
"""The entries along each axis of a parameter that a step is tried on."""


def is_like(value: Any, default: Any) -> bool:
    """Whether a value of a file is of the kind of a live one; next to None anything is.

    Truth values count as numbers, and a tensor with one entry too: torch takes these for each other.

    >>> is_like(0.5, 1), is_like("0.5", 1), is_like([0.9, 0.99], (0.8, 0.9)), is_like((), (0.8, 0.9))
    (True, False, True, False)
    """
    if default is None:
        return True
    if _is_number(default):
        return _is_number(value)
    if isinstance(default, (list, tuple)):
        if not isinstance(value, (list, tuple)):
            return False
        if isinstance(default, tuple):
            return len(value) == len(default) and all(map(is_like, value, default))
        return not default or all(is_like(entry, default[0]) for entry in value)
    if isinstance(default, Mapping):
        return isinstance(value, Mapping)
    return isinstance(value, str) or not isinstance(default, str)


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    return isinstance(value, float) or (isinstance(value, int) and -LARGEST <= value < LARGEST)


def unlike(values: Mapping[str, Any], live: Mapping[str, Any], what: str) -> Iterator[Problem]:
    """The values that are of another kind than the live ones of the same name."""
    for key, value in values.items():
        if key in live and not is_like(value, live[key]):
            text = f"{what} of the file has {key} {shorten(repr(value))}, but it should be like {live[key]!r}."
            yield Problem(text)


def failures(
    optimizer: torch.optim.Optimizer,
    settings: Mapping[str, Any],
    state: Mapping[str, Mapping[str, Any]],
    parameters: Mapping[str, Tensor],
    device: str,
) -> Iterator[Problem]:
    """What a step with a group of a file fails on, by the names of its parameters."""
    kind = type(optimizer)
    if kind.__module__.partition(".")[0] != "torch" or _tried(kind, optimizer.defaults, {}, {}, device) is not None:
        return  # code of the user's own, or an optimizer that no step can be tried with
    for name, value in parameters.items():
        entries = state.get(name, {})
        wrong = [key for key, held in entries.items() if not _fits(held, value)]
        if wrong:
            shape, key = tuple(value.shape), wrong[0]
            text = f"'{key}' of '{name}' has shape {tuple(entries[key].shape)}, but the parameter {shape}"
            yield Problem(f"the optimizer of the file does not fit: {text}.")
            continue
        error = _tried(kind, {**optimizer.defaults, **settings}, {name: value}, entries, device)
        if error is not None:
            reason = shorten(f"{type(error).__name__} {error}", 200)
            yield Problem(f"the optimizer of the file fails on parameter '{name}': {reason}.")


def _fits(held: Any, value: Tensor) -> bool:
    """Whether an entry of the state is no tensor, a single number, or has the axes of the parameter, some summed."""
    if not isinstance(held, Tensor) or not held.ndim:
        return True
    return held.ndim == value.ndim and all(
        size in (1, whole) for size, whole in zip(held.shape, value.shape, strict=True)
    )


def _tried(
    kind: type[torch.optim.Optimizer],
    settings: Mapping[str, Any],
    parameters: Mapping[str, Tensor],
    entries: Mapping[str, Any],
    device: str,
) -> Exception | None:
    """What a step raises, if anything."""
    known = inspect.signature(kind).parameters
    given = dict(settings)
    if device != "cpu":  # the step is tried on the CPU
        given |= {key: value for key, value in (("capturable", False), ("fused", None)) if key in settings}
    try:
        corners = [nn.Parameter(_corner(value)) for value in parameters.values()]
        corners = corners or [nn.Parameter(torch.zeros(CORNER, CORNER))]
        trial = kind(corners, **{key: value for key, value in given.items() if key in known})
        trial.param_groups[0].update(given)
        for corner in corners:
            corner.grad = torch.zeros_like(corner)
            if entries:
                trial.state[corner] = {key: _corner(value) for key, value in entries.items()}
        trial.step()
    except Exception as error:
        return error
    return None


def _corner(value: Any) -> Any:
    return value[(slice(CORNER),) * value.ndim].clone() if isinstance(value, Tensor) else value
