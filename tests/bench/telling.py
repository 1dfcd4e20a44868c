"""Whether layers that are slower than dense are announced: predicted against measured ratios at 48 points.

`python tests/bench/telling.py [--threads 1,2]`. Low-rank and TT layers, 128 and 768 wide, batches of 1, 32 and 512,
inference and training (without a gradient for the input), untuned. A layer that measures above 1.1 should be announced;
one that is announced and measures at most 1 is a false alarm.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from bench.convs import ring
from bench.counting import macs, shown, write_json
from torch import Tensor, nn

from tnmars import families
from tnmars.compiler import compile
from tnmars.graph import Graph
from tnmars.layer.module import TNModule
from tnmars.layer.predicted import SLOWER as ANNOUNCED
from tnmars.program.against_dense import against_dense
from tnmars.text.tables import markdown
from tnmars.timing.clock import in_turns, inference, threads, training_step

SLOWER, FALSE_ALARMS = 1.1, 2
"""A layer above this ratio must be announced; so many false alarms are allowed."""
BATCHES = (1, 32, 512)


def _low(width: int, rank: int) -> Graph:
    return families.lowrank("linear", inputs=(width,), outputs=(width,), rank=rank)


def _tt(modes: tuple[int, ...], rank: int) -> Graph:
    return families.tt("linear", inputs=modes, outputs=modes, rank=rank)


GRAPHS = {
    "low rank 128 r16": _low(128, 16),
    "low rank 128 r48": _low(128, 48),
    "TT 128 r4": _tt((8, 16), 4),
    "TT 128 r16": _tt((8, 16), 16),
    "low rank 768 r64": _low(768, 64),
    "low rank 768 r256": _low(768, 256),
    "TT 768 r16": _tt((8, 12, 8), 16),
    "TT 768 r48": _tt((8, 12, 8), 48),
}


_CONV: dict[str, Any] = {"inputs": (64,), "outputs": (64,), "kernel": (3, 3), "options": {"padding": 1}}
CONVOLUTIONS = {
    "Tucker-2 conv 64 r16": families.tucker2("conv", rank=16, **_CONV),
    "Tucker-2 conv 64 r56": families.tucker2("conv", rank=56, **_CONV),
    "CP conv 64 r128": families.cp("conv", rank=128, **_CONV),
    "TT conv 64 r32": families.tt_naive("conv", rank=32, order=("in", "kernel", "out"), **_CONV),
    "ring conv 64 r8": ring(64, 8),
}
PLACES = ((1, 8), (8, 32))
"""The images and their sides that convolutions are timed for."""


@dataclass(frozen=True)
class Point:
    """One layer at one batch in one mode."""

    name: str
    batch: int
    mode: str
    form: str
    macs: float
    """Multiply-adds relative to the dense layer's, in a pass of this mode."""
    predicted: float
    measured: float

    @property
    def is_missed(self) -> bool:
        return self.measured > SLOWER and self.predicted <= ANNOUNCED

    @property
    def is_false(self) -> bool:
        return self.predicted > ANNOUNCED and self.measured <= 1.0


def points(graph: Graph, name: str, batch: int, rounds: int, budget: float, image: int | None = None) -> list[Point]:
    layer = compile(graph, batch=batch, image=image or 32, warn=False)
    x, dense = _dense(graph, batch, image)
    found = []
    for mode in ("infer", "train"):
        if mode == "infer":
            actions = [inference(each, [x]) for each in (dense, layer)]
        else:
            actions = [training_step(each, [x], tuple(each.parameters())) for each in (dense, layer)]
        theirs, ours = in_turns(actions, rounds=rounds, budget=budget, least=3)
        unit, work = map(macs, actions)
        form = layer.plan(mode, batch).name
        found.append(Point(name, batch, mode, form, work / unit, _predicted(layer, mode, batch), ours / theirs))
    return found


def _dense(graph: Graph, batch: int, image: int | None) -> tuple[Tensor, nn.Module]:
    """An input, and torch's own layer."""
    if image is None:
        return torch.randn(batch, graph.in_features), nn.Linear(graph.in_features, graph.out_features)
    dense = nn.Conv2d(graph.in_features, graph.out_features, 3, padding=1)
    return torch.randn(batch, graph.in_features, image, image), dense


def _predicted(layer: TNModule, mode: str, batch: int) -> float:
    planner = layer.planner
    form = layer.plan(mode, batch)
    told = against_dense(layer.graph, form, batch, planner.model, grad=mode == "train", image=planner.image)
    assert told is not None
    return told.ratio


def _every(are_convs: bool, rounds: int, budget: float) -> list[Point]:
    if are_convs:
        asked = [(name, graph, batch, image) for name, graph in CONVOLUTIONS.items() for batch, image in PLACES]
        every = [
            points(graph, f"{name} {image}x{image}", batch, rounds, budget, image)
            for name, graph, batch, image in asked
        ]
    else:
        every = [points(graph, name, batch, rounds, budget) for name, graph in GRAPHS.items() for batch in BATCHES]
    return [point for one in every for point in one]


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python tests/bench/telling.py", description=__doc__)
    parser.add_argument("--threads", default="1", help="numbers of threads, for example 1,2")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--budget", type=float, default=1.0, help="seconds that a layer is timed, at most")
    parser.add_argument("--convs", action="store_true", help="20 points of convolutions instead, which have no target")
    parser.add_argument("--quick", action="store_true", help="a smoke run, whose figures mean little")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    asked = parser.parse_args(given)
    rounds, budget = (2, 0.02) if asked.quick else (asked.rounds, asked.budget)
    kept = []
    for count in map(int, asked.threads.split(",")):
        torch.manual_seed(0)
        with threads(count):
            every = _every(asked.convs, rounds, budget)
        rows = [["layer", "batch", "mode", "form", "MACs / dense", "predicted", "time / dense", ""]]
        for one in every:
            note = "MISSED" if one.is_missed else "false alarm" if one.is_false else ""
            figures = [shown(one.macs), *(f"{value:.2f}" for value in (one.predicted, one.measured))]
            rows.append([one.name, str(one.batch), one.mode, one.form, *figures, note])
        missed, false = (sum(getattr(one, what) for one in every) for what in ("is_missed", "is_false"))
        slow = sum(one.measured > SLOWER for one in every)
        print(f"{count} threads\n\n{markdown(rows, padded=True)}\n")
        print(f"{slow} of {len(every)} are slower than {SLOWER}; {missed} of them not announced (0 allowed); ", end="")
        print(f"{false} false alarms ({FALSE_ALARMS} allowed).\n", flush=True)
        kept += [{"threads": count, **asdict(one), "missed": one.is_missed, "false": one.is_false} for one in every]
        write_json(asked.json, rows=kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
