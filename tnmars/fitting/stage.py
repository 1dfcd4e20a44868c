"""Ranks by trained gates: a compiled layer with a selector, fitted to the data by Adam and cut to what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi
from typing import Any

import torch
from torch import Tensor

from tnmars.compiler import compile_quietly as compile
from tnmars.decomposing.refine import Data
from tnmars.decomposing.tensors import Decomposition
from tnmars.graph import Graph
from tnmars.layer.module import TNModule
from tnmars.layer.numbers import squared, wide
from tnmars.pruning.folding import fold_factors, folded
from tnmars.pruning.prune_model import layer_keep
from tnmars.select import Selector
from tnmars.training.objective import expected, param_groups, penalty
from tnmars.training.schedule import MaskSchedule

CORES, LOGITS, LAST = 1e-2, 3e-2, 0.05
"""The learning rates, and the share of them that is left at the end of the cosine schedule."""
MOST = 2**22
"""Tensors with more entries are evaluated only at the known ones."""

Shown = Callable[[dict[str, Any], int, int], None]


def gated(graph: Graph, layer: TNModule) -> Decomposition:
    """The decomposition that the gates of a trained layer keep, with the most digits."""
    kept = layer_keep(layer)
    cores = folded({name: wide(layer.cores.get(name).detach()) for name in graph.cores}, fold_factors(layer, kept, {}))
    return Decomposition(graph, cores, {name: name for name in graph.bonds}).cut(kept)


def trained(
    graph: Graph, data: Data, selector: Selector, steps: int, seed: int, shown: Shown | None = None
) -> TNModule:
    """A layer with gates, fitted to the data. Each step uses all known entries."""
    layer = compile(graph, selector=selector, init=1.0, dtype=_single(data.values).dtype)
    optimizer = torch.optim.Adam(param_groups(layer, CORES, mask_lr=LOGITS), fused=not layer.dtype.is_complex)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: LAST + (1.0 - LAST) * 0.5 * (1.0 + cos(pi * step / steps))
    )
    schedule = MaskSchedule(layer, steps, seed=seed)
    error = _error(layer, data)
    for step in range(steps):
        value = error()
        loss = value * selector.sharpness_at(step / steps) + penalty(layer) / data.count
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if selector.limits is not None:
            with torch.no_grad():
                for logits in layer.logits():
                    logits.clamp_(*selector.limits)
        rate.step()
        schedule.step()
        if shown is not None and (step + 1) % 100 == 0:
            record: dict[str, Any] = {"loss": value.item() ** 0.5, "expected_parameters": expected(layer).item()}
            record["ranks"] = {"": [len(kept) for kept in layer_keep(layer).values()]}
            shown(record, step + 1, steps)
    return layer


def _error(layer: TNModule, data: Data) -> Callable[[], Tensor]:
    """A function that returns the mean squared error at the known entries."""
    if data.index is None or data.known is None:
        values = _single(data.values)
        return lambda: squared(layer() - values).mean()
    index, known = data.index, _single(data.known)
    if data.values.numel() > MOST:
        return lambda: squared(layer(index) - known).mean()
    sides = torch.tensor(data.values.shape)
    flat = index @ torch.tensor([int(sides[at + 1 :].prod()) for at in range(len(sides))])
    return lambda: squared(layer().reshape(-1)[flat] - known).mean()


def _single(values: Tensor) -> Tensor:
    return values.to(torch.complex64 if values.is_complex() else torch.float32)
