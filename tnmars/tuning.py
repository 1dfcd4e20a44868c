"""Timing of close candidates: the model ranks forms, and the clock decides among the best few.

Candidates are timed in turn, round by round, so that a slow moment of the machine hits them all alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tnmars.choice import frozen
from tnmars.forms import Form
from tnmars.graph import Graph, Role
from tnmars.module import code
from tnmars.plan.cost import CostModel

CANDIDATES = 5
ROUNDS = 7


def example_inputs(graph: Graph, batch: int, image: int = 32, dtype: torch.dtype | None = None) -> tuple[Tensor, ...]:
    """Random inputs of a layer, with data axes of the given lengths, as `forward` takes them."""
    if graph.of_role(Role.LOOKUP):
        return (torch.randint(0, graph.vocab, (batch,)),)
    if graph.of_role(Role.FREE):
        return (torch.stack([torch.randint(0, mode.size, (batch,)) for mode in graph.modes], -1),)
    if graph.inputs:
        sizes = {mode.name: mode.size for mode in graph.modes}
        shapes = []
        for operand in graph.inputs:
            shape = [torch.Size([sizes.get(name, batch) for name in axis]).numel() for axis in operand.axes]
            shapes.append(shape)
        return tuple(torch.randn(shape, dtype=dtype) for shape in shapes)
    return (torch.randn(batch, graph.in_features, *[image] * len(graph.kernel_size), dtype=dtype),)


def interleaved(actions: Sequence[Callable[[], object]], rounds: int = ROUNDS) -> list[float]:
    """The shortest time of each action, over rounds in which each has its turn."""
    shortest = [float("inf")] * len(actions)
    for action in actions:
        action()
    for _ in range(rounds):
        for at, action in enumerate(actions):
            start = time.perf_counter()
            action()
            shortest[at] = min(shortest[at], time.perf_counter() - start)
    return shortest


def _action(graph: Graph, form: Form, batch: int, image: int, mode: str) -> Callable[[], object]:
    """A run of a form on random numbers: a training step, inference, or inference with folded cores."""
    made = code(form)
    inputs = example_inputs(graph, batch, image)
    cores = [torch.randn(graph.cores[name]).requires_grad_(mode == "train") for name in made.cores]
    bias = torch.zeros(graph.out_features, requires_grad=mode == "train") if graph.has_bias else None
    if mode == "train":
        return lambda: torch.autograd.backward(made(inputs, bias, made.fold(*cores)).sum())

    @torch.no_grad()
    def infer() -> object:
        return made(inputs, bias, made.fold(*cores))

    if mode == "infer":
        return infer
    with torch.no_grad():
        parts = tuple(part.contiguous() for part in made.fold(*cores))

    @torch.no_grad()
    def run() -> object:
        return made(inputs, bias, parts)

    return run


def fastest(graph: Graph, forms: Sequence[Form], batch: int, mode: str, image: int = 32) -> Form:
    """The form that the clock prefers among the best few by estimate."""
    close = list(forms[:CANDIDATES])
    times = interleaved([_action(graph, form, batch, image, mode) for form in close])
    return close[times.index(min(times))]


def tuned_frozen(graph: Graph, batch: int, model: CostModel, limit: float, image: int = 32) -> Form:
    """The fastest form for inference with folded cores."""
    return fastest(graph, frozen(graph, batch, model, limit, image), batch, "folded", image)
