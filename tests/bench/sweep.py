"""Sweeps over rank, number of cores and batch: does time follow the prediction, and is the chosen form the best one?

For every point all candidate forms are timed in turns. The error compares the prediction of the chosen form with its
time; the regret is the chosen form's time over that of the fastest candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf
from statistics import median
from typing import Any

import torch
from bench.cases import ring_graph

from tnmars import families
from tnmars.graph import Graph
from tnmars.layer.forward import example_inputs
from tnmars.layer.module import code
from tnmars.plan.cost import CostModel, machine_model
from tnmars.plan.layout import Weighing
from tnmars.program.choice import choose
from tnmars.program.form import Form
from tnmars.timing.clock import Action, in_turns, inference, threads, training_step

WANTED_ERROR = 0.35
WANTED_REGRET = (1.15, 1.5)
"""In the median and in the worst case."""
HOPELESS = 8.0
"""A candidate that is predicted to take so many times as long as the chosen one is not timed."""
MOST = 12


@dataclass(frozen=True)
class Point:
    """One graph at one batch, inference or training step."""

    sweep: str
    at: str
    mode: str
    chosen: str
    predicted: float
    seconds: float
    best: str
    best_seconds: float
    candidates: int

    @property
    def error(self) -> float:
        return abs(self.predicted / self.seconds - 1)

    @property
    def regret(self) -> float:
        return self.seconds / self.best_seconds


def _tt784(rank: int) -> Graph:
    return families.tt("linear", inputs=(7, 4, 7, 4), outputs=(5, 5, 5, 5), rank=rank)


def points() -> Iterator[tuple[str, str, Graph, int]]:
    """What is swept: the sweep, where in it, the graph and the batch."""
    for rank in (2, 4, 8, 16, 32):
        yield "rank", f"TT 784 r{rank} (128)", _tt784(rank), 128
    for rank in (4, 16, 32):
        yield (
            "rank",
            f"Tucker 1024 r{rank} (64)",
            families.tucker("linear", inputs=(32, 32), outputs=(32, 32), rank=rank),
            64,
        )
    for modes in ((64, 64), (16, 16, 16), (8,) * 4, (4,) * 6, (2,) * 12):
        graph = families.tt("linear", inputs=modes, outputs=modes, rank=8)
        yield "cores", f"TT 4096, {len(modes)} cores, r8 (32)", graph, 32
    for batch in (1, 8, 64, 512, 2048):
        yield "batch", f"TT 784 r8 ({batch})", _tt784(8), batch
    for batch in (1, 16, 256):
        yield "batch", f"ring 1024 r10 ({batch})", ring_graph(), batch


def _action(graph: Graph, form: Form, batch: int, mode: str) -> Action:
    made = code(form)
    inputs = example_inputs(graph, batch)
    cores = [torch.randn(graph.cores[name]).requires_grad_(mode == "train") for name in made.cores]
    bias = torch.zeros(graph.out_features, requires_grad=mode == "train") if graph.has_bias else None

    def run(*given: torch.Tensor) -> torch.Tensor:
        return made(given, bias, made.fold(*cores))

    if mode == "infer":
        return inference(run, inputs)
    return training_step(run, inputs, [*cores, *([] if bias is None else [bias])])


def measure(
    sweep: str, at: str, graph: Graph, batch: int, mode: str, model: CostModel, rounds: int = 9, budget: float = 1.5
) -> Point:
    """One point of a sweep."""
    forms = choose(graph, batch, Weighing(model, mode == "train"))
    close = [form for form in forms if form.cost <= HOPELESS * forms[0].cost][:MOST]
    actions = [_action(graph, form, batch, mode) for form in close]
    times = in_turns(actions, rounds=rounds, budget=budget, least=3)
    best = times.index(min(times))
    return Point(sweep, at, mode, _name(close[0]), close[0].cost, times[0], _name(close[best]), times[best], len(close))


def _name(form: Form) -> str:
    return f"{form.name}/{form.chunk}" if form.chunk else form.name


def run_sweeps(*, rounds: int = 9, most: float = inf, model: CostModel | None = None) -> list[Point]:
    """Every point, or the first few, on one thread."""
    torch.manual_seed(0)
    found: list[Point] = []
    with threads(1):
        for sweep, at, graph, batch in points():
            for mode in ("infer", "train"):
                if len(found) < most:
                    found.append(measure(sweep, at, graph, batch, mode, model or machine_model(), rounds))
    return found


def table(found: Sequence[Point]) -> list[list[str]]:
    """The points, cell by cell."""
    lines = [["point", "mode", "chosen", "predicted us", "measured us", "error", "best", "regret"]]
    for point in found:
        times = f"{point.predicted * 1e6:.0f}", f"{point.seconds * 1e6:.0f}"
        lines.append(
            [point.at, point.mode, point.chosen, *times, f"{point.error:.0%}", point.best, f"{point.regret:.2f}"]
        )
    return lines


def summary(found: Sequence[Point]) -> list[str]:
    """Errors and regrets against what is wanted."""
    error = median(point.error for point in found)
    regrets = [point.regret for point in found]
    limits = zip((median(regrets), max(regrets)), WANTED_REGRET, strict=True)
    middle, worst = (f"{value:.2f} (wanted {limit:g}{'' if value <= limit else ', MISSED'})" for value, limit in limits)
    verdict = "" if error <= WANTED_ERROR else ", MISSED"
    return [
        f"prediction: median error {error:.0%} (wanted {WANTED_ERROR:.0%}{verdict}) over {len(found)} points",
        f"choice by the model alone: regret {middle} in the median, {worst} in the worst case",
    ]


def as_json(found: Sequence[Point]) -> list[dict[str, Any]]:
    """The points as plain data."""
    return [{**asdict(point), "error": point.error, "regret": point.regret} for point in found]
