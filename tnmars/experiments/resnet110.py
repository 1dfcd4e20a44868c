"""CIFAR-10 with ResNets whose equal convolutions of stages 2 and 3 are TT convolutions, naive and proper.

ResNet-110 is counted as in the paper (`counts`); to train it would take weeks here. The reduced form begins with the
published weights of ResNet-56: the convolutions are decomposed at rank 20 and trained for four epochs, with fixed
ranks, with the paper's gates, with the prior of LR-BTNN (`ard`), or along a path of `tnmars.shrink` to 5x and 7x of
these layers. `resnet20` is ResNet-20 from scratch, for the 32 epochs that an hour allows, and `resnet20-proper` the
same with fresh proper TT convolutions of rank 20. All of them train as in a stage of `tnmars.Stages`, with images
mirrored and shifted; gates have a rate of 1e-2, and their temperature falls in every step.

The last 5,000 training images are for validation. The published weights have seen them too, so they tell the decomposed
networks apart, but are no estimate of the test accuracy. No choice is made on test images.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tnmars.experiments.cifar import IMAGENET, Cifar, cifar, mirrored, normalized, shifted
from tnmars.experiments.idx import folder as data_folder
from tnmars.experiments.loop import RunOptions, Settings, trained
from tnmars.experiments.paths import points, shrunk
from tnmars.experiments.problems import compression, held_out, pictures, right_images
from tnmars.experiments.resnet import FORMS, ResNet, pretrained, replace_, weights_file
from tnmars.experiments.task import Task, live_ranks
from tnmars.graph.counts import total
from tnmars.layer.module import layers
from tnmars.pruning.prune_model import prune
from tnmars.select import Ard, Mars, Selector

DEPTH = 56
BATCH = 64
EPOCHS = {"tuned": 4, "fresh": 32}
FIXED = {f"tt-{form}": form for form in FORMS}
GATED: dict[str, tuple[str, Selector]] = {
    "mars-naive": ("naive", Mars(pi=1e-2, alpha=2.25)),
    "mars-proper": ("proper", Mars(pi=4e-3, alpha=3.0)),
}
CHOOSING: dict[str, tuple[str, Selector]] = {**GATED, **{f"ard-{form}": (form, Ard()) for form in FORMS}}
PATHS = {f"shrink-{form}": form for form in FORMS}
RATIOS = (5, 7)
"""The compressions of the decomposed layers that paths go to; at rank 20 it is about 4.5."""
FRESH = {"resnet20": "", "resnet20-proper": "proper"}
"""Networks from scratch, and the form of their convolutions."""
VARIANTS = ("counts", "pretrained", *FIXED, *CHOOSING, *PATHS, *FRESH)
PAPER: dict[str, dict[str, Any]] = {
    "counts": {"naive": 2.7, "proper": 2.3},
    "pretrained": {"accuracy": 92.6},
    "tt-naive": {"compression": 2.7, "accuracy": 91.1},
    "ard-naive": {"compression": 7.4, "accuracy": 90.4},
    "mars-naive": {"compression": 7.0, "accuracy": 90.7},
    "mars-proper": {"compression": 5.5, "accuracy": 91.1},
}


def run(variant: str, seeds: Sequence[int], folder: Path, options: RunOptions) -> list[dict[str, Any]]:
    """Counts, or trains a network for each seed."""
    return [counted() if variant == "counts" else _run(variant, seed, folder, options) for seed in seeds]


def prepare(data: str | None) -> object:
    """Makes sure that images and weights are there. Raises `TnmarsError`."""
    return weights_file(DEPTH, data), cifar(data_folder(data))


def counted() -> dict[str, float]:
    """The compression of ResNet-110 in both forms, with projections as shortcuts and BatchNorm counted."""
    return {form: compression(replace_(resnet110(), form, is_fresh=True)) for form in FORMS}


def resnet110() -> ResNet:
    """The paper's network."""
    return ResNet(18, is_projected=True)


def _run(variant: str, seed: int, folder: Path, options: RunOptions) -> dict[str, Any]:
    torch.manual_seed(1000 + seed)
    data = cifar(data_folder(options.data))
    learnable = pictures(data, BATCH, is_shifted=True, channels=IMAGENET)

    def judged(small: nn.Module, words: str = "") -> dict[str, Any]:
        ratios = {"compression": compression(small), "layers_compression": of_layers(small)}
        return {"accuracy": learnable.test(small.eval()), **ratios}

    if variant == "pretrained":
        return judged(pretrained(DEPTH, options.data))
    model = network(variant, options.data)
    if variant in PATHS:
        budgets = dict(limit(model, ratio) for ratio in RATIOS)
        curve = shrunk(model, learnable, seed, folder, options, budget=list(budgets.values()))
        return {"points": points(curve, budgets, judged)}
    epochs = options.epochs or EPOCHS["fresh" if variant in FRESH else "tuned"]
    settings = Settings(
        epochs=epochs, batch=BATCH, anneals=True, temperature_decay=0.1 ** (1 / epochs), is_smooth=True, seed=seed
    )
    history = trained(Photos(model, data), settings, folder, options, {"variant": variant})
    ranks = {"ranks": live_ranks(model)} if variant in CHOOSING else {}
    return {**judged(prune(model) if variant in CHOOSING else model), **ranks, "history": history}


def network(variant: str, data: str | None = None) -> ResNet:
    """The network that a variant begins with."""
    if variant in FRESH:
        made = ResNet(3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return replace_(made, FRESH[variant], batch=BATCH, is_fresh=True) if FRESH[variant] else made
    form, selector = CHOOSING.get(variant, (FIXED.get(variant) or PATHS.get(variant, ""), None))
    return replace_(pretrained(DEPTH, data), form, batch=BATCH, selector=selector)


def of_layers(model: nn.Module) -> float:
    """The compression of the compiled layers alone."""
    every = [layer.graph for _, layer in layers(model)]
    return total(every).compression if every else 1.0


def limit(model: nn.Module, ratio: int) -> tuple[str, int]:
    """The budget for the whole model at which the decomposed layers have a compression."""
    found = total(layer.graph for _, layer in layers(model))
    other = sum(value.numel() for value in model.parameters()) - found.cores
    return f"{ratio}x layers", other + found.dense // ratio


class Photos(Task):
    """The task: to classify images, mirrored and shifted at random."""

    def __init__(self, model: nn.Module, data: Cifar):
        held = held_out(len(data.train_y))
        self.model = model
        self.train = data.train_x[:-held], data.train_y[:-held]
        self.held = data.train_x[-held:], data.train_y[-held:]
        self.size = len(self.train[1])

    def data_loss(self, rows: Tensor) -> Tensor:
        images, labels = self.train
        return cross_entropy(self.model(mirrored(normalized(shifted(images[rows]), IMAGENET))), labels[rows])

    def judge(self) -> dict[str, Any]:
        return {"validation": 100 * right_images(self.model, *self.held, IMAGENET)}
