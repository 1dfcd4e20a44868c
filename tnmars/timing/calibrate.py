"""Timings on this machine, and the cost model that fits them.

Everything is timed with torch's current number of threads. The shipped constants come from this procedure, on one
thread of a server CPU.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import exp, log
from pathlib import Path
from typing import Any

import torch

from tnmars.files import make_folder, write_text
from tnmars.plan.cost import CostModel, cache_file, shipped_model
from tnmars.plan.steps import last_run
from tnmars.timing.clock import in_turns


@dataclass(frozen=True)
class Sample:
    """A timed operation: the method of the model that prices it, with its arguments, and how long it took."""

    method: str
    arguments: tuple[int, ...]
    seconds: float

    def price(self, model: CostModel) -> float:
        found: float = getattr(model, self.method)(*self.arguments)
        return found


SHAPES = (
    *((1, 1, 784, 625), (1, 1, 128, 128), (1, 8, 64, 64), (1, 32, 4096, 64), (1, 128, 784, 625), (1, 128, 64, 512)),
    *((1, 128, 1024, 1024), (1, 700, 20, 700), (1, 3584, 28, 75), (1, 3200, 84, 25), (1, 4096, 16, 8)),
    *((1, 2048, 128, 64), (1, 2048, 1024, 16), (1, 512, 512, 512), (1, 35, 20, 400), (1, 16384, 8, 128)),
    *((1, 65536, 10, 40), (16, 32, 32, 32), (128, 25, 84, 25), (64, 28, 20, 28), (625, 28, 20, 28), (4, 128, 512, 8)),
    *((4, 1024, 8, 64), (1024, 4, 40, 16), (32, 64, 1024, 64), (8, 256, 256, 256), (2000, 1, 16, 16)),
    *((2000, 32, 16, 8), (1, 8192, 8, 8), (1, 8, 8, 8192), (1, 8192, 32, 4), (1, 4, 32, 8192), (4, 8192, 16, 10)),
    *((4, 10, 16, 8192), (1, 8192, 16, 20), (1, 8, 8192, 32), (1, 32, 8192, 8), (1, 3000, 100, 5), (1, 5, 100, 3000)),
)
"""Matrix products: batch, rows, depth, columns."""

COPIES = (
    ((25, 28, 25, 28), (0, 2, 1, 3)),
    ((7, 5, 4, 5, 7, 5, 4, 5), (0, 2, 4, 6, 1, 3, 5, 7)),
    ((128, 28, 28), (0, 2, 1)),
    ((128, 64, 64, 8), (0, 2, 1, 3)),
    ((32, 8, 8, 8, 64), (0, 2, 1, 4, 3)),
    ((700, 20), (1, 0)),
    ((64, 64, 64), (2, 1, 0)),
    ((4, 8, 16, 512), (3, 0, 1, 2)),
    ((1024, 4096), (1, 0)),
    ((10, 4, 10), (1, 0, 2)),
)
"""Permuting copies: shape and order."""

ELEMENTS = (100, 10_000, 300_000, 4_000_000)
CONVOLUTIONS = (
    *((8, 128, 128, 3, 56, 1), (8, 32, 32, 3, 56, 1), (8, 64, 32, 3, 56, 2), (8, 32, 64, 3, 56, 2)),
    *((8, 64, 64, 3, 14, 1), (1, 16, 16, 3, 32, 1), (8, 16, 16, 3, 56, 2), (8, 64, 64, 3, 56, 4)),
)
"""Batch, channels in and out, taps, image, stride. Without taps, a convolution is priced as a matrix product."""
RANGE = 6.0
"""The largest factor between a fitted constant and the shipped one: a few timings do not determine all of them."""
ROWS = ((4000, 256), (2000, 64), (100, 16))


ROUNDS = 10_000
"""More rounds than a budget has room for."""


@torch.no_grad()
def samples(budget: float = 0.05, device: torch.device | str = "cpu") -> list[Sample]:
    """Timed operations of every sort that the model prices, on a device."""
    found = []
    for method, arguments, action in _operations(device):
        [seconds] = in_turns([action], rounds=ROUNDS, budget=budget, device=device)
        found.append(Sample(method, arguments, seconds))
    return found


def _operations(device: torch.device | str) -> Iterator[tuple[str, tuple[int, ...], Callable[[], object]]]:
    normal = partial(torch.randn, device=device)
    for batch, rows, depth, columns in SHAPES:
        one, two = normal(batch, rows, depth), normal(batch, depth, columns)
        product = partial(torch.bmm, one, two) if batch > 1 else partial(torch.mm, one[0], two[0])
        yield "matmul", (batch, rows, columns, depth), product
    for shape, order in COPIES:
        value = normal(*shape)
        labels = tuple(map(str, range(len(shape))))
        run, jumps = last_run(labels, tuple(map(str, order)), dict(zip(labels, shape, strict=True)))
        yield "copy", (value.numel(), run, jumps), value.permute(order).contiguous
    for count in ELEMENTS:
        yield "elementwise", (3 * count, count), partial(torch.mul, normal(count), normal(count))
    for batch, inside, outside, taps, image, stride in CONVOLUTIONS:
        value, weight = normal(batch, inside, image, image), normal(outside, inside, taps, taps)
        before, after = (batch * side * side for side in (image, -(-image // stride)))
        moved = before * inside + after * outside
        numbers = (after * inside * outside * taps * taps, moved, min(inside, outside))
        yield "conv", numbers, partial(torch.nn.functional.conv2d, value, weight, padding=taps // 2, stride=stride)
    for rows, width in ROWS:
        table, index = normal(5000, width), torch.randint(0, 5000, (rows,), device=device)
        yield "gather", (rows * width,), partial(torch.nn.functional.embedding, index, table)


HELD = {
    *("item", "parts", "fresh_bytes", "large_bytes", "large_rate", "grad_call", "grouped"),
    *("layer_call", "step_call", "parameter_call"),
}
"""The constants that no sample prices, so that timings say nothing about them."""


def error(model: CostModel, found: Sequence[Sample]) -> float:
    """The mean squared error of the model's logarithm."""
    return sum((log(sample.price(model)) - log(sample.seconds)) ** 2 for sample in found) / len(found)


def fit(found: Sequence[Sample], start: CostModel | None = None, rounds: int = 3000, seed: int = 0) -> CostModel:
    """The constants that fit some timings best, from a random descent that starts at the shipped ones."""
    draw = random.Random(seed)
    shipped = best = start or CostModel()
    least = error(best, found)
    names = [entry.name for entry in fields(CostModel) if entry.name not in HELD]
    for turn in range(rounds):
        spread = 0.5 * (1 - turn / rounds) + 0.02
        chosen = draw.sample(names, draw.choice((1, 1, 2, 3)))
        factors: dict[str, Any] = {name: getattr(best, name) * exp(draw.gauss(0, spread)) for name in chosen}
        trial = replace(best, **factors)
        if any(not 1 / RANGE <= getattr(trial, name) / getattr(shipped, name) <= RANGE for name in chosen):
            continue
        score = error(trial, found)
        if score < least:
            best, least = trial, score
    return best


def calibrate(budget: float = 0.05, device: torch.device | str = "cpu") -> CostModel:
    """A cost model for a device of this machine."""
    return fit(samples(budget, device), shipped_model(torch.device(device).type))


def save_model(model: CostModel, path: Path | None = None, device: str = "cpu") -> Path:
    """Writes a cost model for a type of device to the cache folder."""
    target = path or cache_file(device)
    make_folder(target.parent)
    write_text(target, json.dumps(model.to_json(), indent=1) + "\n")
    return target
