"""The paper's tensor approximation (appendix): a tensor of Tucker ranks 4, fitted by one that starts with ranks 8.

Plain gradient descent on the squared error, cores and logits in one group. How much the prior weighs against the
likelihood the paper does not say, and it decides everything; `paper` divides it by the number of entries, which is the
only weight with which ranks come out of the paper's start. `settled` is a setting that works: without gates the tensor
is fitted first; then gates begin open, and the prior at its full weight closes those that are not needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tnmars import families
from tnmars.compiler import compile
from tnmars.experiments.loop import Run, Settings
from tnmars.experiments.progress import Progress
from tnmars.experiments.task import Task, live_ranks
from tnmars.files import make_folder
from tnmars.graph import Graph
from tnmars.pruning.prune_model import prune
from tnmars.select import Mars, Selector

SIDE, AXES, PLANTED, START = 8, 4, 4, 8
ENTRIES = SIDE**AXES
STEPS = 10_000


@dataclass(frozen=True)
class Way:
    """How one variant is trained."""

    selector: Selector | None
    rank: int = START
    prior_weight: float = 1 / ENTRIES
    spread: float = 1.0
    """The standard deviation of the cores at the start."""
    warmup: int = 0
    """Steps without gates."""

    def settings(self, seed: int, steps: int) -> Settings:
        """One step is one epoch; the temperature falls over all of them."""
        return Settings(
            epochs=steps,
            batch=1,
            lr_decay=1.0,
            warmup_epochs=min(self.warmup, steps // 2),
            temperature_decay=0.1 ** (1 / steps),
            prior_weight=self.prior_weight,
            seed=seed,
            record_every=200,
            judge_every=200,
            descends=True,
        )


WAYS = {
    "paper": Way(Mars(pi=1e-2, alpha=-0.5)),
    "paper-min-keep-0": Way(Mars(pi=1e-2, alpha=-0.5, min_keep=0)),
    "full-prior": Way(Mars(pi=1e-2, alpha=-0.5, min_keep=0), prior_weight=1.0),
    "settled": Way(Mars(pi=1e-2, alpha=3.0), prior_weight=1.0, spread=0.5, warmup=1000),
    "direct": Way(None, rank=PLANTED),
}
VARIANTS = tuple(WAYS)
PAPER: dict[str, dict[str, Any]] = {
    "paper": {"ranks": [4.7, 4.4, 4.6, 4.2], "log_likelihood": -0.027},
    "direct": {"log_likelihood": -0.15},
}


def graph(rank: int) -> Graph:
    """A Tucker tensor with all ranks equal."""
    return families.tucker("tensor", free=(SIDE,) * AXES, rank=rank)


def target(seed: int) -> Tensor:
    """A random tensor of the planted ranks, its cores standard normal."""
    torch.manual_seed(seed)
    teacher = compile(graph(PLANTED))
    with torch.no_grad():
        for core in teacher.cores.parameters():
            core.normal_()
        found: Tensor = teacher().detach()
        return found


class Approximation(Task):
    """The task: one tensor, all of its entries in every step."""

    size = 1

    def __init__(self, model: nn.Module, wanted: Tensor):
        self.model = model
        self.wanted = wanted

    def data_loss(self, rows: Tensor) -> Tensor:
        error: Tensor = (self.model() - self.wanted).square().mean()
        return error

    def judge(self) -> dict[str, Any]:
        return {"log_likelihood": -self.data_loss(torch.zeros(0)).item()}


def run(
    variant: str,
    seed: int,
    folder: Path,
    *,
    data: str | None = None,
    epochs: int | None = None,
    resume: bool = False,
    save_every: float = 60.0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Fits one tensor; `epochs` are steps here."""
    make_folder(folder)
    way, wanted = WAYS[variant], target(seed)
    torch.manual_seed(1000 + seed)
    layer = compile(graph(way.rank), selector=way.selector)
    with torch.no_grad():
        for core in layer.cores.parameters():
            core.normal_(std=way.spread)
    task = Approximation(layer, wanted)
    going = Run(task, way.settings(seed, epochs or STEPS), folder, save_every, {"variant": variant})
    history = going.train(progress, resume=resume)
    task.model = prune(layer) if way.selector is not None else layer
    return {"ranks": live_ranks(layer)[""], **task.judge(), "history": history}
