"""Whether layers that are slower than dense are announced: predicted against measured ratios at 48 points.

`python tests/bench/telling.py [--threads 1,2]`. Low-rank and TT layers, 128 and 768 wide, batches of 1, 32 and 512,
inference and training (without a gradient for the input), untuned. A layer that measures above 1.1 should be announced;
one that is announced and measures at most 1 is a false alarm.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import nn

from tnmars import families
from tnmars.compiler import compile
from tnmars.graph import Graph
from tnmars.layer.module import TNModule
from tnmars.layer.predicted import SLOWER as ANNOUNCED
from tnmars.program.against_dense import against_dense
from tnmars.program.form import measure, total
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


@dataclass(frozen=True)
class Point:
    """One layer at one batch in one mode."""

    name: str
    batch: int
    mode: str
    form: str
    macs: float
    """Multiply-adds relative to the dense layer's, in the forward pass."""
    predicted: float
    measured: float

    @property
    def is_missed(self) -> bool:
        return self.measured > SLOWER and self.predicted <= ANNOUNCED

    @property
    def is_false(self) -> bool:
        return self.predicted > ANNOUNCED and self.measured <= 1.0


def points(graph: Graph, name: str, batch: int, rounds: int, budget: float) -> list[Point]:
    layer = compile(graph, batch=batch, warn=False)
    dense = nn.Linear(graph.in_features, graph.out_features)
    x = torch.randn(batch, graph.in_features)
    found = []
    for mode in ("infer", "train"):
        if mode == "infer":
            actions = [inference(each, [x]) for each in (dense, layer)]
        else:
            actions = [training_step(each, [x], tuple(each.parameters())) for each in (dense, layer)]
        theirs, ours = in_turns(actions, rounds=rounds, budget=budget, least=3)
        form = layer.plan(mode, batch)
        macs = total(measure(form, batch=batch)).macs / (batch * graph.in_features * graph.out_features)
        found.append(Point(name, batch, mode, form.name, macs, _predicted(layer, mode, batch), ours / theirs))
    return found


def _predicted(layer: TNModule, mode: str, batch: int) -> float:
    told = against_dense(layer.graph, layer.plan(mode, batch), batch, layer.planner.model, grad=mode == "train")
    assert told is not None
    return told.ratio


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python tests/bench/telling.py", description=__doc__)
    parser.add_argument("--threads", default="1", help="numbers of threads, for example 1,2")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--budget", type=float, default=1.0, help="seconds that a layer is timed, at most")
    asked = parser.parse_args(given)
    for count in map(int, asked.threads.split(",")):
        torch.manual_seed(0)
        with threads(count):
            every = [
                point
                for name, graph in GRAPHS.items()
                for batch in BATCHES
                for point in points(graph, name, batch, asked.rounds, asked.budget)
            ]
        rows = [["layer", "batch", "mode", "form", "MACs / dense", "predicted", "time / dense", ""]]
        for one in every:
            note = "MISSED" if one.is_missed else "false alarm" if one.is_false else ""
            figures = [f"{value:.2f}" for value in (one.macs, one.predicted, one.measured)]
            rows.append([one.name, str(one.batch), one.mode, one.form, *figures, note])
        missed, false = (sum(getattr(one, what) for one in every) for what in ("is_missed", "is_false"))
        slow = sum(one.measured > SLOWER for one in every)
        print(f"{count} threads\n\n{markdown(rows, padded=True)}\n")
        print(f"{slow} of {len(every)} are slower than {SLOWER}; {missed} of them not announced (0 allowed); ", end="")
        print(f"{false} false alarms ({FALSE_ALARMS} allowed).\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
