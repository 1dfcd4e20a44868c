"""Planted tensors, whose ranks must come back: completion (`completion`) and decomposition by growth (`greedy`).

`completion`: a CP tensor of rank 5, 20^3, of which 30 % are seen, with 1 % of noise; the graph has rank 12. Zhao et al.
(2015) do this with a Bayesian CP model; `ard` is the most likely point of such a model, with the noise estimated too.
`fit` is `tnmars.fit`, by the shortest description; `annealed` trains gates first; `shrink` holds out a tenth of the
seen entries. `greedy`: tensors of 7^5 without noise, after Hashemizadeh et al. (2020). Bonds grow from 1, where a slice
lowers the error most, until it is below 0.0001: in a tensor train, in a ring, and in the complete graph, where a bond
of size 1 is none, so that the topology is found too.

Each run takes less than a few minutes; one that is killed starts again, and gives the same record.
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
from tnmars.decomposing.als import Goal
from tnmars.decomposing.growing import by_error
from tnmars.decomposing.search import Search
from tnmars.decomposing.tensors import dense
from tnmars.experiments.loop import Run, RunOptions, Settings
from tnmars.experiments.paths import shrunk
from tnmars.experiments.problems import Learnable
from tnmars.experiments.task import Task, live_ranks
from tnmars.fitting import fit
from tnmars.graph import Graph
from tnmars.graph.counts import count
from tnmars.pruning.prune_model import prune
from tnmars.select import Annealed, Ard, Selector
from tnmars.shrinking.settings import Staircase


def planted(graph: Graph, seed: int, noise: float = 0.0, share: float = 1.0) -> tuple[Tensor, Tensor, Tensor | None]:
    """A tensor of a graph with standard normal cores, of unit variance; the same with noise; and the entries seen."""
    draw = torch.Generator().manual_seed(seed)
    cores = {name: torch.randn(shape, generator=draw, dtype=torch.float64) for name, shape in graph.cores.items()}
    clean = dense(graph, cores)
    clean = clean / clean.std()
    data = clean + noise * torch.randn(clean.shape, generator=draw, dtype=torch.float64)
    seen = torch.rand(clean.shape, generator=draw) < share if share < 1.0 else None
    return clean, data, seen


# --- completion ------------------------------------------------------------------------------------------------------

CUBE, TRUE, START, NOISE, SHARE = (20, 20, 20), 5, 12, 0.01, 0.3
FITTED: dict[str, Selector | None] = {"fit": None, "annealed": Annealed()}
HELD, MAX_DROP = 0.1, 0.005
"""For `shrink`: the share of the seen entries for validation, and how far the score may fall; it is minus the error. It
has no normal prior on the cores: its weight follows from the number of samples, but here all entries are one."""
COMPLETION = (*FITTED, "ard", "shrink")
STEPS, FLOORS = 4000, (1e-2, 1e-6)
"""The steps of `ard`, and the floor of its noise at the start and at the end, as a share of the data's variance."""


def complete(variant: str, seeds: Sequence[int], folder: Path, options: RunOptions) -> list[dict[str, Any]]:
    """Completes a tensor for each seed."""
    return [_completed(variant, seed, folder, options) for seed in seeds]


def _completed(variant: str, seed: int, folder: Path, options: RunOptions) -> dict[str, Any]:
    clean, data, seen = planted(families.cp("tensor", free=CUBE, rank=TRUE), seed, NOISE, SHARE)
    assert seen is not None
    graph = families.cp("tensor", free=CUBE, rank=START)
    if variant == "shrink":
        torch.manual_seed(1000 + seed)
        learnable = _entries(data.float(), seen, seed)
        chosen = shrunk(
            compile(graph), learnable, seed, folder, options, max_drop=MAX_DROP, settings=Staircase(prior=0.0)
        ).chosen
        (rank,), found = chosen.ranks[""].values(), chosen.model()
    elif variant == "ard":
        torch.manual_seed(1000 + seed)
        task = Bayesian(compile(graph, selector=Ard()), data.float(), seen, options.epochs or STEPS)
        Run(task, task.settings(seed)).train(options.progress)
        (rank,), found = live_ranks(task.model)[""], prune(task.model)()
    else:
        fitted = fit(graph, data, observed=seen, seed=seed, selector=FITTED[variant])
        rank, found = next(iter(fitted.ranks.values()), 1), fitted.layer()
    error = float((found.detach() - clean)[~seen].square().mean().sqrt())
    is_good = rank == TRUE and error <= 2 * NOISE
    return {"rank": rank, "unseen_error_to_noise": error / NOISE, "as_planted": float(is_good)}


class Bayesian(Task):
    """The task: to complete a tensor, with a prior on the slices of a bond and noise of unknown size.

    The noise is the most likely one, but not below a floor that falls during the run. So slices that would only fit
    noise are gone before they could; a model that has them all from the start would be a local optimum.
    """

    size = 1

    def __init__(self, model: nn.Module, data: Tensor, seen: Tensor, steps: int):
        self.model, self.data, self.seen, self.steps = model, data, seen, steps
        self.done = 0

    def settings(self, seed: int) -> Settings:
        """One step is one epoch, with all seen entries."""
        return Settings(
            epochs=self.steps,
            batch=1,
            lr_decay=0.01 ** (1 / self.steps),
            prior_weight=1 / int(self.seen.sum()),
            seed=seed,
            record_every=500,
            judge_every=500,
        )

    @property
    def floor(self) -> float:
        """The least variance of the noise in this step; the data have unit variance."""
        first, last = FLOORS
        share = min(1.0, self.done / (0.8 * self.steps))
        return float(first ** (1 - share) * last**share)

    def data_loss(self, rows: Tensor) -> Tensor:
        """The mean negative log-likelihood of an entry under the most likely noise, without constants."""
        self.done += 1
        left: Tensor = (self.model() - self.data)[self.seen].square().mean()
        return 0.5 * (left + self.floor).log()

    def judge(self) -> dict[str, Any]:
        return {"seen_error": float((self.model() - self.data)[self.seen].square().mean().sqrt())}


def _entries(data: Tensor, seen: Tensor, seed: int) -> Learnable:
    """The seen entries as `shrink` takes them."""
    draw = torch.Generator().manual_seed(seed)
    is_held = seen & (torch.rand(seen.shape, generator=draw) < HELD)
    is_fitted = seen & ~is_held

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return 0.5 * (output - target)[is_fitted].square().mean()

    @torch.no_grad()
    def score(model: nn.Module) -> float:
        return -float((model() - data)[is_held].square().mean().sqrt())

    return Learnable([(data,)], loss, score, score)


# --- growth ----------------------------------------------------------------------------------------------------------

SIDES, ERROR, WIDEST = (7,) * 5, 1e-4, 7


@dataclass(frozen=True)
class Growth:
    """A planted network, and the graph that grows."""

    hidden: Graph
    start: Graph
    ranks: tuple[int, ...]
    """The ranks of the graph that describe the hidden network."""


def _joined(chain: Sequence[int], is_closed: bool) -> tuple[int, ...]:
    """The ranks of the complete graph that are those of a chain or ring of sites."""
    pairs = list(families.complete("tensor", free=SIDES, rank=2).bonds)
    known = {f"r{at}_{at + 1}": rank for at, rank in enumerate(chain[: len(SIDES) - 1], 1)}
    known |= {f"r1_{len(SIDES)}": chain[-1]} if is_closed else {}
    return tuple(known.get(pair, 1) for pair in pairs)


TRAIN, RING = (2, 3, 6, 5), (2, 3, 4, 5, 5)
GROWN = {
    "tt": Growth(families.tt("tensor", free=SIDES, ranks=TRAIN), families.tt("tensor", free=SIDES, rank=WIDEST), TRAIN),
    "ring": Growth(families.tr("tensor", free=SIDES, ranks=RING), families.tr("tensor", free=SIDES, rank=WIDEST), RING),
    "topology": Growth(
        families.tt("tensor", free=SIDES, ranks=TRAIN),
        families.complete("tensor", free=SIDES, rank=WIDEST),
        _joined(TRAIN, is_closed=False),
    ),
}
GREEDY = tuple(GROWN)


def grow(variant: str, seeds: Sequence[int], folder: Path, options: RunOptions) -> list[dict[str, Any]]:
    """Decomposes a tensor for each seed."""
    return [_grown(variant, seed) for seed in seeds]


def _grown(variant: str, seed: int) -> dict[str, Any]:
    given = GROWN[variant]
    clean, _, _ = planted(given.hidden, seed)
    size = float(clean.square().mean().sqrt())
    found = by_error(given.start, Goal(given.start, clean / size), Search(seed), ERROR).decomposition
    left = size * dense(found.graph, found.cores) - clean
    ranks = tuple(found.graph.bonds[bond].size if bond in found.graph.bonds else 1 for bond in given.start.bonds)
    return {
        "error": float(left.norm() / clean.norm()),
        "size_to_planted": count(found.graph).cores / count(given.hidden).cores,
        "as_planted": float(ranks == given.ranks),
        "found": list(ranks),
    }
