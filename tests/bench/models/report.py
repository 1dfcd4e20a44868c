"""Records of a run as Markdown tables: one row per way and ratio, the seeds side by side, with targets."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from tnmars.text.tables import markdown

Record = dict[str, Any]
COLUMNS = ("accuracy", "cosine", "probe", "dense probe", "within 50 cents", "same as dense", "within 50 cents of dense")
TARGETS = {
    ("resnet20", 1.5, "tnmars"): ("accuracy", 89.5),
    ("resnet20", 2.0, "tnmars"): ("accuracy", 83.0),
    ("resnet20", 3.0, "tnmars"): ("accuracy", 58.0),
    ("resnet20", 2.0, "tnmars + matching"): ("accuracy", 90.0),
    ("resnet20", 3.0, "tnmars + matching"): ("accuracy", 86.0),
    ("resnet56", 2.0, "tnmars"): ("accuracy", 88.0),
    ("resnet56", 2.0, "tnmars + matching"): ("accuracy", 92.0),
    ("minilm", 2.0, "tnmars"): ("cosine", 0.76),
    ("minilm", 4.0, "tnmars"): ("cosine", 0.63),
    ("minilm", 2.0, "tnmars + matching"): ("probe", -1.5),
    ("minilm-words", 4.0, "tnmars"): ("probe", -1.0),
    ("crepe", 4.0, "tnmars + matching"): ("within 50 cents", 95.0),
}
"""The least score of a way at a ratio, for each seed; a negative one is relative to the dense network."""
SLOWEST = {("crepe", "tnmars"): 0.5, ("resnet20", "tnmars"): 1.0}
"""The longest time relative to dense, at each batch size."""


def tables(records: Sequence[Record]) -> str:
    """Scores, then times if there are any."""
    scored = [record for record in records if "parameters" in record]
    timed = [record for record in records if "ms" in record]
    found = [markdown(_scores(scored), padded=True)]
    if timed:
        found.append(markdown(_times(timed), padded=True))
    return "\n\n".join(found)


def _scores(records: Sequence[Record]) -> list[list[str]]:
    columns = [column for column in COLUMNS if any(column in record for record in records)]
    dense = next(record for record in records if record["row"] == "dense")
    groups: dict[tuple[str, float], list[Record]] = {}
    for record in records:
        groups.setdefault((record["row"], record["ratio"]), []).append(record)
    head = ["network", "ratio", "parameters", "whole model", *columns, "CPU s", "target"]
    rows = [head]
    for (row, ratio), group in sorted(groups.items(), key=lambda item: item[0][1]):
        cells = [row, f"{mean(r['layer ratio'] for r in group):.2f}x", f"{group[0]['parameters']:,}"]
        cells.append(f"{mean(r['whole ratio'] for r in group):.2f}x")
        cells += [" / ".join(_score(column, record) for record in group) for column in columns]
        cells.append(f"{mean(r['cpu seconds'] for r in group):.0f}")
        cells.append(_verdict(group, dense, (group[0]["task"], ratio, row)))
        rows.append(cells)
    return rows


def _score(column: str, record: Record) -> str:
    value = record.get(column)
    return "-" if value is None else f"{value:.3f}" if column == "cosine" else f"{value:.1f}"


def _verdict(group: Sequence[Record], dense: Record, key: tuple[str, float, str]) -> str:
    if key not in TARGETS:
        return ""
    column, least = TARGETS[key]
    least = dense[column] + least if least < 0 else least
    met = all(record[column] >= least for record in group)
    return f"{column} >= {least:.4g}: {'met' if met else 'MISSED'}"


def _times(records: Sequence[Record]) -> list[list[str]]:
    rows = [["network", "ratio", "batch", "ms", "time to dense", "multiply-adds to dense", "target"]]
    for record in records:
        most = SLOWEST.get((record["task"], record["row"]))
        met = "" if most is None else f"<= {most:g}: {'met' if record['time to dense'] <= most else 'MISSED'}"
        numbers = (f"{record['ms']:.2f}", f"{record['time to dense']:.2f}", f"{record['multiply-adds to dense']:.2f}")
        rows.append([record["row"], f"{record['ratio']:g}x", str(record["batch"]), *numbers, met])
    return rows
