"""A small classification problem with a planted rank, for tests of `shrink`: data, models and ways to be killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import tnmars
from tnmars import families

QUICK = tnmars.Staircase(first=30)
X = torch.randn(640, 12, generator=torch.Generator().manual_seed(0))
TEACHER = torch.randn(12, 2, generator=torch.Generator().manual_seed(1)) @ torch.randn(
    2, 8, generator=torch.Generator().manual_seed(2)
)
Y = (X @ TEACHER).argmax(-1)


def accuracy(model: nn.Module) -> tuple[float, int]:
    return float((model(X[512:]).argmax(-1) == Y[512:]).float().mean()), 128


def loader(**options: Any) -> DataLoader:
    return DataLoader(TensorDataset(X[:512], Y[:512]), batch_size=64, shuffle=True, **options)


def student(rank: int = 8, seed: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    graph = families.lowrank("linear", inputs=(12,), outputs=(8,), rank=rank)
    return nn.Sequential(nn.Dropout(0.05), tnmars.compile(graph, batch=64))


def shrunk(model: nn.Module | None = None, **options: Any) -> tnmars.Curve:
    given = {"train": loader(), "loss": cross_entropy, "evaluate": accuracy, "settings": QUICK, **options}
    return tnmars.shrink(student() if model is None else model, **given)


def figures(curve: tnmars.Curve) -> list[tuple[object, ...]]:
    """All that a curve says, but for its seconds."""
    return [
        (p.stage, p.parameters, p.bytes, p.macs, p.ms, p.ratio, p.ranks, p.score, p.error, p.steps)
        for p in curve.points
    ] + [(curve.reason, curve.chosen_at, curve.start, dict(curve.budgets))]


def assert_same(one: tnmars.Curve, other: tnmars.Curve) -> None:
    assert figures(one) == figures(other)
    for first, second in zip(one.points, other.points, strict=True):
        states = first.model.state_dict(), second.model.state_dict()
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


class Killed(BaseException):
    """Not an error that anything would handle."""


def killed_after(stage: int) -> Callable[[Any], None]:
    def watch(record: Any) -> None:
        if record["stage"] == stage:
            raise Killed

    return watch


def killed_at(steps: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss that ends the process, so to speak, after some steps."""
    done = 0

    def loss(output: Tensor, target: Tensor) -> Tensor:
        nonlocal done
        done += 1
        if done > steps:
            raise Killed
        return cross_entropy(output, target)

    return loss


def trained() -> nn.Sequential:
    """A model at the end of a careful training: large steps make it worse."""
    torch.manual_seed(3)
    graph = families.lowrank("linear", inputs=(12,), outputs=(8,), rank=2)
    model = nn.Sequential(tnmars.compile(graph, batch=64))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(400):
        cross_entropy(model(X[:512]), Y[:512]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


HASTY = tnmars.Staircase(first=4, rate=1.0)


CHAIN = families.tt("tensor", free=(4, 4, 4), ranks=(2, 2))
SHAPES = {
    "ring": families.tr("tensor", free=(4, 4, 4), rank=4),
    "tucker": families.tucker("tensor", free=(4, 4, 4), rank=4),
    "cp": families.cp("tensor", free=(4, 4, 4), rank=9),
    "block": families.btd("tensor", free=(4, 4, 4), rank=3, terms=3),
    "peps": families.peps("tensor", free=(4, 4, 4, 1), grid=(2, 2), rank=3),
    "complete": families.complete("tensor", free=(4, 4, 4), rank=3),
}
