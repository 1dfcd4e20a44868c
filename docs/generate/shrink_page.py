"""The how-to on `shrink` with its table of rules rewritten from the records; the rest is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from compress_page import between
from marks import table
from shrink_section import Record, plain_records

DOCS = Path(__file__).parent.parent
PAGE = DOCS / "shrink.md"
PAPER = {"soft": "`Mars`, soft, the paper's 300 epochs", "hard": "`Mars`, hard, the paper's 300 epochs"}
SAME = {"soft": "`Mars`, soft, trained as `shrink` does", "hard": "`Mars`, hard, trained as `shrink` does"}


RULES = {
    "shrink": ("`shrink`", "nothing"),
    "search": ("`search_ranks`, ten budgets", "nothing"),
    "ard": ("`Ard`", "a schedule"),
    "mars": ("`Mars`, the paper's schedule", "`alpha`, a schedule"),
    "dense": ("a dense layer", ""),
}
"""The variants of the toy problem, and what one chooses for each."""
TEACHERS = (8, 12, 16)


def text() -> str:
    """The whole page."""
    whole = between(PAGE.read_text(encoding="utf-8"), "rules", _rules() + "\n")
    return between(whole, "toy", _toy() + "\n")


def _toy() -> str:
    summary = json.loads((DOCS / "results" / "toy.json").read_text(encoding="utf-8"))["summary"]
    rows = []
    for rule, (name, chosen) in RULES.items():
        entries = [summary[f"{rule}-{rank}"] for rank in TEACHERS]
        cells = []
        for entry in entries:
            rank = entry.get("rank")
            cells.append(f"{entry['accuracy']['mean']:.2f} %" + (f", rank {rank['mean']:.4g}" if rank else ""))
        spent = fmean(60 * entry["minutes"] for entry in entries)
        rows.append([name, chosen, *cells, f"{spent:.0f}"])
    head = ("the toy problem", "you choose", *(f"teacher of rank {rank}" for rank in TEACHERS), "CPU s")
    return table(head, rows)


def _rules() -> str:
    own = [record for record in plain_records() if record["task"] == "mnist-2fc"]
    rows = [
        _row("`shrink`", "nothing", _of(own, "untouched", "")),
        _row('`shrink(budget="205x")`', "the size", _of(own, "budgets", "205x parameters")),
        _row("the same with random slices", "the size", _of(own, "random", "205x parameters")),
        _row("uniform ranks", "the ranks", _of(own, "uniform", "205x parameters")),
        *(_row(name, "`alpha`, `pi`, a schedule", _of(own, "mars", words)) for words, name in SAME.items()),
    ]
    summary = json.loads((DOCS / "results" / "mnist-2fc.json").read_text(encoding="utf-8"))["summary"]
    for variant, name in PAPER.items():
        entry = summary[variant]
        size, score = entry["compression"]["mean"], entry["accuracy"]["mean"]
        minutes = entry["minutes"]
        spent = "" if minutes is None else f"{60 * minutes:.0f}"
        rows.append(
            [name, "`alpha`, `pi`, a schedule", f"{size:.0f}x", f"{score:.2f} %", str(len(entry["seeds"])), spent]
        )
    head = ("2FC-Net on MNIST", "you choose", "smaller", "test", "seeds", "CPU s")
    return table(head, [row for row in rows if row])


def _of(own: Sequence[Record], row: str, budget: str) -> list[Record]:
    return [record for record in own if (record["row"], record["budget"]) == (row, budget)]


def _row(name: str, chosen: str, found: Sequence[Record]) -> list[str]:
    if not found:
        return []
    size, score, spent = (fmean(record[field] for record in found) for field in ("ratio", "test", "cpu_seconds"))
    return [name, chosen, f"{size:.0f}x", f"{score:.2f} %", str(len(found)), f"{spent:.0f}"]
