"""The problems of the benchmark: a network for each size, data, a loss, a validation score and a test.

Every choice is made on validation data that are split from the training data, or on the official development set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from bench.shrinking.training import stages
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import tnmars
from tnmars.experiments import cifar, lenet, readers, texts, toy, tucker
from tnmars.experiments import mnist as digits
from tnmars.experiments.idx import folder, mnist
from tnmars.layer.module import layers
from tnmars.select import Selector

BATCH = 128


class Batches:
    """Shuffled batches of some tensors, again and again."""

    def __init__(self, *tensors: Tensor, size: int = BATCH):
        self.tensors, self.size = tensors, size

    def __len__(self) -> int:
        return len(self.tensors[0]) // self.size

    def __iter__(self) -> Iterator[list[Tensor]]:
        order = torch.randperm(len(self.tensors[0]))
        for at in range(len(self)):
            rows = order[at * self.size : (at + 1) * self.size]
            yield [value[rows] for value in self.tensors]


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


def scaled(start: int, factor: float) -> int:
    """A start rank times a factor, rounded down, at least 1.

    >>> scaled(20, 0.25), scaled(20, 0.01)
    (5, 1)
    """
    return max(1, int(start * factor + 1e-9))


def part_of(model: nn.Module, name: str) -> tnmars.TNModule:
    """A compiled layer of a model."""
    return dict(layers(model))[name]


def limit(given: Task, ratio: int) -> tuple[str, int | str]:
    """A budget in words, and as `tnmars.shrink` takes it."""
    if not given.part:
        return f"{ratio}x parameters", f"{ratio}x"
    model = given.network(1.0)
    layer = part_of(model, given.part)
    own = sum(value.numel() for value in layer.parameters())
    rest = sum(value.numel() for value in model.parameters()) - own
    return f"{ratio}x {given.part}", rest + tnmars.count(layer.graph).dense // ratio


@torch.no_grad()
def right(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of right answers."""
    answers = torch.cat([model(part) for part in x.split(1000)])
    return answers.argmax(-1).eq(y).double().mean().item()


def classifier(
    network: Callable[[float], nn.Module], starts: tuple[int, ...], data: Sequence[Tensor], held: int, **more: Any
) -> Task:
    """A task of images or vectors with labels; the last training samples are for validation."""
    x, y, test_x, test_y = data
    return Task(
        network,
        starts,
        Batches(x[:-held], y[:-held]),
        cross_entropy,
        lambda model: (right(model, x[-held:], y[-held:]), held),
        lambda model: 100 * right(model, test_x, test_y),
        **more,
    )


def two_fc(factor: float = 1.0, selector: Selector | None = None) -> nn.Module:
    first, second = (
        tnmars.compile(graph, batch=BATCH, selector=selector, open_only=selector is not None)
        for graph in digits.graphs(scaled(digits.RANK, factor))
    )
    for layer in (first, second):
        nn.init.normal_(layer.bias, std=1e-3)
    return nn.Sequential(first, nn.ReLU(), second)


def student(factor: float) -> nn.Module:
    rank = scaled(toy.RANK, factor)
    graph = tnmars.families.lowrank("linear", inputs=(toy.INSIDE,), outputs=(toy.CLASSES,), rank=rank)
    return tnmars.compile(graph, batch=BATCH)


def _two_fc(seed: int) -> Task:
    data = mnist()
    return classifier(
        two_fc,
        (digits.RANK,),
        (data.train_x, data.train_y, data.test_x, data.test_y),
        min(5000, len(data.train_y) // 2),
        budgets=(100, 150, 205, 300, 400),
        dense=lambda: digits.network("dense"),
        gated=lambda selector: two_fc(selector=selector),
    )


def _lenet(family: str, budgets: tuple[int, ...]) -> Task:
    data = mnist()
    starts = lenet.START[family]
    return classifier(
        lambda factor: lenet.lenet(family, tuple(scaled(rank, factor) for rank in starts)),
        starts,
        (lenet.normalized(data.train_x), data.train_y, lenet.normalized(data.test_x), data.test_y),
        min(5000, len(data.train_y) // 2),
        budgets=budgets,
        dense=lenet.lenet,
    )


def _toy(rank: int, seed: int) -> Task:
    data = toy.taught(rank, seed)
    tensors = (data.train_x, data.train_y, data.test_x, data.test_y)
    dense = lambda: nn.Linear(toy.INSIDE, toy.CLASSES)  # noqa: E731
    return classifier(student, (toy.RANK,), tensors, 1000, budgets=(2,), dense=dense)


def _tucker(seed: int) -> Task:
    tensor = tucker.target(seed)

    @torch.no_grad()
    def likelihood(model: nn.Module) -> float:
        return -float(0.5 * (model() - tensor).square().mean())

    return Task(
        lambda factor: tnmars.compile(tucker.graph(scaled(tucker.START, factor))),
        (tucker.START,),
        [(tensor,)],
        lambda output, target: 0.5 * (output - target).square().mean(),
        likelihood,
        likelihood,
        budgets=(10,),
        options={"max_drop": 0.005},
    )


@torch.no_grad()
def right_texts(model: nn.Module, rows: Sequence[Sequence[int]], labels: Tensor) -> float:
    """The share of right answers on texts, which are sorted by length to save padding."""
    order = sorted(range(len(rows)), key=lambda at: len(rows[at]))
    found = 0
    for at in range(0, len(order), 500):
        part = order[at : at + 500]
        answers = model(texts.padded([rows[place] for place in part])).argmax(-1)
        found += int(answers.eq(labels[part]).sum())
    return found / len(rows)


Texts = tuple[Sequence[Sequence[int]], Tensor]
"""Token ids and labels."""


def _texts(train: Texts, held: Texts, test: Texts, size: int, **more: Any) -> Task:
    """A task of texts with labels, whose table of words is a layer called `embedding`."""
    return Task(
        train=texts.TextBatches(*train, size),
        loss=cross_entropy,
        evaluate=lambda model: (right_texts(model, *held), len(held[0])),
        test=lambda model: 100 * right_texts(model, *test),
        starts=(readers.RANK,),
        part="embedding",
        **more,
    )


@cache
def sst() -> tuple[Texts, Texts, Texts]:
    """SST-5: the official parts."""
    parts = [texts.read(folder() / "sst5" / f"{part}.tsv") for part in ("train", "dev", "test")]
    words = [[texts.split(text) for text in own] for own, _ in parts]
    ids = texts.vocabulary(words[0], readers.SST_VOCABULARY)
    train, held, test = ((texts.encoded(own, ids, 256), labels) for own, (_, labels) in zip(words, parts, strict=True))
    return train, held, test


def _sst(seed: int) -> Task:
    return _texts(
        *sst(),
        size=64,
        network=lambda factor: readers.sst_reader(scaled(readers.RANK, factor)),
        dense=lambda: readers.sst_reader(None),
        budgets=(340, 700, 1500),
    )


@cache
def imdb() -> tuple[Texts, Texts, Texts]:
    """IMDB: a fifth of the official training part is for validation, by a fixed permutation."""
    parts = [texts.read(folder() / "imdb" / f"{part}.tsv.xz") for part in ("train", "test")]
    words = [[texts.words(text) for text in own] for own, _ in parts]
    (known, labels), (tested, test_labels) = ((own, labels) for own, (_, labels) in zip(words, parts, strict=True))
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(0)).tolist()
    kept, held = order[len(order) // 5 :], order[: len(order) // 5]
    ids = texts.vocabulary((known[at] for at in kept), readers.IMDB_VOCABULARY)
    rows = texts.encoded(known, ids, 200)
    train, valid = (([rows[at] for at in part], labels[part]) for part in (kept, held))
    return train, valid, (texts.encoded(tested, ids, 200), test_labels)


def _imdb(seed: int) -> Task:
    return _texts(
        *imdb(),
        size=128,
        network=lambda factor: readers.imdb_reader(scaled(readers.RANK, factor)),
        dense=lambda: readers.imdb_reader(None),
        budgets=(559, 1000, 2000),
    )


@cache
def images() -> cifar.Cifar:
    return cifar.cifar(folder())


@torch.no_grad()
def right_images(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of right answers on images of bytes."""
    answers = torch.cat([model(cifar.normalized(part)) for part in x.split(500)])
    return answers.argmax(-1).eq(y).double().mean().item()


IMAGES, EPOCHS, FIRST, CALIBRATION = 128, 2, "2x", 16
"""Of CIFAR-10: the batch, the epochs of the dense network, the budget that it is compressed to first, and the batches
that calibrate this."""


def _cifar(seed: int) -> Task:
    data = images()
    held = min(5000, len(data.train_y) // 2)
    return Task(
        lambda factor: cifar.network(factor, IMAGES),
        (128,),
        cifar.Flipped(data.train_x[:-held], data.train_y[:-held], IMAGES),
        cross_entropy,
        lambda model: (right_images(model, data.train_x[-held:], data.train_y[-held:]), held),
        lambda model: 100 * right_images(model, data.test_x, data.test_y),
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
