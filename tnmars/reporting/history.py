"""The history of a training run: read from a log, and checked. What its figures mean is not known here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from tnmars.errors import Problem, TnmarsError

History = Sequence[Mapping[str, Any]]
EXAMPLE = "{'epoch': 0, 'loss': 2.3, 'ranks': {'fc1': [20, 20]}}"


def read_history(path: str | Path) -> History:
    """The history in a file: a line of JSON for each epoch, a list of them, or a record that has one as `history`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TnmarsError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    try:
        found = _parsed(text)
    except (ValueError, RecursionError) as error:
        fix = "A history is a line of JSON for each epoch, as the log.jsonl of a run, or a list of such tables."
        raise TnmarsError(Problem(f"{path}: is not JSON: {error}.", fix)) from None
    return checked(found.get("history") if isinstance(found, Mapping) else found)


def _parsed(text: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return [found] if isinstance(found, Mapping) and "history" not in found else found


def checked(history: object) -> tuple[Mapping[str, Any], ...]:
    """A history of tables. Raises `TnmarsError` where it is none."""
    if not isinstance(history, (list, tuple)) or not all(isinstance(entry, Mapping) for entry in history):
        raise TnmarsError(Problem("the history is not a list of tables.", f"Each is a table such as {EXAMPLE}."))
    return tuple(history)


def is_number(value: object) -> bool:
    """Whether a value can be drawn."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
