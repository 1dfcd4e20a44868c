"""SST-5 and IMDB: a table of word vectors, dense or a tensor train, then a bidirectional LSTM of two layers.

As in the paper only the table is compressed, and compression is that of the table alone. Initial values, Adam 1e-3 and
dropout 0.5 are those of tt-pytorch and its example. Other than there, the rate falls by a factor of 0.9 per epoch, and
batches have 64 (SST-5) or 128 texts of similar length: runs are short. Gates have a rate of 1e-2, so that they settle.
In the first epochs they are open and do not move (the paper: "several epochs" without masks), because otherwise they
close before the cores have learned anything. Gates open slowly afterwards: variants with them have 1.5 (IMDB) or nearly
twice (SST-5) as many epochs, at a constant rate, as tt-pytorch has.

The model of the epoch with the best validation accuracy is taken; with gates, of the epochs after the temperature has
come down; of a path, the best point within the budget. Reviews of IMDB are cut to their first 100 words, so that a run
takes less than an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tnmars.compiler import compile_quietly as compile
from tnmars.experiments import readers, texts
from tnmars.experiments.annealing import LOGITS
from tnmars.experiments.loop import RunOptions, Settings, trained
from tnmars.experiments.paths import points, shrunk
from tnmars.experiments.problems import limit, reading, right_texts
from tnmars.experiments.readers import Sentences
from tnmars.experiments.task import Task, live_ranks
from tnmars.experiments.texts import Part
from tnmars.graph import Graph, Role
from tnmars.graph.counts import count
from tnmars.layer.module import layers
from tnmars.pruning.prune_model import prune
from tnmars.select import Mars, Selector
from tnmars.training.objective import param_groups

LONGEST = 100
"""The number of words that a review of IMDB is cut to."""
HIDDEN, DEPTH, LOOKUPS = 128, 2, 1024
RATE, DECAY = 1e-3, 0.9
COLD = 0.6
"""The share of the epochs with gates after which the temperature has its final value."""
PART = "embedding"


@dataclass(frozen=True)
class Corpus:
    """One data set, and what is run on it."""

    read: Callable[[str | None], tuple[Part, Part, Part]]
    table: Callable[[int], Graph]
    """The train with a number of cores, at the start rank."""
    vocabulary: int
    classes: int
    batch: int
    epochs: int
    gated_epochs: int
    """The epochs of a variant with gates."""
    warmup: int
    """The first epochs of a variant with gates, in which they are open and do not move."""
    fixed: Mapping[str, int]
    """Variants with fixed ranks, and how many cores they have."""
    gated: Mapping[str, tuple[int, Selector]]
    """Variants with gates: cores and selector."""
    paths: Mapping[str, tuple[int, tuple[int, ...]]]
    """Variants with `tnmars.shrink`: cores, and budgets as ratios of the table."""
    paper: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def variants(self) -> tuple[str, ...]:
        return ("dense", *self.fixed, *self.gated, *self.paths)

    def network(self, variant: str) -> Sentences:
        """The network that a variant begins with."""
        if variant == "dense":
            table: nn.Module = nn.Embedding(self.vocabulary, readers.WIDTH, padding_idx=texts.PADDING)
        else:
            cores, selector = self.gated.get(variant, (0, None))
            cores = cores or self.fixed.get(variant, 0) or self.paths[variant][0]
            graph = self.table(cores)
            table = compile(graph, selector=selector, open_only=selector is not None, batch=LOOKUPS, init=glorot(graph))
        return Sentences(table, self.classes, HIDDEN, depth=DEPTH)

    def run(self, variant: str, seeds: Sequence[int], folder: Path, options: RunOptions) -> list[dict[str, Any]]:
        """Trains a network for each seed."""
        return [self._run(variant, seed, folder, options) for seed in seeds]

    def prepare(self, data: str | None) -> object:
        """Makes sure that the data are there. Raises `TnmarsError`."""
        return self.read(data)

    def _run(self, variant: str, seed: int, folder: Path, options: RunOptions) -> dict[str, Any]:
        torch.manual_seed(1000 + seed)
        train, held, test = self.read(options.data)
        model = self.network(variant)
        learnable = reading(train, held, test, self.batch)

        def judged(small: nn.Module, words: str = "") -> dict[str, Any]:
            return {"accuracy": learnable.test(small.eval()), "compression": table_compression(small)}

        if variant in self.paths:
            budgets = dict(limit(model, PART, ratio) for ratio in self.paths[variant][1])
            curve = shrunk(model, learnable, seed, folder, options, budget=list(budgets.values()))
            return {"points": points(curve, budgets, judged, is_best=True)}
        is_gated = variant in self.gated
        epochs = options.epochs or (self.gated_epochs if is_gated else self.epochs)
        warmup = min(self.warmup, epochs // 2) if is_gated else 0
        settings = Settings(
            epochs=epochs,
            batch=self.batch,
            lr=RATE,
            lr_decay=1.0 if is_gated else DECAY,
            warmup_epochs=warmup,
            temperature_decay=0.1 ** (1 / max(1.0, COLD * (epochs - warmup))),
            seed=seed,
            keep_best="settled_validation",
        )
        task = Opinions(model, train, held)
        history = trained(task, settings, folder, options, {"variant": variant})
        small = prune(task.model) if variant in self.gated else task.model
        best = max(one["settled_validation"] for one in history)
        return {**judged(small), "validation": best, "ranks": live_ranks(task.model), "history": history}


class Opinions(Task):
    """The task: to classify texts."""

    def __init__(self, model: nn.Module, train: Part, held: Part):
        self.model, self.train, self.held = model, train, held
        self.size = len(train[0])

    def order(self, random: torch.Generator, batch: int) -> Tensor:
        """A random order of batches in which texts are of similar length."""
        return texts.near_lengths([len(row) for row in self.train[0]], batch, random)

    def data_loss(self, rows: Tensor) -> Tensor:
        ids, labels = self.train
        return cross_entropy(self.model(texts.padded([ids[at] for at in rows.tolist()])), labels[rows])

    def judge(self) -> dict[str, Any]:
        """The validation accuracy; it counts once gates have their final temperature."""
        share = 100 * right_texts(self.model, *self.held)
        masks = [layer.masks for _, layer in layers(self.model) if layer.masks is not None]
        is_settled = all(float(one.temperature) <= 1.01 * one.selector.temperature_at(1.0) for one in masks)
        return {"validation": share, "settled_validation": share if is_settled else 0.0}

    def groups(self, lr: float) -> list[dict[str, Any]]:
        return param_groups(self.model, lr, mask_lr=LOGITS)


def glorot(graph: Graph) -> float:
    """The variance of a table's entries at the start, as in tt-pytorch: by its padded rows and its columns.

    >>> round(2 / glorot(readers.sst_table()))
    18256
    """
    return 2.0 / (prod(mode.size for mode in graph.of_role(Role.LOOKUP)) + graph.out_features)


def table_compression(model: nn.Module) -> float:
    """The compression of the table alone."""
    return next((count(layer.graph).compression for name, layer in layers(model) if name == PART), 1.0)


SST = Corpus(
    texts.sst,
    lambda cores: readers.sst_table(cores=cores),
    texts.SST_VOCABULARY,
    classes=5,
    batch=64,
    epochs=16,
    gated_epochs=30,
    warmup=3,
    fixed={"tt-3": 3, "tt-4": 4, "tt-6": 6},
    gated={"mars-tt-4": (4, Mars(pi=1e-2, alpha=-1.0))},
    paths={"shrink-tt-4": (4, (340, 700))},
    paper={
        "dense": {"compression": 1.0, "accuracy": 37.4},
        "tt-3": {"compression": 78.0, "accuracy": 41.5},
        "tt-6": {"compression": 307.0, "accuracy": 39.9},
        "mars-tt-4": {"compression": 340.0, "accuracy": 42.4},
    },
)
IMDB = Corpus(
    lambda data: texts.imdb(data, LONGEST),
    lambda cores: readers.imdb_table(cores=cores, mode=None),
    texts.IMDB_VOCABULARY,
    classes=2,
    batch=128,
    epochs=6,
    gated_epochs=9,
    warmup=1,
    fixed={"tt-6": 6},
    gated={"mars-tt-6": (6, Mars(pi=1e-2, alpha=-0.25))},
    paths={"shrink-tt-6": (6, (559, 1000))},
    paper={
        "dense": {"compression": 1.0, "accuracy": 88.6},
        "tt-6": {"compression": 441.0, "accuracy": 89.7},
        "mars-tt-6": {"compression": 559.0, "accuracy": 90.1},
    },
)
