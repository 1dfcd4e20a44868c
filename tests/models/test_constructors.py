"""Layers with the arguments of torch's own."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import tnmars
from tnmars.errors import GraphError


def test_the_readme_line() -> None:
    layer = tnmars.Linear(784, 625, family="tt", rank=8)
    assert layer(torch.randn(3, 784)).shape == (3, 625)
    assert sum(core.numel() for core in layer.cores.parameters()) < 784 * 625 / 20


@pytest.mark.parametrize(
    ("made", "plain", "shape"),
    [
        (lambda: tnmars.Linear(6, 5, False, rank=2), lambda: nn.Linear(6, 5, False), (3, 6)),
        (lambda: tnmars.Conv1d(4, 6, 3, 2, 2, 2, rank=2), lambda: nn.Conv1d(4, 6, 3, 2, 2, 2), (2, 4, 9)),
        (lambda: tnmars.Conv1d(4, 6, 3, padding="same", rank=2), lambda: nn.Conv1d(4, 6, 3, padding="same"), (2, 4, 9)),
        (
            lambda: tnmars.Conv2d(4, 6, (3, 1), (2, 1), (1, 0), (2, 1), 2, False, family="cp", rank=2),
            lambda: nn.Conv2d(4, 6, (3, 1), (2, 1), (1, 0), (2, 1), 2, False),
            (2, 4, 9, 7),
        ),
        (lambda: tnmars.Conv3d(4, 6, 2, rank=2), lambda: nn.Conv3d(4, 6, 2), (2, 4, 3, 4, 5)),
    ],
)
def test_outputs_have_the_shape_of_torchs(made, plain, shape: tuple[int, ...]) -> None:
    layer, expected = made(), plain()
    x = torch.randn(shape)
    assert layer(x).shape == expected(x).shape
    assert (layer.bias is None) == (expected.bias is None)
    weight = layer.dense()
    assert weight.shape == expected.weight.shape
    with torch.no_grad():  # the options too
        expected.weight.copy_(weight)
        if expected.bias is not None:
            expected.bias.copy_(layer.bias)
    assert torch.allclose(layer(x), expected(x), atol=1e-5)


def test_a_table_and_bags() -> None:
    index = torch.tensor([[1, 2], [0, 9_999]])
    table = tnmars.Embedding(10_000, 128, padding_idx=1, rank=4)
    assert table(index).shape == (2, 2, 128)
    assert not table(index)[0, 0].any()
    bag = tnmars.Embedding(10_000, 128, mode="mean", rank=4)
    assert torch.allclose(bag(index), bag.dense()[index].mean(1), atol=1e-5)


def test_options_go_to_the_family_and_to_compile() -> None:
    layer = tnmars.Linear(
        64, 27, family="tt", ways=3, ranks=(2, 3), selector=tnmars.Mars(), dtype=torch.float64, batch=7
    )
    assert [bond.size for bond in layer.graph.bonds.values()] == [2, 3]
    assert layer.masks is not None
    assert layer.dtype == torch.float64


@pytest.mark.parametrize("name", ["Linear", "Conv1d", "Conv2d", "Conv3d", "Embedding"])
def test_arguments_have_torchs_names_and_order(name: str) -> None:
    own, torchs = (
        list(inspect.signature(function).parameters) for function in (getattr(tnmars, name), getattr(nn, name))
    )
    common = [key for key in own if key in torchs]
    assert own[: len(common)] == common
    assert common == [key for key in torchs if key in common]
    assert getattr(tnmars, name).__name__ == name


def test_mistakes() -> None:
    with pytest.raises(GraphError, match="rank"):
        tnmars.Linear(6, 5)
    with pytest.raises(GraphError, match=r"family 'lowrnk' is not known\.(.|\n)*Did you mean 'lowrank'"):
        tnmars.Linear(6, 5, family="lowrnk", rank=2)
