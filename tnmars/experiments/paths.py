"""Runs of `tnmars.shrink` as experiments: checkpoints and progress as in the training loop, and a figure per budget."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from tnmars.experiments.loop import RunOptions, RunStoppedError
from tnmars.experiments.problems import Learnable
from tnmars.experiments.signals import handled
from tnmars.shrinking.curve import Curve
from tnmars.shrinking.settings import Staircase
from tnmars.shrinking.shrink import shrink

FOLDER = "path"
"""The folder of a path's checkpoint, in that of its run."""


def shrunk(model: nn.Module, problem: Learnable, seed: int, folder: Path, options: RunOptions, **goals: Any) -> Curve:
    """The curve of one call with the library's own constants. A trial has stages of `options.epochs` steps.

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
            settings=None if options.epochs is None else Staircase(first=options.epochs),
            **goals,
        )


def points(
    curve: Curve, budgets: Mapping[str, int | str], judge: Callable[[nn.Module], Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The figures of the points that a curve has for some budgets, by their words; or of the chosen one."""
    taken = {words: curve.at(budget) for words, budget in budgets.items()} or {"": curve.chosen}
    return [
        {
            "budget": words,
            "validation": 100 * point.score,
            "ranks": {name: list(sizes.values()) for name, sizes in point.ranks.items()},
            "steps": point.steps,
            **judge(point.model),
        }
        for words, point in taken.items()
    ]


def ratios(each: Sequence[str]) -> dict[str, int | str]:
    """Budgets for whole models, whose words are what they are."""
    return {ratio: ratio for ratio in each}


def _stop() -> None:
    """The effect of Ctrl-C and `kill`: the run goes on from its last stage when it is resumed."""
    raise RunStoppedError
