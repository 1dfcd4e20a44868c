"""The section about `shrink` on the page of results, from the records in docs/results/shrink.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tnmars.text.tables import markdown as as_table

RECORDS = Path(__file__).parent.parent / "results" / "shrink.json"

INTRO = """\
[`tnmars.shrink`](shrink.md) with its own constants, the same for all tasks. Validation data are split from the training
data (the last 5,000 images of MNIST, the last 1,000 samples of the toy problem), and make every choice; each point is
tested once. Seeds 20 and above were used for nothing before. Ratios count the whole model against its dense form.

`untouched` is one call without a budget. `budgets` is one call for all budgets at once. There are two controls:
`uniform` has equal ranks, trained from scratch in one annealed run with about as many steps and the same learning
rates; `random` is the same path with slices chosen by chance in the same canonical form.
"""
TRUE = {"toy-8": [8], "toy-12": [12], "toy-16": [16], "tucker": [4, 4, 4, 4]}
TARGETS = {
    ("toy-8", "untouched"): "93 %; the true rank in 27 of 30",
    ("toy-12", "untouched"): "90.3 %",
    ("toy-16", "untouched"): "88 %",
    ("tucker", "untouched"): "exact in 9 of 10; at least -0.01",
    ("mnist-2fc", "untouched"): "230x at 98.05 %",
    ("mnist-2fc", "205x parameters"): "98.15 %",
}
ORDER = ("untouched", "budgets", "uniform", "random", "fixed", "dense", "mars", "ensemble")


def section() -> list[str]:
    """The section; empty without records."""
    if not RECORDS.exists():
        return []
    lines = RECORDS.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines if line.strip()]
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for record in records:
        if not record["settings"]:
            groups.setdefault((record["task"], record["row"], record["budget"]), []).append(record)
    rows = [["task", "row", "seeds", "ratio", "true ranks", "test, mean (range)", "target", "CPU seconds"]]
    names = list(dict.fromkeys(record["task"] for record in records))
    for key in sorted(groups, key=lambda key: (names.index(key[0]), ORDER.index(key[1]))):
        rows.append(_row(*key, groups[key]))
    commits = ", ".join(sorted({str(record["commit"]) for record in records}))
    return ["## shrink\n", INTRO, as_table(rows) + "\n", f"Commits: {commits}. The records name their commands.\n"]


def _row(task: str, row: str, budget: str, own: Sequence[dict[str, Any]]) -> list[str]:
    tests = [record["test"] for record in own]
    is_share = task != "tucker"
    figure = "{:.2f} %" if is_share else "{:.4f}"
    true = TRUE.get(task)
    found = f"{sum(record['ranks'] == true for record in own)} of {len(own)}" if true and row == "untouched" else ""
    spread = f"{figure.format(fmean(tests))} ({min(tests):.4g} to {max(tests):.4g})"
    return [
        task,
        f"{row}, {budget.removesuffix(' parameters')}" if budget else row,
        str(len(own)),
        f"{fmean(record['ratio'] for record in own):.1f}x",
        found,
        spread,
        TARGETS.get((task, budget or row), "") if row in ("untouched", "budgets") else "",
        f"{fmean(record['cpu_seconds'] for record in own):.0f}",
    ]
