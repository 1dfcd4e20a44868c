"""The how-to on trained models with its two tables of measurements rewritten from the records; the rest is kept.

The records are lines of JSON that `python tests/bench/models --json FILE` appends; a list of them is read too. A table
whose records are not there says so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from marks import table

DOCS = Path(__file__).parent.parent
PAGE = DOCS / "trained_model.md"
Record = dict[str, Any]

NETWORKS = {
    "resnet20": "ResNet-20, CIFAR-10",
    "resnet20-cp": "ResNet-20 by CP, CIFAR-10",
    "resnet56": "ResNet-56, CIFAR-10",
    "minilm": "MiniLM encoder, SST",
    "minilm-words": "MiniLM word table, SST",
    "crepe": "CREPE, synthetic tones",
}
SCORES = {
    "accuracy": ("accuracy", "{:.1f} %"),
    "cosine": ("cosine to dense", "{:.3f}"),
    "probe": ("probe", "{:.1f} %"),
    "within 50 cents": ("within 50 cents", "{:.1f} %"),
}
"""The scores that are shown: what they are called, and how they are written."""
ROWS = {
    "dense": "dense",
    "plain SVD": "plain SVD, the same ratio for each layer",
    "C-uniform": "with calibration inputs, the same ratio for each layer",
    "tnmars": "**tnmars**",
    "tnmars + matching": "**tnmars**, then `match_`",
}
"""What is compared, in this order. Other rows come after them under their own names, but for the prototype's."""
RUN = ("task", "row", "ratio", "seed", "batch")
"""What identifies a measurement; of several, the last counts, because runs are appended."""
HIDDEN = "C and G prototype"
MATCHED = " + matching"
COMPRESS = "python tests/bench/models --match 1 --speed 1,64 --json docs/results/compress.json"
PEERS = "python tests/bench/models resnet20 --peers --match 1 --json docs/results/compress_peers.json"


def text() -> str:
    """The whole page."""
    whole = PAGE.read_text(encoding="utf-8")
    ours, others = read("compress.json"), read("compress_peers.json")
    whole = between(whole, "compress", _measured(ours, COMPRESS))
    known = {record["task"] for record in others}
    joined = [record for record in ours if record["task"] in known and str(record["row"]).startswith("tnmars")]
    return between(whole, "peers", _measured([*others, *_at_ratios(joined, others)] if others else [], PEERS))


def read(name: str) -> list[Record]:
    """The records of a file in docs/results; none if it is not there."""
    path = DOCS / "results" / name
    if not path.exists():
        return []
    content = path.read_text(encoding="utf-8").strip()
    found: list[Record] = (
        json.loads(content) if content.startswith("[") else list(map(json.loads, content.splitlines()))
    )
    latest = {tuple(record.get(key) for key in RUN): record for record in found}
    return list(latest.values())


def between(whole: str, name: str, inner: str) -> str:
    """A page with what is between two marks rewritten."""
    begin, end = f"<!-- {name}, made by `python docs/generate` -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = whole.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}{inner}{end}{after}"


def _at_ratios(records: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """Our scores at the ratios that others were measured at."""
    ratios = {(record["task"], record["ratio"]) for record in others}
    return [record for record in records if "parameters" in record and (record["task"], record["ratio"]) in ratios]


def _measured(records: Sequence[Record], command: str) -> str:
    if not records:
        return f"Not measured yet: run `{command}`, then `python docs/generate`.\n"
    scored = [record for record in records if "parameters" in record]
    timed = [record for record in records if "ms" in record and str(record["row"]).startswith("tnmars")]
    columns = [name for name in SCORES if any(name in record for record in scored)]
    head = ("network", "", "smaller", "seeds", *(SCORES[name][0] for name in columns))
    parts = [table(head, [_row(group, columns) for group in _groups(scored)])]
    if timed:
        parts += ["Time of the frozen network relative to the dense one, on one thread:", _times(timed)]
    commits = sorted({str(record["commit"]) for record in records if "commit" in record})
    seeds = len({record["seed"] for record in scored if record.get("seed") is not None})
    words = "`smaller` counts the layers that are compressed."
    words += " Means over the calibration seeds, with the lowest and the highest." if seeds > 1 else ""
    parts.append(f"{words} Commit {', '.join(commits)}. Run again with `{command}`.")
    return "\n\n".join(parts) + "\n"


def _groups(records: Sequence[Record]) -> list[list[Record]]:
    """Records of one network, ratio and row, in the order of the table."""
    found: dict[tuple[str, float, str], list[Record]] = {}
    for record in records:
        if not str(record["row"]).startswith(HIDDEN):
            found.setdefault((record["task"], record["ratio"], record["row"]), []).append(record)
    networks, rows = [*NETWORKS], [*ROWS]

    def place(key: tuple[str, float, str]) -> tuple[int, float, int]:
        task, ratio, row = key
        return _at(networks, task), ratio, _at(rows, row)

    return [found[key] for key in sorted(found, key=place)]


def _at(known: list[str], name: str) -> int:
    return known.index(name) if name in known else len(known)


def _row(group: Sequence[Record], columns: Sequence[str]) -> tuple[str, ...]:
    first = group[0]
    name = ROWS.get(first["row"]) or str(first["row"]).replace(MATCHED, ", then matching")
    ratio = mean(record["layer ratio"] for record in group)
    seeds = len({record["seed"] for record in group if record.get("seed") is not None})
    cells = [NETWORKS.get(first["task"], first["task"]), name, f"{ratio:.2f}x" if first["row"] != "dense" else ""]
    return (*cells, str(seeds or ""), *(_score(group, column) for column in columns))


def _score(group: Sequence[Record], column: str) -> str:
    values = [record[column] for record in group if column in record]
    if not values:
        return ""
    form = SCORES[column][1]
    shown = form.format(mean(values))
    number = form.partition("}")[0] + "}"
    low, high = number.format(min(values)), number.format(max(values))
    return shown if low == high else f"{shown} ({low} to {high})"


def _times(records: Sequence[Record]) -> str:
    rows = [
        (
            NETWORKS.get(record["task"], record["task"]),
            f"{record['ratio']:g}x",
            str(record["batch"]),
            f"{record['ms']:.2f}",
            f"{record['time to dense']:.2f}",
            f"{record['multiply-adds to dense']:.2f}",
        )
        for record in records
    ]
    return table(("network", "ratio", "batch", "ms", "time", "multiply-adds"), rows)
