"""Lengths, work and time of a form: every figure that is reported equals what torch counts while the layer runs."""

from __future__ import annotations

from dataclasses import replace

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import MODEL, Given, set_gates
from strategies import cases, graphs
from torch.utils.flop_counter import FlopCounterMode

import tnmars
from tnmars.graph import Graph
from tnmars.layer.module import TNModule
from tnmars.plan.layout import Weighing
from tnmars.program import choice
from tnmars.program.choice import Planner, all_forms, choose
from tnmars.program.explain import explain
from tnmars.program.form import Form, estimate, measure, total
from tnmars.reporting.collect import collect


def counted(layer: torch.nn.Module, *inputs: torch.Tensor) -> int:
    """The multiply-adds that torch counts in one call."""
    with torch.no_grad(), FlopCounterMode(display=False) as flops:
        layer(*inputs)
    return flops.get_total_flops() // 2


def reported(layer: TNModule, batch: int, image: int) -> dict[str, int]:
    """The multiply-adds that each view of a layer reports."""
    form = layer.plan("infer", batch)
    explained = explain(layer.graph, form, batch, layer.planner.model, image=image)
    (numbers,) = collect(layer, layer, batch=batch, measure=False).layers
    return {
        "plan": explained.macs,
        "summary": tnmars.summary(layer).layers[0].macs,
        "expected": round(float(tnmars.expected(layer, "macs"))),
        "report": numbers.before.explained.macs,
    }


@st.composite
def options(draw: st.DrawFn, graph: Graph) -> dict[str, object]:
    """Stride 1 to 4, dilation and padding of a convolution; nothing for other layers."""
    count = len(graph.kernel_size)
    if not count:
        return {}
    stride, dilation = (draw(st.tuples(*[st.integers(1, top)] * count)) for top in (4, 2))
    padding = draw(st.tuples(*[st.integers(0, 2)] * count))
    return {"stride": stride, "dilation": dilation, "padding": padding}


def planned(graph: Graph, form: Form, batch: int, image: int) -> TNModule:
    """A layer that takes this form for a batch."""
    plans = {(mode, batch): form for mode in ("train", "infer")}
    return TNModule(Planner(graph, MODEL, batch, image), plans=plans, dtype=torch.float64)


@settings(max_examples=cases(500))
@given(data=st.data(), graph=graphs(["conv", "conv_transpose", "linear"]), batch=st.sampled_from((1, 9, 37)))
def test_macs_are_what_torch_counts(data: st.DataObject, graph: Graph, batch: int) -> None:
    """For every form, with stride, dilation, padding, and chunks that do not divide the batch."""
    given = data.draw(options(graph))
    bias = tuple(option for option in graph.options if option[0] == "bias")
    graph = replace(graph, options=(*bias, *given.items()))
    image = max((graph.window.reach(axis) for axis in range(graph.window.ndim)), default=1) + 4
    problem = oracle.problem(graph, batch)
    x = torch.randn(batch, graph.in_features, *[image] * graph.window.ndim, dtype=torch.float64)
    forms = all_forms(graph, batch, Weighing(MODEL), image)
    chunked = [form for form in forms if form.chunk]
    for form in [*[form for form in forms if not form.chunk], *chunked[:3]]:
        layer = planned(graph, form, batch, image)
        expected = counted(layer, x)
        assert total(measure(form, batch=batch)).macs == expected, f"{form.frame}\n{form.program}"
    assert problem.graph == graph
    layer = planned(graph, data.draw(st.sampled_from(chunked)) if chunked else forms[0], batch, image)
    assert reported(layer, batch, image) == dict.fromkeys(("plan", "summary", "expected", "report"), counted(layer, x))


@pytest.mark.parametrize(("rank", "batch"), [(4, 128), (16, 128), (16, 1024)])
def test_macs_of_a_plan_in_chunks_are_of_the_whole_batch(rank: int, batch: int) -> None:
    """The case of the survey: up to 124 times too low, because one chunk was counted."""
    graph = tnmars.families.tt("linear", inputs=(8,) * 4, outputs=(8,) * 4, rank=rank)
    layer = tnmars.compile(graph, batch=batch, model=MODEL)
    assert layer.plan("infer", batch).chunk
    figures = reported(layer, batch, 32)
    assert figures == dict.fromkeys(figures, counted(layer, torch.randn(batch, 4096)))


def test_a_price_by_macs_is_of_the_whole_batch() -> None:
    graph = tnmars.families.tt("linear", inputs=(8,) * 4, outputs=(8,) * 4, rank=4)
    layer = tnmars.compile(graph, batch=128, model=MODEL, selector=tnmars.Mars(price="macs"))
    assert layer.plan("infer", 128).chunk
    per_slice = counted(tnmars.compile(graph, batch=128, model=MODEL), torch.randn(128, 4096)) / 12
    assert float(layer.masks.unit) == pytest.approx(per_slice, rel=1e-6)


@pytest.mark.parametrize("rank", [16, 32, 48])
def test_the_planner_sees_the_stride(rank: int) -> None:
    """At stride 4 it used to take plans with up to 1.9 times the work of dense, at the price of stride 1."""
    costs = {}
    for stride in (1, 2, 4):
        settings = {"stride": stride, "padding": 1}
        ranks = (rank, rank)
        graph = tnmars.families.tucker2(
            "conv", inputs=(64,), outputs=(64,), kernel=(3, 3), ranks=ranks, options=settings
        )
        form = choose(graph, 8, Weighing(MODEL), 56)[0]
        explained = explain(graph, form, 8, MODEL, image=56)
        out = (56 - 1) // stride + 1
        assert explained.dense_macs == 8 * 64 * 64 * 9 * out * out
        assert explained.macs <= 1.02 * explained.dense_macs  # the dense weight is made from the cores first
        costs[stride] = form.cost
    assert costs[1] > 1.5 * costs[2] > 2 * costs[4]


def test_the_dense_form_and_the_dense_layer_have_one_price() -> None:
    """With gradients too; they were 0.2 % apart."""
    graph = tnmars.network("linear", "A[i,o]", inputs={"i": 64}, outputs={"o": 32})
    for grad in (False, True):
        (form,) = [form for form in choice.choose(graph, 16, Weighing(MODEL, grad)) if form.name == "dense"][:1]
        explained = explain(graph, form, 16, MODEL, grad=grad)
        views = estimate(form, MODEL, grad=grad, batch=16) - explained.dense_seconds
        assert 0 <= views < 40e-6


def terms_under_gates() -> tuple[TNModule, dict[str, torch.Tensor]]:
    """Two block terms, the gates of the second all shut; and the first term narrower."""
    graph = tnmars.families.btd("linear", inputs=(8, 8), outputs=(8, 8), rank=6, terms=2)
    layer = oracle.compiled(graph, batch=16, selector=Given(), dtype=torch.float64)
    values = {}
    for name, bond in graph.bonds.items():
        values[name] = torch.zeros(bond.size, dtype=torch.float64)
        if name.startswith(graph.terms[0].name):
            values[name][:2] = 1.0
    return layer, values


def test_expected_macs_follow_the_plan_of_the_open_slices() -> None:
    """Where most gates are shut the layer is not computed through its dense weight any more."""
    graph = tnmars.families.lowrank("linear", inputs=(256,), outputs=(256,), rank=240)
    layer = tnmars.compile(graph, batch=1024, model=MODEL, selector=tnmars.Mars(), dtype=torch.float64)
    with torch.no_grad():
        for logits in layer.logits():
            logits.fill_(-30.0)
            logits[:2] = 30.0
    small = tnmars.prune(layer, simplify=False)
    exact = counted(small, torch.randn(1024, 256, dtype=torch.float64))
    assert layer.plan("infer", 1024).frame.dense and not small.plan("infer", 1024).frame.dense
    assert float(tnmars.expected(layer, "macs")) == pytest.approx(exact, rel=1e-6)
    assert tnmars.summary(layer).layers[0].live_macs == exact


def test_live_macs_are_those_of_the_pruned_layer() -> None:
    """A term that is gone costs nothing, and the smaller layer is re-planned."""
    layer, values = terms_under_gates()
    set_gates(layer, values)
    (live,) = tnmars.summary(layer).layers
    small = tnmars.prune(layer, simplify=False)
    x = torch.randn(16, 64, dtype=torch.float64)
    assert live.live_macs == counted(small, x) < live.macs == counted(layer.train(), x)
