"""Runs `tnmars.shrink` on the paper's problems, beside its controls, and appends the results to a file.

    python tests/bench/shrinking.py toy-8 --seeds 20-29 --json docs/results/shrink.json
    python tests/bench/shrinking.py mnist-2fc --seeds 20-22 --rows budgets,uniform,random

Rows: `untouched` is one call without a budget. `budgets` is one call with several. `random` is `budgets` with slices
chosen at random in the same canonical form. `uniform` trains equal ranks of about the asked size from scratch, in one
annealed run of as many steps as the path took to that size. Every choice is made on validation data that are split
from the training data; each point that is recorded is tested once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import tnmars
from tnmars.experiments import mnist as digits
from tnmars.experiments import toy, tucker
from tnmars.experiments.idx import mnist

sys.path.insert(0, str(Path(__file__).parent.parent))
from bench.models.run import Recorder

BATCH = 128
BUDGETS = {"mnist-2fc": (100, 150, 205, 300, 400), "toy-8": (2,), "toy-12": (2,), "toy-16": (2,)}
"""Ratios to the dense model."""
UNIFORM = {"mnist-2fc": (6, 5, 4, 3)}
"""Equal ranks that are trained from scratch; for 2FC they give 124x, 158x, 204x and 273x."""
ROWS = ("untouched", "budgets", "random", "uniform")


class Batches:
    """Shuffled batches of some tensors, again and again."""

    def __init__(self, *tensors: Tensor, size: int = BATCH):
        self.tensors, self.size = tensors, size

    def __len__(self) -> int:
        return len(self.tensors[0]) // self.size

    def __iter__(self) -> Iterator[list[Tensor]]:
        order = torch.randperm(len(self.tensors[0]))
        mixed = [value[order] for value in self.tensors]
        for at in range(len(self)):
            yield [value[at * self.size : (at + 1) * self.size] for value in mixed]


@dataclass(frozen=True)
class Task:
    """A problem: a network for each rank, data, a loss, a validation score and a test."""

    network: Callable[[int | None], nn.Module]
    """The network with all ranks equal; None for those that it starts with."""
    train: Any
    loss: Callable[[Any, Any], Tensor]
    evaluate: Callable[[nn.Module], Any]
    test: Callable[[nn.Module], float]
    options: Mapping[str, Any]


@torch.no_grad()
def right(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of right answers."""
    answers = torch.cat([model(part) for part in x.split(1000)])
    return answers.argmax(-1).eq(y).double().mean().item()


def classifier(network: Callable[[int | None], nn.Module], data: Sequence[Tensor], held: int) -> Task:
    """A task of images or vectors with labels; the last training samples are for validation."""
    x, y, test_x, test_y = data
    return Task(
        network,
        Batches(x[:-held], y[:-held]),
        cross_entropy,
        lambda model: (right(model, x[-held:], y[-held:]), held),
        lambda model: 100 * right(model, test_x, test_y),
        {},
    )


def two_fc(rank: int | None) -> nn.Module:
    first, second = (tnmars.compile(graph, batch=BATCH) for graph in digits.graphs(rank or digits.RANK))
    for layer in (first, second):
        nn.init.normal_(layer.bias, std=1e-3)
    return nn.Sequential(first, nn.ReLU(), second)


def student(rank: int | None) -> nn.Module:
    graph = tnmars.families.lowrank("linear", inputs=(toy.INSIDE,), outputs=(toy.CLASSES,), rank=rank or toy.RANK)
    return tnmars.compile(graph, batch=BATCH)


def task(name: str, seed: int) -> Task:
    """The task of a name, for a seed."""
    if name == "mnist-2fc":
        images = mnist()
        return classifier(two_fc, (images.train_x, images.train_y, images.test_x, images.test_y), 5000)
    if name.startswith("toy-"):
        data = toy.taught(int(name[4:]), seed)
        return classifier(student, (data.train_x, data.train_y, data.test_x, data.test_y), 1000)
    tensor = tucker.target(seed)

    @torch.no_grad()
    def likelihood(model: nn.Module) -> float:
        return -float(0.5 * (model() - tensor).square().mean())

    return Task(
        lambda rank: tnmars.compile(tucker.graph(rank or tucker.START)),
        [(tensor,)],
        lambda output, target: 0.5 * (output - target).square().mean(),
        likelihood,
        likelihood,
        {"max_drop": 0.005},
    )


def by_chance(model: nn.Module, weights: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Random saliencies."""
    return {name: {bond: torch.rand(len(each)) for bond, each in own.items()} for name, own in weights.items()}


def run(
    name: str, row: str, seed: int, recorder: Recorder, settings: Mapping[str, Any], ratios: Sequence[int] = ()
) -> None:
    given = task(name, seed)
    if row == "uniform":
        for rank in ratios or UNIFORM.get(name, ()):
            uniform(name, given, rank, seed, recorder)
        return
    torch.manual_seed(1000 + seed)
    clock = time.process_time()
    options = dict(given.options)
    if row in ("budgets", "random"):
        options = {"budget": [f"{ratio}x" for ratio in ratios or BUDGETS[name]]}
    if row == "random":
        options["saliency"] = by_chance
    curve = tnmars.shrink(
        given.network(None),
        train=given.train,
        loss=given.loss,
        evaluate=given.evaluate,
        seed=seed,
        settings=tnmars.Staircase(**settings),
        watch=lambda record: print(record, file=sys.stderr, flush=True),
        **options,
    )
    spent = time.process_time() - clock
    taken = (
        {"": curve.chosen} if not curve.budgets else {words: curve.points[at] for words, at in curve.budgets.items()}
    )
    for words, point in taken.items():
        recorder.add(
            task=name,
            row=row,
            seed=seed,
            budget=words,
            parameters=point.parameters,
            ratio=point.ratio,
            ranks=[size for sizes in point.ranks.values() for size in sizes.values()],
            validation=point.score,
            test=given.test(point.model),
            macs=point.macs,
            steps=point.steps,
            points=len(curve.points),
            settings=dict(settings),
            cpu_seconds=spent,
        )


STEPS = {6: 10_000, 5: 13_000, 4: 18_000, 3: 24_000}
"""The steps of uniform ranks on 2FC: about as many as a path takes to that size."""


def uniform(name: str, given: Task, rank: int, seed: int, recorder: Recorder) -> None:
    """Equal ranks from scratch, in one annealed run."""
    torch.manual_seed(1000 + seed)
    clock = time.process_time()
    model, steps = given.network(rank), STEPS[rank]
    path = tnmars.Stages(
        model, budget="1.001x", train_samples=len(given.train) * BATCH, settings=tnmars.Staircase(first=steps // 2)
    )
    stage, done = next(iter(path)), 0
    torch.manual_seed(seed)
    while done < stage.steps:
        for *inputs, target in given.train:
            if done == stage.steps:
                break
            given.loss(model(*inputs), target).backward()
            stage.step()
            done += 1
    model.eval()
    score = given.evaluate(model)
    stage.report(score)
    point = path.curve.points[0]
    recorder.add(
        task=name,
        row="uniform",
        seed=seed,
        budget=f"rank {rank}",
        parameters=point.parameters,
        ratio=point.ratio,
        ranks=[size for sizes in point.ranks.values() for size in sizes.values()],
        validation=point.score,
        test=given.test(model),
        macs=point.macs,
        steps=done,
        points=1,
        settings={},
        cpu_seconds=time.process_time() - clock,
    )


def numbers(text: str) -> list[int]:
    """Numbers such as `20-29` or `0,2`.

    >>> numbers("20-22,5")
    [20, 21, 22, 5]
    """
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="+", choices=("mnist-2fc", "toy-8", "toy-12", "toy-16", "tucker"))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--rows", default="untouched")
    parser.add_argument("--ratios", default="", help="for budgets and random, such as 100,205; for uniform, the ranks")
    parser.add_argument("--json", type=Path, default=None)
    for setting, kind in (("rate", float), ("factor", float), ("first", int)):
        parser.add_argument(f"--{setting}", type=kind, default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    recorder = Recorder(given.json)
    settings = {name: getattr(given, name) for name in ("rate", "factor", "first") if getattr(given, name) is not None}
    for name in given.tasks:
        for seed in numbers(given.seeds):
            for row in given.rows.split(","):
                if row not in ROWS:
                    parser.error(f"row '{row}' is unknown; rows: {', '.join(ROWS)}")
                run(name, row, seed, recorder, settings, numbers(given.ratios) if given.ratios else ())


if __name__ == "__main__":
    main()
