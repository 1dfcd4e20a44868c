"""Measured latency: a layer before, after and dense, in turns, so that a slow moment of the machine hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from tnmars.layer.module import TNModule
from tnmars.timing.tuning import example_inputs

if TYPE_CHECKING:
    from collections.abc import Iterator

Action = Callable[[], object]
BUDGET = 1.0
"""Seconds after which no other round begins."""
ROUNDS = 200
TURN = 0.001
"""A turn lasts at least so many seconds: short actions are repeated within it."""
LARGEST = 2**26
"""Dense weights with more numbers are not made."""


def latencies(before: TNModule, after: TNModule, batch: int, image: int) -> tuple[float, float, float | None]:
    """Seconds of a pass without gradients, before, after and for torch's dense layer where there is one."""
    device, dtype = after._anchor.device, after.dtype
    with torch.random.fork_rng(devices=[]):
        inputs = tuple(value.to(device) for value in example_inputs(after.graph, batch, image, dtype))
    dense = _dense(after)
    with _judged(before), _judged(after), torch.no_grad():
        runs: list[Callable[..., Tensor]] = [before, after, *([] if dense is None else [dense])]
        found = in_turns([_action(run, inputs, device) for run in runs])
    return found[0], found[1], found[2] if dense is not None else None


@contextmanager
def _judged(layer: TNModule) -> Iterator[None]:
    """Within the block, a layer is in `eval()`: its gates are what pruning keeps."""
    training = layer.training
    layer.eval()
    try:
        yield
    finally:
        layer.train(training)


def _action(run: Callable[..., Tensor], inputs: Sequence[Tensor], device: torch.device) -> Action:
    if device.type != "cuda":
        return lambda: run(*inputs)

    def action() -> None:
        run(*inputs)
        torch.cuda.synchronize(device)

    return action


def in_turns(actions: Sequence[Action], budget: float = BUDGET) -> list[float]:
    """The shortest time of each action, in seconds, over rounds in which each has its turn."""
    start = time.perf_counter()
    shortest = [_turn(action, 0.0) for action in actions]
    for _ in range(ROUNDS):
        if time.perf_counter() - start + sum(shortest) > budget:
            break
        shortest = [min(best, _turn(action, TURN)) for best, action in zip(shortest, actions, strict=True)]
    return shortest


def _turn(action: Action, least: float) -> float:
    """The shortest of a few runs that take `least` seconds together; of one, where that is enough."""
    spent, shortest = 0.0, float("inf")
    while shortest == float("inf") or spent < least:
        start = time.perf_counter()
        action()
        took = time.perf_counter() - start
        shortest = min(shortest, took)
        spent += max(took, 1e-6)
    return shortest


def _dense(layer: TNModule) -> Callable[[Tensor], Tensor] | None:
    """Torch's own layer with the whole weight; none for a map, or where the weight is too large."""
    graph = layer.graph
    if graph.kind == "map" or prod(graph.dense_shape) > LARGEST:
        return None
    weight = torch.zeros(graph.dense_shape, dtype=layer.dtype, device=layer._anchor.device)
    bias = None if layer.bias is None else layer.bias.detach()
    options: dict[str, Any] = {key: value for key, value in graph.options if key not in ("bias", "padding_idx")}
    convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[max(1, len(graph.kernel_size)) - 1]
    embed = functional.embedding_bag if "mode" in options else functional.embedding
    runs: dict[str, Callable[[Tensor], Tensor]] = {
        "linear": lambda x: functional.linear(x, weight, bias),
        "conv": lambda x: convolve(x, weight, bias, **options),
        "embedding": lambda x: embed(x, weight, **options),
        "tensor": lambda x: weight[x.unbind(-1)],
    }
    return runs.get(graph.kind)
