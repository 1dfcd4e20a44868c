"""Dense layers become compiled ones: all or nothing."""

from __future__ import annotations

import pytest
import torch
from compress_kit import mlp, untouched
from rebuilt_kit import cores_of, matrix
from torch import nn

import tnmars
from tnmars.errors import TnmarsError
from tnmars.models.replacing import Replacement, apply_, compiled
from tnmars.models.sites import sites
from tnmars.models.torch_layers import describe


def replacement(model: nn.Module, name: str, **cores: object) -> Replacement:
    site = sites(model)[0][name]
    weight = site.layer.weight
    graph = matrix(weight.shape, min(weight.shape))
    names = dict(zip(graph.cores, cores_of(weight).values(), strict=True))
    return Replacement([site], graph, {**names, **cores}, 7, 5, {"compression": {"family": "own"}})


def test_layers_and_weights_are_put_in_place() -> None:
    model = nn.ModuleDict({"fc": nn.Linear(6, 5), "rnn": nn.RNN(6, 5)}).eval()
    model["fc"].weight.requires_grad_(False)
    x = torch.randn(3, 4, 6)
    expected = model["fc"](x), model["rnn"](x)[0]
    bias = model["fc"].bias
    apply_(model, [replacement(model, name) for name in ("fc", "rnn.weight_ih_l0")])
    assert isinstance(model["fc"], tnmars.TNModule)
    assert model["fc"].bias is bias
    assert model["fc"].graph.origin == {"compression": {"family": "own"}}
    assert not any(core.requires_grad for core in model["fc"].cores.parameters())
    assert not any(module.training for module in model.modules())
    for found, wanted in zip((model["fc"](x), model["rnn"](x)[0]), expected, strict=True):
        assert torch.allclose(found, wanted, atol=1e-5)
    assert "weight_ih_l0" not in dict(model["rnn"].named_parameters())


def test_nothing_is_replaced_if_one_layer_cannot_be_built() -> None:
    model = mlp(6, 5, 4)
    wrong = replacement(model, "2", A=torch.zeros(3, 3))
    with untouched(model), pytest.raises(RuntimeError):
        apply_(model, [replacement(model, "0"), wrong])


def test_a_single_layer_is_refused() -> None:
    model = nn.Linear(6, 5)
    with untouched(model), pytest.raises(TnmarsError, match=r"Use tnmars\.from_dense\(layer, \.\.\.\)"):
        apply_(model, [replacement(model, "")])


def test_a_layer_has_the_device_and_dtype_of_the_dense_one() -> None:
    dense = describe(nn.Linear(6, 5, dtype=torch.bfloat16))
    graph = matrix((5, 6), 2)
    before = torch.get_rng_state()
    found = compiled(graph, {name: torch.ones(shape) for name, shape in graph.cores.items()}, dense)
    assert torch.equal(torch.get_rng_state(), before)
    assert {value.dtype for value in found.parameters()} == {torch.bfloat16}
    assert bool((found.dense() == 2.0).all())
