"""The section about `shrink` on the page of results, from the records in docs/results/shrink.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tnmars.errors import plural
from tnmars.text.tables import markdown as as_table

RECORDS = Path(__file__).parent.parent / "results" / "shrink.json"
Record = dict[str, Any]

INTRO = """\
[`tnmars.shrink`](shrink.md) with its own constants, the same for all tasks. Validation data are split from the training
data (the last 5,000 images, the last 1,000 samples of the toy problem, 5,000 reviews; the official development set for
SST-5), and make every choice. Each point in the table is tested once. Ratios count the whole model against its dense
form, or the table of words alone where it says so. `untouched` is one call without a budget (with `max_drop=0.005` for
the Tucker tensor, whose score has no standard error). A row with a budget is one of several that one call met at once.
The constants were chosen on validation data with other seeds, on mnist-2fc, the toy problem and the Tucker tensor. The
seeds are 20 to 29; where there are fewer, the first of them. IMDB is an additional task, on which no constant was
chosen; it is reported as it came out.
"""
TRUE = {"toy-8": [8], "toy-12": [12], "toy-16": [16], "tucker": [4, 4, 4, 4]}
NETWORKS = {
    "toy-8": "toy, teacher of rank 8",
    "toy-12": "toy, teacher of rank 12",
    "toy-16": "toy, teacher of rank 16",
    "tucker": "Tucker tensor 8^4, log-likelihood",
    "mnist-2fc": "MNIST, 2FC-Net, tensor trains",
    "lenet-tucker": "MNIST, LeNet-5, Tucker-2 and low rank",
    "lenet-ring": "MNIST, LeNet-5, tensor rings",
    "sst5": "SST-5, TT-embedding and LSTM",
    "imdb-bag": "IMDB, TT-embedding, mean of words",
    "cifar-cnn": "CIFAR-10, CNN from `compress_`",
}
TARGETS = {
    ("toy-8", "untouched"): (0.0, 93.0),
    ("toy-12", "untouched"): (0.0, 90.3),
    ("toy-16", "untouched"): (0.0, 88.0),
    ("tucker", "untouched"): (0.0, -0.01),
    ("mnist-2fc", "untouched"): (230.0, 98.05),
    ("mnist-2fc", "205x parameters"): (0.0, 98.15),
    ("lenet-tucker", "10x parameters"): (0.0, 99.05),
    ("lenet-ring", "20x parameters"): (0.0, 99.3),
    ("lenet-ring", "40x parameters"): (0.0, 99.2),
}
"""The least ratio, 0 for that of the budget, and the least score."""
WORDS = 340.0
"""The least ratio of the table of words on SST-5, where no model that keeps its size may be better."""
CONTROLS = ("budgets", "uniform", "random", "gradient")
SAME = 1.1
"""Uniform ranks are a control of the path without a budget if their mean sizes are within this factor."""
OTHERS = 30
"""The seed of the runs with other constants, which counts in no mean."""


def records() -> list[Record]:
    """All records, in the order of the tasks."""
    if not RECORDS.exists():
        return []
    lines = RECORDS.read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines if line.strip()]
    return sorted(found, key=lambda record: list(NETWORKS).index(record["task"]))


def plain_records() -> list[Record]:
    """The records with the library's own constants, without the seed of the runs with others."""
    return [record for record in records() if not record["settings"] and record["seed"] != OTHERS]


def section() -> list[str]:
    """The section; empty without records."""
    known = records()
    if not known:
        return []
    plain = plain_records()
    commits = ", ".join(sorted({str(record["commit"]) for record in known}))
    parts = [
        "## shrink\n",
        INTRO,
        _paths(plain),
        _controls(plain),
        _held(plain),
        _gates(plain),
        _sensitivity(known),
        f"Commits: {commits}. The records name their commands.\n",
    ]
    return [part for part in parts if part]


def _groups(own: Iterable[Record], *names: str) -> dict[tuple[Any, ...], list[Record]]:
    """Records by some of their fields, in the order in which they come."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in own:
        found.setdefault(tuple(record.get(name) for name in names), []).append(record)
    return found


def _figure(task: str, value: float) -> str:
    return f"{value:.2f} %" if task != "tucker" else f"{value:.2g}"


def _spread(task: str, own: Sequence[Record], name: str = "test") -> str:
    values = [record[name] for record in own]
    mean = _figure(task, fmean(values))
    return mean if len(values) == 1 else f"{mean} ({min(values):.4g} to {max(values):.4g})"


def _ratio(own: Sequence[Record]) -> str:
    name = "embedding_ratio" if all("embedding_ratio" in record for record in own) else "ratio"
    return f"{fmean(record[name] for record in own):.4g}x" + (" (words)" if name != "ratio" else "")


def _asked(row: str, budget: str) -> str:
    return f"budget {budget.removesuffix(' parameters')}" if budget else row


def _mean(own: Sequence[Record], name: str = "test") -> float:
    return fmean(record[name] for record in own)


def _target(task: str, asked: str, group: Sequence[Record], every: Sequence[Record]) -> str:
    """What was aimed at, and whether it is met."""
    least, floor = TARGETS.get((task, asked), (0.0, None))
    size, words = _mean(group, "ratio"), ""
    if task == "sst5" and asked == "untouched":
        known = {row: _of(every, task, row, "best") for row in ("dense", "fixed")}
        if not all(known.values()):
            return ""
        best = {row: _mean(models) for row, models in known.items()}
        least, floor, size = WORDS, max(best.values()), _mean(group, "embedding_ratio")
        words = f"{least:g}x, not below dense ({best['dense']:.2f} %) and start ranks held ({best['fixed']:.2f} %)"
    elif task == "cifar-cnn" and asked == "5x parameters":
        floor = _mean(group, "dense_test")
        words = f"not below the dense start, {floor:.2f} %"
    if floor is None:
        return ""
    bound = f"at least {floor:g}" if task == "tucker" else f"{floor:g} %"
    verdict = "met" if size >= least and _mean(group) >= floor else "missed"
    return f"{words or (f'{least:g}x at {bound}' if least else bound)}: {verdict}"


def _of(every: Sequence[Record], task: str, row: str, which: str) -> list[Record]:
    return [record for record in every if (record["task"], record["row"], record.get("which")) == (task, row, which)]


def _paths(every: Sequence[Record]) -> str:
    """What `shrink` itself gives."""
    own = [record for record in every if record["row"] in ("untouched", "budgets")]
    rows = [["task", "asked", "seeds", "ratio", "true ranks", "test, mean (range)", "target", "CPU s of the path"]]
    for (task, row, budget), group in _groups(own, "task", "row", "budget").items():
        true = TRUE.get(task)
        hits = f"{sum(record['ranks'] == true for record in group)} of {len(group)}" if true else ""
        rows.append(
            [
                NETWORKS[task],
                _asked(row, budget),
                str(len(group)),
                _ratio(group),
                hits if row == "untouched" else "",
                _spread(task, group),
                _target(task, budget or row, group, every),
                f"{fmean(record['cpu_seconds'] for record in group):.0f}",
            ]
        )
    return as_table(rows) + "\n"


def _controls(own: Sequence[Record]) -> str:
    """The path beside uniform ranks and random slices, on the same seeds."""
    rows = [["task", "budget", "seeds", "shrink", "uniform ranks", "random slices", "slices by gradients"]]
    for (task, budget), group in _groups(own, "task", "budget").items():
        by_row = _groups((record for record in group if record["row"] in CONTROLS), "row")
        seeds = {record["seed"] for record in group if record["row"] in CONTROLS[1:]}
        path = [record for record in own if (record["task"], record["row"]) == (task, "untouched")]
        asked = _asked("", budget)
        if ("budgets",) not in by_row and ("uniform",) in by_row and path:
            sizes = _mean(path, "ratio"), _mean(by_row["uniform",], "ratio")
            if max(sizes) <= SAME * min(sizes):
                by_row["budgets",], asked = path, "untouched"
        if not seeds or ("budgets",) not in by_row:
            continue
        cells = []
        for row in CONTROLS:
            same = [record for record in by_row.get((row,), []) if record["seed"] in seeds]
            few = f", {plural(len(same), 'seed')}" if len(same) < len(seeds) else ""
            mean = f"{_figure(task, fmean(record['test'] for record in same))} at {_ratio(same)}{few}" if same else ""
            cells.append(mean)
        rows.append([NETWORKS[task], asked, str(len(seeds)), *cells])
    if len(rows) == 1:
        return ""
    text = """\
**Does the choice of ranks pay?** Controls, on the same seeds or the first of them. `uniform` has the start ranks
times one factor, of about the asked size, trained from scratch in one annealed run with as many steps as the path took
to that point, and with the same rates and decay. `random` is the same path with slices chosen by chance in the same
canonical form, and the last column the same path with `saliency="gradient"`, where it was run.

"""
    return text + as_table(rows) + "\n"


def _held(every: Sequence[Record]) -> str:
    """Models that keep their size, trained in the stages of a path."""
    own = [record for record in every if record["row"] in ("untouched", "fixed", "dense")]
    tasks = {record["task"] for record in own if record["row"] in ("fixed", "dense")}
    rows = [["task", "model", "seeds", "ratio", "test, mean (range)"]]
    for (task, row, which), group in _groups(own, "task", "row", "which").items():
        if task in tasks:
            name = {"untouched": "shrink", "fixed": "start ranks held", "dense": "dense"}[row]
            rows.append(
                [NETWORKS[task], f"{name}{_which(which)}", str(len(group)), _ratio(group), _spread(task, group)]
            )
    starts = [record for record in every if "dense_test" in record and record["row"] == "budgets"]
    for (task,), group in _groups(starts, "task").items():
        seeds = {record["seed"]: record for record in group}
        spread = _spread(task, list(seeds.values()), "dense_test")
        rows.append([NETWORKS[task], "dense, where the path began", str(len(seeds)), "1x", spread])
    if len(rows) == 1:
        return ""
    text = """\
**Models that keep their size.** The same network with its start ranks held, and a dense one (for texts, with a dense
table of words), trained in stages as long as those of the path. `last` is the model of the last stage, `best` the one
with the best validation score, where it is another.

"""
    return text + as_table(rows) + "\n"


def _which(which: str | None) -> str:
    return f", {which}" if which else ""


def _gates(own: Sequence[Record]) -> str:
    """MARS with the training of the path, and ensembles of its masks."""
    mars = _groups((record for record in own if record["row"] == "mars"), "task", "budget")
    rows = [["gates", "seeds", "ratio", "after pruning", "after one more stage"]]
    for (task, words), group in mars.items():
        cells = [_spread(task, group, "test_before"), _spread(task, group)]
        rows.append([f"MARS, {words}", str(len(group)), _ratio(group), *cells])
    ensembles = _groups((record for record in own if record["row"] == "ensemble"), "task", "budget")
    masks = [["network", "seeds", "test, mean (range)"]]
    for (task, words), group in ensembles.items():
        masks.append([f"MARS, {words}", str(len(group)), _spread(task, group)])
    if len(rows) == 1:
        return ""
    text = """\
**Selection and training apart.** MARS on mnist-2fc with the training of `shrink`: relative rates and decay of the
cores, one annealed run of 18,000 steps with gates, then pruning, then an annealed stage of 2,200 steps.

"""
    more = """\

**Sampled masks.** The paper asks whether masks should be kept as a distribution. This is the mean softmax over masks
that are sampled at the last temperature, before pruning, beside the single pruned network without its last stage.
An ensemble needs all slices, so it is not smaller than the network before pruning.

"""
    return text + as_table(rows) + "\n" + (more + as_table(masks) + "\n" if len(masks) > 1 else "")


def _sensitivity(known: Sequence[Record]) -> str:
    """Other constants, one seed."""
    own = [record for record in known if record["task"] == "mnist-2fc" and record["row"] == "untouched"]
    seeds = {record["seed"] for record in own if record["settings"]}
    rows = [["setting", "ratio", "ranks", "test", "CPU s"]]
    for record in own:
        if record["seed"] in seeds:
            words = ", ".join(f"{name} {value:g}" for name, value in record["settings"].items())
            ranks = "-".join(map(str, record["ranks"]))
            cells = [f"{record['ratio']:.0f}x", ranks, _figure("", record["test"]), f"{record['cpu_seconds']:.0f}"]
            rows.append([words or "the default: rate 0.07, factor 0.85, first 200", *cells])
    if len(rows) == 1:
        return ""
    text = "**Other constants** on mnist-2fc, untouched, one seed each:\n\n"
    return text + as_table(rows) + "\n"
