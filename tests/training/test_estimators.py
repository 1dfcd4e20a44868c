"""Gradients for hard gates: their mean is the exact gradient of the expected loss, which is summed over all states."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import Given, lowrank, set_gates
from oracle import compiled, error
from strategies import cases, graphs
from torch import Tensor, nn

import tnmars
from tnmars import Annealed, GaussianGates, Mars, Selector
from tnmars.graph import Graph

GATES = 10
STATES = np.array(list(product((0.0, 1.0), repeat=GATES)))
RANDOM = np.random.default_rng(5)
LOGITS = RANDOM.uniform(-1.2, 1.2, GATES)
MATRIX = RANDOM.normal(size=(GATES, GATES)) / 3 + np.diag(RANDOM.uniform(1.0, 2.0, GATES))
CENTER = RANDOM.uniform(-0.3, 1.3, GATES)


# --- the truth, in numpy ---------------------------------------------------------------------------------------------


def quadratic(gates: np.ndarray) -> np.ndarray:
    return 3.0 + ((gates - CENTER) @ MATRIX * (gates - CENTER)).sum(-1)


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-values))


def normal_open(means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The probability that a normal sample of deviation 0.5 is above 0, except for the first; and its slope."""
    chances = np.array([0.5 * math.erfc(-mean / 0.5 / math.sqrt(2.0)) for mean in means])
    slopes = np.exp(-0.5 * (means / 0.5) ** 2) / (0.5 * math.sqrt(2.0 * math.pi))
    chances[0], slopes[0] = 1.0, 0.0
    return chances, slopes


def chances_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    if name == "gaussian":
        return normal_open(LOGITS)
    shifted = LOGITS - (2 / 3 * math.log(0.1 / 1.1) if name == "annealed" else 0.0)
    return sigmoid(shifted), sigmoid(shifted) * sigmoid(-shifted)


def exact(losses: np.ndarray, chances: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """The gradient of the sum over all states of their probability times their loss."""
    gradient = np.zeros(GATES)
    for at in range(GATES):
        others = np.delete(np.where(STATES == 1.0, chances, 1.0 - chances), at, axis=1).prod(1)
        gradient[at] = slopes[at] * np.sum(losses * others * np.where(STATES[:, at] == 1.0, 1.0, -1.0))
    return gradient


def is_unbiased(draws: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether the mean of some draws is within four standard errors in every coordinate."""
    mean, deviation = draws.mean(0), draws.std(0, ddof=1) / math.sqrt(len(draws))
    return bool((np.abs(mean - wanted) <= 4.0 * deviation + 1e-12).all())


# --- the model -------------------------------------------------------------------------------------------------------

SELECTORS: dict[str, Selector] = {"mars": Mars(), "gaussian": GaussianGates(fold=False), "annealed": Annealed()}


def ten(selector: Selector) -> tnmars.TNModule:
    """A layer with one bond of ten slices."""
    graph = tnmars.network("linear", "A[i,r] B[r,o]", inputs=dict(i=3), outputs=dict(o=2), bonds=GATES)
    layer = compiled(graph, batch=4, selector=selector, dtype=torch.float64)
    set_gates(layer, {"r": torch.tensor(LOGITS)})
    return layer


def reads(layer: tnmars.TNModule) -> Callable[[], float]:
    """The quadratic of the gates at hand."""
    return lambda: float(quadratic(layer.gate_values()["r"].detach().numpy()))


def drawn(layer: tnmars.TNModule, closure: Callable[[], Tensor | float], count: int, **keywords: object) -> np.ndarray:
    """Many estimates of the gradient."""
    (logits,) = layer.logits()
    found = []
    for seed in range(count):
        logits.grad = None
        random = torch.Generator().manual_seed(seed)
        tnmars.gate_gradient_(layer, closure, generator=random, **keywords)
        assert logits.grad is not None
        found.append(logits.grad.numpy().copy())
    return np.array(found)


WAYS = {
    "arm": dict(estimator="arm"),
    "arm of several": dict(estimator="arm", samples=3),
    "reinforce": dict(estimator="reinforce"),
    "reinforce with a baseline": dict(estimator="reinforce", baseline=5.0),
    "reinforce of several": dict(estimator="reinforce", samples=4),
    "reinforce of several with a baseline": dict(estimator="reinforce", samples=2, baseline=5.0),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SELECTORS)
def test_the_mean_is_the_exact_gradient(name: str, way: str) -> None:
    layer = ten(SELECTORS[name])
    wanted = exact(quadratic(STATES), *chances_of(name))
    draws = drawn(layer, reads(layer), 5000 if way.startswith("reinforce") else 1000, **WAYS[way])
    assert is_unbiased(draws, wanted), (draws.mean(0), wanted)
    assert not is_unbiased(draws, 2.0 * wanted) and not is_unbiased(draws, 0.0 * wanted)


def test_a_biased_estimator_is_seen() -> None:
    """A test of the test: the slope of the loss at hard gates, passed straight through, is not the gradient."""
    chances, slopes = chances_of("mars")
    wanted = exact(quadratic(STATES), chances, slopes)
    random = np.random.default_rng(0)
    gates = (random.uniform(size=(1500, GATES)) < chances).astype(float)
    straight = (gates - CENTER) @ (MATRIX + MATRIX.T) * slopes
    assert not is_unbiased(straight, wanted)
    hand = quadratic(gates)[:, None] * (gates - chances)  # for sigmoid(logit), what REINFORCE is
    assert is_unbiased(hand, wanted)


def test_a_baseline_that_sees_the_draw_is_biased() -> None:
    """A test of the test: the mean loss of all draws, their own included, shrinks the gradient."""
    chances, slopes = chances_of("mars")
    random = np.random.default_rng(0)
    gates = (random.uniform(size=(20000, 2, GATES)) < chances).astype(float)
    losses = quadratic(gates)
    draws = ((losses - losses.mean(1, keepdims=True))[:, :, None] * (gates - chances)).mean(1)
    assert not is_unbiased(draws, exact(quadratic(STATES), chances, slopes))


def test_arm_and_several_draws_have_less_variance() -> None:
    layer = ten(Mars())
    spread = {way: drawn(layer, reads(layer), 300, **WAYS[way]).var(0).sum() for way in WAYS}
    assert spread["arm"] < 0.5 * spread["reinforce"]
    assert spread["reinforce of several"] < 0.5 * spread["reinforce"]
    assert spread["arm of several"] < 0.6 * spread["arm"]


# --- through a layer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("open_only", [False, True])
@pytest.mark.parametrize("estimator", ["arm", "reinforce"])
def test_losses_of_a_layer_and_gradients_of_its_cores(estimator: str, open_only: bool) -> None:
    """The loss is a quadratic of the gates, through the layer; the cores get the mean gradient of all draws."""
    layer = ten(Mars())
    layer.open_only = open_only
    x, y = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    first, second, bias = (value.detach().numpy() for value in (*layer.cores.parameters(), layer.bias))
    first, second = (first, second) if first.shape == (3, GATES) else (second, first)
    outputs = np.einsum("bi,ir,sr,ro->sbo", x.numpy(), first, STATES, second) + bias
    chances, slopes = chances_of("mars")
    losses = ((outputs - y.numpy()) ** 2).mean((1, 2))
    wanted = exact(losses, chances, slopes)
    layer.zero_grad()
    count = 600
    draws = drawn(layer, lambda: (layer(x) - y).square().mean(), count, estimator=estimator, samples=2)
    assert is_unbiased(draws, wanted)
    weights = np.where(STATES == 1.0, chances, 1.0 - chances).prod(1)
    mean_slope = np.einsum("s,sbo->o", weights, 2.0 * (outputs - y.numpy())) / y.numel()
    found = layer.bias.grad.numpy() / count
    assert np.abs(found - mean_slope).max() <= 0.1 * np.abs(mean_slope).max()


@given(graphs(["linear"], bonded=True, terms=3), st.integers(0, 2**20), st.booleans())
@settings(max_examples=cases(100), deadline=None)
def test_the_gates_of_a_trial_are_those_of_the_loss(graph: Graph, seed: int, is_training: bool) -> None:
    """On any graph: both gates of ARM, the losses with them, and the gradient by hand."""
    layer = compiled(graph, batch=3, selector=Mars(alpha=0.3, spread=1.0), dtype=torch.float64).train(is_training)
    x = torch.randn(3, graph.in_features, dtype=torch.float64)
    seen: list[tuple[np.ndarray, float]] = []

    def closure() -> Tensor:
        gates = np.concatenate([one.numpy() for one in layer.gate_values().values()])
        loss = layer(x).square().mean()
        seen.append((gates, loss.item()))
        return loss

    mean = tnmars.gate_gradient_(layer, closure, generator=torch.Generator().manual_seed(seed))
    logits = np.concatenate([one.detach().numpy() for one in layer.logits()])
    uniform = torch.rand(logits.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy()
    (first, low), (second, high) = seen
    assert np.array_equal(first, uniform > sigmoid(-logits)) and np.array_equal(second, uniform < sigmoid(logits))
    wanted = (low - high) * (uniform - 0.5)
    found = torch.cat([one.grad for one in layer.logits()])
    assert error(found, torch.tensor(wanted)) <= 1e-10 and mean == pytest.approx((low + high) / 2)


# --- around it -------------------------------------------------------------------------------------------------------


def test_gates_are_sampled_again_afterwards() -> None:
    layer = lowrank(Mars(alpha=0.1))
    before = layer.gate_values()["r"]
    state = torch.get_rng_state()
    tnmars.gate_gradient_(layer, lambda: 1.0, generator=torch.Generator().manual_seed(0))
    assert torch.equal(layer.gate_values()["r"], before) and torch.equal(torch.get_rng_state(), state)

    def fails() -> float:
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        tnmars.gate_gradient_(layer, fails)
    assert layer.masks.held is None and torch.equal(layer.gate_values()["r"], before)


def test_gradients_are_added_and_certain_gates_have_none() -> None:
    model = nn.Sequential(lowrank(GaussianGates(fold=False)), nn.Linear(5, 6).double(), lowrank(Mars()))
    set_gates(model[2], {"r": torch.tensor([1000.0, -1000.0, 0.3, -0.2])})
    x = torch.randn(7, 6, dtype=torch.float64)
    for _ in range(2):
        tnmars.gate_gradient_(model, lambda: model(x).square().mean(), generator=torch.Generator().manual_seed(3))
    first, second = model[0].logits()[0].grad, model[2].logits()[0].grad
    assert first[0] == 0.0 and bool((first[1:] != 0.0).all())
    assert second[:2].tolist() == [0.0, 0.0] and bool((second[2:] != 0.0).all())
    once = second.clone()
    model.zero_grad()
    tnmars.gate_gradient_(model, lambda: model(x).square().mean(), generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(2.0 * model[2].logits()[0].grad, once)


def test_the_penalty_may_be_part_of_the_loss() -> None:
    layer = ten(Mars(pi=0.2, sigma=1e9))
    slopes = chances_of("mars")[1]
    wanted = exact(quadratic(STATES), *chances_of("mars")) + 4.0 * math.log(0.8 / 0.2) * slopes
    loss = reads(layer)
    draws = drawn(layer, lambda: loss() + 4.0 * tnmars.penalty(layer), 800, estimator="arm")
    assert is_unbiased(draws, wanted)


def test_nothing_is_drawn_during_warm_up() -> None:
    layer = ten(Mars())
    tnmars.MaskSchedule(layer, 20, warmup_steps=5)
    seen = []
    tnmars.gate_gradient_(layer, lambda: seen.append(layer.gate_values()["r"]) or 2.0, "reinforce")
    assert seen[0].tolist() == [1.0] * GATES and layer.logits()[0].grad.abs().max() == 0.0


def test_training_with_hard_gates_closes_what_is_not_needed() -> None:
    """Gates from an estimator alone: the slices that the data do not need close, the others stay open."""
    torch.manual_seed(0)
    layer = lowrank(Mars(alpha=1.0, sigma=1e9))
    with torch.no_grad():
        layer.cores.get("B").mul_(3.0)[2:] = 0.0
    x = torch.randn(64, 6, dtype=torch.float64)
    y = layer.eval()(x).detach()
    optimizer = torch.optim.Adam(layer.logits(), lr=0.1, betas=(0.9, 0.95))
    for _ in range(200):
        tnmars.gate_gradient_(layer, lambda: 50.0 * (layer(x) - y).square().mean() + 0.5 * tnmars.penalty(layer))
        optimizer.step()
        optimizer.zero_grad()
    assert tnmars.keep(layer) == {"": {"r": (0, 1)}}


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        (dict(estimator="rebar"), "estimator is 'rebar', but must be one of arm, reinforce."),
        (dict(samples=0), "samples is 0, but must be a whole number, at least 1."),
        (dict(samples=2.0), "samples is 2.0, but must be an integer."),
        (dict(baseline=1.0), "estimator 'arm' has no baseline.\n  Leave baseline out."),
        (dict(estimator="reinforce", baseline=math.nan), "baseline is nan, but must be a number."),
        (
            dict(estimator="reinforce", baseline=torch.zeros(2)),
            "baseline is tensor([0., 0.]), but must be a number.",
        ),
    ],
)
def test_what_is_said(keywords: dict[str, object], text: str) -> None:
    with pytest.raises(tnmars.TnmarsError) as caught:
        tnmars.gate_gradient_(lowrank(Mars()), lambda: 1.0, **keywords)
    assert str(caught.value) == text


def test_a_model_without_gates_and_a_loss_that_is_no_scalar_are_refused() -> None:
    with pytest.raises(tnmars.TnmarsError, match="no layer of the model has gates to train"):
        tnmars.gate_gradient_(lowrank(tnmars.Ard()), lambda: 1.0)
    layer = lowrank(Given())
    with pytest.raises(tnmars.TnmarsError, match=r"a loss of shape \(2,\), but must return a scalar"):
        tnmars.gate_gradient_(layer, lambda: torch.zeros(2))
    with pytest.raises(tnmars.TnmarsError, match=r"^the closure returned None, but must return the loss\.$"):
        tnmars.gate_gradient_(layer, lambda: None)
    assert layer.masks.held is None


def test_selectors_whose_kept_gates_are_not_one_are_refused() -> None:
    """They would be evaluated with other gates than those that were drawn."""
    model, calls = nn.Sequential(lowrank(Mars()), lowrank(GaussianGates(start_at=2.0))), []
    with pytest.raises(tnmars.TnmarsError) as caught:
        tnmars.gate_gradient_(model, lambda: calls.append(0) or 1.0)
    assert str(caught.value) == (
        "layer '1': GaussianGates keeps gates that are not 1, but here gates of 0 and 1 are drawn: another network "
        "would be trained than the one that is kept. Nothing was changed.\n  Use a selector whose kept gates are 1, "
        "such as GaussianGates(fold=False)."
    )
    assert not calls and not GaussianGates().rounds_to_one
    assert all(selector.rounds_to_one for selector in (*SELECTORS.values(), Given()))


def test_a_baseline_may_be_a_tensor() -> None:
    layer = ten(Mars())
    number, tensor = (
        drawn(layer, reads(layer), 2, estimator="reinforce", baseline=value) for value in (5.0, torch.tensor([5.0]))
    )
    assert np.array_equal(number, tensor)
