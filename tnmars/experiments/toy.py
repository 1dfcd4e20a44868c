"""The paper's toy problem: MARS must find the rank of a linear classifier.

The inputs and the teacher's factors are standard normal; the label is the largest of the teacher's outputs. The student
starts with rank 32. `ard` has a prior on whole slices instead of gates, and the same schedule. `search` trains
classifiers within several budgets, which `tnmars.search_ranks` turns into ranks, and takes the smallest whose score on
validation data is within two standard errors of the best, as `shrink` does.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tnmars import families
from tnmars.compiler import compile_quietly as compile
from tnmars.experiments.crew import Crew, CrewSchedule
from tnmars.experiments.loop import Run, RunOptions, Settings, trained
from tnmars.experiments.paths import shrunk
from tnmars.experiments.problems import right, vectors
from tnmars.experiments.task import Task, chooses, live_ranks
from tnmars.files import make_folder
from tnmars.graph import Graph
from tnmars.layer.module import TNModule
from tnmars.pruning.prune_model import prune
from tnmars.searching.search import search_ranks
from tnmars.select import Ard, Mars, Selector
from tnmars.training.schedule import MaskSchedule

COUNT, INSIDE, CLASSES, RANK, TESTED = 10_000, 128, 32, 32, 10_000
HELD = 1000
"""The number of training samples that `shrink` has for validation."""
ALPHAS = {8: -4.0, 12: -3.5, 16: -3.0}
"""The paper's initial mean of the logits, chosen for each rank of the teacher: it gives part of the rank away."""
VARIANTS = tuple(f"{way}-{rank}" for rank in ALPHAS for way in ("mars", "dense", "shrink", "ard", "search"))
TRIED, EPOCHS = (4, 6, 8, 10, 12, 14, 16, 20, 24, 32), 30
"""For `search`: the ranks whose numbers of parameters are the budgets, and the epochs of each training."""
PAPER: dict[str, dict[str, Any]] = {
    "mars-8": {"rank": 8.4, "accuracy": 91.8},
    "mars-12": {"rank": 12.6, "accuracy": 89.5},
    "mars-16": {"rank": 18.0, "accuracy": 85.4},
    "dense-8": {"accuracy": 87.3},
    "dense-12": {"accuracy": 85.0},
    "dense-16": {"accuracy": 82.8},
}


@dataclass(frozen=True)
class Taught:
    """Data labeled by a teacher of low rank."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def taught(rank: int, seed: int) -> Taught:
    """The data of a seed."""
    random = torch.Generator().manual_seed(seed)
    first = torch.randn(INSIDE, rank, generator=random)
    second = torch.randn(rank, CLASSES, generator=random)
    x = torch.randn(COUNT + TESTED, INSIDE, generator=random)
    y = (x @ first @ second).argmax(-1)
    return Taught(x[:COUNT], y[:COUNT], x[COUNT:], y[COUNT:])


def student(variant: str) -> nn.Module:
    """The classifier of a variant; factors and bias are initialized as in torch's linear layers."""
    way, _, rank = variant.partition("-")
    if way == "dense":
        return nn.Linear(INSIDE, CLASSES)
    layer = factors(selector=Ard() if way == "ard" else Mars(pi=1e-2, alpha=ALPHAS[int(rank)]))
    for core in layer.cores.parameters():
        inside = INSIDE if INSIDE in core.shape else RANK
        nn.init.uniform_(core, -(inside**-0.5), inside**-0.5)
    return layer


def factors(rank: int = RANK, selector: Selector | None = None) -> TNModule:
    """A classifier of low rank."""
    graph = families.lowrank("linear", inputs=(INSIDE,), outputs=(CLASSES,), rank=rank)
    return compile(graph, selector=selector, batch=128)


class Lessons(Task):
    """The task of several students at once, each with its own teacher."""

    def __init__(self, students: Sequence[nn.Module], data: Sequence[Taught]):
        self.model = self.crew = Crew(students)
        self.train_x = torch.stack([taught.train_x for taught in data])
        self.train_y = torch.stack([taught.train_y for taught in data])
        self.test_x = torch.stack([taught.test_x for taught in data])
        self.test_y = torch.stack([taught.test_y for taught in data])
        self.size = COUNT
        self.members = len(students)

    def loss(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        scores, penalties = self.crew(self.train_x[:, rows])
        labels = self.train_y[:, rows]
        mean = cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum") / len(rows)
        return mean, penalties.sum()

    def data_loss(self, rows: Tensor) -> Tensor:
        return self.loss(rows)[0]

    def judge(self) -> dict[str, Any]:
        right = self.crew(self.test_x)[0].argmax(-1).eq(self.test_y)
        return {"accuracies": [100.0 * share for share in right.double().mean(-1).tolist()]}

    @property
    def selector(self) -> Selector | None:
        return next((masks.selector for _, masks in self.crew.masks()), None)

    def groups(self, lr: float) -> list[dict[str, Any]]:
        return [{"params": list(self.crew.parameters()), "lr": lr}]

    def schedule(self, **settings: Any) -> MaskSchedule:
        return CrewSchedule(self.crew, **settings)

    def record(self) -> dict[str, Any]:
        """The temperature, and the mean rank over the students."""
        figures: dict[str, Any] = {}
        for prefix, masks in self.crew.masks():
            logits = [value for name, value in self.crew.named_parameters() if "gates__" in name]
            figures["temperature"] = self.crew.buffer(f"{prefix}masks.temperature").flatten()[0].item()
            kept = [masks.selector.keep(one).sum() for values in logits for one in values.detach()]
            figures["mean_rank"] = float(torch.stack(kept).double().mean())
        return figures


@torch.no_grad()
def accuracy(model: nn.Module, data: Taught) -> float:
    """The percentage of correct answers on the test data."""
    right: Tensor = model(data.test_x).argmax(-1).eq(data.test_y)
    return 100.0 * right.double().mean().item()


def run(variant: str, seeds: Sequence[int], folder: Path, options: RunOptions) -> list[dict[str, Any]]:
    """Trains a student for each seed, all together, and prunes each; or shrinks one after the other."""
    lessons = [taught(int(variant.rpartition("-")[2]), seed) for seed in seeds]
    alone = {"shrink": _shrunk, "search": _searched}.get(variant.partition("-")[0])
    if alone is not None:
        pairs = zip(lessons, seeds, strict=True)
        return [alone(lesson, seed, folder / f"seed-{seed}", options) for lesson, seed in pairs]
    students = []
    for seed in seeds:
        torch.manual_seed(1000 + seed)
        students.append(student(variant))
    task = Lessons(students, lessons)
    settings = Settings(epochs=options.epochs or 300, judge_every=50)
    trained(task, settings, folder, options, {"variant": variant, "seeds": list(seeds)})
    return [_judged(member, lesson) for member, lesson in zip(task.crew.members(), lessons, strict=True)]


def _shrunk(lesson: Taught, seed: int, folder: Path, options: RunOptions) -> dict[str, Any]:
    torch.manual_seed(1000 + seed)
    learnable = vectors(lesson.train_x, lesson.train_y, lesson.test_x, lesson.test_y, HELD)
    chosen = shrunk(factors(), learnable, seed, folder, options).chosen
    (rank,) = chosen.ranks[""].values()
    return {"accuracy": learnable.test(chosen.model), "rank": rank}


def _searched(lesson: Taught, seed: int, folder: Path, options: RunOptions) -> dict[str, Any]:
    """The smallest classifier that is almost as good as the best. One that was killed goes on after its last budget."""
    if not options.resume:
        shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    graph, epochs, held = factors().graph, options.epochs or EPOCHS, len(lesson.train_y) - HELD

    def model(rank: int) -> TNModule:
        torch.manual_seed(1000 + seed)
        task = Lesson(factors(rank), lesson.train_x[:held], lesson.train_y[:held])
        Run(task, Settings(epochs=epochs, anneals=True, judge_every=epochs, seed=seed)).train()
        return task.model

    def score(graph: Graph, ranks: Mapping[str, int]) -> float:
        return right(model(ranks["r"]), lesson.train_x[held:], lesson.train_y[held:])

    found = []
    for rank in TRIED:
        file, budget = folder / f"search-{rank}.json", rank * (INSIDE + CLASSES)
        search = search_ranks(graph, score, budget=budget, trials=1, seed=seed, checkpoint=file, progress=False)
        found.append(search.best)
    best = max(trial.score for trial in found)
    least = best - 2 * (best * (1 - best) / HELD) ** 0.5
    (rank,) = next(trial for trial in found if trial.score >= least).ranks.values()
    return {"accuracy": accuracy(model(rank), lesson), "rank": rank}


class Lesson(Task):
    """The task of one student."""

    model: TNModule

    def __init__(self, model: TNModule, x: Tensor, y: Tensor):
        self.model, self.x, self.y, self.size = model, x, y, len(y)

    def data_loss(self, rows: Tensor) -> Tensor:
        return cross_entropy(self.model(self.x[rows]), self.y[rows])

    def judge(self) -> dict[str, Any]:
        return {}


def _judged(member: nn.Module, lesson: Taught) -> dict[str, Any]:
    if not chooses(member):
        return {"accuracy": accuracy(member, lesson)}
    return {"accuracy": accuracy(prune(member).eval(), lesson), "rank": live_ranks(member)[""][0]}
