"""The whole loop in a minute, on data that it makes itself: planted ranks are lost in noise and found again.

Two tensors are planted, a tensor train and a sum of two block terms. Each is given, with noise, to a graph whose ranks
are too large; gates are trained, the graph is cut, and what is left is measured and written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tnmars import families
from tnmars.compiler import compile
from tnmars.files import make_folder
from tnmars.fitting import Fitted, Point, fit
from tnmars.graph import Graph
from tnmars.layer.module import TNModule
from tnmars.reporting import report
from tnmars.select import Annealed
from tnmars.spec import dump
from tnmars.timing.clock import in_turns

NOISE = 0.01
SILENCE = 3.0
"""Seconds after which the search tells again that it goes on."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Planted:
    """A tensor of known ranks, and the graph that is to find them."""

    name: str
    hidden: Graph
    start: Graph
    unique: bool
    """Whether the ranks are the only ones that describe the tensor; else its size is what counts."""


def planted() -> tuple[Planted, ...]:
    """The two cases."""
    four, three = (8,) * 4, (16,) * 3
    return (
        Planted(
            "tensor-train",
            families.tt("tensor", free=four, ranks=(3, 4, 2)),
            families.tt("tensor", free=four, ranks=(8, 10, 8), name="tensor-train"),
            True,
        ),
        Planted(
            "block-term",
            families.btd("tensor", free=three, ranks=((2, 2, 2), (3, 2, 2))),
            families.btd("tensor", free=three, ranks=((6, 6, 6), (6, 6, 6)), name="block-term"),
            False,
        ),
    )


def tensor(hidden: Graph, seed: int) -> tuple[Tensor, float]:
    """A random tensor of unit variance with noise, and how large the noise is."""
    torch.manual_seed(seed)
    teacher = compile(hidden)
    with torch.no_grad():
        for core in teacher.cores.parameters():
            core.normal_()
        clean = teacher().double()
    clean = clean / clean.std()
    noise = NOISE * torch.randn(clean.shape, dtype=torch.float64)
    return clean + noise, noise.square().mean().sqrt().item()


def parameters(graph: Graph) -> int:
    return sum(map(prod, graph.cores.values()))


@dataclass(frozen=True)
class Result:
    """What came back of one planted tensor."""

    case: Planted
    found: Fitted
    noise: float
    history: Sequence[dict[str, Any]]

    @property
    def came_back(self) -> bool:
        """Exact ranks where they are unique; else the error of the noise, with hardly more parameters."""
        if self.case.unique:
            wanted = [bond.size for bond in self.case.hidden.bonds.values()]
            return list(self.found.ranks.values()) == wanted
        fits = self.found.error <= 1.5 * self.noise
        return fits and self.found.parameters <= 1.1 * parameters(self.case.hidden)


def recovered(case: Planted, seed: int, say: Say | None = None) -> Result:
    """Plants, trains and cuts."""
    data, noise = tensor(case.hidden, seed)
    history: list[dict[str, Any]] = []

    def shown(record: dict[str, Any], done: int, total: int) -> None:
        history.append({"step": done, **record})
        if say is not None and done % 1000 == 0:
            ranks = "-".join(map(str, record["ranks"][""]))
            say(f"  step {done} of {total}: error {record['loss']:.4f}, ranks {ranks}")

    tried, last = 0, time.monotonic()

    def watched(point: Point) -> None:
        nonlocal tried, last
        tried += 1
        if say is not None and time.monotonic() - last > SILENCE:
            last = time.monotonic()
            say(f"  network {tried}: error {point.error:.4f}, {point.parameters:,} parameters")

    found = fit(case.start, data, selector=Annealed(), seed=seed, dtype=torch.float32, shown=shown, watch=watched)
    return Result(case, found, noise, history)


def run(out: Path, seed: int = 0, say: Say = print) -> list[Result]:
    """The demo: prints what it does, and writes pruned spec, model and report of each tensor."""
    make_folder(out)
    results = []
    for case in planted():
        sizes = "-".join(str(bond.size) for bond in case.hidden.bonds.values())
        say(f"\n# {case.name}: a tensor of ranks {sizes} is planted, with {NOISE:.0%} of noise.")
        say("The graph that is to find them, with ranks too large:\n")
        say("\n".join(f"    {line}" for line in dump(case.start).splitlines()))
        say("\nGates on every bond are trained. Then slices are left out as long as the description gets shorter,")
        say("from what the gates keep, and from other starts where the graph is no tree:")
        result = recovered(case, seed, say)
        results.append(result)
        say(_told(result))
        stem = out / case.name
        result.found.save(stem)
        before, after = result.found.gated, result.found.layer
        assert before is not None
        say(_speed(before, after))
        report(before, after, stem.with_suffix(".html"), title=f"tnmars demo: {case.name}", history=result.history)
        say(f"  wrote {stem}.yaml, {stem.name}.safetensors, {stem.name}.json and the report {stem}.html")
    return results


def _told(result: Result) -> str:
    found = result.found
    now = "-".join(map(str, found.ranks.values()))
    held, hidden = found.parameters, parameters(result.case.hidden)
    what = "the planted ranks" if result.case.unique else "the size and the error of the planted tensor"
    said = f"{what} came back" if result.came_back else f"{what} did not come back"
    return (
        f"  ranks {now}: {said}\n  {parameters(result.case.start):,} parameters -> {held:,} (planted: {hidden:,}; "
        f"dense: {prod(result.case.start.dense_shape):,}); error {found.error:.4f}, noise {result.noise:.4f}"
    )


def _speed(before: TNModule, after: TNModule) -> str:
    """Times of the whole tensor made from its cores, before and after, in turns."""
    with torch.no_grad():
        first, second = in_turns([before.eval().dense, after.eval().dense], rounds=9, budget=1.0)
    threads = torch.get_num_threads()
    return (
        f"  the tensor from its cores: {first * 1e6:.0f} us before, {second * 1e6:.0f} us after "
        f"({threads} thread{'s' if threads > 1 else ''})"
    )
