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


def text() -> str:
    """The whole page."""
    return between(PAGE.read_text(encoding="utf-8"), "rules", _rules() + "\n")


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
