"""The library's promise: running with a hard mask equals pruning, then running. And what follows a cut."""

from __future__ import annotations

import copy

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import Given, inputs_of, lowrank, mask_of, set_gates
from oracle import compiled, error, problem
from strategies import cases, graphs
from torch import nn

import tnmars
from tnmars import Mars
from tnmars.decomposing.rewritten import cores_after
from tnmars.graph import Graph
from tnmars.graph.rewrite import drop_ones, merge, mergeable
from tnmars.program.choice import Planner
from tnmars.pruning import mergers

Keep = dict[str, tuple[int, ...]]


# --- masked equals pruned --------------------------------------------------------------------------------------------


@given(graphs(bonded=True, terms=2), st.integers(0, 2**20), st.data())
@settings(max_examples=cases(1000), deadline=None)
def test_mergers_and_dropped_bonds_keep_the_weight(graph: Graph, seed: int, data: st.DataObject) -> None:
    cores = {name: value.detach() for name, value in problem(graph, 1, seed).cores.items()}
    wanted = oracle.tensor(graph, {name: value.numpy() for name, value in cores.items()})
    rewrite = drop_ones(graph)
    cores = cores_after(rewrite, cores)
    assert all(bond.size > 1 for bond in rewrite.graph.bonds.values())
    graph = rewrite.graph
    while len(graph.terms[0].cores) > 1:
        first, second = data.draw(st.permutations([core.name for core in graph.terms[0].cores]))[:2]
        rewrite = merge(graph, graph.terms[0].name, first, second)
        graph, cores = rewrite.graph, cores_after(rewrite, cores)
        found = oracle.tensor(graph, {name: value.numpy() for name, value in cores.items()})
        assert error(torch.tensor(found), torch.tensor(wanted)) <= 1e-12


@given(graphs(bonded=True))
@settings(max_examples=cases(400), deadline=None)
def test_mergers_that_are_proposed_save_numbers(graph: Graph) -> None:
    before = tnmars.count(graph).cores
    for term, first, second, saved in mergeable(graph):
        assert tnmars.count(merge(graph, term, first, second).graph).cores == before - saved < before


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_a_narrow_neck_is_merged_away(dtype: torch.dtype) -> None:
    """Two cores whose bond is wider than either can use: one core is smaller and faster."""
    graph = tnmars.network(
        "linear", "A[i,r] B[r,o,s] C[s,j]", inputs=dict(i=4, j=3), outputs=dict(o=16), bonds=dict(r=8, s=6)
    )
    layer = compiled(graph, batch=16, selector=Given(), dtype=torch.float64)
    layer.to(dtype)
    for core in layer.cores.parameters():
        core.data = torch.randn_like(core)
    set_gates(layer, {"r": torch.ones(8), "s": torch.ones(6)})
    small = tnmars.prune(layer)
    assert tnmars.count(small.graph).cores < tnmars.count(graph).cores
    assert len(tnmars.prune(layer, simplify=False).graph.cores) == 3
    x = torch.randn(5, 12, dtype=dtype)
    expected = layer.eval()(x)
    assert (small(x) - expected).abs().max() <= 1e-12 * expected.abs().max()


def test_cores_with_many_edges_are_merged() -> None:
    """torch.einsum has 52 letters, and most of these edges have size 1."""
    modes = {f"i{at}": 2 if at in (3, 65) else 1 for at in range(70)}
    names = list(modes)
    cores = f"A[{','.join(names[:35])},r] B[r,o,{','.join(names[35:])}]"
    graph = tnmars.network("linear", cores, inputs=modes, outputs={"o": 3}, bonds={"r": 5})
    one, two = torch.randn(2, 5, dtype=torch.float64), torch.randn(5, 3, 2, dtype=torch.float64)
    values = {"A": one.reshape(graph.cores["A"]), "B": two.reshape(graph.cores["B"])}
    rewrite = merge(graph, graph.terms[0].name, "A", "B")
    (merged,) = cores_after(rewrite, values).values()
    assert merged.shape == rewrite.graph.cores["A"]
    assert error(merged.flatten(), torch.einsum("ir,roj->ioj", one, two).flatten()) <= 1e-12


def test_few_mergers_are_planned_in_a_long_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []

    def counted(graph: Graph, _: object) -> float:
        planned.append(len(graph.cores))
        return 1.0

    monkeypatch.setattr(mergers, "planned_time", counted)
    graph = tnmars.families.tt("tensor", free=(1,) * 500, rank=2)
    assert len(mergeable(graph)) > mergers.MOST_PLANS
    assert mergers.mergers(graph, Planner(graph, tnmars.CostModel(), 1)) == []
    assert len(planned) > 2 and sum(planned) <= mergers.MOST_CORES + len(graph.cores)


# --- what it says ----------------------------------------------------------------------------------------------------


def test_the_pruned_graph_tells_where_it_comes_from(tmp_path) -> None:
    layer = lowrank(Mars(pi=0.1, alpha=-1.0))
    set_gates(layer, {"r": torch.tensor([1.0, -1.0, 2.0, -3.0])})
    small = tnmars.prune(layer, step=7)
    origin = small.graph.origin
    assert origin["sizes"] == {"r": 4} and origin["step"] == 7 and origin["selector"]["pi"] == 0.1
    tnmars.save_spec(small.graph, tmp_path / "pruned.yaml")
    again = tnmars.load(tmp_path / "pruned.yaml")
    assert again == small.graph and again.origin == origin
    twice = tnmars.prune(compiled(again, selector=Given()), {"": {"r": (0,)}})
    assert twice.graph.origin["first"] == {"r": 4} and twice.graph.origin["sizes"] == {"r": 2}
    assert twice.graph.origin["cuts"] == 2 and not twice.graph.bonds


def test_a_model_without_gates_is_not_silently_left_alone() -> None:
    with pytest.raises(tnmars.TnmarsError) as caught:
        tnmars.prune(nn.Sequential(lowrank()))
    assert str(caught.value) == (
        "no selector of the model chooses slices. Nothing was changed.\n  Compile with one that does, such as Mars() "
        "or Ard(), or give keep, ranks or energy."
    )


def test_keep_is_checked() -> None:
    layer = lowrank()
    with pytest.raises(tnmars.TnmarsError, match="keep names 'fc', which is not a compiled layer"):
        tnmars.prune(nn.Sequential(layer), {"fc": {}})
    with pytest.raises(tnmars.GraphError, match="keep names bond 's', which the graph does not have"):
        tnmars.prune(layer, {"": {"s": (0,)}})
    for wrong in ((1, 0), (4,), (-1,), (0, 0)):
        with pytest.raises(tnmars.GraphError, match="must be increasing, from 0 to 3"):
            tnmars.prune(layer, {"": {"r": wrong}})


def test_min_keep() -> None:
    for least, wanted in ((0, ()), (1, (2,)), (3, (0, 2, 3))):
        layer = lowrank(Mars(min_keep=least))
        set_gates(layer, {"r": torch.tensor([-2.0, -9.0, -1.0, -3.0])})
        assert tnmars.keep(layer) == {"": {"r": wanted}}
        assert [index for index, gate in enumerate(layer.eval().gate_values()["r"]) if gate] == list(wanted)
    empty = tnmars.prune(lowrank(Mars(alpha=-5.0, min_keep=0)))
    x = torch.randn(2, 6, dtype=torch.float64)
    assert error(empty(x), empty.bias.expand(2, 5)) == 0
    assert not empty.graph.terms


def test_the_model_given_is_left_alone() -> None:
    model = nn.Sequential(lowrank(Mars(alpha=-5.0)), nn.Linear(5, 2).double())
    before = copy.deepcopy(model.state_dict())
    tnmars.prune(model)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


# --- the optimiser follows -------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "adam": lambda groups: torch.optim.Adam(groups, amsgrad=True),
    "adamw": lambda groups: torch.optim.AdamW(groups, weight_decay=0.1),
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9, nesterov=True),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int) -> list[float]:
    random = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        x = torch.randn(7, 6, dtype=torch.float64, generator=random)
        loss = (model(x) - x.sum(-1, keepdim=True)).square().mean()
        (loss + tnmars.penalty(model) / 100).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kept", [(1, 2), (0, 3), (2,)])
def test_training_goes_on_as_with_frozen_hard_masks(name: str, kept: tuple[int, ...]) -> None:
    """Ten steps after `prune_` equal those of the masked model whose gates stay 0 and 1."""
    torch.manual_seed(1)
    layer = lowrank(Given())
    masked = nn.Sequential(layer, nn.Linear(5, 1).double())
    set_gates(layer, {"r": torch.ones(4)})
    groups = [
        {"params": [*layer.cores.parameters(), layer.bias], "lr": 1e-2},
        {"params": list(masked[1].parameters()), "lr": 3e-2},
        {"params": layer.logits(), "lr": 0.0, "weight_decay": 0.0},
    ]
    optimizer = OPTIMIZERS[name](groups)
    train(masked, optimizer, 5, 0)
    set_gates(layer, {"r": mask_of(kept, 4)})
    pruned = copy.deepcopy(masked)
    again = OPTIMIZERS[name](
        [
            {"params": [*pruned[0].cores.parameters(), pruned[0].bias], "lr": 1e-2},
            {"params": list(pruned[1].parameters()), "lr": 3e-2},
            {"params": pruned[0].logits(), "lr": 0.0, "weight_decay": 0.0},
        ]
    )
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    tnmars.prune_(pruned, again)
    for group in again.param_groups:
        for value in group["params"]:
            for key, state in again.state[value].items():
                assert key == "step" or state.shape == value.shape
    held = {id(value) for group in again.param_groups for value in group["params"]}
    assert held == {id(value) for value in pruned.parameters()}
    assert len(again.state) == len(held)
    wanted, found = train(masked, optimizer, 10, 1), train(pruned, again, 10, 1)
    assert max(map(abs, np.subtract(found, wanted))) <= 1e-6
    assert wanted[-1] != wanted[0]
    x = torch.randn(7, 6, dtype=torch.float64)
    assert error(pruned(x), masked.eval()(x)) <= 1e-6


def test_prune_in_place_keeps_gates_if_asked() -> None:
    layer = lowrank(Mars())
    schedule = tnmars.MaskSchedule(layer, 10)
    optimizer = torch.optim.Adam(tnmars.param_groups(layer, lr=1e-2))
    train(layer, optimizer, 2, 0)
    set_gates(layer, {"r": torch.tensor([1.0, -1.0, 2.0, -3.0])})
    noise = layer.masks.noise.clone()
    tnmars.prune_(layer, optimizer, keep_gates=True)
    assert layer.logits()[0].tolist() == [1.0, 2.0] and torch.equal(layer.masks.noise, noise[[0, 2]])
    assert optimizer.state[layer.logits()[0]]["exp_avg"].shape == (2,)
    schedule.step()
    train(layer, optimizer, 2, 1)
    assert layer.graph.bonds["r"].size == 2


def pair() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(lowrank(Mars()), nn.ReLU(), nn.Linear(5, 6).double(), lowrank(Mars()))


def test_all_is_checked_before_anything_is_changed() -> None:
    model = pair()
    optimizer = torch.optim.Adam(tnmars.param_groups(model, lr=1e-2))
    before = [value.shape for value in model.parameters()]
    with pytest.raises(tnmars.GraphError):
        tnmars.prune_(model, optimizer, {"0": {"r": (0, 1)}, "3": {"r": (9,)}})
    assert [value.shape for value in model.parameters()] == before
    held = {id(value) for group in optimizer.param_groups for value in group["params"]}
    assert held == {id(value) for value in model.parameters()}


@pytest.mark.parametrize("in_place", [True, False])
def test_cores_that_layers_share_stay_shared(in_place: bool) -> None:
    model = pair()
    model[3].cores.put("A", model[0].cores.get("A"))
    optimizer = torch.optim.Adam(tnmars.param_groups(model, lr=1e-2))
    kept = {"0": {"r": (0, 2)}, "3": {"r": (0, 2)}}
    if in_place:
        tnmars.prune_(model, optimizer, kept)
        held = [value for group in optimizer.param_groups for value in group["params"]]
        assert {id(value) for value in held} == {id(value) for value in model.parameters()}
        assert len(held) == len({id(value) for value in held})
    else:
        model = tnmars.prune(model, kept)
    assert model[3].cores.get("A") is model[0].cores.get("A")


def test_shared_cores_are_not_cut_differently() -> None:
    model = pair()
    model[3].cores.put("A", model[0].cores.get("A"))
    with pytest.raises(tnmars.TnmarsError, match=r"cut differently\. Nothing was changed"):
        tnmars.prune_(model, None, {"0": {"r": (0, 2)}, "3": {"r": (0, 1)}})
    assert model[0].graph.bonds["r"].size == 4


def test_what_is_not_trained_stays_so() -> None:
    model = pair()
    model[0].cores.get("A").requires_grad_(False)
    model[0].logits()[0].requires_grad_(False)
    tnmars.prune_(model, keep={"0": {"r": (0, 2)}}, keep_gates=True)
    assert not model[0].cores.get("A").requires_grad and not model[0].logits()[0].requires_grad
    assert model[0].cores.get("B").requires_grad and model[3].logits()[0].requires_grad


def test_an_optimizer_whose_state_cannot_follow_is_reported() -> None:
    layer = lowrank(Mars())
    optimizer = torch.optim.Adafactor(layer.parameters(), lr=1e-2)
    (layer(torch.randn(7, 6, dtype=torch.float64)).sum() + tnmars.penalty(layer)).backward()
    optimizer.step()
    with pytest.raises(tnmars.TnmarsError, match=r"Adafactor keeps .* Nothing was changed"):
        tnmars.prune_(layer, optimizer, {"": {"r": (0,)}})
    assert layer.graph.bonds["r"].size == 4


def test_cutting_draws_no_random_number() -> None:
    layer = lowrank(Mars())
    state = torch.get_rng_state()
    tnmars.prune_(layer, keep={"": {"r": (0, 2)}}, keep_gates=True)
    tnmars.prune(layer)
    assert torch.equal(torch.get_rng_state(), state)


def test_many_cuts_leave_a_file_that_can_be_read(tmp_path) -> None:
    graph = tnmars.network("linear", "A[i,r] B[r,o]", inputs=dict(i=6), outputs=dict(o=5), bonds=60)
    layer = compiled(graph, selector=Mars())
    for size in range(59, 19, -1):
        tnmars.prune_(layer, keep={"": {"r": range(size)}}, keep_gates=True)
    tnmars.prune_(layer, keep={"": {"r": range(20)}}, keep_gates=True)
    tnmars.save_spec(layer.graph, tmp_path / "pruned.yaml")
    origin = tnmars.load(tmp_path / "pruned.yaml").origin
    assert origin["first"] == {"r": 60} and origin["sizes"] == {"r": 21} and origin["cuts"] == 40


def test_pruning_in_warm_up_is_reported() -> None:
    layer = lowrank(Mars())
    tnmars.MaskSchedule(layer, 10, warmup_steps=5)
    with pytest.warns(UserWarning, match="the model is in warm-up, so every slice is kept"):
        tnmars.prune(layer)


def test_slices_are_numbers() -> None:
    for wrong in ([False, True], [0.9, 1.2], ["0"]):
        with pytest.raises(tnmars.GraphError, match="must be a list of whole numbers"):
            tnmars.prune(lowrank(), {"": {"r": wrong}})


def test_a_layer_that_is_used_twice_has_two_names() -> None:
    layer = lowrank()
    model = nn.ModuleDict({"a": layer, "b": layer})
    small = tnmars.prune(model, {"b": {"r": (0,)}})
    assert small["a"] is small["b"] and not small["a"].graph.bonds


def test_models_pruned_twice_are_models_pruned_once() -> None:
    """With gates, noise and an optimiser: the second cut finds all in its place."""
    results = []
    for keeps_ in ([(0, 1, 3), (0, 2)], [(0, 3)]):
        torch.manual_seed(0)
        layer = lowrank(Mars())
        optimizer = torch.optim.Adam(tnmars.param_groups(layer, lr=1e-2))
        train(layer, optimizer, 3, 0)
        for kept in keeps_:
            tnmars.prune_(layer, optimizer, {"": {"r": kept}}, keep_gates=True)
        schedule = tnmars.MaskSchedule(layer, 10, seed=1)
        losses = train(layer, optimizer, 5, 1)
        schedule.step()
        results.append([*losses, *(value.detach().sum().item() for value in layer.parameters())])
    assert results[0] == results[1]


def test_gradients_follow_too() -> None:
    layer = lowrank(Mars(alpha=5.0))
    (layer(torch.randn(7, 6, dtype=torch.float64)).sum()).backward()
    slope = layer.cores.get("A").grad.clone()
    tnmars.prune_(layer, keep={"": {"r": (0, 2)}})
    assert torch.equal(layer.cores.get("A").grad, slope[:, [0, 2]])


@pytest.mark.parametrize("name", ["tt_linear", "tucker2_conv", "odd_two_terms", "btd_linear", "tt_embedding"])
def test_specs_are_pruned_trained_and_pruned_again(name: str) -> None:
    torch.manual_seed(0)
    layer = compiled(oracle.spec(name), batch=2, selector=Mars(spread=2.0), dtype=torch.float64)
    inputs = inputs_of(layer.graph, 2, torch.float64)
    for _ in range(2):
        tnmars.prune_(layer, keep_gates=True)
        before = layer.eval()(*inputs)
        small = tnmars.prune(layer)
        assert error(small(*inputs), before) <= 1e-10
        again = compiled(tnmars.loads(tnmars.dump(small.graph)), batch=2, dtype=torch.float64)
        again.load_state_dict(small.state_dict())
        assert error(again(*inputs), before) <= 1e-10
        layer.train()(*inputs).sum().backward()
        with torch.no_grad():
            for logits in layer.logits():
                logits.normal_(0, 2)


@pytest.mark.parametrize("keep", [[0, 1, 2], [0, 2]])
def test_a_fused_optimizer_goes_on_with_images_in_channels_last(keep: list[int]) -> None:
    """It pairs entries of parameters and state by their order in memory; the plain one, by their places."""
    graph = tnmars.families.tucker2("conv", inputs=(4,), outputs=(6,), kernel=(3, 3), rank=3)
    layer = tnmars.compile(graph, selector=tnmars.Mars(), batch=2, image=8)
    first = nn.Sequential(layer).to(memory_format=torch.channels_last)
    found = []
    for is_fused in (False, True):
        model = copy.deepcopy(first)
        optimizer = torch.optim.Adam(tnmars.param_groups(model, lr=0.05), fused=is_fused)
        for step in range(6):
            x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(step))
            model(x.to(memory_format=torch.channels_last)).square().sum().backward()
            if step == 2:  # with gradients, which follow too
                tnmars.prune_(model, keep={"0": {"r1": keep}}, optimizer=optimizer)
            optimizer.step()
            optimizer.zero_grad()
        found.append([value.detach() for value in model.parameters()])
    for plain, fused in zip(*found, strict=True):
        assert oracle.error(fused, plain) <= 1e-5
