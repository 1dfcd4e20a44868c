"""Python values to data that `json` writes, and back, exactly: also tuples, counters and keys that are not text.

Anything else is refused, with its place: nothing is pickled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy

from tnmars.errors import Problem, TnmarsError


def encode(value: Any, where: str) -> Any:
    """A value as plain data. Raises `TnmarsError` with the place of anything else.

    >>> encode({"betas": (0.9, 0.99), "at": {30: 1}}, "x")
    {'betas': {'$tuple': [0.9, 0.99]}, 'at': {'$table': [[30, 1]]}}
    """
    if isinstance(value, numpy.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [encode(entry, f"{where}[{at}]") for at, entry in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": [encode(entry, f"{where}[{at}]") for at, entry in enumerate(value)]}
    if isinstance(value, Mapping):
        pairs = [[encode(key, where), encode(entry, f"{where}.{key}")] for key, entry in value.items()]
        if all(isinstance(key, str) and not key.startswith("$") for key in value) and not isinstance(value, Counter):
            return dict(pairs)
        return {"$counter" if isinstance(value, Counter) else "$table": pairs}
    hint = "It must be a number, text, True, False or None, or a list, tuple or dict of these."
    raise TnmarsError(Problem(f"{where} is of type {type(value).__name__}, which cannot be saved.", hint))


def decode(value: Any) -> Any:
    """What `encode` was given.

    >>> decode(encode({"betas": (0.9, 0.99), "at": {30: 1}}, "x"))
    {'betas': (0.9, 0.99), 'at': {30: 1}}
    """
    if isinstance(value, list):
        return [decode(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"$tuple"}:
        return tuple(decode(entry) for entry in value["$tuple"])
    for mark, kind in (("$table", dict), ("$counter", Counter)):
        if value.keys() == {mark}:
            return kind({decode(key): decode(entry) for key, entry in value[mark]})
    return {key: decode(entry) for key, entry in value.items()}
