"""Cuts without gates: `prune` and `prune_` with `ranks` and `energy`."""

from __future__ import annotations

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, graphs
from torch import nn

import tnmars
from tnmars import Graph, TnmarsError, families

LINEAR = families.tt("linear", inputs=(4, 4), outputs=(4, 4), rank=8)


def model() -> nn.Sequential:
    layers = [oracle.compiled(LINEAR, dtype=torch.float64) for _ in range(2)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1])


def test_the_best_slices_of_every_bond_stay() -> None:
    layer = oracle.compiled(families.lowrank("linear", inputs=(9,), outputs=(7,), rank=5), dtype=torch.float64)
    before = layer.dense().detach()
    small = tnmars.prune(layer, ranks=2)
    assert small.graph.bonds["r"].size == 2 and layer.graph.bonds["r"].size == 5
    assert torch.equal(layer.dense().detach(), before)
    left, values, right = torch.linalg.svd(before)
    torch.testing.assert_close(small.dense().detach(), left[:, :2] * values[:2] @ right[:2])


def test_ranks_by_layer_and_bond() -> None:
    network = model()
    small = tnmars.prune(network, ranks={"2": {"r1": 3}}, simplify=False)
    assert small[0].graph == network[0].graph
    assert small[2].graph.bonds["r1"].size == 3
    assert tnmars.prune(network, ranks={"0": 2}, simplify=False)[0].graph.bonds["r1"].size == 2
    unchanged = tnmars.prune(network, ranks=100, simplify=False)
    given_inputs = torch.randn(5, 16, dtype=torch.float64)
    torch.testing.assert_close(unchanged(given_inputs), network(given_inputs))


@settings(max_examples=cases(100))
@given(graphs(("linear", "tensor"), bonded=True, terms=2), st.floats(0.5, 1.0))
def test_a_share_of_the_squared_norm_is_kept(graph: Graph, energy: float) -> None:
    layer = oracle.compiled(graph, dtype=torch.float64)
    problem = oracle.problem(graph, 2)
    oracle.load(layer, problem)
    small = tnmars.prune(layer, energy=energy, simplify=False)
    before = oracle.whole(graph, problem.cores).detach()
    cores = {name: small.cores.get(name).detach() for name in small.graph.cores}
    lost = oracle.whole(small.graph, cores) - before
    assert lost.square().sum() <= (1.0 - energy) * before.square().sum() + 1e-9


def test_pruning_in_place() -> None:
    network = model()
    before = [layer.dense().detach() for layer in (network[0], network[2])]
    tnmars.prune_(network, ranks=3)
    assert [bond.size for bond in network[0].graph.bonds.values()] == [3]
    for layer, weight in zip((network[0], network[2]), before, strict=True):
        values = torch.linalg.svdvals(weight.reshape(4, 4, 4, 4).permute(0, 2, 1, 3).reshape(16, 16))
        lost = (layer.dense().detach() - weight).norm()
        assert lost.item() == pytest.approx(values[3:].norm().item())


REFUSED = {
    "an optimizer": (
        lambda network: tnmars.prune_(network, torch.optim.Adam(network.parameters()), ranks=2),
        "so the optimizer's state would be meaningless",
    ),
    "two rules": (lambda network: tnmars.prune(network, ranks=2, energy=0.9), "ranks and energy are given"),
    "a layer that is not there": (lambda network: tnmars.prune(network, ranks={"3": 2}), "ranks names '3'"),
    "a bond that is not there": (
        lambda network: tnmars.prune(network, ranks={"0": {"q": 2}}),
        "layer '0': ranks names bond 'q'",
    ),
    "no slice": (lambda network: tnmars.prune(network, ranks=0), "must have a whole number of at least 1"),
    "too much": (lambda network: tnmars.prune(network, energy=1.5), "energy is 1.5, but must be a number from 0 to 1"),
    "no layer": (lambda network: tnmars.prune(nn.ReLU(), ranks=2), "has no compiled layer to cut"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused_and_nothing_changes(case: str) -> None:
    network = model()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    call, text = REFUSED[case]
    with pytest.raises(TnmarsError, match=text):
        call(network)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_gates_and_shared_cores_are_refused() -> None:
    gated = tnmars.compile(LINEAR, selector=tnmars.Mars())
    with pytest.raises(TnmarsError, match="layer '' has gates, and they decide what is cut"):
        tnmars.prune(gated, ranks=2)
    network = model()
    first = next(iter(LINEAR.cores))
    network[2].cores.put(first, network[0].cores.get(first))
    with pytest.raises(TnmarsError, match=f"core '{first}' of layer '0' is '2.cores"):
        tnmars.prune(network, ranks=2)
