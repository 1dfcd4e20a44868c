"""The trials of a search in a JSON file, so that a search that was killed goes on. The file holds data only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from tnmars.errors import CheckpointError, Problem
from tnmars.files import make_folder, read_json, write_text
from tnmars.searching.costs import Graphs, Sizes
from tnmars.spec import dump

MARK = "tnmars.search"
VERSION = 1
AGAIN = "Give another file, or remove this one to start again."

Entry = tuple[Sizes, float, float]
"""The sizes of all bonds, the score, and the seconds that it took."""


def asked_of(graphs: Graphs, **settings: Any) -> dict[str, Any]:
    """What must be the same for a search to go on: the graphs without their names, and settings as plain data."""
    texts = {name: dump(replace(graph, name="", origin=None)) for name, graph in graphs.items()}
    return {**settings, "graphs": texts}


def write(path: str | Path, asked: Mapping[str, Any], trials: Sequence[Entry]) -> None:
    """Writes the file of a search. Raises `TnmarsError`."""
    rows = [
        {"ranks": list(sizes), "score": score if isfinite(score) else str(score), "seconds": seconds}
        for sizes, score, seconds in trials
    ]
    make_folder(Path(path).parent)
    write_text(path, json.dumps({MARK: VERSION, "asked": dict(asked), "trials": rows}, indent=1) + "\n")


def read(path: str | Path, asked: Mapping[str, Any], most: Sizes) -> list[Entry] | None:
    """The trials in the file of a search; None if there is no file.

    Raises `CheckpointError` if it is of another search, or damaged.
    """
    if not Path(path).exists():
        return None
    try:
        data = read_json(path)
        version, then = data[MARK], dict(data["asked"])
        trials = [(tuple(row["ranks"]), float(row["score"]), float(row["seconds"])) for row in data["trials"]]
        if version == VERSION:
            _check(trials, most if then == asked else ())
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"{path}: is not a file of tnmars.search_ranks: {type(error).__name__} {error}."
        raise CheckpointError(Problem(text, AGAIN)) from None
    if version != VERSION:
        raise CheckpointError(f"{path}: has version {version!r}, but this tnmars reads version {VERSION}.")
    for name, now in asked.items():
        if then.get(name) != now:
            shown = "" if name == "graphs" else f": its {name} is {then.get(name)!r}, but now {now!r}"
            text = f"{path}: is another search{shown or ', of other graphs'}."
            raise CheckpointError(Problem(text, AGAIN))
    return trials


def _check(trials: Sequence[Entry], most: Sizes) -> None:
    """Raises `ValueError` if a trial has ranks that the graphs cannot have. Without `most` nothing is known of them."""
    for at, (sizes, _, _) in enumerate(trials):
        if most and (
            len(sizes) != len(most)
            or not all(type(size) is int and 1 <= size <= top for size, top in zip(sizes, most, strict=True))
        ):
            raise ValueError(f"trial {at} has ranks {list(sizes)}")
