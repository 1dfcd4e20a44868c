"""Measured latency: a layer before, after and dense, taken in turns so that a slow moment affects all of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tnmars.layer.forward import dense_layer, example_inputs
from tnmars.layer.module import TNModule
from tnmars.timing.clock import in_turns

if TYPE_CHECKING:
    from collections.abc import Iterator

BUDGET = 1.0
"""The seconds that the timing of a layer takes, unless a single pass takes longer."""
ROUNDS = 200
LARGEST = 2**26
"""Dense weights with more numbers are not made."""


def latencies(before: TNModule, after: TNModule, batch: int, image: int) -> tuple[float, float, float | None]:
    """Seconds of a pass without gradients, before, after and for torch's dense layer if there is one."""
    device, dtype = after.device, after.dtype
    with torch.random.fork_rng(devices=[]):
        inputs = tuple(value.to(device) for value in example_inputs(after.graph, batch, image, dtype))
    dense = _dense(after)
    with _judged(before), _judged(after), torch.no_grad():
        runs: list[Callable[..., Tensor]] = [before, after, *([] if dense is None else [dense])]
        actions = [partial(run, *inputs) for run in runs]
        found = in_turns(actions, rounds=ROUNDS, budget=BUDGET / len(actions), device=device)
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


def _dense(layer: TNModule) -> Callable[..., Tensor] | None:
    """Torch's own layer with a weight of zeros; `None` for a map, or if the weight is too large."""
    run = dense_layer(layer.graph, LARGEST)
    if run is None:
        return None
    weight = torch.zeros(layer.graph.dense_shape, dtype=layer.dtype, device=layer.device)
    return partial(run, weight, None if layer.bias is None else layer.bias.detach())
