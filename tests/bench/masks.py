"""What masks cost: a training step of a layer with gates against the same layer without, with the same plans."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from bench.cases import Case
from bench.counting import macs, share, shown, verdict
from torch import Tensor

from tnmars.compiler import compile
from tnmars.layer.module import TNModule
from tnmars.select import Mars
from tnmars.timing.clock import Action, in_turns, threads, training_step
from tnmars.training.objective import param_groups, penalty
from tnmars.training.schedule import MaskSchedule

LEAST_BATCH = 32
"""Smaller batches are timed too, but do not count: there the gates are a large part of little work."""
MEDIAN, WORST = 1.08, 1.2
"""The ratios to reach for whole steps with penalty, schedule and fused Adam: in the median, and at worst."""


@dataclass(frozen=True)
class MaskRow:
    """Times of one layer: forward and backward without gates, again, with gates, and on the open slices alone; and
    whole steps of training, the optimiser's included, without gates and with gates, penalty and schedule."""

    case: Case
    threads: int
    plain: float
    again: float
    masked: float
    open_only: float
    step: float
    masked_step: float
    macs: float | None
    """The multiply-adds of a whole step with gates relative to one without."""
    layer_macs: float | None
    """The multiply-adds of forward and backward without gates relative to torch's own layer."""

    @property
    def ratio(self) -> float:
        return self.masked / min(self.plain, self.again)

    @property
    def step_ratio(self) -> float:
        return self.masked_step / self.step

    @property
    def noise(self) -> float:
        return max(self.plain, self.again) / min(self.plain, self.again) - 1

    @property
    def counts(self) -> bool:
        return self.case.batch >= LEAST_BATCH


def run_masks(case: Case, count: int = 1, *, rounds: int = 25, budget: float = 6.0, tune: bool = True) -> MaskRow:
    """The row of a case. Gates are drawn once, with nearly all open, so that the work is the same."""
    torch.manual_seed(0)
    with threads(count):
        x = case.make_input()
        plain = compile(case.graph, batch=case.batch, image=case.image, tune=tune)
        gated = [
            TNModule(plain.planner, selector=Mars(alpha=alpha), open_only=way, plans=plain.programs.plans)
            for alpha, way in ((2.0, False), (-1.75, True))
        ]
        for layer in gated:
            MaskSchedule(layer, 100, seed=0)
        actions = [training_step(layer, [x], tuple(layer.parameters())) for layer in (plain, plain, *gated)]
        actions += [_step(plain, x), _step(gated[0], x)]
        times = in_turns(actions, rounds=rounds, budget=budget, least=3)
        dense = case.dense()
        unit = macs(training_step(dense, [x], tuple(dense.parameters())))
        added = share(macs(actions[5]), macs(actions[4]))
    return MaskRow(case, count, *times, added, share(macs(actions[0]), unit))


def _step(layer: TNModule, x: Tensor) -> Action:
    """A step of training as a user writes it: with gates, penalty and schedule are part of it."""
    optimizer = torch.optim.Adam(param_groups(layer, lr=0.0), fused=True)
    if layer.masks is None:

        def plain() -> None:
            torch.autograd.backward(layer(x).sum())
            optimizer.step()
            optimizer.zero_grad()

        return plain
    schedule = MaskSchedule(layer, 10**9, seed=0)

    def action() -> None:
        torch.autograd.backward(layer(x).sum() + penalty(layer) / 1000)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    return action


def table(rows: list[MaskRow]) -> list[list[str]]:
    """The rows as text."""
    found = [
        [
            "case",
            "MACs / dense",
            "whole step with masks / without",
            "MACs with / without",
            "forward and backward with / without",
            "noise",
            "open slices alone (alpha -1.75)",
        ]
    ]
    for row in rows:
        unit = min(row.plain, row.again)
        small = "" if row.counts else " (small batch: not counted)"
        found.append(
            [
                row.case.name,
                shown(row.layer_macs),
                f"{row.step_ratio:.3f}{small}",
                shown(row.macs),
                f"{row.ratio:.3f}",
                f"{row.noise:.0%}",
                f"{row.open_only / unit:.2f}",
            ]
        )
    return found


def summary(rows: list[MaskRow]) -> list[str]:
    """Whether the targets are met."""
    counted = [row for row in rows if row.counts]
    if not counted:
        return []
    ratios = [row.step_ratio for row in counted]
    middle, worst = median(ratios), max(counted, key=lambda row: row.step_ratio)
    said = verdict(worst.step_ratio, WORST, worst.noise)
    passes = [row.ratio for row in counted]
    return [
        f"{rows[0].threads} thread(s), {len(counted)} layers with a batch of at least {LEAST_BATCH}.",
        f"Whole steps, median over layers: {middle:.3f} (target {MEDIAN}: {verdict(middle, MEDIAN)}).",
        f"Whole steps, worst: {worst.step_ratio:.3f}, {worst.case.name} (target {WORST}: {said}).",
        f"Forward and backward alone: median {median(passes):.3f}, worst {max(passes):.3f}.",
    ]


def as_json(rows: list[MaskRow]) -> list[dict[str, Any]]:
    """The rows as plain data."""
    keys = ("threads", "plain", "again", "masked", "open_only", "step", "masked_step", "ratio", "step_ratio", "noise")
    keys += ("macs", "layer_macs", "counts")
    return [{"case": row.case.name, **{key: getattr(row, key) for key in keys}} for row in rows]
