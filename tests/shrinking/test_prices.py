"""Prices: parameters as `numel` counts them, multiply-adds as torch counts them, whole models with ordinary parts."""

from __future__ import annotations

from math import inf

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import tnmars
from tnmars import families
from tnmars.graph.rewrite import drop_ones
from tnmars.program.choice import choose_frozen
from tnmars.shrinking.model import Shrunk
from tnmars.shrinking.prices import Prices
from tnmars.shrinking.rule import Goals
from tnmars.shrinking.saliency import from_norms

LOWRANK = families.lowrank("linear", inputs=(40,), outputs=(30,), rank=8)
CONV = families.tucker2("conv", inputs=(6,), outputs=(8,), kernel=(3, 3), rank=4)


class Mixed(nn.Module):
    """Compiled and ordinary layers; one of them is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = tnmars.compile(CONV, batch=5, image=12)
        self.norm = nn.BatchNorm2d(8)
        self.fc = tnmars.compile(LOWRANK, batch=5)
        self.back = nn.Linear(30, 40, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        found = self.norm(self.conv(x)).mean((-1, -2)).repeat(1, 5)
        return self.fc(self.back(self.fc(found)))


def macs(model: nn.Module, *inputs: Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(*inputs)
    return counter.get_total_flops() // 2


def test_a_model_with_ordinary_parts_counts_as_a_whole() -> None:
    model, x = Mixed(), torch.randn(5, 6, 12, 12)
    names = {"conv": model.conv, "fc": model.fc}
    prices = Prices(model, names, ((x,), {}))
    graphs = {name: layer.graph for name, layer in names.items()}
    found = prices.whole(graphs)
    assert found.parameters == sum(value.numel() for value in model.parameters())
    assert prices.of(found, "bytes") == 4 * found.parameters
    assert prices.rest.macs == 5 * 30 * 40
    assert prices.layer("fc", LOWRANK).macs == 2 * 5 * (40 * 8 + 8 * 30)
    assert found.macs == macs(model, x)
    assert found.ms > 0
    assert {name: use.calls for name, use in prices.uses.items()} == {"conv": 1, "fc": 2}


def test_dense_costs_are_those_of_torchs_own_layers() -> None:
    model, x = Mixed(), torch.randn(5, 6, 12, 12)
    prices = Prices(model, {"conv": model.conv, "fc": model.fc}, ((x,), {}))
    found = prices.dense({"conv": CONV, "fc": LOWRANK})
    model.conv, model.fc = nn.Conv2d(6, 8, 3), nn.Linear(40, 30)
    assert found.parameters == sum(value.numel() for value in model.parameters())
    assert found.macs == macs(model, x)


def test_a_smaller_graph_costs_what_the_smaller_model_costs() -> None:
    model, x = Mixed(), torch.randn(5, 6, 12, 12)
    prices = Prices(model, {"conv": model.conv, "fc": model.fc}, ((x,), {}))
    small = tnmars.prune(model, ranks={"fc": 3, "conv": 2}, simplify=False)
    found = prices.whole({"conv": small.conv.graph, "fc": small.fc.graph})
    assert found.parameters == sum(value.numel() for value in small.parameters())
    assert found.macs == macs(small, x)


def test_the_weight_that_slices_compete_for_is_in_the_unit_of_the_budget() -> None:
    model = nn.Sequential(tnmars.compile(LOWRANK, batch=7))
    prices = Prices(model, {"0": model[0]}, ((torch.randn(7, 40),), {}))
    assert prices.weight("0", LOWRANK, {"r": 3}, "parameters") == 3 * 70 + 30
    assert prices.weight("0", LOWRANK, {"r": 3}, "macs") == 7 * 3 * 70


@pytest.mark.parametrize("budget", ["8x parameters", "20 kB", "8x macs", "0.07 ms"])
def test_every_unit_has_a_budget(budget: str) -> None:
    """The ranks come out as those of the largest model within the budget, found by trying them all."""
    graph = families.lowrank("linear", inputs=(400,), outputs=(300,), rank=60)
    model, x = nn.Sequential(tnmars.compile(graph, batch=64), nn.Linear(300, 2)), torch.randn(64, 400)
    goals = Goals.of(budget, None, tnmars.Staircase())
    shrunk = Shrunk(model, ((x,), {}), goals, from_norms)
    rest = shrunk.prices.rest
    limit = goals.limits(shrunk.dense)[0]
    costs = {}
    for rank in range(1, 61):
        cut = families.lowrank("linear", inputs=(400,), outputs=(300,), rank=rank)
        frozen = choose_frozen(drop_ones(cut).graph, 64, model[0].planner.model, inf)[0]
        costs[rank] = {
            "parameters": 700 * rank + 300 + 602,
            "bytes": 4 * (700 * rank + 300 + 602),
            "macs": 64 * (700 * rank + 600),
            "ms": 1e3 * frozen.cost + rest.ms,
        }[goals.unit]
    while shrunk.prices.of(shrunk.cost(), goals.unit) > limit:
        shrunk.cut_()
    assert model[0].graph.bonds["r"].size == max(rank for rank, cost in costs.items() if cost <= limit)
