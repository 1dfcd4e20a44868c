"""Complex layers of every kind: against one complex128 einsum and torch's own layers, forward and gradients."""

from __future__ import annotations

import pytest
import torch
from complex_oracle import ask, compiled, error, problem
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import load, spec
from strategies import cases, conjugates, cuts, graphs
from torch import nn

import tnmars
from tnmars.graph import Graph
from tnmars.graph.rewrite import conjugated
from tnmars.plan.cost import CostModel


@settings(max_examples=cases(1000))
@given(graphs().flatmap(conjugates), st.integers(1, 4), st.booleans())
def test_outputs_and_gradients_are_those_of_one_complex_einsum(graph: Graph, batch: int, is_whole: bool) -> None:
    asked = problem(graph, batch, is_whole=is_whole and graph.kind == "tensor")
    layer = compiled(graph, dtype=torch.complex128)
    load(layer, asked)
    answer, found = ask(layer, asked)
    wanted = asked.answer()
    assert error(answer, wanted) < 1e-10
    for one, other in zip(found, asked.gradients(wanted), strict=True):
        assert error(one, other) < 1e-10


@settings(max_examples=cases(300))
@given(cuts(), st.integers(1, 3))
def test_shut_gates_compute_what_the_pruned_layer_does(
    cut: tuple[Graph, dict[str, tuple[int, ...]]], batch: int
) -> None:
    graph, kept = conjugated(cut[0], list(cut[0].cores)[::2]), cut[1]
    asked = problem(graph, batch)
    layer = compiled(graph, dtype=torch.complex128, selector=tnmars.Mars())
    load(layer, asked, strict=False)
    with torch.no_grad():
        for name, logits in zip(graph.bonds, layer.logits(), strict=True):
            logits.fill_(-9.0)
            logits[list(kept[name])] = 9.0
    layer.eval()
    assert all(gate.dtype is torch.float64 for gate in layer.gate_values().values())
    small = tnmars.prune(layer)
    assert small.dtype is torch.complex128
    assert sum(value.numel() for value in small.cores.parameters()) == tnmars.count(small.graph).cores
    assert error(small(*asked.inputs), layer(*asked.inputs)) < 1e-10


def test_the_gradient_of_a_gate_is_real_and_that_of_the_einsum() -> None:
    graph = tnmars.families.tt("linear", inputs=(3, 4), outputs=(2, 3), rank=3)
    layer = compiled(graph, dtype=torch.complex128, selector=tnmars.Mars())
    asked = problem(graph, 5)
    load(layer, asked, strict=False)
    gates = {name: torch.rand(bond.size, dtype=torch.float64, requires_grad=True) for name, bond in graph.bonds.items()}
    layer.masks.held = tuple(gates.values())
    found = torch.autograd.grad(layer(asked.inputs[0]).abs().square().sum(), list(gates.values()))
    (term,) = graph.terms
    edges = {edge: at for at, edge in enumerate(term.ends())}
    operands = []
    for core in term.cores:
        operands += [asked.cores[core.name], [edges[edge] for edge in core.edges]]
    for name, gate in gates.items():
        operands += [gate.to(torch.complex128), [edges[name]]]
    modes = [mode.name for mode in (*graph.of_role("out"), *graph.of_role("in"))]
    weight = torch.einsum(*operands, [edges[name] for name in modes]).reshape(6, 12)
    wanted = torch.autograd.grad((asked.inputs[0] @ weight.T + asked.bias).abs().square().sum(), list(gates.values()))
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype is torch.float64
        assert error(one, other) < 1e-10


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", ["tt_linear", "cp_conv", "tt_embedding", "tucker_tensor", "bilinear_pooling"])
def test_initial_weights_have_the_requested_variance_half_of_it_in_each_part(name: str, dtype: torch.dtype) -> None:
    graph = tnmars.load(spec(name))
    torch.manual_seed(1)
    parts = []
    for _ in range(8):
        layer = tnmars.compile(graph, dtype=dtype, init=0.25, warn=False)
        parts.append(layer.dense().detach().flatten()[:100_000])
    weight = torch.cat(parts)
    assert weight.abs().square().mean().item() == pytest.approx(0.25, rel=0.35)
    assert weight.real.square().mean().item() == pytest.approx(weight.imag.square().mean().item(), rel=0.35)


def test_a_gated_layer_becomes_complex_and_its_gates_stay_real() -> None:
    layer = tnmars.compile(spec("tt_linear"), selector=tnmars.Mars(), warn=False)
    digits = [value.detach().clone() for value in layer.logits()]
    x = torch.randn(3, layer.in_features)
    torch.manual_seed(0)
    before = layer(x)
    with pytest.warns(UserWarning, match="Complex modules"):
        layer.to(torch.complex64)
    assert {value.dtype for value in layer.cores.parameters()} == {torch.complex64} == {layer.dtype}
    for value, was in zip(layer.logits(), digits, strict=True):
        assert value.dtype is torch.float32
        assert torch.equal(value, was)
    assert not any(value.is_complex() for value in layer.masks.buffers())
    assert error(layer(x.to(torch.complex64)), before.to(torch.complex64)) < 1e-5
    with pytest.warns(UserWarning, match="Complex modules"):
        layer.to(torch.complex128)
    assert {value.dtype for value in layer.logits()} == {torch.float64}
    with pytest.warns(UserWarning, match="discards the imaginary part"):
        layer.to(torch.float32)
    assert {value.dtype for value in layer.parameters()} == {torch.float32}
    assert error(layer(x), before) < 1e-5


def test_inputs_of_another_type_are_refused() -> None:
    layer = tnmars.compile(spec("tt_linear"), dtype=torch.complex64, warn=False)
    with pytest.raises(tnmars.ShapeError, match=r"input has dtype torch.float32, but the layer has torch.complex64"):
        layer(torch.randn(2, layer.in_features))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(tnmars.ShapeError, match=r"torch.complex64"):
        layer(torch.randn(2, layer.in_features))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(2, layer.in_features, dtype=torch.complex64)).dtype is torch.complex64
    real = tnmars.compile(spec("tt_linear"), warn=False)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(tnmars.ShapeError, match=r"torch.complex64"):
        real(torch.randn(2, real.in_features, dtype=torch.complex64))


SELECTORS = [tnmars.Mars(), tnmars.GaussianGates(), tnmars.GaussianGates(fold=True), tnmars.Annealed(), tnmars.Ard()]


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
def test_every_selector_trains_and_prunes_a_complex_model(selector: tnmars.Selector) -> None:
    graph = tnmars.families.tt("linear", inputs=(4, 4), outputs=(3, 4), rank=4)
    layer = tnmars.compile(graph, selector=selector, dtype=torch.complex64, warn=False)
    model = nn.Sequential(layer)
    optimizer = torch.optim.Adam(tnmars.param_groups(model, lr=1e-2, mask_lr=0.3))
    schedule = tnmars.MaskSchedule(model, total_steps=6)
    x = torch.randn(8, 16, dtype=torch.complex64)
    for _ in range(6):
        charge = tnmars.penalty(model)
        assert charge.dtype is torch.float32
        (model(x).abs().square().mean() + charge / 8).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.eval()
    before = model(x)
    tnmars.prune_(model, optimizer=optimizer)
    assert error(model(x), before) < 1e-5
    assert {value.dtype for value in model[0].cores.parameters()} == {torch.complex64}
    model(x).abs().square().mean().backward()
    optimizer.step()


def test_the_penalty_of_cores_is_that_of_their_absolute_values() -> None:
    graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=4)
    layer = tnmars.compile(graph, selector=tnmars.Mars(), dtype=torch.complex128, warn=False)
    cores = list(layer.cores.parameters())
    factor = layer.selector.weight_decay
    assert factor
    for one, core in zip(torch.autograd.grad(tnmars.penalty(layer), cores), cores, strict=True):
        assert error(one, 2 * factor * core) < 1e-12  # torch's gradient is twice the derivative by the conjugate
    with torch.no_grad():
        wanted = factor * sum(float(core.real.square().sum() + core.imag.square().sum()) for core in cores)
        charge = float(tnmars.penalty(layer))
        for core in cores:
            core.zero_()
        assert charge - float(tnmars.penalty(layer)) == pytest.approx(wanted, rel=1e-10)


def test_a_complex_multiply_add_takes_four_real_ones_in_the_plans_estimate() -> None:
    real, both = CostModel(), CostModel(parts=2)
    calls = real.matmul(1, 0, 0, 0)
    assert both.bytes == 8
    moved = 4 * 3 * 512**2 / real.rate
    work = real.matmul(1, 512, 512, 512) - calls - moved
    assert both.matmul(1, 512, 512, 512) == pytest.approx(calls + 4 * work + 2 * moved, rel=1e-9)
    graph = tnmars.families.lowrank("linear", inputs=(512,), outputs=(512,), rank=64)
    for dtype, bytes_of_it in ((torch.complex64, 8), (torch.float64, 8), (torch.complex128, 16), (None, 4)):
        assert tnmars.compile(graph, dtype=dtype, model=both, warn=False).planner.model.bytes == bytes_of_it


def test_a_complex_number_counts_as_one_parameter() -> None:
    graph = tnmars.families.lowrank("linear", inputs=(8,), outputs=(6,), rank=2)
    for dtype in (torch.float32, torch.complex64):
        layer = tnmars.compile(graph, dtype=dtype, warn=False)
        (found,) = tnmars.summary(layer).layers
        assert found.parameters == 8 * 2 + 2 * 6 == sum(value.numel() for value in layer.cores.parameters())
        assert found.dense_parameters == 48
        assert tnmars.summary(layer).other == 6
