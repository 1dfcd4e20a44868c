"""One graph, given by the user: the compiled layer against torch's dense layer and against plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from tnmars.bench.plain import Contender, push, rebuild
from tnmars.compiler import compile_quietly as compile
from tnmars.graph import Graph
from tnmars.layer.forward import dense_layer, example_inputs
from tnmars.layer.module import TNModule
from tnmars.ship.freezing import freeze
from tnmars.timing.clock import in_turns, inference, training_step

LARGEST = 2**27
"""Dense weights with more entries are not made."""
DENSE = "dense torch layer"


@dataclass(frozen=True)
class Result:
    """The times of one graph at one batch, in seconds, by name."""

    graph: Graph
    batch: int
    inference: tuple[tuple[str, float], ...]
    training: tuple[tuple[str, float], ...]


def _dense(graph: Graph, layer: TNModule) -> Contender | None:
    """Torch's own layer with the dense weight."""
    run = dense_layer(graph, LARGEST)
    if run is None:
        return None
    weight = layer.dense().detach().clone().requires_grad_()
    bias = None if layer.bias is None else layer.bias.detach().clone().requires_grad_()
    return Contender(DENSE, "dense", partial(run, weight, bias), (weight, *([] if bias is None else [bias])))


def _plain(graph: Graph, layer: TNModule, batch: int) -> list[Contender]:
    cores = {name: layer.cores.get(name) for name in graph.cores}
    contenders = [push(graph, cores, layer.bias, batch), rebuild(graph, cores, layer.bias, LARGEST)]
    return [contender for contender in contenders if contender is not None]


def bench_file(graph: Graph, batch: int = 128, image: int = 32, *, tune: bool = False, rounds: int = 9) -> Result:
    """Times a graph for one batch size, with torch's current number of threads.

    The compiled layer, its frozen forms, torch's dense layer, pairwise einsum and rebuilding the weight.
    """
    torch.manual_seed(0)
    layer = compile(graph, batch=batch, image=image, tune=tune)
    inputs = example_inputs(graph, batch, image)
    dense = _dense(graph, layer)
    compiled = Contender("compiled", "ours", layer, tuple(layer.parameters()))
    trained = [*([dense] if dense else []), compiled, *_plain(graph, layer, batch)]
    frozen = [
        Contender(form, "ours", freeze(layer, form, batch=batch, image=image, tune=tune), ())
        for form in ("compact", "fast")
    ]
    inferring = trained + frozen
    passes = [inference(c.run, inputs) for c in inferring]
    steps = [training_step(c.run, inputs, c.parameters) for c in trained]
    infer_times, train_times = (in_turns(each, rounds=rounds, budget=2.0, least=3) for each in (passes, steps))
    return Result(
        graph,
        batch,
        tuple(zip((c.name for c in inferring), infer_times, strict=True)),
        tuple(zip((c.name for c in trained), train_times, strict=True)),
    )


def table(result: Result) -> list[list[str]]:
    """The result, cell by cell: milliseconds, and relative to the dense layer where there is one."""
    names = list(dict.fromkeys(name for name, _ in (*result.inference, *result.training)))
    lines = [["", "inference ms", "ratio", "training step ms", "ratio"]]
    for name in names:
        cells = [name]
        for listed in (result.inference, result.training):
            times = dict(listed)
            unit = times.get(DENSE)
            found = times.get(name)
            cells.append("-" if found is None else f"{found * 1e3:.3f}")
            cells.append("-" if found is None or unit is None else f"{found / unit:.2f}")
        lines.append(cells)
    return lines
