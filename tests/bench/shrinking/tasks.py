"""The problems of the benchmark: a network for each size, data, a loss, a validation score and a test.

Every choice is made on validation data that are split from the training data, or on the official development set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from bench.shrinking.training import stages
from torch import Tensor, nn

import tnmars
from tnmars.experiments import cifar, lenet, problems, readers, toy, tucker
from tnmars.experiments import mnist as digits
from tnmars.experiments.idx import folder, mnist
from tnmars.experiments.problems import Batches as Batches
from tnmars.experiments.problems import Learnable, Texts, scaled
from tnmars.experiments.texts import imdb, sst
from tnmars.select import Selector


@dataclass(frozen=True)
class Task:
    """A problem."""

    network: Callable[[float], nn.Module]
    """The network with its start ranks times a factor, rounded down."""
    starts: tuple[int, ...]
    """The start ranks."""
    train: Any
    loss: Callable[[Any, Any], Tensor]
    evaluate: Callable[[nn.Module], Any]
    test: Callable[[nn.Module], float]
    budgets: tuple[int, ...] = ()
    """Ratios: of the whole model, or of the layer `part`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of a call without budgets."""
    dense: Callable[[], nn.Module] | None = None
    part: str = ""
    """The layer that budgets refer to, such as an embedding; by default the whole model."""
    gated: Callable[[Selector], nn.Module] | None = None
    """The network with gates."""
    begin: Callable[[int], tuple[nn.Module, dict[str, Any]]] | None = None
    """For a seed, the model that the path begins with, and figures for its records; by default `network(1.0)`."""


def limit(given: Task, ratio: int) -> tuple[str, int | str]:
    """A budget in words, and as `tnmars.shrink` takes it."""
    return problems.limit(given.network(1.0), given.part, ratio)


def task(network: Callable[[float], nn.Module], starts: tuple[int, ...], problem: Learnable, **more: Any) -> Task:
    """A task with the data of a problem."""
    return Task(network, starts, problem.train, problem.loss, problem.evaluate, problem.test, **more)


def classifier(
    network: Callable[[float], nn.Module], starts: tuple[int, ...], data: Sequence[Tensor], held: int, **more: Any
) -> Task:
    """A task of images or vectors with labels; the last training samples are for validation."""
    return task(network, starts, problems.vectors(*data, held), **more)


def _two_fc(seed: int) -> Task:
    data = mnist()
    return classifier(
        lambda factor: digits.trains(scaled(digits.RANK, factor)),
        (digits.RANK,),
        (data.train_x, data.train_y, data.test_x, data.test_y),
        problems.held_out(len(data.train_y)),
        budgets=(100, 150, 205, 300, 400),
        dense=lambda: digits.network("dense"),
        gated=lambda selector: digits.trains(selector=selector),
    )


def _lenet(family: str, budgets: tuple[int, ...]) -> Task:
    data = mnist()
    starts = lenet.START[family]
    return classifier(
        lambda factor: lenet.lenet(family, tuple(scaled(rank, factor) for rank in starts)),
        starts,
        (lenet.normalized(data.train_x), data.train_y, lenet.normalized(data.test_x), data.test_y),
        problems.held_out(len(data.train_y)),
        budgets=budgets,
        dense=lenet.lenet,
    )


def _toy(rank: int, seed: int) -> Task:
    data = toy.taught(rank, seed)
    tensors = (data.train_x, data.train_y, data.test_x, data.test_y)
    dense = lambda: nn.Linear(toy.INSIDE, toy.CLASSES)  # noqa: E731
    network = lambda factor: toy.factors(scaled(toy.RANK, factor))  # noqa: E731
    return classifier(network, (toy.RANK,), tensors, toy.HELD, budgets=(2,), dense=dense)


def _tucker(seed: int) -> Task:
    return task(
        lambda factor: tnmars.compile(tucker.graph(scaled(tucker.START, factor))),
        (tucker.START,),
        tucker.problem(tucker.target(seed)),
        budgets=(10,),
        options={"max_drop": tucker.MAX_DROP},
    )


def _texts(network: Callable[[float], nn.Module], parts: tuple[Texts, Texts, Texts], size: int, **more: Any) -> Task:
    """A task of texts with labels, whose table of words is a layer called `embedding`."""
    return task(network, (readers.RANK,), problems.reading(*parts, size), part="embedding", **more)


def _sst(seed: int) -> Task:
    return _texts(
        lambda factor: readers.sst_reader(scaled(readers.RANK, factor)),
        sst(),
        size=64,
        dense=lambda: readers.sst_reader(None),
        budgets=(340, 700, 1500),
    )


def _imdb(seed: int) -> Task:
    return _texts(
        lambda factor: readers.imdb_reader(scaled(readers.RANK, factor)),
        imdb(),
        size=128,
        dense=lambda: readers.imdb_reader(None),
        budgets=(559, 1000, 2000),
    )


@cache
def images() -> cifar.Cifar:
    return cifar.cifar(folder())


IMAGES, EPOCHS, FIRST, CALIBRATION = 128, 2, "2x", 16
"""Of CIFAR-10: the batch, the epochs of the dense network, the budget that it is compressed to first, and the batches
that calibrate this."""


def _cifar(seed: int) -> Task:
    return task(
        lambda factor: cifar.network(factor, IMAGES),
        (128,),
        problems.pictures(images(), IMAGES),
        budgets=(5, 8),
        dense=lambda: cifar.network(None, IMAGES),
        begin=lambda seed: _compressed(seed),
    )


@cache
def _compressed(seed: int) -> tuple[nn.Module, dict[str, Any]]:
    """A dense network trained in one annealed stage, then compressed; and its figures. Rows of a seed share it.

    Layers but the first that stay dense are factored exactly, so that the path can cut them too.
    """
    given = _cifar(seed)
    torch.manual_seed(1000 + seed)
    model, steps = cifar.network(None, IMAGES), EPOCHS * len(given.train)
    for _ in stages(model, given, [steps], seed, tnmars.Staircase()):
        figures = {"dense_validation": given.evaluate(model)[0], "dense_test": given.test(model), "dense_steps": steps}
    batches = [images for _, (images, _) in zip(range(CALIBRATION), given.train, strict=False)]
    plan = tnmars.compress_(model, budget=FIRST, data=batches, seed=seed)
    for name, layer in list(model.named_children())[1:]:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):  # left dense; the path could not cut it, nor come to 8x
            ranks = min(layer.weight.shape[0], layer.weight[0].numel())
            setattr(model, name, tnmars.from_dense(layer, "lowrank", ranks=ranks, batch=IMAGES))
    model.to(memory_format=torch.channels_last)
    print(f"{figures}\n{plan}", file=sys.stderr, flush=True)
    return model, {**figures, "compressed_validation": given.evaluate(model.eval())[0]}


TASKS: dict[str, Callable[[int], Task]] = {
    "mnist-2fc": _two_fc,
    "toy-8": lambda seed: _toy(8, seed),
    "toy-12": lambda seed: _toy(12, seed),
    "toy-16": lambda seed: _toy(16, seed),
    "tucker": _tucker,
    "lenet-tucker": lambda seed: _lenet("tucker", (10, 20)),
    "lenet-ring": lambda seed: _lenet("ring", (20, 40)),
    "sst5": _sst,
    "imdb-bag": _imdb,
    "cifar-cnn": _cifar,
}
"""From a seed to a task."""
