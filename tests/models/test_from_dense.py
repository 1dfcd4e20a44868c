"""One layer of torch to a compiled one: at full rank the same function, and everything else as it was."""

from __future__ import annotations

import copy
from pathlib import Path

import oracle
import pytest
import torch
from compress_kit import untouched
from torch import Tensor, nn

import tnmars
from tnmars.errors import TnmarsError

INDEX = torch.tensor([[0, 4, 2], [3, 3, 0]])
LAYERS = {
    "linear": (lambda: nn.Linear(6, 5), (torch.randn(2, 3, 6),)),
    "linear without bias": (lambda: nn.Linear(6, 5, bias=False), (torch.randn(6),)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, stride=2, padding=2, dilation=2), (torch.randn(2, 3, 11),)),
    "conv1d same": (lambda: nn.Conv1d(3, 4, 4, padding="same", dilation=3), (torch.randn(2, 3, 11),)),
    "conv2d": (lambda: nn.Conv2d(3, 4, (3, 2), (2, 1), (1, 2), (1, 3)), (torch.randn(2, 3, 7, 8),)),
    "conv2d same": (lambda: nn.Conv2d(3, 4, (2, 3), padding="same", bias=False), (torch.randn(2, 3, 7, 8),)),
    "conv2d valid": (lambda: nn.Conv2d(3, 4, 3, padding="valid"), (torch.randn(3, 7, 8),)),
    "conv2d pointwise": (lambda: nn.Conv2d(3, 4, 1, stride=2), (torch.randn(2, 3, 7, 8),)),
    "conv3d": (lambda: nn.Conv3d(2, 3, (1, 2, 3), (2, 1, 2), (0, 1, 1), (1, 2, 1)), (torch.randn(2, 2, 5, 6, 7),)),
    "conv3d same": (lambda: nn.Conv3d(2, 3, 3, padding="same"), (torch.randn(2, 2, 4, 5, 4),)),
    "embedding": (lambda: nn.Embedding(5, 7), (INDEX,)),
    "embedding with padding": (lambda: nn.Embedding(5, 7, padding_idx=3), (INDEX,)),
    "bag": (lambda: nn.EmbeddingBag(5, 7, mode="sum"), (INDEX,)),
    "bag mean": (lambda: nn.EmbeddingBag(5, 7, mode="mean", padding_idx=0), (INDEX,)),
    "bag with offsets": (lambda: nn.EmbeddingBag(5, 7, mode="mean"), (INDEX.reshape(-1), torch.tensor([0, 1, 4]))),
}
every_layer = pytest.mark.parametrize("name", LAYERS)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def made(name: str, dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, ...]]:
    layer, inputs = LAYERS[name]
    return layer().to(dtype), tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)


@every_layer
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("family", [None, "tt"])
def test_the_same_function_at_full_rank(name: str, dtype: torch.dtype, family: str | None) -> None:
    layer, inputs = made(name, dtype)
    with untouched(layer):
        found = tnmars.from_dense(layer, family, error=1e-13)
    assert oracle.error(found(*inputs), layer(*inputs)) < TOLERANCE[dtype]
    assert found(*inputs).dtype == dtype
    for value in found.parameters():
        assert value.dtype == dtype


@every_layer
def test_calibration_inputs_do_not_change_the_function_at_full_rank(name: str) -> None:
    layer, inputs = made(name, torch.float64)
    found = tnmars.from_dense(layer, error=1e-13, inputs=inputs[0] if len(inputs) == 1 else INDEX)
    assert oracle.error(found(*inputs), layer(*inputs)) < 1e-7  # directions that the inputs do not have weigh little


@every_layer
def test_attributes_are_those_of_the_layer(name: str) -> None:
    layer, inputs = made(name, torch.float32)
    found = tnmars.from_dense(layer, ranks=1)
    for key in ("in_features", "out_features", "in_channels", "out_channels", "kernel_size", "num_embeddings"):
        if hasattr(layer, key):
            assert getattr(found, key) == getattr(layer, key)
    assert (found.bias is None) == (getattr(layer, "bias", None) is None)
    assert found(*inputs).shape == layer(*inputs).shape
    assert torch.equal(found(input=inputs[0], **dict(zip(["offsets"], inputs[1:], strict=False))), found(*inputs))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_flags_are_those_of_the_layer(training: bool, weight: bool, bias: bool) -> None:
    layer = nn.Linear(6, 5).train(training)
    layer.weight.requires_grad_(weight)
    layer.bias.requires_grad_(bias)
    found = tnmars.from_dense(layer, ranks=2)
    assert found.training is training
    assert {value.requires_grad for value in found.cores.parameters()} == {weight}
    assert found.bias.requires_grad is bias
    assert torch.equal(found.bias, layer.bias)
    with torch.no_grad():
        found.bias.add_(1.0)
    assert not torch.equal(found.bias, layer.bias)


def test_a_padding_row_that_is_not_zero_stays() -> None:
    """As in pretrained tables, whose padding row was trained."""
    layer = nn.Embedding(5, 7, padding_idx=3)
    with torch.no_grad():
        layer.weight[3] = 1.0
    found = tnmars.from_dense(layer, error=1e-9)
    assert oracle.error(found(INDEX), layer(INDEX)) < 1e-5


def test_ranks_and_targets() -> None:
    layer = nn.Linear(30, 20).double()
    values = torch.linalg.svdvals(layer.weight.detach())
    energies = values.square().cumsum(0) / values.square().sum()
    rank = int((energies < 0.7).sum()) + 1
    assert tnmars.from_dense(layer, "lowrank", ranks=7).graph.bonds["r"].size == 7
    assert tnmars.from_dense(layer, "lowrank", energy=0.7).graph.bonds["r"].size == rank
    assert tnmars.from_dense(layer, "lowrank", error=(1 - 0.7) ** 0.5).graph.bonds["r"].size == rank
    assert tnmars.from_dense(layer, "lowrank", parameters=399).graph.bonds["r"].size == 7
    found = tnmars.from_dense(layer, "lowrank", ranks=7)
    assert float((found.dense() - layer.weight).detach().norm()) == pytest.approx(float(values[7:].norm()))


def test_graphs_and_spec_files(tmp_path: Path) -> None:
    graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=3, name="mine")
    file = tmp_path / "mine.yaml"
    file.write_text(tnmars.dump(graph))
    layer = nn.Linear(6, 5, bias=False)
    for target in (graph, file, str(file)):
        found = tnmars.from_dense(layer, target)
        assert found.graph.bonds["r"].size == 3
        assert found.bias is None


def test_inputs_decide_which_errors_matter() -> None:
    """Inputs on one axis: rank 1 is enough for them."""
    layer = nn.Linear(8, 6).double()
    x = torch.zeros(200, 8, dtype=torch.float64)
    x[:, 2] = torch.randn(200, dtype=torch.float64)
    blind, seeing = (tnmars.from_dense(layer, ranks=1, inputs=given) for given in (None, x))
    assert oracle.error(blind(x), layer(x)) > 0.05
    assert oracle.error(seeing(x), layer(x)) < 0.05
    several = tnmars.from_dense(layer, ranks=1, inputs=[x[:50], x[50:]])
    assert oracle.error(several(x), seeing(x)) < 1e-9


def test_the_copy_of_a_layer_gives_the_same() -> None:
    layer = nn.Linear(8, 6)
    one, other = (tnmars.from_dense(each, "cp", ranks=2, seed=3) for each in (layer, copy.deepcopy(layer)))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


class Own(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


MISTAKES = {
    "no layer": (lambda: tnmars.from_dense(nn.ReLU(), ranks=2), "ReLU cannot be decomposed: it must be a Linear"),
    "another layer": (lambda: tnmars.from_dense(nn.GRU(4, 4), ranks=2), "for one weight of another module tnmars.para"),
    "groups": (
        lambda: tnmars.from_dense(nn.Conv2d(8, 8, 3, groups=2), oracle.spec("grouped_conv")),
        "weight of shape (8, 4, 3, 3) in 2 groups",
    ),
    "norm": (lambda: tnmars.from_dense(nn.Embedding(4, 4, sparse=True), ranks=2), "the option sparse"),
    "forward": (lambda: tnmars.from_dense(Own(4, 4), ranks=2), "Own has a forward method of its own"),
    "lazy": (lambda: tnmars.from_dense(nn.LazyLinear(4), ranks=2), "its weight is not initialized"),
    "no ranks": (lambda: tnmars.from_dense(nn.Linear(4, 3), "lowrank"), "no ranks are given for family 'lowrank'"),
    "two targets": (lambda: tnmars.from_dense(nn.Linear(4, 3), ranks=2, error=0.1), "one of"),
    "family": (lambda: tnmars.from_dense(nn.Linear(4, 3), "lowrnk", ranks=2), "Did you mean 'lowrank'"),
    "kind": (
        lambda: tnmars.from_dense(nn.Linear(4, 3), tnmars.families.tt("tensor", free=(4, 3), rank=2)),
        "but the layer is linear with a weight of shape (3, 4)",
    ),
    "not finite": (
        lambda: tnmars.from_dense(nn.Linear(4, 3), ranks=2, inputs=torch.full((5, 4), torch.nan)),
        "inputs must be tensors of finite numbers",
    ),
    "no inputs": (lambda: tnmars.from_dense(nn.Linear(4, 3), ranks=2, inputs=[]), "inputs has no samples"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    call, text = MISTAKES[name]
    with pytest.raises(TnmarsError) as raised:
        call()
    assert text in str(raised.value)
