"""Small layers against torch's own, where the call costs more than the arithmetic, and what gates add to a whole model.

`python tests/bench/small_layers.py [--threads 1,2]`. Every row is a ratio within one interleaved run: time and forward
multiply-adds relative to the model that it is compared with. The last rows are whole steps of training (loss, penalty,
fused Adam, schedule) of 24 layers with gates relative to the same layers without, and the penalty of 24 layers in
milliseconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from bench.counting import macs, share, shown, verdict, write_json
from torch import Tensor, nn

from tnmars import families
from tnmars.compiler import compile_quietly
from tnmars.graph import Graph
from tnmars.layer.module import layers
from tnmars.select import Mars
from tnmars.ship.freezing import freeze
from tnmars.text.tables import markdown
from tnmars.timing.clock import Action, in_turns, inference, threads, training_step
from tnmars.training.joined import sampled
from tnmars.training.objective import param_groups, penalty
from tnmars.training.schedule import MaskSchedule

ADDED = 1.1
"""The ratio to reach for a whole step of 24 layers: with gates, penalty and schedule relative to one without."""
PENALTY = 1.0
"""The milliseconds to reach for the penalty of 24 layers."""


@dataclass(frozen=True)
class Row:
    """A time relative to another, the multiply-adds beside it, and the ratio to reach, if there is one."""

    name: str
    ratio: float
    macs: float | None
    target: float | None = None
    unit: str = ""


def stack(graph: Graph, count: int, batch: int, selector: Mars | None = None) -> nn.Sequential:
    return nn.Sequential(*(compile_quietly(graph, batch=batch, selector=selector) for _ in range(count)))


def dense(graph: Graph, count: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(graph.in_features, graph.out_features) for _ in range(count)))


def small_rows(rounds: int, budget: float) -> list[Row]:
    """Inference and training of low-rank layers of width 128."""
    rows = []
    for rank, count, batch, infer, train in ((16, 12, 32, 0.62, 0.72), (8, 1, 1, 1.05, None)):
        graph = families.lowrank("linear", inputs=(128,), outputs=(128,), rank=rank)
        theirs, ours, x = dense(graph, count), stack(graph, count, batch), torch.randn(batch, 128)
        frozen = freeze(ours, "fast", batch=batch)
        name = f"{count} x low rank 128 r{rank}, batch {batch}"
        passes = [inference(model, [x]) for model in (theirs, ours, frozen)]
        times = in_turns(passes, rounds=rounds, budget=budget, least=3)
        work = [macs(action) for action in passes]
        rows.append(Row(f"{name}: inference", times[1] / times[0], share(work[1], work[0]), infer))
        rows.append(Row(f"{name}: inference, frozen (fast)", times[2] / times[0], share(work[2], work[0]), infer))
        steps = [training_step(model, [x], tuple(model.parameters())) for model in (theirs, ours)]
        times = in_turns(steps, rounds=rounds, budget=budget, least=3)
        unit, own = map(macs, steps)
        rows.append(Row(f"{name}: training", times[1] / times[0], share(own, unit), train))
    return rows


def whole_step(model: nn.Module, x: Tensor, *, is_sampled: bool = False) -> Action:
    """A step as a user writes it: with gates, penalty and schedule are part of it."""
    optimizer = torch.optim.Adam(param_groups(model, lr=0.0), fused=True)

    def loss() -> Tensor:
        found: Tensor = model(x).square().mean()
        return found

    if all(layer.masks is None for _, layer in layers(model)):

        def plain() -> None:
            loss().backward()
            optimizer.step()
            optimizer.zero_grad()

        return plain
    schedule = MaskSchedule(model, 10**9, seed=0)

    def action() -> None:
        if is_sampled:
            with sampled(model):
                value = loss()
        else:
            value = loss()
        (value + penalty(model) / 1000).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    return action


def mask_rows(rounds: int, budget: float) -> list[Row]:
    """What gates add to a whole step of 24 layers, and the penalty alone."""
    tt = families.tt("linear", inputs=(8, 8, 12), outputs=(8, 8, 12), rank=8)
    wide, narrow = (families.lowrank("linear", inputs=(n,), outputs=(n,), rank=r) for n, r in ((768, 64), (256, 32)))
    graphs: list[tuple[str, Graph, int]] = [
        ("24 x TT 768 r8, batch 128", tt, 128),
        ("24 x low rank 768 r64, batch 128", wide, 128),
        ("24 x low rank 256 r32, batch 32", narrow, 32),
    ]
    rows = []
    for name, graph, batch in graphs:
        plain, gated = stack(graph, 24, batch), stack(graph, 24, batch, Mars(alpha=2.0))
        x = torch.randn(batch, graph.in_features)
        make: Callable[..., Action] = whole_step
        actions = [make(plain, x), make(gated, x), make(gated, x, is_sampled=True)]
        times = in_turns(actions, rounds=rounds, budget=budget, least=3)
        unit, *work = map(macs, actions)
        titles = ("whole step with gates / without", "the same, gates sampled at once")
        for title, took, own in zip(titles, times[1:], work, strict=True):
            rows.append(Row(f"{name}: {title}", took / times[0], share(own, unit), ADDED))
        for price in ("uniform", "parameters", "macs", "bic"):
            model = stack(graph, 24, batch, Mars(price=price, samples=1000))
            (took,) = in_turns([lambda m=model: penalty(m).backward()], rounds=rounds, budget=budget, least=3)
            rows.append(Row(f"{name}: penalty, {price}, forward and backward", 1e3 * took, None, PENALTY, " ms"))
    return rows


def summary(rows: list[Row]) -> list[str]:
    """What masks add to whole steps of 24 layers, in sentences."""
    return [
        f"Masks add {row.ratio - 1:.1%} to the {row.name.replace(': ', ', ')} "
        f"(target: under {ADDED - 1:.0%}, {verdict(row.ratio, row.target)})."
        for row in rows
        if row.target == ADDED
    ]


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python tests/bench/small_layers.py", description=__doc__)
    parser.add_argument("--threads", default="1", help="numbers of threads, for example 1,2")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--budget", type=float, default=3.0, help="seconds that a row is timed, at most")
    parser.add_argument("--quick", action="store_true", help="a smoke run, whose figures mean little")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    asked = parser.parse_args(given)
    kept = []
    rounds, budget = (2, 0.1) if asked.quick else (asked.rounds, asked.budget)
    for count in map(int, asked.threads.split(",")):
        torch.manual_seed(0)
        with threads(count):
            rows = [*small_rows(rounds, budget), *mask_rows(rounds, budget)]
        cells = [["row", "time", "MACs", "target", ""]]
        for row in rows:
            target = "" if row.target is None else f"{row.target:g}{row.unit}"
            said = verdict(row.ratio, row.target)
            cells.append([row.name, f"{row.ratio:.3f}{row.unit}", shown(row.macs), target, said])
            kept.append({"threads": count, **asdict(row), "verdict": said})
        print("\n".join([f"{count} threads", "", markdown(cells, padded=True), "", *summary(rows), ""]), flush=True)
        write_json(asked.json, rows=kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
