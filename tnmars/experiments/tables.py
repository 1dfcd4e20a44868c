"""Tables of the records of runs: our figures over all seeds, next to the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

from tnmars.errors import Problem, TnmarsError
from tnmars.files import read_json
from tnmars.graph.parts import is_int
from tnmars.text import tables

Record = dict[str, Any]


def records(name: str, folder: Path) -> list[Record]:
    """The records of an experiment in a folder and its subfolders, by variant and seed; copies count once.

    Raises `TnmarsError` for a file that is not one.
    """
    every = [_read(path) for path in sorted(folder.rglob("record-*.json"))]
    own = {(one["variant"], one["seed"], one.get("epochs")): one for one in every if one["experiment"] == name}
    return sorted(own.values(), key=lambda record: (record["variant"], record["seed"]))


def _read(path: Path) -> Record:
    """The record in a file. Raises `TnmarsError`."""
    try:
        found = read_json(path)
        wrong = _wrong(found)
    except (OSError, ValueError) as error:
        wrong = str(error)
    if wrong:
        raise TnmarsError(
            Problem(f"{path}: is not a record of a run: {wrong}.", "Remove it; the run is then repeated.")
        )
    return dict(found)


def _wrong(found: Any) -> str:
    """What is wrong with a record, or nothing."""
    if not isinstance(found, dict):
        return "it is not a table"
    for key in ("experiment", "variant"):
        if not isinstance(found.get(key), str):
            return f"its '{key}' is not text"
    epochs, seconds = found.get("epochs"), found.get("cpu_seconds", 0.0)
    if not is_int(found.get("seed"), 0) or not (epochs is None or is_int(epochs, 1)):
        return "its 'seed' or 'epochs' is not a whole number"
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return "its 'cpu_seconds' is not a number"
    result, versions = found.get("result"), found.get("versions")
    if not isinstance(result, dict) or not isinstance(versions, dict) or not isinstance(versions.get("commit"), str):
        return "its 'result' or 'versions' is not a table of a run"
    points = result.get("points", [])
    return "" if isinstance(points, list) and all(isinstance(one, dict) for one in points) else "its points are no list"


def expanded(listed: Sequence[Record]) -> list[Record]:
    """The records, with one for each point of a path: its variant has the budget behind it."""
    result = []
    for record in listed:
        for point in record["result"].get("points", [None]):
            own = record if point is None else {**record, "result": point}
            budget = "" if point is None else str(point.get("budget", ""))
            result.append({**own, "variant": f"{record['variant']} {budget}".strip()})
    return result


def summary(given: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """For each variant, the figures over its seeds; each budget of a path counts as a variant."""
    listed = expanded(given)
    result: dict[str, dict[str, Any]] = {}
    for variant in dict.fromkeys(record["variant"] for record in listed):
        own = [record for record in listed if record["variant"] == variant]
        figures = [_numbers(record["result"]) for record in own]
        entry: dict[str, Any] = {"seeds": [record["seed"] for record in own]}
        for key in dict.fromkeys(key for figure in figures for key in figure):
            values = [figure[key] for figure in figures if key in figure]
            entry[key] = {
                "mean": fmean(values),
                "deviation": pstdev(values),
                "median": median(values),
                "all": values,
            }
        entry["minutes"] = _minutes(own)
        entry["commits"] = sorted({commit for record in own for commit in commits(record)})
        result[variant] = entry
    return result


def commits(record: Record) -> list[str]:
    """The commits that worked on a run; one that was resumed may have several."""
    made = record["versions"]
    return list(made.get("commits") or [made["commit"]])


def _minutes(own: Sequence[Record]) -> float | None:
    """The mean CPU time of the runs that were not interrupted, if it was measured."""
    known = [record["cpu_seconds"] for record in own if "cpu_seconds" in record and not record.get("resumed")]
    return fmean(known) / 60 if known else None


def _numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a result; the ranks of several bonds become one figure each."""
    figures: dict[str, float] = {}
    for key, value in result.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            figures[key] = float(value)
        elif key == "ranks" and isinstance(value, list):
            figures |= {f"rank {at}": float(rank) for at, rank in enumerate(value, 1)}
    return figures


def markdown(summaries: Mapping[str, Mapping[str, Any]], paper: Mapping[str, Mapping[str, Any]]) -> str:
    """A table of all variants: mean and standard deviation (of the population, as in the paper) of every figure."""
    figures = list(dict.fromkeys(key for entry in summaries.values() for key in entry if isinstance(entry[key], dict)))
    rows = [["variant", "seeds", *(figure.replace("_", " ") for figure in figures), "paper", "CPU minutes per run"]]
    for variant, entry in summaries.items():
        cells = [_cell(entry[key]) if key in entry else "" for key in figures]
        published = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in paper.get(variant, {}).items())
        minutes = "" if entry["minutes"] is None else f"{entry['minutes']:.1f}"
        rows.append([variant, str(len(entry["seeds"])), *cells, published, minutes])
    return tables.markdown(rows)


def _cell(figure: Mapping[str, Any]) -> str:
    """Mean and standard deviation; the median too if it differs clearly from the mean."""
    text = f"{figure['mean']:.4g}"
    if figure["deviation"]:
        text += f" ± {figure['deviation']:.2g}"
    if abs(figure["median"] - figure["mean"]) > 0.5 * figure["deviation"] > 0.0:
        text += f" (median {figure['median']:.4g})"
    return text
