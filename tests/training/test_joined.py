"""The gates of a whole model in a few operations: the same numbers as formulas in float64, and as layer by layer."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, graphs
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tnmars
from tnmars import Graph, Mars
from tnmars.layer.module import layers
from tnmars.program.expected import evaluate, parameter_terms
from tnmars.training import joined, objective


def pile(*layers: nn.Module) -> nn.Module:
    return nn.ModuleList(layers)


def layer_of(graph: Graph, selector: tnmars.Selector, **settings: object) -> tnmars.TNModule:
    layer = tnmars.compile(graph, selector=selector, dtype=torch.float64, batch=4, **settings)  # type: ignore[arg-type]
    with torch.no_grad():
        for value in layer.logits():
            value.normal_()
    return layer


def stack(selector: tnmars.Selector) -> nn.Sequential:
    graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(6,), rank=4)
    return nn.Sequential(*(layer_of(graph, selector) for _ in range(3)))


def naive(layer: tnmars.TNModule) -> Tensor:
    """The penalty of Mars from its formula, one gate after the other."""
    selector = layer.selector
    assert isinstance(selector, Mars)
    total = sum((value.square().sum() for value in layer.cores.parameters()), torch.zeros(())) / (2 * selector.sigma**2)
    if layer.masks is None:
        return total
    open_ = {bond: torch.sigmoid(logits) for bond, logits in zip(layer.graph.bonds, layer.logits(), strict=True)}
    gates = [each for value in open_.values() for each in value]
    if selector.price == "uniform":
        return total - sum(phi * log(selector.pi) + (1 - phi) * log(1 - selector.pi) for phi in gates)
    sizes = {bond: value.sum() for bond, value in open_.items()}
    full = {bond: value.numel() for bond, value in open_.items()}
    terms = layer.mac_terms() if selector.price == "macs" else parameter_terms(layer.graph)
    cost = evaluate(terms, sizes)
    if selector.price == "bic":
        return total + 0.5 * log(selector.samples) * cost
    unit = evaluate(terms, full) / sum(full.values()) or 1.0  # a lookup may have no multiply-adds
    return total + log((1 - selector.pi) / selector.pi) * cost / unit - len(gates) * log(1 - selector.pi)


@settings(max_examples=cases(300))
@given(
    first=graphs(kinds=("linear", "conv")),
    second=graphs(kinds=("linear", "embedding")),
    price=st.sampled_from(("uniform", "parameters", "macs", "bic")),
    seed=st.integers(0, 2**31),
)
def test_the_penalty_of_a_model_is_that_of_the_formula(first: Graph, second: Graph, price: str, seed: int) -> None:
    torch.manual_seed(seed)
    one, other = Mars(price=price, samples=50, pi=0.03, sigma=2.0), Mars(price=price, samples=50, pi=0.2, sigma=3.0)
    made = [layer_of(graph, selector) for graph in (first, second) for selector in (one, one, other)]
    model = pile(*made, nn.Linear(2, 2))
    found, wanted = tnmars.penalty(model), sum(map(naive, made))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    parameters = list(model.parameters())
    slopes = [torch.autograd.grad(value, parameters, materialize_grads=True) for value in (found, wanted)]
    for slope, right in zip(*slopes, strict=True):
        torch.testing.assert_close(slope, right, rtol=1e-9, atol=1e-10)


def by_layer(model: nn.Module) -> Tensor:
    return sum(
        (part for _, layer in objective.layers(model) for part in (*objective._norms(layer), *objective._parts(layer))),
        torch.zeros(()),
    )


GRAPH = tnmars.families.tt("linear", inputs=(3, 4), outputs=(2, 3), rank=5)


@pytest.mark.parametrize(
    "selector", [tnmars.GaussianGates(), tnmars.Annealed(samples=9), tnmars.Fixed(), tnmars.Ard(), Mars()]
)
def test_every_selector_has_the_same_penalty_for_a_model_and_layer_by_layer(selector: tnmars.Selector) -> None:
    """With a layer in warm-up, one without gates, and a second kind of selector beside it."""
    layers = [layer_of(GRAPH, selector) for _ in range(3)]
    if layers[0].masks is not None:
        layers[0].masks.is_warm.fill_(True)
    model = pile(*layers, layer_of(GRAPH, Mars(pi=0.3)), tnmars.compile(GRAPH))
    torch.testing.assert_close(tnmars.penalty(model), by_layer(model), rtol=1e-12, atol=1e-12)


@dataclass(frozen=True)
class Doubled(Mars):
    """Changes what a layer is charged, and does not know of `charge_all`."""

    def charge(self, cost: Tensor, probability: Tensor) -> Tensor:
        return 2.0 * super().charge(cost, probability) + probability.square().sum()


def test_a_selector_that_changes_only_the_charge_of_a_layer_is_heeded() -> None:
    model = pile(*(layer_of(GRAPH, Doubled(sigma=1e9)) for _ in range(2)))
    plain = sum(naive(layer) for layer in model)  # type: ignore[misc]
    more = sum(torch.sigmoid(value).square().sum() for layer in model for value in layer.logits())  # type: ignore
    torch.testing.assert_close(tnmars.penalty(model), 2.0 * plain + more)


def test_the_penalty_of_gates_has_second_derivatives_and_no_layers_have_none() -> None:
    model = pile(layer_of(GRAPH, Mars(sigma=0.5)))
    values = list(model.parameters())
    slopes = torch.autograd.grad(tnmars.penalty(model), values, create_graph=True, allow_unused=True)
    used = [(value, slope) for value, slope in zip(values, slopes, strict=True) if slope is not None]
    total = sum(slope.sum() for _, slope in used)
    for (value, _), second in zip(used, torch.autograd.grad(total, [value for value, _ in used]), strict=True):
        phi = torch.sigmoid(value)
        wanted = log(99.0) * phi * (1 - phi) * (1 - 2 * phi) if value.dim() == 1 else torch.full_like(value, 4.0)
        torch.testing.assert_close(second, wanted)
    assert tnmars.penalty(nn.Linear(2, 2)) == 0


def test_the_penalty_is_the_same_after_a_cut_and_after_inference() -> None:
    """What is kept between calls depends on the graphs, and can be used with gradients whatever asked first."""
    model = pile(*(layer_of(GRAPH, Mars(price="parameters")) for _ in range(2)))
    with torch.inference_mode():
        tnmars.penalty(model)
    tnmars.penalty(model).backward()
    torch.testing.assert_close(tnmars.penalty(model), by_layer(model))
    tnmars.prune_(model, keep={"0": {next(iter(GRAPH.bonds)): (0, 2)}})
    torch.testing.assert_close(tnmars.penalty(model), by_layer(model))
    compiled = torch.compile(lambda: tnmars.penalty(model), backend="eager")
    torch.testing.assert_close(compiled(), by_layer(model))


# --- sampling ---------------------------------------------------------------------------------------------------------


def chain(selector: tnmars.Selector | None = None, count: int = 3, **settings: object) -> nn.Module:
    graph = tnmars.families.tt("linear", inputs=(3, 4), outputs=(4, 3), rank=5)
    torch.manual_seed(1)
    model = nn.Sequential(*(layer_of(graph, selector or Mars(temperature=1.0), **settings) for _ in range(count)))
    tnmars.MaskSchedule(model, 10, seed=0)
    return model


@pytest.mark.parametrize(
    "selector", [Mars(temperature=1.0), Mars(straight_through=True), tnmars.GaussianGates(), tnmars.Annealed(samples=9)]
)
def test_gates_sampled_at_once_are_those_that_each_layer_samples(selector: tnmars.Selector) -> None:
    model, x = chain(selector), torch.randn(4, 12, dtype=torch.float64)
    model[1].masks.temperature.fill_(0.7)
    values = list(model.parameters())
    wanted = torch.autograd.grad(model(x).square().sum(), values, allow_unused=True)
    with tnmars.sampled(model) as same:
        assert same is model and all(layer.masks.sampled is not None for layer in model)
        loss = model(x).square().sum()
    assert all(layer.masks.sampled is None for layer in model)
    for found, each in zip(torch.autograd.grad(loss, values, allow_unused=True), wanted, strict=True):
        torch.testing.assert_close(found, each, rtol=1e-10, atol=1e-12)


def test_a_block_takes_the_gates_of_now_and_leaves_other_layers_alone() -> None:
    model, x = chain(), torch.randn(4, 12, dtype=torch.float64)
    schedule = tnmars.MaskSchedule(model, 10, seed=2)
    with tnmars.sampled(model):
        before = model(x)
    schedule.step()
    with tnmars.sampled(model):
        after = model(x)
    torch.testing.assert_close(after, model(x))
    assert not torch.equal(before, after)
    model[0].eval()
    with tnmars.sampled(model):
        assert model[0].masks.sampled is None and model[1].masks.sampled is not None
        inside = model(x)
    torch.testing.assert_close(inside, model(x))  # the same noise, and the first layer rounds its gates in both
    only = chain(open_only=True)
    with tnmars.sampled(only), tnmars.sampled(tnmars.compile(GRAPH)):
        assert all(layer.masks.sampled is None for layer in only)
    with pytest.raises(KeyError), tnmars.sampled(model):
        raise KeyError
    assert all(layer.masks.sampled is None for layer in model)


def test_a_block_in_a_block_changes_nothing() -> None:
    model = chain()
    with tnmars.sampled(model):
        held = [layer.masks.sampled for layer in model]
        with tnmars.sampled(model):
            assert all(layer.masks.sampled is gates for layer, gates in zip(model, held, strict=True))
        assert all(layer.masks.sampled is gates for layer, gates in zip(model, held, strict=True))


def test_layers_are_grouped_by_equal_selectors() -> None:
    model = [layer_of(GRAPH, Mars()), layer_of(GRAPH, Mars(pi=0.5)), layer_of(GRAPH, Mars())]
    groups = joined.grouped(model)
    assert groups is not None and [len(group) for group in groups] == [2, 1]


def test_a_layer_that_is_evaluated_in_the_block_rounds_its_gates() -> None:
    torch.manual_seed(0)
    graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(6,), rank=4)
    model = nn.Sequential(tnmars.compile(graph, selector=tnmars.Mars()), tnmars.compile(graph, selector=tnmars.Mars()))
    x = torch.randn(3, 6)
    wanted = model.eval()(x)
    model.train()
    with tnmars.sampled(model):
        sampled = model(x)
        assert torch.equal(model.eval()(x), wanted)
        assert torch.equal(model.train()(x), sampled)


class Dearer(tnmars.Mars):
    """Not a dataclass: it has a setting that its class does not compare."""

    def __init__(self, factor: float):
        super().__init__()
        object.__setattr__(self, "factor", factor)

    def charge_all(self, *given):
        return super().charge_all(*given) * self.factor

    def charge(self, *given):
        return super().charge(*given) * self.factor


def test_selectors_with_settings_of_their_own_are_distinguished() -> None:
    graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(6,), rank=4)
    layers = [tnmars.compile(graph, selector=Dearer(factor)) for factor in (1.0, 100.0)]
    together = tnmars.penalty(nn.Sequential(*layers))
    assert torch.allclose(together, sum(tnmars.penalty(layer) for layer in layers))


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_a_checkpointed_pass_in_a_block_has_the_same_gradients(is_reentrant: bool) -> None:
    model = stack(tnmars.Mars())
    x = torch.randn(8, 6, dtype=torch.float64, requires_grad=True)
    found = []
    for run in (model, partial(checkpoint, model, use_reentrant=is_reentrant)):
        model.zero_grad()
        with tnmars.sampled(model):
            run(x).square().sum().backward()
        found.append([value.grad for value in model.parameters()])
    torch.testing.assert_close(found[0], found[1])


def test_a_model_that_is_copied_in_a_block_samples_its_own_gates() -> None:
    model = stack(tnmars.Mars())
    x = torch.randn(8, 6, dtype=torch.float64)
    with tnmars.sampled(model):
        copied = copy.deepcopy(model)
        inside = model(x)
    torch.testing.assert_close(copied(x), inside)
    with torch.no_grad():
        for _, layer in layers(copied):
            for value in layer.logits():
                value.fill_(-30.0)
    torch.testing.assert_close(model(x), inside)  # its gates are its own
    assert not torch.allclose(copied(x), inside)
