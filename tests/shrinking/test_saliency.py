"""Saliencies: shares of the squared norm against singular values, derivatives by gates against autograd."""

from __future__ import annotations

import oracle
import pytest
import torch
from shrink_kit import SHAPES
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import tnmars
from tnmars import Graph, TnmarsError, families
from tnmars.shrinking.model import Shrunk
from tnmars.shrinking.rule import Goals
from tnmars.shrinking.saliency import Saliency, check, from_gradients, from_norms

TRAIN = families.tt("linear", inputs=(3, 4), outputs=(4, 2), rank=3)
RING = families.tr("linear", inputs=(3, 4), outputs=(4, 2), rank=3)
CP = families.cp("linear", inputs=(3, 4), outputs=(5,), rank=4)
BLOCK = families.btd("linear", inputs=(6,), outputs=(5,), rank=2, terms=3)
every_shape = pytest.mark.parametrize("graph", [TRAIN, RING, CP, BLOCK], ids=["train", "ring", "cp", "block"])


def gauged(graph: Graph) -> tuple[nn.Sequential, Shrunk, dict]:
    model = nn.Sequential(tnmars.compile(graph, dtype=torch.float64), nn.Tanh())
    shrunk = Shrunk(model, None, Goals.of("1.01x", None, tnmars.Staircase()), from_norms)
    return model, shrunk, shrunk.gauge_()


@every_shape
def test_the_canonical_form_keeps_what_a_model_computes(graph: Graph) -> None:
    model = nn.Sequential(tnmars.compile(graph, dtype=torch.float64))
    x = torch.randn(7, graph.in_features, dtype=torch.float64)
    before = model(x).detach()
    shrunk = Shrunk(model, None, Goals.of("1.01x", None, tnmars.Staircase()), from_norms)
    shrunk.gauge_()
    assert oracle.error(model(x).detach(), before) < 1e-9


def test_on_a_tree_they_are_shares_of_squared_singular_values() -> None:
    graph = families.lowrank("linear", inputs=(8,), outputs=(6,), rank=4)
    model, _, weights = gauged(graph)
    exact = torch.linalg.svdvals(model[0].dense().detach())[:4].square()
    torch.testing.assert_close(from_norms(model, weights)["0"]["r"], exact / exact.sum())


def by_chance(model: nn.Module, weights: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    return {name: {bond: torch.rand(len(each)) for bond, each in own.items()} for name, own in weights.items()}


def reversed_norms(model: nn.Module, weights: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    found = from_norms(model, weights)
    return {name: {bond: 1 / (each + 1e-9) for bond, each in own.items()} for name, own in found.items()}


def error_of_a_cut(graph: Graph, rule: Saliency, seed: int) -> float:
    """The relative error of a random weight right after a cut to 70 % of its parameters, without any training."""
    torch.manual_seed(seed)
    model = tnmars.compile(graph, dtype=torch.float64)
    before = model().detach()
    size = sum(value.numel() for value in model.parameters())
    shrunk = Shrunk(model, None, Goals.of(int(0.7 * size), None, tnmars.Staircase(factor=0.6)), rule)
    shrunk.cut_()
    return float((model().detach() - before).norm() / before.norm())


@pytest.mark.parametrize("graph", SHAPES.values(), ids=SHAPES)
def test_right_after_a_cut_the_error_is_smaller_than_by_chance(graph: Graph) -> None:
    seeds = range(8)
    own, chance, worst = (
        sum(error_of_a_cut(graph, rule, seed) for seed in seeds) / len(seeds)
        for rule in (from_norms, by_chance, reversed_norms)
    )
    assert own < 0.6 * chance and own < 0.5 * worst


def test_a_small_term_of_a_sum_has_small_saliencies() -> None:
    model, shrunk, _ = gauged(BLOCK)
    with torch.no_grad():
        for name in model[0].graph.cores:
            if name.startswith("t2."):
                model[0].cores.get(name).mul_(0.1)
    found = from_norms(model, shrunk.gauge_())["0"]
    small = max(float(value.max()) for bond, value in found.items() if bond.startswith("t2."))
    assert small < 0.01 * min(float(value.max()) for bond, value in found.items() if not bond.startswith("t2."))


@every_shape
def test_products_with_gradients_are_derivatives_by_gates(graph: Graph) -> None:
    model, _, weights = gauged(graph)
    data = [
        ((torch.randn(5, graph.in_features).double(),), torch.randn(5, graph.out_features).double()) for _ in range(3)
    ]
    found = from_gradients([((x, {}), y) for x, y in data], mse_loss)(model, weights)
    layer = model[0]
    cores = {name: layer.cores.get(name).detach() for name in graph.cores}
    for bond, size in ((name, bond.size) for name, bond in graph.bonds.items()):
        total = torch.zeros(size, dtype=torch.float64)
        name, axis = next((n, at) for n in graph.cores for at, b in enumerate(graph.bonds_of(n)) if b == bond)
        for (x,), y in data:
            gate = torch.ones(size, dtype=torch.float64, requires_grad=True)
            shape = [size if at == axis else 1 for at in range(cores[name].dim())]
            gated = {**cores, name: cores[name] * gate.reshape(shape)}
            weight = oracle.dense(graph, oracle.whole(graph, gated))
            (slope,) = torch.autograd.grad(mse_loss(torch.tanh(x @ weight.T + layer.bias.detach()), y), gate)
            total += slope.square()
        torch.testing.assert_close(found["0"][bond].double(), total, rtol=1e-4, atol=1e-10)


def test_gradients_leave_no_trace() -> None:
    model, _, weights = gauged(TRAIN)
    model.train()
    data = [(((torch.randn(5, 12).double(),), {}), torch.randn(5, 8).double())]
    from_gradients(data, mse_loss)(model, weights)
    assert all(value.grad is None for value in model.parameters())
    assert model.training and model[1].training


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "saliency returned a list"),
        ({}, "no finite numbers for the 3 slices of bond 'r1' of '0'"),
        ({"0": {"r1": torch.ones(2)}}, "no finite numbers for the 3 slices"),
        ({"0": {"r1": torch.tensor([1.0, torch.nan, 1.0])}}, "no finite numbers for the 3 slices"),
    ],
)
def test_what_a_rule_returns_is_checked(given: object, words: str) -> None:
    weights: dict[str, dict[str, Tensor]] = {"0": {"r1": torch.ones(3)}}
    with pytest.raises(TnmarsError, match=words):
        check(given, weights)


def test_the_target_is_moved_to_the_device_of_the_model() -> None:
    """The meta device stands for an accelerator. The loss ends the pass, because nothing can be read from there."""
    model = tnmars.compile(families.lowrank("linear", inputs=(8,), outputs=(6,), rank=4), device="meta")
    seen = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.append((output.device.type, target.device.type))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        from_gradients([(((torch.randn(3, 8),), {}), torch.randn(3, 6))], loss)(model, {"": {"r": torch.ones(4)}})
    assert seen == [("meta", "meta")]


def test_gradients_do_not_depend_on_settings_of_cudnn() -> None:
    """Torch refuses to read its older settings of cudnn where newer ones differ; and its LSTM must not be cudnn's."""
    seen = []
    model = tnmars.compile(families.lowrank("linear", inputs=(8,), outputs=(6,), rank=4), warn=False)
    conv = torch.backends.cudnn.conv
    precision = conv.fp32_precision

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.append(torch.backends.cudnn.enabled)
        return (output - target).square().mean()

    before = torch.backends.cudnn.enabled
    try:
        conv.fp32_precision = "ieee"
        from_gradients([(((torch.randn(3, 8),), {}), torch.randn(3, 6))], loss)(model, {"": {"r": torch.ones(4)}})
    finally:
        conv.fp32_precision = precision
    assert seen == [False] and torch.backends.cudnn.enabled == before
