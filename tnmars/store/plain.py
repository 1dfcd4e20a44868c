"""Python values to data that `json` writes, and back, exactly: also tuples, counters and keys that are not text.

Anything else is refused, with its place: nothing is pickled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy

from tnmars.errors import CheckpointError, Problem, TnmarsError

LEVELS = 100
"""How deep lists, tuples and dicts may be nested. It is well below the depth at which Python's own readers fail."""

BITS = 10_000
"""The bits of the largest integer. Python refuses to read much longer ones from text."""


def encode(value: Any, where: str, levels: int = LEVELS) -> Any:
    """A value as plain data. Raises `TnmarsError` with the place of anything else.

    >>> encode({"betas": (0.9, 0.99), "at": {30: 1}}, "x")
    {'betas': {'$tuple': [0.9, 0.99]}, 'at': {'$table': [[30, 1]]}}
    """
    if isinstance(value, numpy.generic):
        value = value.item()
    if type(value) is int and value.bit_length() > BITS:
        text = f"{where} is an integer of {value.bit_length():,} bits, but a file holds up to {BITS:,}."
        raise TnmarsError(Problem(text, "Save it as text, for example with hex()."))
    if value is None or type(value) in (bool, int, float, str):
        return value
    if not levels:
        text = f"{where.partition('[')[0]} is nested over {LEVELS} levels deep."
        raise TnmarsError(Problem(text, "Make it flatter."))
    if isinstance(value, list):
        return [encode(entry, f"{where}[{at}]", levels - 1) for at, entry in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": [encode(entry, f"{where}[{at}]", levels - 1) for at, entry in enumerate(value)]}
    if isinstance(value, Mapping):
        pairs = [
            [encode(key, where, levels - 1), encode(entry, f"{where}.{key}", levels - 1)]
            for key, entry in value.items()
        ]
        if all(isinstance(key, str) and not key.startswith("$") for key in value) and not isinstance(value, Counter):
            return dict(pairs)
        return {"$counter" if isinstance(value, Counter) else "$table": pairs}
    hint = "It must be a number, text, True, False or None, or a list, tuple or dict of these."
    raise TnmarsError(Problem(f"{where} is of type {type(value).__name__}, which cannot be saved.", hint))


def decode(value: Any) -> Any:
    """What `encode` was given. Raises `CheckpointError` for anything that `encode` does not return.

    >>> decode(encode({"betas": (0.9, 0.99), "at": {30: 1}}, "x"))
    {'betas': (0.9, 0.99), 'at': {30: 1}}
    """
    try:
        return _decoded(value, LEVELS)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the file holds data that tnmars does not write: {error}.") from None


def _decoded(value: Any, levels: int) -> Any:
    if not isinstance(value, (list, dict)):
        return value
    if not levels:
        raise ValueError(f"it is nested over {LEVELS} levels deep")
    if isinstance(value, list):
        return [_decoded(entry, levels - 1) for entry in value]
    if value.keys() == {"$tuple"}:
        return tuple(_decoded(entry, levels - 1) for entry in value["$tuple"])
    for mark, kind in (("$table", dict), ("$counter", Counter)):
        if value.keys() == {mark}:
            return kind({_decoded(key, levels - 1): _decoded(entry, levels - 1) for key, entry in value[mark]})
    return {key: _decoded(entry, levels - 1) for key, entry in value.items()}
