"""The dense weight of a layer for code that looks for it: free to ask about, made once it is used, and right then."""

from __future__ import annotations

import copy
from dataclasses import replace

import oracle
import pytest
import torch
from kit import CONV, LINEAR, MAP, PADDED, SKIPPED, every_kind
from torch import Tensor, nn
from torch.nn import functional as F

import tnmars
from tnmars import Graph, TnmarsError, TNModule


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[TNModule]:
    """The layers whose dense weight was made."""
    found: list[TNModule] = []
    own = TNModule.dense

    def dense(layer: TNModule) -> Tensor:
        found.append(layer)
        return own(layer)

    monkeypatch.setattr(TNModule, "dense", dense)
    return found


@every_kind
def test_the_weight_is_the_dense_one(graph: Graph) -> None:
    layer = oracle.compiled(graph)
    assert torch.equal(layer.weight, layer.dense())
    assert layer.weight.shape == layer.dense().shape
    assert isinstance(layer.weight, Tensor)


def test_asking_about_it_makes_nothing(made: list[TNModule]) -> None:
    layer = oracle.compiled(LINEAR, dtype=torch.float64)
    weight = layer.weight
    assert (weight.shape, weight.dtype, weight.device) == ((20, 6), torch.float64, torch.device("cpu"))
    assert (weight.dim(), weight.ndim, weight.size(0), weight.numel(), len(weight.shape)) == (2, 2, 20, 120, 2)
    assert made == []
    assert weight.requires_grad
    assert len(made) == 1
    assert torch.equal(weight + 1, layer.cores.get("G1").new_tensor(1) + weight)
    assert len(made) == 1, "it is made once"


def test_gradients_reach_the_cores() -> None:
    layer = oracle.compiled(LINEAR, dtype=torch.float64)
    x = torch.randn(3, 6, dtype=torch.float64)
    cores = list(layer.cores.parameters())
    wanted = torch.autograd.grad(layer(x).square().sum(), cores)
    found = torch.autograd.grad(F.linear(x, layer.weight, layer.bias).square().sum(), cores)
    assert all(oracle.error(mine, its) <= 1e-10 for mine, its in zip(found, wanted, strict=True))


def test_the_mode_counts_in_which_it_was_asked_for() -> None:
    layer = oracle.compiled(LINEAR)
    weight = layer.weight
    with torch.no_grad():
        assert (weight * 2).shape == (20, 6)
        other = layer.weight
    assert (weight * 2).requires_grad
    assert not (other * 2).requires_grad
    with torch.inference_mode():
        (inside := layer.weight).sum()
        third = weight.sum()
    assert inside.is_inference()
    assert not third.requires_grad
    assert (weight * 2).requires_grad


def test_it_is_read_only_and_can_be_detached_copied_and_printed() -> None:
    layer = oracle.compiled(LINEAR)
    with pytest.raises(AttributeError):
        layer.weight = torch.zeros(20, 6)
    assert type(layer.weight.detach()) is Tensor
    assert torch.equal(copy.deepcopy(layer.weight.detach()), layer.dense())
    assert repr(layer.weight.detach()) == repr(layer.dense().detach())
    assert layer.weight.detach().numpy().shape == (20, 6)
    assert layer.weight.tolist() == layer.dense().tolist()
    assert "weight" not in layer.state_dict()


def test_compile_takes_the_dense_weight() -> None:
    layer = oracle.compiled(LINEAR)
    x = torch.randn(3, 6)
    run = torch.compile(lambda x: F.linear(x, layer.weight), backend="eager", fullgraph=True)
    assert torch.allclose(run(x), F.linear(x, layer.dense()))


def test_attention_with_a_compiled_layer_inside() -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(6, 2, batch_first=True)
    plain = copy.deepcopy(attention)
    graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(6,), rank=3)
    attention.out_proj = oracle.compiled(graph)
    with torch.no_grad():
        plain.out_proj.weight.copy_(attention.out_proj.dense())
        plain.out_proj.bias.copy_(attention.out_proj.bias)
    x = torch.randn(3, 5, 6)
    for training in (True, False):
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                found, wanted = attention.train(training)(x, x, x), plain.train(training)(x, x, x)
            assert oracle.error(found[0], wanted[0]) <= 1e-5
            assert oracle.error(found[1], wanted[1]) <= 1e-5


# --- frozen layers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["compact", "fast"])
@pytest.mark.parametrize(
    "graph",
    [LINEAR, PADDED, SKIPPED, replace(LINEAR, options=(("bias", False),))],
    ids=["linear", "padded", "table", "b"],
)
def test_a_frozen_layer_finds_its_weight(graph: Graph, form: str) -> None:
    layer = oracle.compiled(graph, dtype=torch.float64)
    frozen = tnmars.freeze(layer, form)
    assert oracle.error(frozen.dense(), layer.dense()) <= 1e-10
    assert oracle.error(frozen.weight, layer.dense()) <= 1e-10


@pytest.mark.parametrize("graph", [CONV, MAP], ids=["conv", "map"])
def test_a_frozen_layer_without_a_weight_says_so_when_it_is_used(graph: Graph) -> None:
    frozen = tnmars.freeze(oracle.compiled(graph))
    assert frozen.weight.shape == graph.dense_shape
    with pytest.raises(TnmarsError, match=f"a frozen layer of kind {graph.kind} has no cores to make its weight from"):
        frozen.weight.sum()


def test_nested_inputs_of_a_linear_layer() -> None:
    layer = oracle.compiled(LINEAR)
    rows = [torch.randn(3, 6), torch.randn(5, 6)]
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor(rows, layout=layout)
        for found, row in zip(layer(nested).unbind(), rows, strict=True):
            assert torch.allclose(found, layer(row), atol=1e-6)
