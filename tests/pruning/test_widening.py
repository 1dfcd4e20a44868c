"""Wider bonds: the weight stays, a cut is the inverse, optimizer state is padded, and the new slices learn."""

from __future__ import annotations

import copy

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, graphs
from torch import Tensor, nn

import tnmars
from tnmars import Graph, TnmarsError, families
from tnmars.decomposing.rewritten import cores_after
from tnmars.graph.rewrite import prune, widen

LOWRANK = families.lowrank("linear", inputs=(6,), outputs=(5,), rank=2)
TRAIN = families.tt("linear", inputs=(3, 4), outputs=(4, 2), rank=2)


@st.composite
def wider(draw: st.DrawFn) -> tuple[Graph, dict[str, int]]:
    """A graph, and larger sizes of some of its bonds."""
    graph = draw(graphs(bonded=True, terms=3))
    return graph, {name: bond.size + draw(st.integers(0, 3)) for name, bond in graph.bonds.items()}


def weight(graph: Graph, cores: dict[str, Tensor]) -> np.ndarray:
    return oracle.tensor(graph, {name: core.detach().numpy() for name, core in cores.items()}, optimize=True)


@settings(max_examples=cases(500))
@given(wider(), st.integers(0, 99))
def test_widening_then_pruning_is_the_identity(problem: tuple[Graph, dict[str, int]], seed: int) -> None:
    graph, sizes = problem
    layer = oracle.compiled(graph)
    before = {name: layer.cores.get(name).detach().clone() for name in graph.cores}
    tnmars.widen_(layer, {"": sizes}, seed=seed)
    assert {name: bond.size for name, bond in layer.graph.bonds.items()} == sizes
    wide = {name: layer.cores.get(name).detach() for name in graph.cores}
    exact = weight(graph, before)
    assert np.abs(weight(layer.graph, wide) - exact).max() <= 1e-12 * max(1.0, np.abs(exact).max())
    back = prune(layer.graph, {name: range(bond.size) for name, bond in graph.bonds.items()})
    assert back.graph == graph
    after = cores_after(back, wide)
    assert after.keys() == before.keys()
    for name, core in before.items():
        assert (after[name] - core).abs().max() <= 1e-12


@settings(max_examples=cases(200))
@given(wider())
def test_the_rewrite_pads_with_zeros(problem: tuple[Graph, dict[str, int]]) -> None:
    graph, sizes = problem
    cores = {name: torch.randn(shape, dtype=torch.float64) for name, shape in graph.cores.items()}
    rewrite = widen(graph, sizes)
    for name, value in cores_after(rewrite, cores).items():
        expected = np.zeros(rewrite.graph.cores[name])
        expected[tuple(slice(size) for size in cores[name].shape)] = cores[name].numpy()
        np.testing.assert_array_equal(value.numpy(), expected)


def test_new_slices_are_small_at_one_end_and_zero_at_the_other() -> None:
    layer = tnmars.compile(families.lowrank("linear", inputs=(60,), outputs=(50,), rank=2), dtype=torch.float64)
    size = layer.cores.get("A").square().mean().sqrt().item()
    tnmars.widen_(layer, 40, scale=0.3)
    new = layer.cores.get("A").detach()[:, 2:]
    assert new.square().mean().sqrt().item() == pytest.approx(0.3 * size, rel=0.1)
    assert not layer.cores.get("B").detach()[2:].any()


@pytest.mark.parametrize("start", ["random", "gradient"])
@pytest.mark.parametrize("graph", [LOWRANK, TRAIN, families.cp("linear", inputs=(3, 2), outputs=(5,), rank=2)])
def test_a_start_that_is_too_narrow_is_repaired(graph: Graph, start: str) -> None:
    torch.manual_seed(0)
    layer = tnmars.compile(graph, bias=False)
    x = torch.randn(64, graph.in_features)
    y = x @ torch.randn(graph.in_features, graph.out_features)

    def trained(steps: int) -> float:
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = (layer(x) - y).square().mean()
            loss.backward()
            optimizer.step()
        return loss.item()

    narrow = trained(600)
    tnmars.widen_(layer, 8, start=start, seed=0)
    assert trained(600) < 0.2 * narrow


def test_directions_of_the_gradient_lower_the_loss_faster() -> None:
    """After one small step of plain descent at the end that was 0; new slices are equally large."""
    fallen = {}
    for start in ("random", "gradient"):
        torch.manual_seed(0)
        layer = tnmars.compile(
            families.lowrank("linear", inputs=(40,), outputs=(30,), rank=3), bias=False, dtype=torch.float64
        )
        x, target = torch.eye(40, dtype=torch.float64), torch.randn(40, 2).double() @ torch.randn(2, 30).double()
        (layer(x) - target).square().sum().backward()
        tnmars.widen_(layer, 5, start=start, seed=0)
        layer.zero_grad()
        loss = (layer(x) - target).square().sum()
        loss.backward()
        with torch.no_grad():
            layer.cores.get("B")[3:] -= 1e-3 * layer.cores.get("B").grad[3:]
        fallen[start] = (loss - (layer(x) - target).square().sum()).item()
    assert fallen["gradient"] > 3 * fallen["random"] > 0


def test_optimizer_state_is_padded_with_zeros() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(tnmars.compile(TRAIN), nn.Linear(8, 2))
    optimizer = torch.optim.Adam([{"params": model[0].parameters(), "lr": 0.01}, {"params": model[1].parameters()}])
    model(torch.randn(4, 12)).square().mean().backward()
    optimizer.step()
    names = list(TRAIN.cores)
    old = {name: copy.deepcopy(optimizer.state[model[0].cores.get(name)]) for name in names}
    slope = {name: model[0].cores.get(name).grad.clone() for name in names}
    tnmars.widen_(model, {"0": {"r1": 3}}, optimizer)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
    for name in names:
        core = model[0].cores.get(name)
        inside = tuple(slice(size) for size in TRAIN.cores[name])
        for key in ("exp_avg", "exp_avg_sq"):
            value = optimizer.state[core][key]
            assert value.shape == core.shape and torch.equal(value[inside], old[name][key])
            assert value.count_nonzero() == old[name][key].count_nonzero()
        assert torch.equal(core.grad[inside], slope[name])
    model(torch.randn(4, 12)).square().mean().backward()
    optimizer.step()


def test_only_what_is_named_changes() -> None:
    model = nn.Sequential(
        tnmars.compile(TRAIN), tnmars.compile(families.lowrank("linear", inputs=(8,), outputs=(4,), rank=3))
    )
    kept = model[1].cores.get("A")
    tnmars.widen_(model, {"0": 4})
    assert model[1].cores.get("A") is kept and model[1].graph.bonds["r"].size == 3
    tnmars.widen_(model, 2)
    assert model[0].graph.bonds["r1"].size == 4 and model[1].cores.get("A") is kept


def test_a_model_without_bonds_cannot_be_widened() -> None:
    """A pruned one, for example: it would stay as it is without a word."""
    small = tnmars.prune(tnmars.compile(LOWRANK), ranks=1)
    assert not small.graph.bonds
    with pytest.raises(TnmarsError, match=r"no layer .* has a bond that could be widened\. Nothing was changed"):
        tnmars.widen_(small, 3)
    with pytest.raises(TnmarsError, match=r"layer '' has no bond that could be widened\. Nothing was changed"):
        tnmars.widen_(small, {"": 3})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": {"1": 3}}, "ranks names '1', which is not a compiled layer"),
        ({"ranks": {"": {"s": 3}}}, "layer '': ranks names bond 's', which the graph does not have"),
        ({"ranks": {"": {"r": 1}}}, "layer '': the size of bond 'r' is 1, but must be a whole number of at least 2"),
        ({"ranks": 3, "start": "zero"}, "start is 'zero', but must be 'random' or 'gradient'"),
        ({"ranks": 3, "scale": 0.0}, r"scale is 0\.0, but must be a number above 0"),
        ({"ranks": 3, "start": "gradient"}, "a core of layer '' has no gradient"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, object], words: str) -> None:
    layer = tnmars.compile(LOWRANK)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(TnmarsError, match=words) as raised:
        tnmars.widen_(layer, **options)
    assert "Nothing was changed" in str(raised.value)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_layers_with_gates_or_shared_cores_are_refused() -> None:
    with pytest.raises(TnmarsError, match="layer '' has gates"):
        tnmars.widen_(tnmars.compile(LOWRANK, selector=tnmars.Mars()), 4)
    layer = tnmars.compile(LOWRANK)
    optimizer = torch.optim.Adafactor(layer.parameters())
    layer(torch.randn(2, 6)).sum().backward()
    optimizer.step()
    with pytest.raises(TnmarsError, match="Adafactor keeps"):
        tnmars.widen_(layer, 4, optimizer)
    assert layer.graph.bonds["r"].size == 2
