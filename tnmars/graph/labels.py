"""A graph's name and origin, which do not count for equality: what they may be, so that a spec file can hold them."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from tnmars.errors import Problem
from tnmars.graph.parts import is_identifier

MAX_NAME = 200


def label_problems(name: object, origin: object) -> list[Problem]:
    """What a spec file could not hold: a name is one line, `origin` plain data with identifiers as its keys."""
    found = []
    if not isinstance(name, str) or not name.isprintable() or len(name) > MAX_NAME:
        found.append(
            Problem("the graph's name must be one line of text.", f"It may have up to {MAX_NAME} printable characters.")
        )
    if origin is not None and not (
        isinstance(origin, Mapping) and all(map(is_identifier, origin)) and all(map(_is_data, origin.values()))
    ):
        hint = "Use a table of names with numbers, text, lists and tables."
        found.append(Problem("origin must be plain data.", hint))
    return found


def _is_data(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(_is_text(key) and _is_data(entry) for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_data, value))
    if isinstance(value, float):
        return isfinite(value)
    return value is None or isinstance(value, (bool, int)) or _is_text(value)


def _is_text(value: object) -> bool:
    """Whether a value is text that a file can hold: half of a surrogate pair alone is not."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)
