"""MNIST with a network of two fully connected layers, 784-625-10, both tensor trains (the paper's 2FC-Net)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tnmars import families
from tnmars.compiler import compile_quietly as compile
from tnmars.experiments.idx import Mnist, mnist
from tnmars.experiments.jobs import network_name
from tnmars.experiments.loop import RunOptions, Settings, trained
from tnmars.experiments.paths import points, ratios, shrunk
from tnmars.experiments.problems import held_out, vectors
from tnmars.experiments.task import Task, chooses, live_ranks
from tnmars.graph import Graph, counts
from tnmars.layer.module import layers
from tnmars.pruning.prune_model import prune
from tnmars.select import Ard, Mars, Selector
from tnmars.store.model import load_into, save

RANK = 20
BATCH = 128
PIS = ("1e-4", "1e-3", "1e-2", "1e-1", "3e-1")
"""The prior probabilities of the ablation. Everything else is as in `soft`, which has 1e-1."""
SELECTORS: dict[str, Selector | None] = {
    "soft": Mars(pi=1e-1, alpha=-1.5),
    "hard": Mars(pi=1e-2, alpha=-1.75),
    "ard": Ard(),
    "tt-20": None,
    **{f"pi-{pi}": Mars(pi=float(pi), alpha=-1.5) for pi in PIS if pi != "1e-1"},
}
PATHS: dict[str, tuple[str, ...]] = {"shrink": (), "shrink-to": ("141x", "205x")}
"""The budgets of calls of `tnmars.shrink`."""
VARIANTS = ("soft", "hard", "ard", "tt-20", "dense", *PATHS)
ABLATION = tuple(variant for variant in SELECTORS if variant.startswith("pi-"))
"""Variants that run only on request."""
PAPER: dict[str, dict[str, Any]] = {
    "dense": {"compression": 1.0, "accuracy": 98.2},
    "tt-20": {"compression": 18.0, "accuracy": 97.7},
    "soft": {"compression": 141.0, "accuracy": 98.2, "ensemble": 98.9},
    "hard": {"compression": 205.0, "accuracy": 97.9},
    "ard": {"compression": 137.0, "accuracy": 97.8},
}
"""The paper's figures; those of `ard` are of LR-BTNN, which has such a prior."""


def graphs(rank: int = RANK) -> tuple[Graph, Graph]:
    """The two layers."""
    first = families.tt("linear", inputs=(7, 4, 7, 4), outputs=(5, 5, 5, 5), rank=rank)
    second = families.tt("linear", inputs=(25, 25), outputs=(5, 2), rank=rank)
    return first, second


def network(variant: str) -> nn.Sequential:
    """The network of a variant."""
    if variant == "dense":
        return nn.Sequential(nn.Linear(784, 625), nn.ReLU(), nn.Linear(625, 10))
    return trains(selector=SELECTORS.get(variant))


def trains(rank: int = RANK, selector: Selector | None = None) -> nn.Sequential:
    """The network with two tensor trains."""
    first, second = (
        compile(graph, selector=selector, open_only=selector is not None, batch=BATCH) for graph in graphs(rank)
    )
    for layer in (first, second):
        nn.init.normal_(layer.bias, std=1e-3)  # as in the reference
    return nn.Sequential(first, nn.ReLU(), second)


class Digits(Task):
    """The task: to classify digits."""

    def __init__(self, model: nn.Module, data: Mnist):
        self.model = model
        self.data = data
        self.size = len(data.train_y)

    def data_loss(self, rows: Tensor) -> Tensor:
        return cross_entropy(self.model(self.data.train_x[rows]), self.data.train_y[rows])

    def judge(self) -> dict[str, float]:
        return {"accuracy": accuracy(logits(self.model, self.data.test_x), self.data.test_y)}


@torch.no_grad()
def logits(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part) for part in torch.split(x, 1000)])


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """The percentage of correct answers."""
    return 100.0 * scores.argmax(-1).eq(labels).double().mean().item()


def compression(model: nn.Module) -> float:
    """The compression of all layers together, biases included, as the paper's notebooks count it."""
    total = counts.total(layer.graph for _, layer in layers(model))
    return total.compression_with_other if total.dense else 1.0


def run(variant: str, seeds: Sequence[int], folder: Path, options: RunOptions) -> list[dict[str, Any]]:
    """Trains a network for each seed, prunes it and judges what is left. The pruned model is in the folder."""
    return [_run(variant, seed, folder, options) for seed in seeds]


def _run(variant: str, seed: int, folder: Path, options: RunOptions) -> dict[str, Any]:
    if variant in PATHS:
        return _path(variant, seed, folder, options)
    torch.manual_seed(seed)
    settings = Settings(epochs=options.epochs or 300, judge_every=5, seed=seed)
    images = mnist(options.data)
    task = Digits(network(variant), images)
    history = trained(task, settings, folder, options, {"variant": variant})
    small = prune(task.model) if chooses(task.model) else copy.deepcopy(task.model)
    small.eval()
    save(small, folder / network_name())
    return {
        "accuracy": accuracy(logits(small, images.test_x), images.test_y),
        "accuracy_before_cut": accuracy(logits(task.model, images.test_x), images.test_y),
        "compression": compression(small),
        "ranks": live_ranks(task.model),
        "probabilities": probabilities(task.model),
        "epochs": settings.epochs,
        "history": history,
    }


def _path(variant: str, seed: int, folder: Path, options: RunOptions) -> dict[str, Any]:
    torch.manual_seed(1000 + seed)
    images, budgets = mnist(options.data), ratios(PATHS[variant])
    data = images.train_x, images.train_y, images.test_x, images.test_y
    learnable = vectors(*data, held_out(len(images.train_y)), BATCH)
    goals: dict[str, Any] = {"budget": list(budgets.values())} if budgets else {}
    curve = shrunk(trains(), learnable, seed, folder, options, **goals)

    def judge(small: nn.Module, words: str) -> dict[str, Any]:
        save(small, folder / network_name(words))
        return {"accuracy": learnable.test(small), "compression": compression(small)}

    return {"points": points(curve, budgets, judge)}


def probabilities(model: nn.Module) -> dict[str, list[float]]:
    """The learned probability of each gate, by layer and bond."""
    return {
        f"{name}.{bond}": [round(value, 6) for value in torch.sigmoid(values.detach()).tolist()]
        for name, layer in layers(model)
        for bond, values in zip(layer.graph.bonds, layer.logits(), strict=False)
    }


def ensemble(files: Sequence[Path], variant: str, data: str | None = None) -> float:
    """The accuracy of the mean of several networks' probabilities."""
    images = mnist(data)
    total = torch.zeros(len(images.test_y), 10)
    for file in files:
        total += logits(load_into(network(variant), file).eval(), images.test_x).softmax(-1)
    return accuracy(total, images.test_y)
