"""Measured latency: a layer before, after and dense, in turns, so that a slow moment of the machine affects all of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from tnmars.layer.module import TNModule
from tnmars.timing.clock import in_turns
from tnmars.timing.tuning import example_inputs

if TYPE_CHECKING:
    from collections.abc import Iterator

BUDGET = 1.0
"""The seconds that the timing of a layer takes, unless a single pass takes longer."""
ROUNDS = 200
LARGEST = 2**26
"""Dense weights with more numbers are not made."""


def latencies(before: TNModule, after: TNModule, batch: int, image: int) -> tuple[float, float, float | None]:
    """Seconds of a pass without gradients, before, after and for torch's dense layer where there is one."""
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


def _dense(layer: TNModule) -> Callable[[Tensor], Tensor] | None:
    """Torch's own layer with the whole weight; none for a map, or where the weight is too large."""
    graph = layer.graph
    if graph.kind == "map" or prod(graph.dense_shape) > LARGEST:
        return None
    weight = torch.zeros(graph.dense_shape, dtype=layer.dtype, device=layer.device)
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
