"""Strided convolutions: how much slower the form that the cost model chooses is than the fastest candidate.

`tnmars calibrate`, then `python tests/bench/strided.py`: one thread, every candidate of each layer timed in turns, the
shortest of each kept.
"""

from __future__ import annotations

import sys
import time

import torch

import tnmars
from tnmars.layer.code import code
from tnmars.plan.cost import machine_model
from tnmars.plan.layout import Weighing
from tnmars.program.choice import all_forms, choose
from tnmars.program.form import Form, measure, total

ROUNDS = 15


def cases() -> list[tuple[str, tnmars.Graph, int, int]]:
    """Name, graph, batch and image of each layer."""
    families = tnmars.families
    square = dict(inputs=(64,), outputs=(64,), kernel=(3, 3))
    split = dict(inputs=(8, 8), outputs=(8, 8), kernel=(3, 3))
    listed = []
    for stride in (2, 4):
        options = {"stride": stride, "padding": 1}
        for rank in (16, 32, 48):
            graph = families.tucker2("conv", **square, ranks=(rank, rank), options=options)
            listed.append((f"tucker2 r{rank} stride {stride}", graph, 8, 56))
        listed.append((f"cp r48 stride {stride}", families.cp("conv", **square, rank=48, options=options), 8, 56))
        listed.append((f"tt r16 stride {stride}", families.tt("conv", **split, rank=16, options=options), 8, 32))
        listed.append((f"ring r8 stride {stride}", families.tr("conv", **split, rank=8, options=options), 8, 32))
    return listed


def seconds(graph: tnmars.Graph, forms: list[Form], batch: int, image: int) -> list[float]:
    """The shortest time of each form, over rounds in which each has its turn."""
    x = torch.randn(batch, graph.in_features, image, image)
    actions = []
    for form in forms:
        made = code(form)
        cores = [torch.randn(graph.cores[name]) * 0.1 for name in made.cores]
        bias = torch.zeros(graph.out_features)
        actions.append((made, cores, bias))
    shortest = [float("inf")] * len(forms)
    with torch.no_grad():
        for _ in range(ROUNDS):
            for at, (made, cores, bias) in enumerate(actions):
                made((x,), bias, made.fold(*cores))  # untimed: the caches hold what the candidate before it left
                start = time.process_time()
                made((x,), bias, made.fold(*cores))
                shortest[at] = min(shortest[at], time.process_time() - start)
    return shortest


def main() -> int:
    torch.set_num_threads(1)
    worst = 0.0
    for name, graph, batch, image in cases():
        weighing = Weighing(machine_model())
        forms = sorted(all_forms(graph, batch, weighing, image), key=lambda form: form.cost)
        chosen = choose(graph, batch, weighing, image)[0]
        times = seconds(graph, forms, batch, image)
        ratio = times[forms.index(chosen)] / min(times)
        worst = max(worst, ratio)
        shown = "  ".join(
            f"{form.name} {1e3 * took:.2f} ({1e3 * form.cost:.2f}) {total(measure(form)).macs / 1e6:.0f}M"
            for form, took in zip(forms, times, strict=True)
        )
        print(f"{name:<24} {ratio:5.2f}  chosen {chosen.name}: {shown}", flush=True)
    print(f"worst {worst:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
