"""The history of a training run: read from a log or a record, and checked. Nothing here knows what its figures mean."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from tnmars.errors import Problem, TnmarsError, listing
from tnmars.files import MAX_JSON, parse_json

History = Sequence[Mapping[str, Any]]
EXAMPLE = "{'epoch': 0, 'loss': 2.3, 'ranks': {'fc1': [20, 20]}}"
AXES = ("epoch", "step")
"""What may label the horizontal axis: the first of these that every entry has."""
MARKS = (*AXES, "loss", "ranks")
"""A single table is an epoch of training if it has one of these."""
FIX = "A history is a line of JSON for each epoch, as the log.jsonl of a run, or a list of such tables."
LEAST, MOST = 1e-100, 1e100
"""Numbers smaller or larger than these are not drawn: the arithmetic of a chart would leave the range of floats."""


def read_history(path: str | Path) -> History:
    """The history in a file: a line of JSON for each epoch, a list of them, or a record that has one as `history`.

    In the record of a `tnmars reproduce` run it is part of the `result`. Raises `TnmarsError` if there is none.
    """
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(MAX_JSON + 1)
    except OSError as error:
        raise TnmarsError(f"{path}: cannot be read: {error.strerror or error}.") from None
    try:
        found = _parsed(data)
    except ValueError as error:
        raise TnmarsError(Problem(f"{path}: is not JSON: {error}.", FIX)) from None
    inner = _within(found, path)
    try:
        entries = checked(inner)
    except TnmarsError as error:
        raise TnmarsError([Problem(f"{path}: {one.text}", one.hint) for one in error.problems]) from None
    if not any(_tells(entry) for entry in entries):
        what = "no entry has a number or ranks" if entries else "it is empty"
        raise TnmarsError(Problem(f"{path}: there is no history in it: {what}.", FIX))
    return entries


def _parsed(data: bytes) -> Any:
    """One value, or one for each line. Raises `ValueError`."""
    try:
        return parse_json(data)
    except json.JSONDecodeError:  # the limits hold for all lines together
        lines = [line for line in data.split(b"\n") if line.strip()]
        if len(lines) == 1:
            raise
    return [parse_json(line) for line in lines]


def _within(found: Any, path: str | Path) -> Any:
    """The history of what a file holds."""
    if not isinstance(found, Mapping):
        return found
    for table in (found, found.get("result")):
        if isinstance(table, Mapping) and "history" in table:
            return table["history"]
    if any(name in found for name in MARKS):
        return [found]  # a log of one line
    keys = listing(list(map(str, found)))
    raise TnmarsError(Problem(f"{path}: there is no history in it: it is a table of {keys}.", FIX))


def _tells(entry: Mapping[str, Any]) -> bool:
    """Whether an entry has anything besides its position."""
    return any(is_number(value) or name == "ranks" for name, value in entry.items() if name not in AXES)


def checked(history: object) -> tuple[Mapping[str, Any], ...]:
    """A history as a tuple of tables. Raises `TnmarsError` for anything else."""
    if not isinstance(history, (list, tuple)) or not all(isinstance(entry, Mapping) for entry in history):
        raise TnmarsError(Problem("the history is not a list of tables.", f"Each is a table such as {EXAMPLE}."))
    return tuple(history)


def is_number(value: object) -> bool:
    """Whether a value is a number, even one that cannot be drawn."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_drawable(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number that fits into a chart: finite, and neither huge nor tiny.

    >>> [is_drawable(value) for value in (0, 2.5, 10**400, 1e308, 5e-324, float("nan"), True)]
    [True, True, False, False, False, False, False]
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return value == 0 or LEAST <= abs(value) <= MOST
