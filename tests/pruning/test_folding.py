"""Gates that are not 1 at a cut: each is multiplied into one core, once, and what the optimizer keeps follows."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import Given, inputs_of, lowrank, set_gates
from oracle import compiled, error
from strategies import cases, graphs
from torch import Tensor, nn

import tnmars
from tnmars import GaussianGates, Mars
from tnmars.fitting.stage import gated
from tnmars.graph import Graph
from tnmars.select import from_settings
from tnmars.store.prune_file import prune_file

MEANS = torch.tensor([-0.4, 0.25, -0.3, 0.7], dtype=torch.float64)


class Valued(Given):
    """A selector whose gates are its logits, in `eval()` too; those above 0.1 are kept."""

    def keep(self, logits: Tensor) -> Tensor:
        return logits > 0.1

    def rounded(self, logits: Tensor) -> Tensor:
        return logits


def filled(layer: tnmars.TNModule, seed: int) -> dict[str, np.ndarray]:
    """Gives every gate a mean between -1 and 1.5. The values that `eval()` should use, by the definition alone."""
    random = np.random.default_rng(seed)
    means = {name: random.uniform(-1.0, 1.5, bond.size) for name, bond in layer.graph.bonds.items()}
    set_gates(layer, {name: torch.tensor(value) for name, value in means.items()})
    return {name: np.array([1.0, *np.minimum(np.maximum(value, 0.0), 1.0)[1:]]) for name, value in means.items()}


def weight(layer: tnmars.TNModule, masks: dict[str, np.ndarray] | None = None) -> Tensor:
    """The weight of a layer by one naive einsum."""
    cores = {name: layer.cores.get(name).detach().numpy() for name in layer.graph.cores}
    return oracle.dense(layer.graph, torch.tensor(oracle.tensor(layer.graph, cores, masks)))


# --- masked equals pruned --------------------------------------------------------------------------------------------


@given(graphs(bonded=True, terms=3), st.integers(0, 2**20), st.booleans())
@settings(max_examples=cases(600), deadline=None)
def test_masked_equals_pruned_on_any_graph(graph: Graph, seed: int, simplify: bool) -> None:
    layer = compiled(graph, batch=3, selector=GaussianGates(), dtype=torch.float64)
    masks = filled(layer, seed)
    wanted = weight(layer, masks)
    small = tnmars.prune(layer, simplify=simplify)
    assert error(layer.eval().dense(), wanted) <= 1e-10, "eval() uses the clipped means"
    assert error(weight(small), wanted) <= 1e-10, "the cores of the cut hold them"
    assert error(small.dense(), wanted) <= 1e-10
    inputs = inputs_of(graph, dtype=torch.float64)
    assert error(small(*inputs), layer(*inputs)) <= 1e-10


def test_gates_of_one_give_another_weight() -> None:
    """A test of the test: without folding, the pruned layer is not what the means say."""
    layer = lowrank(GaussianGates(fold=False))
    set_gates(layer, {"r": MEANS})
    assert error(weight(tnmars.prune(layer)), weight(layer, {"r": np.array([1.0, 0.25, 0.0, 0.7])})) > 1e-2
    assert error(weight(tnmars.prune(layer)), weight(layer, {"r": np.array([1.0, 1.0, 0.0, 1.0])})) <= 1e-12
    assert layer.eval().gate_values()["r"].tolist() == [1, 1, 0, 1]


def test_a_gate_goes_into_the_smallest_core_and_no_other() -> None:
    graph = tnmars.network(
        "linear", "A[i,r,s] B[r,o] C[s,r,p]", inputs={"i": 7}, outputs={"o": 3, "p": 2}, bonds={"r": 4, "s": 2}
    )
    layer = compiled(graph, selector=GaussianGates(), dtype=torch.float64)
    set_gates(layer, {"r": MEANS, "s": torch.tensor([0.3, 0.5])})
    before = {name: layer.cores.get(name).detach().clone() for name in graph.cores}
    tnmars.prune_(layer)
    kept, values = [0, 1, 3], torch.tensor([1.0, 0.25, 0.7], dtype=torch.float64)
    assert torch.equal(layer.cores.get("A"), before["A"][:, kept])
    assert torch.equal(layer.cores.get("B"), before["B"][kept] * values[:, None])
    halved = torch.tensor([1.0, 0.5], dtype=torch.float64)
    assert torch.equal(layer.cores.get("C"), before["C"][:, kept] * halved[:, None, None])


def test_gates_that_stay_are_not_folded() -> None:
    layer = lowrank(GaussianGates())
    set_gates(layer, {"r": MEANS})
    x = torch.randn(7, 6, dtype=torch.float64)
    wanted = layer.eval()(x)
    small = tnmars.prune(layer, keep_gates=True)
    assert torch.equal(small.cores.get("B"), layer.cores.get("B")[[0, 1, 3]])
    assert error(small(x), wanted) <= 1e-12 and error(tnmars.prune(small)(x), wanted) <= 1e-12
    with torch.no_grad():
        small.masks.is_warm.fill_(True)
    with pytest.warns(UserWarning, match="in warm-up"):
        warm = tnmars.prune(small, simplify=False)
    assert torch.equal(warm.cores.get("B"), small.cores.get("B")), "gates are 1 during warm-up"


def test_slices_that_are_asked_for_have_their_gates() -> None:
    layer = lowrank(GaussianGates())
    set_gates(layer, {"r": MEANS})
    small = tnmars.prune(layer, {"": {"r": (1, 2)}}, simplify=False)
    assert error(weight(small), weight(layer, {"r": np.array([0.0, 0.25, 0.0, 0.0])})) <= 1e-12
    assert small.graph.bonds["r"].size == 2


# --- the other ways to a model without gates -------------------------------------------------------------------------


def test_frozen_dense_shipped_and_stored_layers_have_the_means(tmp_path: Path) -> None:
    model = nn.Sequential(lowrank(GaussianGates()))
    set_gates(model[0], {"r": MEANS})
    x = torch.randn(7, 6, dtype=torch.float64)
    wanted = model.eval()(x)
    tnmars.save(model, tmp_path / "model.safetensors")
    prune_file(tmp_path / "model.safetensors", tmp_path / "small.safetensors")
    stored = tnmars.load_into(nn.Sequential(nn.Linear(6, 5).double()), tmp_path / "small.safetensors")
    assert stored[0].masks is None and error(stored(x), wanted) <= 1e-12
    for form in ("fast", "compact"):
        assert error(tnmars.freeze(model, form)(x), wanted) <= 1e-12
    with tnmars.cached(model):
        assert error(model(x), wanted) <= 1e-12
    assert error(tnmars.to_dense_(copy.deepcopy(model))(x), wanted) <= 1e-12
    assert error(tnmars.as_torch_(copy.deepcopy(model)).model(x), wanted) <= 1e-12


def test_a_fitted_decomposition_has_the_means() -> None:
    graph = tnmars.families.tt("tensor", free=(4, 5, 3), rank=3)
    layer = compiled(graph, selector=GaussianGates(), dtype=torch.float64)
    masks = filled(layer, 3)
    found = gated(graph, layer)
    rebuilt = oracle.tensor(found.graph, {name: core.numpy() for name, core in found.cores.items()})
    assert error(torch.tensor(rebuilt), weight(layer, masks)) <= 1e-12


def test_files_from_before_keep_gates_of_one() -> None:
    settings_ = GaussianGates(strength=2.0).settings()
    assert from_settings(settings_) == GaussianGates(strength=2.0, fold=True)
    older = {key: value for key, value in settings_.items() if key not in ("fold", "samples")}
    assert from_settings(older) == GaussianGates(strength=2.0, fold=False)


# --- the optimizer ---------------------------------------------------------------------------------------------------

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "adam": lambda values: torch.optim.Adam(values, lr=0.0, amsgrad=True),
    "adamax": lambda values: torch.optim.Adamax(values, lr=0.0, eps=1e-30),
    "nadam": lambda values: torch.optim.NAdam(values, lr=0.0),
    "sgd": lambda values: torch.optim.SGD(values, lr=0.0, momentum=0.9),
    "adagrad": lambda values: torch.optim.Adagrad(values, lr=0.0),
}


def backward(layer: tnmars.TNModule, seed: int) -> None:
    x = torch.randn(7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    (layer(x) - x.sum(-1, keepdim=True)).square().mean().backward()


def stepped(layer: tnmars.TNModule, optimizer: torch.optim.Optimizer) -> None:
    for seed in range(4):
        optimizer.zero_grad()
        backward(layer, seed)
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_is_that_of_the_scaled_core(name: str) -> None:
    """Without steps, the state after a cut is what the optimizer would have computed for the pruned layer itself."""
    layer = lowrank(Valued())
    set_gates(layer, {"r": torch.tensor([0.5, 0.0, 0.2, 1.0])})
    for logits in layer.logits():
        logits.requires_grad_(False)
    pruned = tnmars.prune(layer, simplify=False)
    expected = OPTIMIZERS[name](list(pruned.parameters()))
    stepped(pruned, expected)
    optimizer = OPTIMIZERS[name]([*layer.cores.parameters(), layer.bias])
    stepped(layer, optimizer)
    tnmars.prune_(layer, optimizer)
    compared = 0
    for core in ("A", "B"):
        ours, theirs = layer.cores.get(core), pruned.cores.get(core)
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(ours.grad, theirs.grad)
        for key, value in expected.state[theirs].items():
            torch.testing.assert_close(optimizer.state[ours][key], value, rtol=1e-9, atol=0.0)
            compared += torch.is_tensor(value) and value.dim() > 0
    assert compared >= 2


def test_state_that_cannot_be_scaled_is_refused() -> None:
    layer = lowrank(GaussianGates())
    optimizer = torch.optim.RMSprop(tnmars.param_groups(layer, lr=1e-2))
    backward(layer, 0)
    optimizer.step()
    set_gates(layer, {"r": MEANS})
    before = layer.cores.get("A").detach().clone()
    with pytest.raises(tnmars.TnmarsError) as caught:
        tnmars.prune_(layer, optimizer)
    assert str(caught.value) == (
        "RMSprop keeps 'square_avg', and it is not known how that changes when gates are multiplied into a core. "
        "Nothing was changed.\n  Make a new optimizer after the cut, prune_(model), or use a selector whose kept gates "
        "are 1, such as GaussianGates(fold=False)."
    )
    assert torch.equal(layer.cores.get("A"), before) and layer.masks is not None
    set_gates(layer, {"r": torch.ones(4)})
    tnmars.prune_(layer, optimizer)  # gates of 1 scale nothing


def test_a_closed_gate_leaves_no_state() -> None:
    layer = lowrank(GaussianGates())
    optimizer = torch.optim.Adam(tnmars.param_groups(layer, lr=1e-2))
    backward(layer, 0)
    optimizer.step()
    set_gates(layer, {"r": torch.tensor([0.0, -1.0, 1e-300, 0.5])})
    tnmars.prune_(layer, optimizer, {"": {"r": (1, 2, 3)}})
    for value in layer.parameters():
        assert all(torch.as_tensor(state).isfinite().all() for state in optimizer.state[value].values())
    assert optimizer.state[layer.cores.get("B")]["exp_avg"][:2].abs().max() == 0.0


# --- cores that layers share -----------------------------------------------------------------------------------------


def test_a_shared_core_with_two_gates_is_refused() -> None:
    model = nn.Sequential(lowrank(GaussianGates()), nn.Linear(5, 6).double(), lowrank(GaussianGates()))
    model[2].cores.put("B", model[0].cores.get("B"))
    set_gates(model[0], {"r": MEANS})
    set_gates(model[2], {"r": MEANS * 0.5})
    with pytest.raises(tnmars.TnmarsError) as caught:
        tnmars.prune(model, simplify=False)
    assert str(caught.value) == (
        "core 'B' of layer '2' is core 'B' of layer '0' too, but they have gates of different values. Nothing was "
        "changed.\n  Untie them first, or use a selector whose kept gates are 1, such as GaussianGates(fold=False)."
    )
    set_gates(model[2], {"r": MEANS})
    x = torch.randn(7, 6, dtype=torch.float64)
    small = tnmars.prune(model, simplify=False)
    assert error(small(x), model.eval()(x)) <= 1e-12
    assert small[0].cores.get("B") is small[2].cores.get("B")


# --- the price -------------------------------------------------------------------------------------------------------


def test_the_description_length() -> None:
    """Half the logarithm of the data for each parameter that is expected to stay; the first slice always stays."""
    selector = GaussianGates(price="bic", samples=5000, sigma=1e9, deviation=0.4)
    layer = lowrank(selector)
    set_gates(layer, {"r": MEANS})
    chances = [1.0] + [0.5 * math.erfc(-float(mean) / (0.4 * math.sqrt(2.0))) for mean in MEANS[1:]]
    wanted = 0.5 * math.log(5000) * sum(chances) * (6 + 5)
    assert tnmars.penalty(layer).item() == pytest.approx(wanted, rel=1e-9)
    layer.selector = layer.masks.selector = replace(selector, strength=3.0)
    assert tnmars.penalty(layer).item() == pytest.approx(3.0 * wanted, rel=1e-9)


def test_gates_of_mars_are_one() -> None:
    assert Mars().rounded(torch.tensor([-1.0, 2.0])).tolist() == [1.0, 1.0]
