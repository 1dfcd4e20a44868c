"""Ranks rounded up at a cut: sizes, values, and the predicted time."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
import torch

import tnmars
from tnmars import TnmarsError
from tnmars.plan.cost import CostModel
from tnmars.pruning.mergers import planned_time

SIZES: dict[str, Any] = {"inputs": (6, 8), "outputs": (8, 6), "rank": 24}


def gated(open_slices: int, graph: tnmars.Graph | None = None, dtype: torch.dtype = torch.float64) -> tnmars.TNModule:
    """A layer whose gates leave that many slices of each bond open, not the first ones."""
    graph = graph or tnmars.families.tt("linear", **SIZES)
    layer = tnmars.compile(graph, batch=64, selector=tnmars.Mars(), model=CostModel(), dtype=dtype, warn=False)
    with torch.no_grad():
        for at, logits in enumerate(layer.logits()):
            shut = torch.randperm(logits.numel(), generator=torch.Generator().manual_seed(at))[open_slices:]
            logits.fill_(3.0)[shut] = -3.0
    tnmars.MaskSchedule(layer, total_steps=10).step()
    return layer.eval()


def sizes(layer: torch.nn.Module) -> list[int]:
    assert isinstance(layer, tnmars.TNModule)
    return [bond.size for bond in layer.graph.bonds.values()]


@pytest.mark.parametrize(("open_slices", "multiple", "size"), [(9, 8, 16), (16, 8, 16), (17, 16, 24), (2, 5, 5)])
def test_sizes_are_rounded_up_to_multiples_but_not_above_what_they_were(
    open_slices: int, multiple: int, size: int
) -> None:
    layer = gated(open_slices)
    small = tnmars.prune(layer, round_to=multiple)
    assert sizes(small) == [size]
    x = torch.randn(5, 48, dtype=torch.float64)
    assert oracle.error(small(x), layer(x)) <= 1e-12, "slices that are added are 0"
    assert sizes(tnmars.prune(layer)) == [open_slices]


def test_bonds_of_size_1_are_dropped_all_the_same() -> None:
    assert sizes(tnmars.prune(gated(1), round_to=8)) == []


def test_added_slices_are_zero_in_one_core_and_can_learn() -> None:
    """The core at the other end keeps its values, so that gradients reach the zeros."""
    layer = gated(6)
    small = tnmars.prune(layer, round_to=8, simplify=False)
    assert isinstance(small, tnmars.TNModule)
    small(torch.randn(5, 48, dtype=torch.float64)).square().sum().backward()
    first, second = (small.cores.get(name) for name in small.graph.cores)
    ends = [first.detach().flatten(0, -2).abs().sum(0), second.detach().flatten(1).abs().sum(1)]
    assert sorted(int((end == 0).sum()) for end in ends) == [0, 2]
    empty = min(range(2), key=lambda at: float(ends[at].min()))
    slopes = [first.grad.flatten(0, -2).abs().sum(0), second.grad.flatten(1).abs().sum(1)]  # type: ignore[union-attr]
    assert bool((slopes[empty][ends[empty] == 0] > 0).all())


def test_gates_that_stay_are_shut_as_before() -> None:
    layer = gated(6)
    small = tnmars.prune(layer, round_to=8, keep_gates=True)
    assert isinstance(small, tnmars.TNModule)
    assert sizes(small) == [8]
    x = torch.randn(5, 48, dtype=torch.float64)
    assert oracle.error(small(x), layer(x)) <= 1e-12
    assert {len(kept) for kept in tnmars.keep(small)[""].values()} == {6}


def test_in_place_the_optimizer_follows() -> None:
    layer = gated(6).train()
    optimizer = torch.optim.Adam(tnmars.param_groups(layer, lr=1e-2))
    x = torch.randn(5, 48, dtype=torch.float64)
    layer(x).square().sum().backward()
    optimizer.step()
    wanted = layer.eval()(x)
    tnmars.prune_(layer, optimizer, round_to=8)
    assert sizes(layer) == [8]
    assert oracle.error(layer(x), wanted) <= 1e-12
    for core in layer.cores.parameters():
        assert optimizer.state[core]["exp_avg"].shape == core.shape


def test_ranks_are_rounded_to_more_of_the_canonical_form() -> None:
    """The heaviest slices are there already; the rounded cut is the cut to the rounded rank."""
    graph = tnmars.families.tt("linear", **SIZES)
    layer = tnmars.compile(graph, batch=64, dtype=torch.float64)
    rounded, wanted = tnmars.prune(layer, ranks=9, round_to=8), tnmars.prune(layer, ranks=16)
    x = torch.randn(5, 48, dtype=torch.float64)
    assert sizes(rounded) == [16]
    assert oracle.error(rounded(x), wanted(x)) <= 1e-12
    tnmars.prune_(layer, ranks=9, round_to=8)
    assert oracle.error(layer(x), wanted(x)) <= 1e-12


def test_the_predicted_time_decides() -> None:
    """15 columns of float32 are narrower than a vector register, 16 are not; 17 to 24 would only add work."""
    graph = tnmars.families.lowrank("linear", inputs=(512,), outputs=(512,), rank=48)
    times = []
    for open_slices, size in ((15, 16), (17, 17), (32, 32)):
        layer = gated(open_slices, graph, torch.float32)
        small = tnmars.prune(layer, round_to="time", simplify=False)
        assert sizes(small) == [size]
        assert isinstance(small, tnmars.TNModule)
        plain = tnmars.prune(layer, simplify=False)
        assert isinstance(plain, tnmars.TNModule)
        times.append([planned_time(each.graph, small.planner) for each in (small, plain)])
    assert all(one <= two for one, two in times)
    assert times[0][0] < 0.98 * times[0][1]


@pytest.mark.parametrize("wrong", [0, -8, True, 2.5, "speed"])
def test_what_is_no_multiple_is_refused(wrong: Any) -> None:
    layer = gated(9)
    before = layer.graph
    with pytest.raises(TnmarsError, match=r"round_to is .*\. Nothing was changed\.\n  Give a number such as 8"):
        tnmars.prune_(layer, round_to=wrong)
    assert layer.graph is before


@pytest.mark.parametrize("round_to", [8, "time"])
@pytest.mark.parametrize("wrong", [(1, 1, 2), (2, 1), ("a", 1), ([1], 2), (1.0, 2.0), (-1, 3), (3, 12)])
def test_wrong_slices_are_refused_as_without_rounding(wrong: Any, round_to: int | str) -> None:
    """Not sorted and rounded up in silence, and the message has the slices that were given."""
    layer = tnmars.compile(tnmars.families.lowrank("linear", inputs=(16,), outputs=(16,), rank=12))
    (bond,) = layer.graph.bonds
    refusals = []
    for option in (None, round_to):
        with pytest.raises(tnmars.GraphError) as raised:
            tnmars.prune(layer, keep={"": {bond: wrong}}, round_to=option)
        refusals.append(str(raised.value))
    assert refusals[0].startswith(f"keep of bond '{bond}' is {list(wrong)}, but must be")
    assert refusals[0] == refusals[1]


@pytest.mark.parametrize("cut", [tnmars.prune, tnmars.prune_])
def test_slices_of_your_own_are_not_rounded_up_while_gates_stay(cut) -> None:
    """The gates of the added slices may be open."""
    graph = tnmars.families.lowrank("linear", inputs=(16,), outputs=(16,), rank=12)
    layer = tnmars.compile(graph, selector=tnmars.Mars(), warn=False)
    with pytest.raises(tnmars.TnmarsError, match=r"gates may be open(.|\n)*Leave keep_gates out"):
        cut(layer, keep={"": {"r": (0, 1, 2)}}, round_to=8, keep_gates=True)
    assert layer.graph.bonds["r"].size == 12


class Sum(torch.nn.Module):
    """Two layers with the same input."""

    def __init__(self, one: tnmars.TNModule, two: tnmars.TNModule):
        super().__init__()
        self.one, self.two = one, two

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.two(x)


@pytest.mark.parametrize("round_to", [8, "time"])
@pytest.mark.parametrize("core", ["A", "B", "C"])
def test_layers_that_share_a_core_are_rounded_alike(core: str, round_to: int | str) -> None:
    """The norms of their other cores differ, so that each on its own would add other slices."""
    sides: dict[str, Any] = {"inputs": {"i": 24, "j": 24}, "outputs": {"o": 256}, "bonds": {"r": 20, "s": 40}}
    graph = tnmars.network("linear", "A[i,r] B[r,j,s] C[s,o]", **sides)
    model = Sum(gated(15, graph), gated(15, graph)).eval()
    for layer in (model.one, model.two):
        for name in "ABC":
            layer.cores.get(name).data *= torch.rand(layer.cores.get(name).shape) ** 3
    model.two.cores.put(core, model.one.cores.get(core))
    small = tnmars.prune(model, round_to=round_to, simplify=False)
    assert isinstance(small, Sum)
    assert sizes(small.one) == sizes(small.two)
    if round_to == 8:
        assert sizes(small.one) == [16, 16]
    assert small.one.cores.get(core) is small.two.cores.get(core)
    x = torch.randn(5, 576, dtype=torch.float64)
    assert oracle.error(small(x), model(x)) <= 1e-12


def test_layers_that_share_a_core_but_keep_other_slices_are_refused_as_before() -> None:
    graph = tnmars.families.lowrank("linear", inputs=(48,), outputs=(48,), rank=24)
    model = Sum(gated(9, graph), gated(9, graph)).eval()
    with torch.no_grad():
        model.two.logits()[0].copy_(model.one.logits()[0].flip(0))
    name = next(iter(graph.cores))
    model.two.cores.put(name, model.one.cores.get(name))
    with pytest.raises(TnmarsError, match=r"cut differently\. Nothing was changed"):
        tnmars.prune(model, round_to=8, simplify=False)


def test_gates_of_a_tied_core_are_rounded_where_its_bonds_have_different_ends() -> None:
    """Only zeros are multiplied into the cores, and those need no root."""
    sides: dict[str, Any] = {"inputs": {"i1": 4, "i2": 4, "i3": 4}, "outputs": {"o1": 4, "o2": 4, "o3": 4}}
    graph = tnmars.network("linear", "A[i1,o1,r] B=A[i2,o2,s] C[r,s] D[r,i3,o3]", **sides, bonds={"r": 12, "s": 12})
    layer = gated(5, graph)
    small = tnmars.prune(layer, round_to=8, simplify=False)
    assert sizes(small) == [8]
    x = torch.randn(5, 64, dtype=torch.float64)
    assert oracle.error(small(x), layer(x)) <= 1e-12
