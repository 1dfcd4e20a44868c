"""Cost follows the open ranks: only open slices contracted, shut ones dropped, and the numbers stay the same."""

from __future__ import annotations

import copy

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import BONDED, Given, inputs_of, lowrank, set_gates
from oracle import compiled, error, problem
from strategies import cases, graphs
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tnmars
from tnmars import Mars
from tnmars.graph import Graph
from tnmars.layer.open_slices import open_slices


@given(graphs(bonded=True, terms=3), st.integers(0, 2**20), st.data())
@settings(max_examples=cases(1000), deadline=None)
def test_open_slices_alone_give_the_same_numbers(graph: Graph, seed: int, data: st.DataObject) -> None:
    """Values and gradients, of cores, gates and inputs, for gates of which any may be zero."""
    layers = [compiled(graph, batch=3, selector=Given(), dtype=torch.float64, open_only=way) for way in (False, True)]
    task = problem(graph, 3, seed)
    random = torch.Generator().manual_seed(seed)
    gates = {}
    for name, bond in graph.bonds.items():
        values = torch.rand(bond.size, generator=random, dtype=torch.float64) + 0.5
        shut = [data.draw(st.booleans()) for _ in range(bond.size)]
        gates[name] = values.masked_fill(torch.tensor(shut), 0.0)
    found = []
    for layer in layers:
        oracle.load(layer, task, strict=False)
        set_gates(layer, gates)
        answer, slopes = oracle.ask(layer, task)
        found.append([answer, *slopes, layer.dense()])
    for one, two in zip(*found, strict=True):
        assert error(two, one) <= 1e-10


@pytest.mark.parametrize("straight_through", [False, True])
def test_gates_have_the_same_gradients(straight_through: bool) -> None:
    selector = Mars(temperature=(0.3, 0.3), straight_through=straight_through)
    layers = [lowrank(selector, open_only=way) for way in (False, True)]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.randn(7, 6, dtype=torch.float64)
    for seed in range(20):
        slopes = []
        for layer in layers:
            tnmars.MaskSchedule(layer, 10, seed=seed)
            layer.zero_grad()
            layer(x).square().sum().backward()
            slopes.append([value.grad for value in layer.parameters()])
        for one, two in zip(*slopes, strict=True):
            assert error(two, one) <= 1e-12


def test_the_work_follows_the_open_slices() -> None:
    """The reference's layer with 3 of 20 slices open takes a small part of the multiply-adds."""
    counts = []
    for way in (False, True):
        layer = compiled(oracle.spec("tt_linear"), batch=128, selector=Given(), open_only=way)
        gate = torch.zeros(20)
        gate[[3, 7, 11]] = 1.0
        set_gates(layer, dict.fromkeys(layer.graph.bonds, gate))
        with FlopCounterMode(display=False) as counter:
            layer(torch.randn(128, 784)).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[1] < counts[0] / 3


def test_what_is_open_is_taken_and_sizes_are_few() -> None:
    graph = tnmars.load(oracle.spec("tt_linear"))
    gates = {"r1": [False] * 20, "r2": [False, True] * 10, "r3": [True] * 20}
    taken = open_slices(graph, gates)
    assert len(taken["r1"]) == 1 and taken["r2"] == list(range(1, 20, 2)) and taken["r3"] == list(range(20))


def test_equal_terms_take_as_many_slices() -> None:
    graph = tnmars.load(oracle.spec("btd_linear"))
    names = list(graph.bonds)
    gates = {name: [False] * graph.bonds[name].size for name in names}
    gates[names[0]] = [True] * graph.bonds[names[0]].size
    taken = open_slices(graph, gates)
    bond = names[0].partition(".")[2]
    same = {len(taken[name]) for name in names if name.endswith(f".{bond}")}
    assert same == {graph.bonds[names[0]].size}


def test_under_compile_all_slices_are_contracted() -> None:
    layer = lowrank(Mars(), open_only=True)
    x = torch.randn(7, 6, dtype=torch.float64)
    assert error(torch.compile(layer, fullgraph=True, backend="eager")(x), layer(x)) <= 1e-12


# --- slices dropped for good -----------------------------------------------------------------------------------------


def train(model: nn.Module, steps: int, patience: int | None) -> tuple[list[float], nn.Module]:
    model = copy.deepcopy(model)
    torch.manual_seed(7)  # for dropout
    optimizer = torch.optim.Adam(tnmars.param_groups(model, lr=1e-2))
    schedule = tnmars.MaskSchedule(model, steps, seed=5)
    shut = tnmars.ShutSlices(model, patience, optimizer, every=4) if patience else None
    random = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(steps):
        x = torch.randn(7, 6, dtype=torch.float64, generator=random)
        loss = (model(x) - x[:, :5]).square().mean()
        (loss + tnmars.penalty(model) / 100).backward()
        if shut is not None:
            shut.step()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize("price", ["uniform", "parameters", "macs"])
def test_dropped_slices_change_no_number(price: str) -> None:
    """Two of four gates are shut for good; without them all goes on as with them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.2), lowrank(Mars(price=price), open_only=True))
    set_gates(model[1], {"r": torch.tensor([1.0, -40.0, 0.5, -40.0])})
    wanted, full = train(model, 60, None)
    found, small = train(model, 60, 8)
    assert small[1].graph.bonds["r"].size == 2 and full[1].graph.bonds["r"].size == 4
    assert small[1].masks.places.tolist() == [0, 2]
    assert max(abs(one - two) for one, two in zip(found, wanted, strict=True)) <= 1e-9
    assert error(small[1].logits()[0], full[1].logits()[0][[0, 2]]) <= 1e-9


def test_a_gate_that_opens_now_and_then_stays() -> None:
    torch.manual_seed(0)
    _, small = train(nn.Sequential(lowrank(Mars(temperature=(1.0, 1.0)))), 40, 30)
    assert small[0].graph.bonds["r"].size == 4


def test_the_last_slice_of_a_bond_stays() -> None:
    _, small = train(nn.Sequential(lowrank(Mars(alpha=-60.0))), 30, 4)
    assert small[0].graph.bonds["r"].size == 1


def test_what_the_selector_keeps_is_not_dropped() -> None:
    _, small = train(nn.Sequential(lowrank(Mars(alpha=-60.0, min_keep=3))), 30, 4)
    assert small[0].graph.bonds["r"].size == 3


def test_counting_goes_on_after_a_resume() -> None:
    shut = tnmars.ShutSlices(lowrank(Mars()), 3, every=5)
    for _ in range(7):
        shut.step()
    again = tnmars.ShutSlices(lowrank(Mars()), 3, every=5)
    again.load_state_dict(shut.state_dict())
    assert again.steps == 7


def test_patience_is_checked() -> None:
    with pytest.raises(tnmars.TnmarsError, match="but must be at least 1"):
        tnmars.ShutSlices(lowrank(Mars()), 0)


@pytest.mark.parametrize("name", BONDED)
def test_specs_train_with_open_slices(name: str) -> None:
    torch.manual_seed(0)
    layers = [compiled(oracle.spec(name), batch=2, selector=Mars(spread=2.0), open_only=way) for way in (True, False)]
    layers[1].load_state_dict(layers[0].state_dict())
    inputs = inputs_of(layers[0].graph, 2)
    for seed in range(5):
        answers = []
        for layer in layers:
            tnmars.MaskSchedule(layer, 10, seed=seed)
            answers.append(layer(*inputs))
        assert error(answers[0], answers[1]) <= 1e-5


@pytest.mark.parametrize("straight_through", [False, True])
def test_the_gates_of_a_pass_are_sampled_once(straight_through: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample says which slices are open, and is multiplied in."""
    from tnmars.select import distributions

    layer = tnmars.compile(
        oracle.spec("tt_linear"), batch=16, selector=Mars(straight_through=straight_through), open_only=True
    )
    samples = []
    draw = distributions.hard_concrete
    monkeypatch.setattr(distributions, "hard_concrete", lambda *given: samples.append(1) or draw(*given))
    layer(torch.ones(3, 784)).sum().backward()
    assert len(samples) == 1
