"""The first part of the demo: a small network learns from generated data while its ranks choose themselves.

The labels come from a network with a tensor train of ranks 3 and 2. The one that learns them starts with ranks 12.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tnmars import families
from tnmars.compiler import compile_quietly as compile
from tnmars.draw.terminal import terminal
from tnmars.layer.module import TNModule
from tnmars.shrinking.curve import Curve
from tnmars.shrinking.shrink import shrink
from tnmars.spec import save_spec
from tnmars.store.model import save
from tnmars.text.numbers import dashed, duration, times
from tnmars.timing.clock import in_turns

PLANTED, START = (3, 2), (12, 12)
TRAINED, HELD, BATCH, CLASSES = 5000, 1000, 100, 8
Say = Callable[[str], None]


def network(ranks: tuple[int, int]) -> nn.Sequential:
    """A layer of 64 to 64 as a tensor train, and a head."""
    graph = families.tt("linear", inputs=(4, 4, 4), outputs=(4, 4, 4), ranks=ranks, name="first layer")
    return nn.Sequential(compile(graph, batch=BATCH), nn.ReLU(), nn.Linear(64, CLASSES))


@torch.no_grad()
def lesson(seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and labels, the last of them for validation."""
    torch.manual_seed(seed)
    teacher = network(PLANTED)
    for core in next(iter(teacher.children())).cores.parameters():  # type: ignore[union-attr]
        core.normal_()
    x = torch.randn(TRAINED + HELD, 64)
    scores: Tensor = teacher(x)
    return x, (scores - scores.mean(0)).argmax(-1)


def shrunk(seed: int) -> tuple[nn.Sequential, Curve, Tensor]:
    """The network as it starts, its curve, and some inputs."""
    x, y = lesson(seed)
    model = network(START)

    def accuracy(model: nn.Module) -> tuple[float, int]:
        return float((model(x[TRAINED:]).argmax(-1) == y[TRAINED:]).double().mean()), HELD

    batches = [(x[at : at + BATCH], y[at : at + BATCH]) for at in range(0, TRAINED, BATCH)]
    curve = shrink(model, train=batches, loss=cross_entropy, evaluate=accuracy, seed=seed)
    return model, curve, x[:BATCH]


def run(out: Path, seed: int, say: Say) -> Curve:
    """Runs this part: says what it does, and writes the curve, the pruned graph and the model."""
    say(f"\n# network: ranks choose themselves while a network trains. Its labels come from ranks {dashed(PLANTED)}.")
    model, curve, x = shrunk(seed)
    chosen = curve.chosen
    small = chosen.model
    say("\n".join(f"  {line}" for line in str(curve).splitlines()))
    before, after = model[0], small.get_submodule("0")
    assert isinstance(before, TNModule) and isinstance(after, TNModule)
    say("\nThe first layer before and after:\n")
    for layer in (before, after):
        say("\n".join(f"    {line}" for line in terminal(layer.graph).splitlines()))
    with torch.no_grad():
        first, second = in_turns([lambda: model.eval()(x), lambda: small(x)], rounds=9, budget=0.5)
    best = max(curve.points, key=lambda point: point.score)
    say(
        f"  {curve.points[1].parameters:,} parameters -> {chosen.parameters:,}, {times(chosen.ratio)} smaller than "
        f"dense\n  accuracy {curve.points[1].score:.1%} with all ranks, {chosen.score:.1%} chosen, {best.score:.1%} "
        "at best\n"
        f"  a pass over {BATCH} samples: {duration(first)} before, {duration(second)} after"
    )
    curve.report(out / "network.html")
    save_spec(after.graph, out / "network.yaml")
    save(small, out / "network.safetensors")
    say(f"  wrote the curve {out}/network.html, network.yaml and network.safetensors")
    return curve
