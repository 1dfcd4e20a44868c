"""The rows of the benchmark: a path of `tnmars.shrink` and its controls. Each point that is recorded is tested once."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

import torch
from bench.models.run import Recorder
from bench.shrinking import tasks
from bench.shrinking.tasks import Task
from bench.shrinking.training import stages
from torch import Tensor, nn

import tnmars
from tnmars.graph.rewrite import drop_ones
from tnmars.layer.module import layers
from tnmars.models.usage import one_pass
from tnmars.shrinking.prices import Prices
from tnmars.shrinking.scores import score_of


@dataclass(frozen=True)
class Asked:
    """One row of a task, for one seed."""

    name: str
    row: str
    seed: int
    recorder: Recorder
    settings: Mapping[str, Any] = field(default_factory=dict)
    ratios: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    """The lengths of stages of a control; by default those of the path with the same task and seed."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of a call without budgets, instead of the task's own."""
    checkpoints: Path | None = None
    is_nearest: bool = False
    """Whether uniform ranks may give a somewhat larger network than asked for, if its size is nearer."""

    @property
    def staircase(self) -> tnmars.Staircase:
        return tnmars.Staircase(**self.settings)

    def say(self, text: object) -> None:
        print(f"{self.name} {self.row} seed {self.seed}: {text}", file=sys.stderr, flush=True)


def by_chance(model: nn.Module, weights: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Random saliencies."""
    return {name: {bond: torch.rand(len(each)) for bond, each in own.items()} for name, own in weights.items()}


def path(asked: Asked, given: Task) -> None:
    """One call of `tnmars.shrink`."""
    torch.manual_seed(1000 + asked.seed)
    clock = time.process_time()
    labels: dict[str, int | str] = {}
    options = dict(asked.options or given.options)
    if asked.row in ("budgets", "random", "gradient"):
        with torch.random.fork_rng():
            labels = dict(tasks.limit(given, ratio) for ratio in asked.ratios or given.budgets)
        options = {"budget": list(labels.values())}
    if asked.row == "random":
        options["saliency"] = by_chance
    if asked.row == "gradient":
        options["saliency"] = "gradient"
    if asked.checkpoints is not None:
        options["checkpoint"] = asked.checkpoints / f"{asked.name}-{asked.row}-{asked.seed}"
    model, more = given.begin(asked.seed) if given.begin else (given.network(1.0), {})
    curve = tnmars.shrink(
        model,
        train=given.train,
        loss=given.loss,
        evaluate=given.evaluate,
        seed=asked.seed,
        settings=asked.staircase,
        watch=asked.say,
        **options,
    )
    spent = time.process_time() - clock
    taken = {words: curve.at(budget) for words, budget in labels.items()} or {"": curve.chosen}
    for words, point in taken.items():
        more["stages"] = _way(curve, point)
        record(asked, given, words, point, point.model, spent, points=len(curve.points), **more)


def _way(curve: tnmars.Curve, point: tnmars.Point) -> list[int]:
    """The lengths of the stages that led to a point, without those that led to smaller ones."""
    steps = [one.steps for one in curve.points]
    lengths = [after - before for before, after in pairwise(steps)]
    at = curve.points.index(point)
    once = [place for place, one in enumerate(curve.points[:at]) if place and one.ranks == point.ranks]
    return [*lengths[: once[0]], lengths[at - 1]] if once else lengths[:at]


def uniform(asked: Asked, given: Task) -> None:
    """Start ranks times one factor, from scratch, in one annealed run of as many steps as the path took."""
    for ratio in asked.ratios or given.budgets:
        words, budget = tasks.limit(given, ratio)
        lengths = asked.steps or _lengths(asked, words)
        torch.manual_seed(1000 + asked.seed)
        clock = time.process_time()
        factor = _factor(given, budget, asked.is_nearest)
        asked.say(f"{words}: start ranks times {factor:.4g}, {sum(lengths)} steps")
        model = given.network(factor)
        for done in stages(model, given, [sum(lengths)], asked.seed, asked.staircase):
            point = measured(given, model, done)
            spent = time.process_time() - clock
            record(asked, given, words, point, model, spent, points=1, stages=[done])


def held(asked: Asked, given: Task) -> None:
    """The network as the path begins, or a dense one, trained in stages as long as those of the path, without cuts.

    The model of the last stage is recorded, and the one with the best validation score if that is another.
    """
    lengths = asked.steps or _lengths(asked, None)
    torch.manual_seed(1000 + asked.seed)
    clock = time.process_time()
    is_dense = asked.row == "dense"
    if is_dense and given.dense is None:
        raise SystemExit(f"{asked.name} has no dense network")
    model = given.dense() if is_dense and given.dense else given.network(1.0)
    best: dict[str, Any] = {}
    last: dict[str, Any] = {}
    for number, done in enumerate(stages(model, given, lengths, asked.seed, asked.staircase)):
        with torch.no_grad():
            score = score_of(given.evaluate(model)).value
        asked.say({"stage": number, "steps": done, "score": score})
        last = {"score": score, "steps": done, "stages": list(lengths[: number + 1])}
        if not best or score > best["score"]:
            best = {**last, "state": {name: value.clone() for name, value in model.state_dict().items()}}
    spent = time.process_time() - clock
    for which in ("last", "best") if best["steps"] < last["steps"] else ("last",):
        entry = last if which == "last" else best
        if which == "best":
            model.load_state_dict(best["state"])
        point = measured(given, model, entry["steps"], entry["score"])
        record(asked, given, "", point, model, spent, points=len(lengths), stages=entry["stages"], which=which)


@dataclass(frozen=True)
class Measured:
    """What is recorded of a model that is not a point of a path."""

    parameters: int
    ratio: float
    ranks: Mapping[str, Mapping[str, int]]
    score: float
    macs: int | None
    steps: int


def measured(given: Task, model: nn.Module, steps: int, score: float | None = None) -> Measured:
    """The size and score of a model as it is, counted as along a path."""
    *inputs, _ = next(iter(given.train))
    graphs = {name: layer.graph for name, layer in layers(model)}
    with torch.no_grad():
        value = score_of(given.evaluate(model)).value if score is None else score
    if not graphs:
        macs = one_pass(model, (tuple(inputs), {}), {}).macs
        return Measured(sum(number.numel() for number in model.parameters()), 1.0, {}, value, macs, steps)
    with torch.random.fork_rng():
        prices = Prices(model, dict(layers(model)), (tuple(inputs), {}), is_timed=False)
        first = {name: layer.graph for name, layer in layers(given.network(1.0))}
    cost = prices.whole({name: drop_ones(graph).graph for name, graph in graphs.items()})
    ranks = {
        name: {bond: graphs[name].bonds[bond].size if bond in graphs[name].bonds else 1 for bond in graph.bonds}
        for name, graph in first.items()
        if name in graphs
    }
    return Measured(cost.parameters, prices.dense(graphs).parameters / cost.parameters, ranks, value, cost.macs, steps)


def record(
    asked: Asked, given: Task, words: str, point: Any, model: nn.Module, spent: float, *, points: int, **more: Any
) -> None:
    part = {}
    if given.part:
        layer = dict(layers(model)).get(given.part)
        ratio = tnmars.count(layer.graph).compression if layer is not None else 1.0
        part = {f"{given.part}_ratio": ratio}
    asked.recorder.add(
        task=asked.name,
        row=asked.row,
        seed=asked.seed,
        budget=words,
        parameters=point.parameters,
        ratio=point.ratio,
        ranks=[size for sizes in point.ranks.values() for size in sizes.values()],
        validation=point.score,
        test=given.test(model),
        macs=point.macs,
        steps=sum(more["stages"]),
        points=points,
        settings=dict(asked.settings),
        cpu_seconds=spent,
        **part,
        **more,
    )


def _lengths(asked: Asked, words: str | None) -> list[int]:
    """The lengths of the stages of the path with the same task and seed, to a budget or to its end."""
    recorder = asked.recorder
    known = list(recorder.records)
    if recorder.path is not None and recorder.path.exists():
        lines = recorder.path.read_text(encoding="utf-8").splitlines()
        known += [json.loads(line) for line in lines if line.strip()]
    key = asked.name, asked.seed, dict(asked.settings)
    found = [
        one
        for one in known
        if (one["task"], one["seed"], one["settings"]) == key
        and one["row"] in (("budgets", "untouched") if words is None else ("budgets",))
        and (words is None or one["budget"] == words)
    ]
    if not found:
        raise SystemExit(
            f"{asked.name}: no record of row 'budgets' with seed {asked.seed} and budget '{words or 'any'}' is known. "
            "Run that row first with the same --json, or give --steps."
        )
    longest = max(found, key=lambda one: one["steps"])
    before = [longest["dense_steps"]] if "dense_steps" in longest else []
    return [*before, *longest.get("stages", [longest["steps"]])]


def _factor(given: Task, budget: int | str, is_nearest: bool) -> float:
    """The largest factor of the start ranks with which a network meets a budget in parameters, or the nearest."""
    factors = sorted({rank / start for start in given.starts for rank in range(1, start + 1)})
    with torch.random.fork_rng():
        full = given.network(1.0)
        compiled = sum(tnmars.count(layer.graph).dense - tnmars.count(layer.graph).cores for _, layer in layers(full))
        dense = sum(value.numel() for value in full.parameters()) + compiled
        most = budget if isinstance(budget, int) else dense / float(budget.removesuffix("x"))

        def size(factor: float) -> int:
            return sum(value.numel() for value in given.network(factor).parameters())

        low, high = 0, len(factors)  # the network of the first may be too large: then there is none
        while low < high:
            middle = (low + high) // 2
            if size(factors[middle]) <= most:
                low = middle + 1
            else:
                high = middle
        near = factors[max(low - 1, 0) : low + 1]
        if is_nearest:
            return min(near, key=lambda factor: abs(log(size(factor) / most)))
    if low == 0:
        raise SystemExit(f"no network with uniform ranks has at most {most:,.0f} parameters")
    return factors[low - 1]
