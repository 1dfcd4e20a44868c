"""The paper's toy problem: MARS must find the rank of a linear classifier.

The inputs and the teacher's factors are standard normal; the label is the largest of the teacher's outputs. The student
starts with rank 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tnmars import families
from tnmars.compiler import compile_quietly as compile
from tnmars.experiments.crew import Crew, CrewSchedule
from tnmars.experiments.loop import RunOptions, Settings, trained
from tnmars.experiments.paths import shrunk
from tnmars.experiments.problems import vectors
from tnmars.experiments.task import Task, live_ranks
from tnmars.layer.module import TNModule, layers
from tnmars.pruning.prune_model import prune
from tnmars.select import Mars, Selector
from tnmars.training.schedule import MaskSchedule

COUNT, INSIDE, CLASSES, RANK, TESTED = 10_000, 128, 32, 32, 10_000
HELD = 1000
"""The number of training samples that `shrink` has for validation."""
ALPHAS = {8: -4.0, 12: -3.5, 16: -3.0}
"""The paper's initial mean of the logits, chosen for each rank of the teacher: it gives part of the rank away."""
VARIANTS = tuple(f"{way}-{rank}" for rank in ALPHAS for way in ("mars", "dense", "shrink"))
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
    layer = factors(selector=Mars(pi=1e-2, alpha=ALPHAS[int(rank)]))
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
    if variant.startswith("shrink"):
        return [
            _shrunk(lesson, seed, folder / f"seed-{seed}", options) for lesson, seed in zip(lessons, seeds, strict=True)
        ]
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


def _judged(member: nn.Module, lesson: Taught) -> dict[str, Any]:
    if not any(layer.masks is not None for _, layer in layers(member)):
        return {"accuracy": accuracy(member, lesson)}
    return {"accuracy": accuracy(prune(member).eval(), lesson), "rank": live_ranks(member)[""][0]}
