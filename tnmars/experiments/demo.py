"""The whole workflow in a minute, on generated data: ranks are planted, and recovered.

First a network learns while its ranks choose themselves. Then a planted tensor train is fitted, with noise, by a graph
whose ranks are too large: gates are trained, the graph is pruned, and the result is timed and written. A second tensor,
a sum of two block terms, is not shown: it is for the record of how often ranks are recovered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tnmars import families
from tnmars.compiler import compile_quietly as compile
from tnmars.errors import plural
from tnmars.experiments import network_demo
from tnmars.experiments.progress import Progress, fit_callbacks
from tnmars.files import make_folder
from tnmars.fitting import Fitted, fit
from tnmars.fitting.room import parameters
from tnmars.graph import Graph
from tnmars.layer.module import TNModule
from tnmars.reporting import report
from tnmars.select import Annealed
from tnmars.shrinking.curve import Curve
from tnmars.spec import dump
from tnmars.text.numbers import dashed, duration
from tnmars.timing.clock import in_turns

NOISE = 0.01
"""The standard deviation of the noise, relative to the tensor's."""
PAUSE = 3.0
"""Seconds between lines of progress."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Planted:
    """A tensor of known ranks, and the graph that must recover them."""

    name: str
    hidden: Graph
    start: Graph
    unique: bool
    """Whether only these ranks describe the tensor; otherwise the number of parameters counts."""


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
    """A random tensor of unit variance with noise, and the standard deviation of the noise."""
    torch.manual_seed(seed)
    teacher = compile(hidden)
    with torch.no_grad():
        for core in teacher.cores.parameters():
            core.normal_()
        clean = teacher().double()
    clean = clean / clean.std()
    noise = NOISE * torch.randn(clean.shape, dtype=torch.float64)
    return clean + noise, noise.square().mean().sqrt().item()


@dataclass(frozen=True)
class Result:
    """What was recovered of one planted tensor."""

    case: Planted
    fitted: Fitted
    gated_error: float
    """The relative error of the layer with trained gates, before it is pruned."""
    noise: float
    history: Sequence[dict[str, Any]]

    @property
    def came_back(self) -> bool:
        """The planted ranks if they are unique; otherwise an error near the noise with hardly more parameters."""
        if self.case.unique:
            return list(self.fitted.ranks.values()) == [bond.size for bond in self.case.hidden.bonds.values()]
        fits = self.fitted.error <= 1.5 * self.noise
        return fits and self.fitted.parameters <= 1.1 * parameters(self.case.hidden)


def recovered(case: Planted, seed: int, progress: Progress | None = None) -> Result:
    """Plants a tensor, trains gates and prunes."""
    data, noise = tensor(case.hidden, seed)
    history: list[dict[str, Any]] = []
    watch, show = fit_callbacks(progress) if progress is not None else (None, None)

    def shown(record: dict[str, Any], done: int, total: int) -> None:
        history.append({"step": done, **record})
        if show is not None:
            show(record, done, total)

    fitted = fit(case.start, data, selector=Annealed(), seed=seed, dtype=torch.float32, shown=shown, watch=watch)
    assert fitted.gated is not None
    return Result(case, fitted, relative_error(fitted.gated, data), noise, history)


def relative_error(gated: TNModule, data: Tensor) -> float:
    """The error of a layer with gates, which `fit` trains on data scaled to a mean square of 1."""
    with torch.no_grad():
        made = gated.eval().dense().double()
    return (made - data / data.square().mean().sqrt()).square().mean().sqrt().item()


def run(out: Path, seed: int = 0, say: Say = print) -> tuple[Curve, list[Result]]:
    """Runs the demo: says what it does, and writes the pruned spec, model and report of the network and the tensor."""
    make_folder(out)
    curve = network_demo.run(out, seed, say)
    results = []
    for case in planted()[:1]:
        ranks = dashed(bond.size for bond in case.hidden.bonds.values())
        say(f"\n# {case.name}: a tensor of ranks {ranks} is planted, with {NOISE:.0%} noise.")
        say("The graph that must recover them, with ranks that are too large:\n")
        say("\n".join(f"    {line}" for line in dump(case.start).splitlines()))
        say("\nGates on every bond are trained. Then slices are removed as long as the description gets shorter,")
        say("starting from what the gates keep, and from other starts if the graph is not a tree.")
        progress = Progress(f"  {case.name}", every=PAUSE)
        try:
            results.append(recovered(case, seed, progress))
        finally:
            progress.close()
        say(_outcome(results[-1]))
        _write(results[-1], out / case.name, say)
    return curve, results


def _write(result: Result, stem: Path, say: Say) -> None:
    before, after = result.fitted.gated, result.fitted.layer
    assert before is not None
    say(_speed(before, after))
    result.fitted.save(stem)
    title = f"tnmars demo: {result.case.name}"
    metrics = {"relative error": (result.gated_error, result.fitted.error)}
    report(before, after, stem.with_suffix(".html"), title=title, history=result.history, metrics=metrics)
    say(f"  wrote {stem}.yaml, {stem.name}.safetensors, {stem.name}.json and the report {stem}.html")


def _outcome(result: Result) -> str:
    fitted, case = result.fitted, result.case
    what = "the planted ranks" if case.unique else "the size and the error of the planted tensor"
    verdict = "were recovered" if result.came_back else "were not recovered"
    return (
        f"  ranks {dashed(fitted.ranks.values())}: {what} {verdict}\n"
        f"  {parameters(case.start):,} parameters -> {fitted.parameters:,} (planted: {parameters(case.hidden):,}; "
        f"dense: {prod(case.start.dense_shape):,}); error {fitted.error:.4f}, noise {result.noise:.4f}"
    )


def _speed(before: TNModule, after: TNModule) -> str:
    """The time to build the full tensor from its cores, before and after, measured in turns."""
    with torch.no_grad():
        first, second = in_turns([before.eval().dense, after.eval().dense], rounds=9, budget=1.0)
    threads = plural(torch.get_num_threads(), "thread")
    return f"  the full tensor from its cores: {duration(first)} before, {duration(second)} after ({threads})"
