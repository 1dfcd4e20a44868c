"""What one core in several places, conjugates, traces and planned steps do together."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import tnmars
from tnmars.program import backward


def test_a_norm_has_one_set_of_cores() -> None:
    """<psi|psi> of a state of two sites: cores and their conjugates are the same numbers."""
    graph = tnmars.network(
        "map",
        "A[i,r] B[r,j] C*=A[k,s] D*=B[s,l]",
        bonds={"r": 3, "s": 3},
        inputs={"i": 2, "j": 4},
        outputs={"k": 2, "l": 4},
        arguments={"x": "batch i j"},
        result="batch k l",
    )
    layer = tnmars.compile(graph, dtype=torch.complex128)
    assert sum(value.numel() for value in layer.parameters()) == 2 * 3 + 3 * 4
    a, b = (layer.cores.get(name).detach().numpy() for name in ("A", "B"))
    state = np.einsum("ir,rj->ij", a, b)
    x = torch.randn(5, 2, 4, dtype=torch.complex128)
    expected = np.einsum("nij,ij,kl->nkl", x.numpy(), state, state.conj())
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradients_of_a_tied_conjugate_are_those_of_autograd(dtype: torch.dtype) -> None:
    graph = tnmars.network(
        "linear", "A[i,r] B[r,s] C*=A[o,s]", bonds={"r": 3, "s": 3}, inputs={"i": 4}, outputs={"o": 4}
    )
    layer = tnmars.compile(graph, dtype=dtype, bias=False, batch=6)
    x = torch.randn(6, 4, dtype=dtype)
    layer(x).abs().square().sum().backward()
    a, b = (layer.cores.get(name).detach().clone().requires_grad_() for name in ("A", "B"))
    torch.einsum("ni,ir,rs,os->no", x, a, b, a.conj()).abs().square().sum().backward()
    for value, name in ((a, "A"), (b, "B")):
        torch.testing.assert_close(layer.cores.get(name).grad, value.grad, rtol=1e-10, atol=1e-10)


def test_a_trace_has_no_planned_step() -> None:
    graph = tnmars.network("linear", "A[i,r,r,s] B[s,o]", bonds={"r": 3, "s": 2}, inputs={"i": 4}, outputs={"o": 4})
    layer = tnmars.compile(graph, batch=6)
    form = layer.plan("train", 6)
    assert not backward.has_step(form.program, form.frame)


def planned(layer: tnmars.TNModule) -> tnmars.TNModule:
    """The same layer with planned training steps, whether or not they would pay."""
    made = copy.deepcopy(layer)
    for key, form in made.programs.plans.items():
        made.programs.plans[key] = replace(form, is_planned=key[0] == "train")
    made.programs._codes.clear()
    return made


TWICE = tnmars.network(
    "linear", "A[i1,o1,r] B=A[i2,o2,r]", bonds=3, inputs={"i1": 3, "i2": 3}, outputs={"o1": 3, "o2": 3}
)
ONCE = tnmars.families.lowrank("linear", inputs=(9,), outputs=(9,), rank=4)


@pytest.mark.parametrize("graph", [TWICE, ONCE], ids=["tied", "plain"])
@pytest.mark.parametrize("is_deep", [True, False])
def test_a_planned_step_whose_core_is_also_in_the_history_of_its_input(graph: tnmars.Graph, is_deep: bool) -> None:
    layer = tnmars.compile(graph, batch=5, dtype=torch.float64)
    x = torch.randn(5, 9, dtype=torch.float64)
    found = []
    for each in (layer, planned(layer)):
        assert any(form.is_planned for form in each.programs.plans.values()) == (each is not layer)
        loss = each(each(x).tanh()).pow(2).sum()
        slopes = torch.autograd.grad(loss, list(each.parameters()), create_graph=is_deep)
        found.append([slope.detach() for slope in slopes])
        if is_deep:
            again = torch.autograd.grad(sum(slope.pow(2).sum() for slope in slopes), list(each.parameters()))
            found[-1] += again
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_conjugate_cores_train_with_every_optimizer(make: type[torch.optim.Optimizer]) -> None:
    graph = tnmars.network("linear", "A[i,r] B*[r,o]", bonds=3, inputs={"i": 4}, outputs={"o": 5})
    layer = tnmars.compile(graph, dtype=torch.complex64, batch=6)
    optimizer = make(layer.parameters(), lr=1e-2)
    x, losses = torch.randn(6, 4, dtype=torch.complex64), []
    for _ in range(20):
        loss = (layer(x) - 1.0).abs().square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_rows_of_a_complex_table_are_weighed_by_how_often_they_are_taken() -> None:
    layer = tnmars.Embedding(12, 4, family="cp", rank=3, dtype=torch.complex128, scale_grad_by_freq=True)
    index = torch.tensor([3, 3, 7])
    layer(index).real.sum().backward()
    plain = {name: value.grad for name, value in layer.named_parameters()}
    layer.zero_grad()
    rows = layer.dense()
    (0.5 * rows[3] + 0.5 * rows[3] + rows[7]).real.sum().backward()
    for name, value in layer.named_parameters():
        torch.testing.assert_close(plain[name], value.grad)


def test_complex_rows_have_no_largest() -> None:
    with pytest.raises(tnmars.TnmarsError) as raised:
        tnmars.Embedding(12, 4, family="cp", rank=3, dtype=torch.complex64, mode="max")
    assert str(raised.value) == (
        "the layer has mode 'max' and dtype torch.complex64, but complex numbers have no order.\n"
        "  Take mode 'sum' or 'mean', or real numbers."
    )
    for index, more in ((torch.tensor([[1, 2]]), {}), (torch.tensor([1, 2]), {"offsets": torch.tensor([0])})):
        layer = tnmars.Embedding(12, 4, family="cp", rank=3, mode="max").to(torch.complex64)
        with pytest.raises(tnmars.ShapeError, match="need numbers that have an order"):
            layer(index, **more)


def test_a_transposed_convolution_takes_its_output_size_by_position() -> None:
    layer = tnmars.ConvTranspose2d(4, 6, 3, stride=2, rank=2, family="cp")
    x = torch.randn(2, 4, 5, 5)
    assert torch.equal(layer(x, [11, 11]), layer(x))
    with pytest.raises(tnmars.ShapeError, match="output_padding decides"):
        layer(x, [12, 12])


def test_a_tied_core_cannot_be_set() -> None:
    layer = tnmars.compile(TWICE, batch=5)
    with pytest.raises(tnmars.TnmarsError, match="core 'B' has no numbers of its own: it is core 'A' in another place"):
        layer.cores.B = torch.nn.Parameter(torch.randn(3, 3, 3))
    assert [name for name, _ in layer.named_parameters()] == ["bias", "cores.A"]


def test_ties_in_a_circle() -> None:
    with pytest.raises(tnmars.GraphError, match="One of the two must hold the numbers: leave its tie out"):
        tnmars.network("linear", "A=B[i,r] B=A[o,r]", bonds=3, inputs={"i": 3}, outputs={"o": 3})
