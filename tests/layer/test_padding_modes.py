"""Convolutions whose input is padded with something other than zeros, against torch's own layers."""

from __future__ import annotations

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EXACT
from strategies import cases, graphs
from torch import nn

import tnmars
from tnmars.graph import Graph

BORDERS = ("reflect", "replicate", "circular")


@settings(max_examples=cases(1000), deadline=None)
@given(graph=graphs(("conv",), bordered=True), batch=st.sampled_from((3, 16, 1)), seed=st.integers(0, 2**20))
def test_forward_and_gradients_equal_torchs_layer(graph: Graph, batch: int, seed: int) -> None:
    layer = oracle.compiled(graph, batch, dtype=torch.float64)
    task = oracle.problem(graph, batch, seed)
    oracle.load(layer, task)
    answer, gradients = oracle.ask(layer, task)
    wanted = task.answer()
    assert oracle.error(answer, wanted) <= EXACT
    for found, right in zip(gradients, oracle.gradients(wanted, task.leaves), strict=True):
        assert oracle.error(found, right) <= EXACT


@pytest.mark.parametrize("border", BORDERS)
def test_from_torch_and_back(border: str) -> None:
    layer = nn.Conv2d(4, 6, (3, 2), padding=(2, 1), dilation=(2, 1), groups=2, padding_mode=border).double()
    made = tnmars.from_dense(layer, "lowrank", error=1e-9, batch=2, image=8)
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    wanted = layer(x)
    assert made.padding_mode == border
    assert oracle.error(made(x), wanted) < 1e-8
    assert oracle.error(tnmars.as_torch_(nn.Sequential(made)).model(x), wanted) < 1e-8
    back = tnmars.to_dense_(made)
    assert isinstance(back, nn.Conv2d) and back.padding_mode == border
    assert oracle.error(back(x), wanted) < 1e-8


@pytest.mark.parametrize("border", BORDERS)
def test_calibration_sees_the_border(border: str) -> None:
    """The error that was asked for is that of the outputs, border included."""
    torch.manual_seed(0)
    layer = nn.Conv1d(3, 8, 3, padding=1, bias=False, padding_mode=border).double()
    x = torch.randn(400, 3, 3, dtype=torch.float64)
    made = tnmars.from_dense(layer, "lowrank", ranks=3, inputs=x)
    rows = nn.functional.pad(x, (1, 1), mode=border).unfold(2, 3, 1).transpose(1, 2).reshape(-1, 9)
    values = torch.linalg.svdvals(rows @ layer.weight.detach().reshape(8, 9).T).square()
    best = float(values[3:].sum() / values.sum()) ** 0.5
    assert oracle.error(made(x), layer(x)) == pytest.approx(best, rel=0.02)


@pytest.mark.parametrize(("border", "least"), [("reflect", 3), ("circular", 2), ("replicate", 1)])
def test_the_shortest_input(border: str, least: int) -> None:
    layer = tnmars.Conv1d(2, 3, 3, padding=2, padding_mode=border, family="cp", rank=2)
    own = nn.Conv1d(2, 3, 3, padding=2, padding_mode=border)
    assert layer(torch.randn(1, 2, least)).shape == own(torch.randn(1, 2, least)).shape
    if least > 1:
        with pytest.raises(tnmars.ShapeError, match=f"padding_mode '{border}' needs at least {least} to add 2 entries"):
            layer(torch.randn(1, 2, least - 1))


def test_an_unknown_mode() -> None:
    with pytest.raises(tnmars.GraphError, match="must be one of zeros, reflect, replicate, circular"):
        tnmars.Conv1d(2, 3, 3, padding=1, padding_mode="mirror", rank=2)
