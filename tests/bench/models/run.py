"""Runs a task: every way of compressing at every ratio, for every seed, on the full test data.

Each result is a record of plain data, written as soon as it is there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from bench.models import baselines, compressed
from bench.models.networks import ROOT
from bench.models.speed import speed
from bench.models.tasks import Task
from torch import nn

Record = dict[str, Any]
PLAIN, UNIFORM, PROTOTYPE, OURS = "plain SVD", "C-uniform", "C and G prototype", "tnmars"
ROWS = (PLAIN, UNIFORM, PROTOTYPE, OURS)
MATCHED = " + matching"


@dataclass(frozen=True)
class Asked:
    """What a run does."""

    rows: tuple[str, ...] = ROWS
    ratios: tuple[float, ...] = ()
    seeds: tuple[int, ...] = (0,)
    epochs: int = 0
    """Of matching; 0 for none."""
    share: float = 1.0
    """How much of an epoch of matching the prototype gets."""
    batches: tuple[int, ...] = ()
    """Batch sizes to time; empty for none."""
    json: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Options of matching for the library."""


def commit() -> str:
    """The commit of this checkout; `+` says that files have changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")


class Recorder:
    """Completes records and appends them to a file."""

    def __init__(self, path: Path | None):
        self.path, self.records = path, list[Record]()
        self.common = {"commit": commit(), "command": " ".join(sys.argv), "torch": torch.__version__}

    def add(self, **record: Any) -> None:
        self.records.append({**record, **self.common})
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.records[-1]) + "\n")
        known = {name: value for name, value in record.items() if name not in ("plan", "ranks")}
        print(" ".join(f"{name}={_short(value)}" for name, value in known.items()), file=sys.stderr, flush=True)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def run_task(task: Task, asked: Asked) -> list[Record]:
    """The records of a task."""
    recorder = Recorder(asked.json)
    torch.manual_seed(0)
    dense = task.network()
    start = time.process_time()
    scores = task.scores(dense, dense)
    add(recorder, task, dense, dense, "dense", 1.0, None, scores, time.process_time() - start)
    for ratio in asked.ratios or task.ratios:
        for row, seed, small, spent, more in _compressed(task, dense, ratio, asked):
            scores = task.scores(small, dense)
            add(recorder, task, dense, small, row, ratio, seed, scores, spent, **more)
            if asked.epochs and row in (PROTOTYPE, OURS):
                start = time.process_time()
                more = _match(task, small, dense, row, seed or 0, asked)
                spent = time.process_time() - start
                scores = task.scores(small, dense)
                add(recorder, task, dense, small, row + MATCHED, ratio, seed, scores, spent, **more)
            last = (seed is None or seed == asked.seeds[-1]) and row in (PROTOTYPE, OURS)
            if last:
                _time(recorder, task, dense, small, row, ratio, asked.batches)
    return recorder.records


def _compressed(
    task: Task, dense: nn.Module, ratio: float, asked: Asked
) -> Iterator[tuple[str, int | None, nn.Module, float, Record]]:
    """Compressed networks: name, seed, network, CPU seconds, and what else is known."""
    names = task.names(dense)
    part = sum(dense.get_submodule(name).weight.numel() for name in names)
    fixed = baselines.parameters(dense) - part
    inner = part / (task.budget(dense, ratio) - fixed)  # the ratio of the layers that are compressed

    def timed(make: Callable[[], tuple[nn.Module, Record]]) -> tuple[nn.Module, float, Record]:
        start = time.process_time()
        small, more = make()
        return small, time.process_time() - start, more

    if PLAIN in asked.rows:
        small, spent, more = timed(lambda: (baselines.plain_svd(dense, names, inner), {}))
        yield PLAIN, None, small, spent, more
    for seed in asked.seeds:
        calibration = list(task.calibration(seed))
        found, took = None, 0.0
        if UNIFORM in asked.rows or PROTOTYPE in asked.rows:
            start = time.process_time()
            found = baselines.moments(dense, names, calibration, seed)
            took = time.process_time() - start
        if found and UNIFORM in asked.rows:
            small = baselines.c_uniform(dense, found, inner)
            yield UNIFORM, seed, small, took, {}
        if found and PROTOTYPE in asked.rows:
            small, ranks = baselines.c_and_g(dense, found, inner)
            yield PROTOTYPE, seed, small, took, {"ranks": ranks}
        if OURS in asked.rows and not compressed.absent():
            torch.manual_seed(seed)
            small, spent, more = timed(lambda: _ours(task, dense, ratio, calibration))  # noqa: B023
            yield OURS, seed, small, spent, more


def _ours(task: Task, dense: nn.Module, ratio: float, calibration: Sequence[Any]) -> tuple[nn.Module, Record]:
    small, plan = compressed.compressed(task, dense, ratio, calibration)
    return small, {"plan": plan}


def _match(task: Task, small: nn.Module, dense: nn.Module, row: str, seed: int, asked: Asked) -> Record:
    torch.manual_seed(seed)
    samples: Any = task.matching(seed)
    if row == OURS:
        compressed.match(small, dense, samples, asked.epochs, **asked.options)
        return {}
    steps = int(asked.epochs * asked.share * len(samples))
    batches = (batch for _ in range(asked.epochs) for batch in samples)
    losses = baselines.match(small, dense, batches, steps, **task.matched)
    return {"loss before": mean(losses[:10]), "loss after": mean(losses[-20:]), "steps": len(losses)}


def add(
    recorder: Recorder,
    task: Task,
    dense: nn.Module,
    small: nn.Module,
    row: str,
    ratio: float,
    seed: int | None,
    scores: dict[str, float],
    spent: float,
    **more: Any,
) -> None:
    """Records the scores of a network together with its size."""
    names = task.names(dense)
    part = sum(dense.get_submodule(name).weight.numel() for name in names)
    before, after = baselines.parameters(dense), baselines.parameters(small)
    recorder.add(
        task=task.name,
        row=row,
        ratio=ratio,
        seed=seed,
        **scores,
        parameters=after,
        **{"whole ratio": before / after, "layer ratio": part / (after - before + part), "cpu seconds": spent},
        **more,
    )


def _time(
    recorder: Recorder, task: Task, dense: nn.Module, small: nn.Module, row: str, ratio: float, batches: Sequence[int]
) -> None:
    for batch in batches:
        example = task.example(batch)
        shipped = compressed.frozen(small, example) if row == OURS else small
        for timing in speed(dense, {row: shipped}, example):
            recorder.add(task=task.name, ratio=ratio, **timing)
