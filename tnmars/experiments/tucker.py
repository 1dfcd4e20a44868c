"""The paper's tensor approximation (appendix): a tensor of Tucker ranks 4, fitted by one that starts with ranks 8.

Plain gradient descent on the squared error, with cores and logits in one group. The paper does not say how much the
prior weighs against the likelihood, and the result depends on it. `paper` divides the prior by the number of entries,
the only weight for which the paper's start finds ranks. `settled` is a setting that works: the tensor is first fitted
without gates; then the gates start open, and the prior at its full weight closes those that are not needed. `ard` has
a prior on whole slices instead of gates, and Adam, because the gradient of that prior has no bound. `search` scores
ranks by the error of a decomposition, within a budget of 10x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tnmars import families
from tnmars.compiler import compile_quietly as compile
from tnmars.decomposing.decompose import decompose
from tnmars.experiments.loop import RunOptions, Settings, trained
from tnmars.experiments.paths import shrunk
from tnmars.experiments.problems import Learnable
from tnmars.experiments.task import Task, live_ranks
from tnmars.files import make_folder
from tnmars.graph import Graph
from tnmars.pruning.prune_model import prune
from tnmars.searching.search import search_ranks
from tnmars.select import Ard, Mars, Selector

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
    """The initial standard deviation of the cores."""
    warmup: int = 0
    """Steps without gates."""
    rate_decay: float = 1.0
    """The factor of the learning rate over the run."""
    descends: bool = True
    """Whether plain gradient descent is used."""

    def settings(self, seed: int, steps: int) -> Settings:
        """The settings for a seed. One step is one epoch, and the temperature falls over all of them."""
        return Settings(
            epochs=steps,
            batch=1,
            lr_decay=self.rate_decay ** (1 / steps),
            warmup_epochs=min(self.warmup, steps // 2),
            temperature_decay=0.1 ** (1 / steps),
            prior_weight=self.prior_weight,
            seed=seed,
            record_every=200,
            judge_every=200,
            descends=self.descends,
        )


WAYS = {
    "paper": Way(Mars(pi=1e-2, alpha=-0.5)),
    "paper-min-keep-0": Way(Mars(pi=1e-2, alpha=-0.5, min_keep=0)),
    "full-prior": Way(Mars(pi=1e-2, alpha=-0.5, min_keep=0), prior_weight=1.0),
    "settled": Way(Mars(pi=1e-2, alpha=3.0), prior_weight=1.0, spread=0.5, warmup=1000),
    "direct": Way(None, rank=PLANTED),
    "ard": Way(Ard(), spread=0.5, rate_decay=0.01, descends=False),
}
BUDGET, TRIALS = "10x", 60
"""The budget of `search`, and how many ranks it tries."""
VARIANTS = (*WAYS, "shrink", "search")
PAPER: dict[str, dict[str, Any]] = {
    "paper": {"ranks": [4.7, 4.4, 4.6, 4.2], "log_likelihood": -0.027},
    "direct": {"log_likelihood": -0.15},
}


def graph(rank: int) -> Graph:
    """A Tucker tensor with all ranks equal."""
    return families.tucker("tensor", free=(SIDE,) * AXES, rank=rank)


def target(seed: int) -> Tensor:
    """A random tensor of the planted ranks, with standard normal cores."""
    torch.manual_seed(seed)
    teacher = compile(graph(PLANTED))
    with torch.no_grad():
        for core in teacher.cores.parameters():
            core.normal_()
        tensor: Tensor = teacher().detach()
        return tensor


MAX_DROP = 0.005
"""How far the score of a path of `shrink` may fall."""


def problem(tensor: Tensor) -> Learnable:
    """The fit of a tensor as `shrink` takes it. The score is half of the log-likelihood."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return 0.5 * (output - target).square().mean()

    @torch.no_grad()
    def score(model: nn.Module) -> float:
        return -float(loss(model(), tensor))

    return Learnable([(tensor,)], loss, score, score)


class Approximation(Task):
    """The task: to fit one tensor, with all of its entries in every step."""

    size = 1

    def __init__(self, model: nn.Module, tensor: Tensor):
        self.model = model
        self.tensor = tensor

    def data_loss(self, rows: Tensor) -> Tensor:
        error: Tensor = (self.model() - self.tensor).square().mean()
        return error

    @torch.no_grad()
    def judge(self) -> dict[str, Any]:
        return {"log_likelihood": -self.data_loss(torch.zeros(0)).item()}


def run(variant: str, seeds: Sequence[int], folder: Path, options: RunOptions) -> list[dict[str, Any]]:
    """Fits a tensor for each seed; an epoch is one step."""
    return [_run(variant, seed, folder, options) for seed in seeds]


def _run(variant: str, seed: int, folder: Path, options: RunOptions) -> dict[str, Any]:
    tensor = target(seed)
    torch.manual_seed(1000 + seed)
    if variant == "shrink":
        chosen = shrunk(compile(graph(START)), problem(tensor), seed, folder, options, max_drop=MAX_DROP).chosen
        return {"ranks": list(chosen.ranks[""].values()), **Approximation(chosen.model, tensor).judge()}
    if variant == "search":
        return searched(tensor, seed, folder, options)
    way = WAYS[variant]
    layer = compile(graph(way.rank), selector=way.selector)
    with torch.no_grad():
        for core in layer.cores.parameters():
            core.normal_(std=way.spread)
    task = Approximation(layer, tensor)
    settings = way.settings(seed, options.epochs or STEPS)
    history = trained(task, settings, folder, options, {"variant": variant})
    task.model = prune(layer) if way.selector is not None else layer
    return {"ranks": live_ranks(layer)[""], **task.judge(), "history": history}


def searched(tensor: Tensor, seed: int, folder: Path, options: RunOptions) -> dict[str, Any]:
    """The ranks with the least error within the budget, by `tnmars.search_ranks`."""
    path = make_folder(folder) / "search.json"
    if not options.resume:
        path.unlink(missing_ok=True)
    found = search_ranks(
        graph(START),
        lambda graph, ranks: -decompose(tensor, graph).error,
        budget=BUDGET,
        trials=options.epochs or TRIALS,
        seed=seed,
        checkpoint=path,
        progress=False,
    ).best
    log_likelihood = -float((found.score * tensor.norm()).square() / ENTRIES)
    return {"ranks": list(found.ranks.values()), "log_likelihood": log_likelihood}
