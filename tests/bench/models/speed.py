"""How fast a compressed network is: its time and its multiply-adds relative to the dense network, in one run."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tnmars.timing.clock import in_turns, inference, threads


@torch.no_grad()
def multiply_adds(network: nn.Module, example: Tensor) -> int:
    """The multiply-adds of convolutions, products and attention in one pass, as they are executed."""
    with FlopCounterMode(display=False) as counter:
        network(example)
    return counter.get_total_flops() // 2


def speed(
    dense: nn.Module, others: Mapping[str, nn.Module], example: Tensor, *, rounds: int = 15, budget: float = 20.0
) -> list[dict[str, Any]]:
    """Times on one thread, in turns, relative to the faster of two memory layouts of the dense network.

    The dense network runs twice under the name `again`: how far the two differ is the noise.
    """
    plain = copy.deepcopy(dense).to(memory_format=torch.contiguous_format)
    runners = {"dense": dense, "dense contiguous": plain, "again": dense, **others}
    with threads(1):
        actions = [inference(network, [example]) for network in runners.values()]
        times = dict(zip(runners, in_turns(actions, rounds=rounds, budget=budget, least=3), strict=True))
    best = min(times["dense"], times["dense contiguous"])
    operations = {name: multiply_adds(network, example) for name, network in runners.items()}
    return [
        {
            "row": name,
            "batch": len(example),
            "ms": 1000 * took,
            "time to dense": took / best,
            "multiply-adds to dense": operations[name] / operations["dense"],
        }
        for name, took in times.items()
    ]
