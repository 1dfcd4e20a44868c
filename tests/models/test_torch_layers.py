"""Torch's layers as tnmars sees them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import tnmars
from tnmars.models.torch_layers import (
    TORCH_LAYERS,
    DenseLayer,
    as_matrix,
    describe,
    fingerprint,
    holders,
)

LAYERS = [
    nn.Linear(5, 4),
    nn.Conv1d(3, 4, 2),
    nn.Conv2d(3, 4, (2, 3)),
    nn.Conv3d(3, 4, 2),
    nn.ConvTranspose1d(3, 4, 2),
    nn.ConvTranspose2d(3, 4, (2, 3)),
    nn.ConvTranspose3d(3, 4, 2),
    nn.Embedding(9, 4),
    nn.EmbeddingBag(9, 4),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_what_a_layer_is(layer: nn.Module) -> None:
    found = describe(layer)
    assert isinstance(found, DenseLayer)
    assert found.weight is layer.weight
    assert found.bias is getattr(layer, "bias", None)
    graph = tnmars.families.of_layer(
        "lowrank", found.kind, found.inside, found.outside, kernel=found.kernel, rank=2, options=found.options
    )
    assert found.fits(graph)
    assert graph.dense_shape == tuple(layer.weight.shape)
    matrix = as_matrix(found.kind, layer.weight)
    assert matrix.shape[0] == found.outside


def test_every_layer_of_the_table_is_tested() -> None:
    assert {type(layer) for layer in LAYERS} == set(TORCH_LAYERS)


SPARSE = "it has the option sparse, and gradients of cores, which all rows share, are dense"


class Renamed(nn.Linear):
    """A subclass that computes the same."""


class Other(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return -super().forward(input)


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (Other(2, 2), "Other has a forward method of its own"),
        (parametrizations.weight_norm(nn.Linear(2, 2)), "its weight is parametrized"),
        (nn.LazyConv2d(3, 3), "its weight is not initialized; run the model once first"),
        (nn.Embedding(4, 4, sparse=True), SPARSE),
        (nn.EmbeddingBag(4, 4, sparse=True), SPARSE),
        (nn.ReLU(), None),
        (nn.Bilinear(3, 3, 3), None),
    ],
)
def test_what_cannot_be_replaced(layer: nn.Module, why: str | None) -> None:
    assert describe(layer) == why


def test_a_subclass_that_computes_the_same_counts() -> None:
    assert isinstance(describe(Renamed(3, 2)), DenseLayer)


def test_a_padding_row_counts_only_if_it_is_zero() -> None:
    """Torch leaves any row as it is; a compiled layer makes it zero. In a bag it is left out, whatever it is."""
    table, bag = nn.Embedding(4, 3, padding_idx=1), nn.EmbeddingBag(4, 3, padding_idx=1)
    assert describe(table).options["padding_idx"] == 1
    with torch.no_grad():
        for layer in (table, bag):
            layer.weight[1, 0] = 0.5
    assert "padding_idx" not in describe(table).options
    assert describe(bag).options["padding_idx"] == 1


def test_modules_inside_compiled_layers_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(4, 4), tnmars.Linear(4, 4, rank=2), nn.Sequential(nn.ReLU()))
    assert [name for name, _ in holders(model)] == ["", "0", "2", "2.0"]


def test_a_fingerprint_is_of_the_bits() -> None:
    weight = torch.randn(3, 4)
    same = {fingerprint(value) for value in (weight, weight.clone(), weight.T.contiguous().T, nn.Parameter(weight))}
    assert len(same) == 1
    other = weight.clone()
    other[2, 1] = torch.nextafter(other[2, 1], torch.tensor(9.0))
    assert fingerprint(other) not in same
    assert fingerprint(weight.bfloat16()) not in same
