"""Records of runs to tables: the paper's row beside ours, over all seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

Record = dict[str, Any]


def records(name: str, folder: Path) -> list[Record]:
    """The records of an experiment in a folder and below, by variant and seed."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.rglob("record-*.json")]
    own = [record for record in found if record["experiment"] == name]
    return sorted(own, key=lambda record: (record["variant"], record["seed"]))


def summary(found: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """For each variant, the figures over its seeds."""
    result: dict[str, dict[str, Any]] = {}
    for variant in dict.fromkeys(record["variant"] for record in found):
        own = [record for record in found if record["variant"] == variant]
        figures = [_numbers(record["result"]) for record in own]
        entry: dict[str, Any] = {"seeds": [record["seed"] for record in own]}
        for key in figures[0]:
            values = [figure[key] for figure in figures if key in figure]
            entry[key] = {
                "mean": fmean(values),
                "deviation": pstdev(values),
                "median": median(values),
                "all": values,
            }
        entry["minutes"] = _minutes(own)
        entry["commits"] = sorted({record["versions"]["commit"] for record in own})
        result[variant] = entry
    return result


def _minutes(own: Sequence[Record]) -> float | None:
    """The mean processor time of the runs that were not interrupted, where it was taken."""
    known = [record["cpu_seconds"] for record in own if "cpu_seconds" in record and not record.get("resumed")]
    return fmean(known) / 60 if known else None


def _numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a result; ranks of several bonds as one figure each."""
    found: dict[str, float] = {}
    for key, value in result.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[key] = float(value)
        elif key == "ranks" and isinstance(value, list):
            found |= {f"rank {at}": float(rank) for at, rank in enumerate(value, 1)}
    return found


def markdown(found: Mapping[str, Mapping[str, Any]], paper: Mapping[str, Mapping[str, Any]]) -> str:
    """A table of all variants: mean and standard deviation (of the population, as in the paper) of every figure."""
    figures = list(dict.fromkeys(key for entry in found.values() for key in entry if isinstance(entry[key], dict)))
    rows = [["variant", "seeds", *(figure.replace("_", " ") for figure in figures), "paper", "minutes of CPU a run"]]
    for variant, entry in found.items():
        cells = [_cell(entry[key]) if key in entry else "" for key in figures]
        said = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in paper.get(variant, {}).items())
        minutes = "" if entry["minutes"] is None else f"{entry['minutes']:.1f}"
        rows.append([variant, str(len(entry["seeds"])), *cells, said, minutes])
    return as_table(rows)


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as a table of Markdown; the first is its head."""
    head, *rest = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rest])


def _cell(figure: Mapping[str, Any]) -> str:
    """Mean and spread; the median too where it tells something else."""
    text = f"{figure['mean']:.4g}"
    if figure["deviation"]:
        text += f" ± {figure['deviation']:.2g}"
    if abs(figure["median"] - figure["mean"]) > 0.5 * figure["deviation"] > 0.0:
        text += f" (median {figure['median']:.4g})"
    return text
