"""Layers that are predicted to be slower than torch's own are announced, with figures and a way out."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import MODEL
from strategies import cases, graphs

import tnmars
from tnmars import Graph, families
from tnmars.layer.predicted import SLOWER, predicted
from tnmars.program.against_dense import against_dense
from tnmars.program.form import Form, estimate

SLOW = families.tt("linear", inputs=(8, 12, 8), outputs=(8, 12, 8), rank=48)
FAST = families.lowrank("linear", inputs=(768,), outputs=(768,), rank=32)


def told(make: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        make()
    return [str(one.message) for one in seen]


def test_a_slow_layer_is_announced_once_with_figures_and_a_way_out() -> None:
    layer = tnmars.compile(SLOW, batch=32, model=MODEL, warn=False)
    (text,) = told(lambda: tnmars.compile(SLOW, batch=32, model=MODEL))
    for mode, name in (("infer", "inference"), ("train", "training")):
        assert f"{name} {predicted(layer)[mode].ratio:.2f} times" in text
    assert "linear 768 -> 768" in text and "batch 32" in text
    assert "lower the ranks" in text and "tnmars.freeze" in text and "warn=False" in text


def test_it_is_silent_if_asked_and_where_the_layer_is_fast_or_small() -> None:
    small = families.tt("linear", inputs=(4, 4), outputs=(4, 4), rank=9)
    for make in (
        lambda: tnmars.compile(SLOW, batch=32, model=MODEL, warn=False),
        lambda: tnmars.compile(FAST, batch=32, model=MODEL),
        lambda: tnmars.compile(small, model=MODEL),
        lambda: tnmars.compile(families.tt("tensor", free=(20, 20, 20), rank=4), model=MODEL),
        lambda: tnmars.Linear(768, 768, rank=600, family="lowrank", model=MODEL, warn=False),
        lambda: tnmars.Embedding(10_000, 128, family="tt", rank=8, model=MODEL),
    ):
        assert not told(make)
    assert told(lambda: tnmars.Linear(768, 768, rank=600, family="lowrank", model=MODEL))


def test_the_warning_is_at_the_line_of_the_user() -> None:
    for make in (lambda: tnmars.compile(SLOW, model=MODEL), lambda: tnmars.Linear(768, 768, rank=600, model=MODEL)):
        with pytest.warns(UserWarning, match="slower than torch's own") as seen:
            make()
        assert [one.filename for one in seen] == [__file__]


def dense_form(graph: Graph, batch: int) -> Form:
    from tnmars.plan.layout import Weighing
    from tnmars.program.choice import all_forms

    return next(form for form in all_forms(graph, batch, Weighing(MODEL)) if form.frame.dense)


def test_the_dense_layer_has_one_product_less_if_its_input_needs_no_gradient() -> None:
    """By hand: three products with it, two without, for torch's layer; a low-rank one has two factors."""
    batch, width = 512, 768
    form = tnmars.compile(FAST, batch=batch, model=MODEL).plan("train", batch)
    both = {given: against_dense(FAST, form, batch, MODEL, grad=True, input_grad=given) for given in (True, False)}
    assert both[True] is not None and both[False] is not None
    forward = MODEL.matmul(1, batch, width, width)
    weight = MODEL.matmul(1, batch, width, width)
    fixed = MODEL.step_call + 2 * MODEL.parameter_call + MODEL.grad_call
    assert both[True].dense_seconds == pytest.approx(forward + 2 * weight + fixed, rel=0.02)
    assert both[False].dense_seconds == pytest.approx(forward + weight + fixed, rel=0.02)
    spared = both[True].seconds - both[False].seconds
    assert spared == pytest.approx(MODEL.matmul(1, batch, width, 32), rel=0.3)
    fixed = MODEL.layer_call + MODEL.step_call + 3 * MODEL.parameter_call
    assert both[True].seconds == pytest.approx(estimate(form, MODEL, grad=True, batch=batch) + fixed)


def test_the_dense_layer_has_as_many_groups() -> None:
    """With eight groups torch's convolution has an eighth of the products."""
    found = []
    for groups in (1, 8):
        layer = tnmars.Conv2d(128, 128, 3, padding=1, groups=groups, rank=4, model=MODEL, image=56, batch=8, warn=False)
        found.append(predicted(layer)["infer"].dense_seconds)
    assert 2 * found[1] < found[0]


@settings(max_examples=cases(500))
@given(graph=graphs(kinds=("linear", "conv", "embedding", "tensor", "map")), batch=st.sampled_from((1, 7, 300)))
def test_every_layer_has_a_prediction_where_torch_has_a_layer(graph: Graph, batch: int) -> None:
    """With a gradient for the input it takes longer, and so does training than inference."""
    layer = tnmars.compile(graph, batch=batch, model=MODEL, image=6, warn=False)
    found = predicted(layer)
    assert set(found) == (set() if graph.kind in ("tensor", "map") or not graph.terms else {"train", "infer"})
    if not found:
        return
    for mode, one in found.items():
        grad = mode == "train"
        more = against_dense(graph, layer.plan(mode, batch), batch, MODEL, grad=grad, input_grad=True, image=6)
        assert more is not None
        assert 0.0 < one.seconds <= more.seconds and 0.0 < one.dense_seconds <= more.dense_seconds
    assert found["train"].dense_seconds > found["infer"].dense_seconds


def test_a_fast_frozen_layer_takes_the_dense_weight_unless_another_form_is_clearly_faster() -> None:
    """At batch 1 a low-rank layer has fewer multiply-adds, but two calls instead of one."""
    small = families.lowrank("linear", inputs=(128,), outputs=(128,), rank=16)
    for graph, batch, has_weight in ((small, 1, True), (SLOW, 32, True), (FAST, 32, False)):
        layer = tnmars.compile(graph, batch=batch, model=MODEL, warn=False)
        frozen = tnmars.freeze(layer, "fast")
        assert bool(frozen.form.frame.dense) == has_weight
        x = torch.randn(batch, graph.in_features)
        torch.testing.assert_close(frozen(x), torch.nn.functional.linear(x, layer.dense(), layer.bias))
        assert not tnmars.freeze(layer, "compact").form.frame.dense or graph is SLOW


def test_slower_means_slower() -> None:
    assert predicted(tnmars.compile(SLOW, batch=32, model=MODEL, warn=False))["infer"].ratio > SLOWER
