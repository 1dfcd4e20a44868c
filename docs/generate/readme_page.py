"""The README with its table of results rewritten from the records; the rest of it is kept."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from shrink_section import plain_records

from tnmars.experiments.mnist import PAPER
from tnmars.text.tables import markdown as as_table

DOCS = Path(__file__).parent.parent
BEGIN, END = "<!-- results, made by `python docs/generate` -->\n", "<!-- end of results -->\n"
NAMES = {
    "dense": "dense",
    "tt-20": "tensor trains, ranks 20",
    "soft": "MARS, soft",
    "hard": "MARS, hard",
}


def text() -> str:
    """The whole README."""
    path = DOCS / "results" / "mnist-2fc.json"
    before, _, rest = (DOCS.parent / "README.md").read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    summary = json.loads(path.read_text(encoding="utf-8"))["summary"]
    return before + BEGIN + _table(summary) + "\n" + END + after


def _table(summary: dict[str, Any]) -> str:
    rows = [["2FC-Net on MNIST", "compression", "accuracy", "paper", "seeds"]]
    for variant, name in NAMES.items():
        if variant in summary:
            entry, paper = summary[variant], PAPER[variant]
            said = f"{paper['compression']:g}x, {paper['accuracy']:g} %"
            size, score = entry["compression"]["mean"], entry["accuracy"]["mean"]
            rows.append([name, f"{size:.1f}x", f"{score:.2f} %", said, str(len(entry["seeds"]))])
            if "ensemble" in entry and "ensemble" in paper:
                together = f"{entry['ensemble']['mean']:.2f} %"
                members = f"all {entry['ensemble']['of']} together"
                rows.append([f"{name}, {members}", "", together, f"{paper['ensemble']:g} % (ten)", ""])
    return as_table([*rows, *_shrunk()])


def _shrunk() -> list[list[str]]:
    """The rows of `tnmars.shrink`: without a budget, and with that of the paper's smaller network."""
    own = [record for record in plain_records() if record["task"] == "mnist-2fc"]
    rows = []
    for name, budget in (("`shrink`, nothing tuned", ""), ("`shrink`, budget 205x", "205x parameters")):
        row = "budgets" if budget else "untouched"
        found = [record for record in own if (record["row"], record["budget"]) == (row, budget)]
        if found:
            size, score = (fmean(record[field] for record in found) for field in ("ratio", "test"))
            rows.append([name, f"{size:.1f}x", f"{score:.2f} %", "", str(len(found))])
    return rows
