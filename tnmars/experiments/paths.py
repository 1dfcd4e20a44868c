"""Runs of `tnmars.shrink` as experiments: checkpoints and progress as in the training loop, and a figure per budget."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from tnmars.experiments.loop import RunOptions, RunStoppedError
from tnmars.experiments.problems import Learnable
from tnmars.experiments.signals import handled
from tnmars.models.budget import Budget
from tnmars.shrinking.curve import Curve, Point
from tnmars.shrinking.settings import Staircase
from tnmars.shrinking.shrink import shrink

FOLDER = "path"
"""The folder of a path's checkpoint, in that of its run."""


def shrunk(
    model: nn.Module,
    problem: Learnable,
    seed: int,
    folder: Path,
    options: RunOptions,
    settings: Staircase | None = None,
    **goals: Any,
) -> Curve:
    """The curve of one call, by default with the library's own constants. A trial has stages of `options.epochs` steps.

    A run that was killed resumes after its last finished stage, and gives the same curve.
    """
    where = folder / FOLDER
    if not options.resume:
        shutil.rmtree(where, ignore_errors=True)

    def watch(record: Mapping[str, Any]) -> None:
        ranks = {name: list(sizes.values()) for name, sizes in record["ranks"].items()}
        shown = {"parameters": record["parameters"], "ranks": ranks, "score": float(record["score"])}
        if options.progress is not None:
            options.progress.show(shown, record["stage"], unit="stage")

    with handled((signal.SIGINT, signal.SIGTERM), _stop):
        return shrink(
            model,
            train=problem.train,
            loss=problem.loss,
            evaluate=problem.evaluate,
            seed=seed,
            checkpoint=where,
            progress=False,
            watch=watch,
            settings=settings if options.epochs is None else replace(settings or Staircase(), first=options.epochs),
            **goals,
        )


def points(
    curve: Curve,
    budgets: Mapping[str, int | str],
    judge: Callable[[nn.Module, str], Mapping[str, Any]],
    *,
    is_best: bool = False,
) -> list[dict[str, Any]]:
    """The figures of the points that a curve has for some budgets, by their words; or of the chosen one.

    `judge` gets the model of a point and the words of its budget. With `is_best`, the point is the one with the best
    score on validation data of all that meet the budget, instead of the largest: for data on which training too long
    makes a model worse.
    """
    take = best_within if is_best else Curve.at
    taken = {words: take(curve, budget) for words, budget in budgets.items()} or {"": curve.chosen}
    return [
        {
            "budget": words,
            "validation": 100 * point.score,
            "ranks": {name: list(sizes.values()) for name, sizes in point.ranks.items()},
            "steps": point.steps,
            **judge(point.model, words),
        }
        for words, point in taken.items()
    ]


def best_within(curve: Curve, budget: int | str) -> Point:
    """The point with the best score of those that meet a budget, the largest of several. Raises `TnmarsError`."""
    largest, asked = curve.at(budget), Budget.parse(budget)
    limit = largest.cost(asked.unit)
    met = [point for point in curve.points if point.cost(asked.unit) <= limit]
    return max(met, key=lambda point: (point.score, point.cost(asked.unit)))


def ratios(each: Sequence[str]) -> dict[str, int | str]:
    """Budgets for whole models, whose words are what they are."""
    return {ratio: ratio for ratio in each}


def _stop() -> None:
    """The effect of Ctrl-C and `kill`: the run goes on from its last stage when it is resumed."""
    raise RunStoppedError
