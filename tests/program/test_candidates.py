"""Every candidate form of a graph computes the same: whatever the path, the batch it is for, and what is folded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import oracle
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit import EXACT, MODEL, OPTIMIZERS, WEIGHINGS, forms_of, limits, once, run, unpadded
from strategies import THOROUGH, cases, graphs

import tnmars
from tnmars.graph import Graph, Role
from tnmars.graph.counts import count
from tnmars.layer.module import code
from tnmars.plan.layout import Weighing
from tnmars.program import choice
from tnmars.program.candidates import layer_forms, lookup_forms, weight_forms
from tnmars.program.form import Form, estimate, peak
from tnmars.program.instructions import Fetch
from tnmars.program.program import Program, refold, verify
from tnmars.timing import tuning

CURVED = replace(
    MODEL, peak=1e6, conv_peak=1e6, call=0.0, batched_call=0.0, small_product=0.0, conv_call=0.0, copy_rate=1e6
)
"""A machine on which operations and copies cost much and calls nothing, so that other forms win."""


def check(form: Form, problem: oracle.Problem, wanted: torch.Tensor, slopes: list[torch.Tensor] | None) -> None:
    """A form's code gives what is wanted, and its slopes."""
    verify(form.program)
    found = run(form, problem)
    assert oracle.error(found, wanted) <= EXACT, f"{form.name}\n{form.program}"
    for slope, truth in zip(oracle.gradients(found, problem.leaves), slopes or (), strict=bool(slopes)):
        assert oracle.error(slope, truth) <= EXACT, f"{form.name}\n{form.program}"


# --- all of them -----------------------------------------------------------------------------------------------------


POINTWISE = tnmars.network(
    "conv",
    "A[a,b,c,i,d,o] B[i,d,b,c,a]",
    inputs={"i": 2},
    outputs={"o": 3},
    bonds={"a": 2, "b": 3, "c": 2, "d": 4},
    shared=["i"],
    kernel_size=(1,),
)
"""Its batch may lie innermost, after the image."""


@settings(max_examples=cases(1000))
@given(graph=graphs().map(unpadded), batch=st.sampled_from((3, 1, 17, 0)), seed=st.integers(0, 2**31))
@example(graph=POINTWISE, batch=0, seed=0)
def test_every_form_gives_the_same(graph: Graph, batch: int, seed: int) -> None:
    """Forms made for one batch run at another; each is also run with less of it folded."""
    problem = oracle.problem(graph, batch, seed)
    wanted = problem.answer()
    slopes = oracle.gradients(wanted, problem.leaves)
    made = [form for nominal in (1, 64) for weighing in WEIGHINGS for form in forms_of(graph, nominal, weighing)]
    made += forms_of(graph, 16, Weighing(CURVED, grad=True))
    forms = once(made)
    for form in forms:
        check(form, problem, wanted, slopes)
    folded = once(replace(form, program=refold(form.program, limit)) for form in forms for limit in limits(graph))
    for form in folded[:: 1 if THOROUGH else 3]:
        with torch.no_grad():
            check(form, problem, wanted, None)


@settings(max_examples=cases(600))
@given(
    graph=graphs().map(unpadded), optimizer=st.sampled_from(OPTIMIZERS), grad=st.booleans(), seed=st.integers(0, 2**31)
)
def test_every_optimizer_gives_the_same(graph: Graph, optimizer: str, grad: bool, seed: int) -> None:
    problem = oracle.problem(graph, 3, seed)
    wanted = problem.answer()
    slopes = oracle.gradients(wanted, problem.leaves)
    for form in once(forms_of(graph, 16, Weighing(MODEL, grad), optimizer)):
        check(form, problem, wanted, slopes)


@settings(max_examples=cases(300))
@given(graph=graphs().map(unpadded), optimizer=st.sampled_from(OPTIMIZERS), seed=st.integers(0, 2**31))
def test_every_form_of_the_weight_gives_the_same(graph: Graph, optimizer: str, seed: int) -> None:
    problem = oracle.problem(graph, 1, seed)
    wanted = oracle.dense(graph, oracle.whole(graph, problem.cores))
    for weighing in WEIGHINGS:
        forms = weight_forms(graph, weighing, optimizer)
        assert [form.frame.is_transposed for form in forms] == [False, True][: len(forms)]
        for form in forms:
            verify(form.program)
            assert form.program.run == ()
            made = code(form)
            (found,) = made.fold(*(problem.cores[name] for name in made.cores))
            assert oracle.error(found.t() if form.frame.is_transposed else found, wanted) <= EXACT


@settings(max_examples=cases(200))
@given(graph=graphs(["linear"]), batch=st.sampled_from((65, 64, 130, 300, 0)), seed=st.integers(0, 2**31))
def test_chunks_of_a_batch_give_the_same(graph: Graph, batch: int, seed: int) -> None:
    problem = oracle.problem(graph, batch, seed)
    wanted = problem.answer()
    slopes = oracle.gradients(wanted, problem.leaves)
    forms = [form for form in choice.all_forms(graph, 1024, Weighing(MODEL, grad=True)) if form.chunk]
    assert forms
    for form in once(forms):
        assert 0 < form.chunk < 1024
        check(form, problem, wanted, slopes)


def test_a_chunk_at_a_time_is_what_a_chunked_form_computes() -> None:
    """Not only the answer: the code runs once for each chunk, the last of which may be smaller."""
    graph = tnmars.network("linear", "A[i,r] B[r,o]", inputs={"i": 6}, outputs={"o": 5}, bonds=2)
    form = next(form for form in choice.all_forms(graph, 1024, Weighing(MODEL)) if form.chunk)
    made, seen = code(form), []
    spied = replace(made, run=lambda x, *rest: (seen.append(x.shape[0]), made.run(x, *rest))[1])
    problem = oracle.problem(graph, 2 * form.chunk + 3)
    spied(problem.inputs, problem.bias, made.fold(*(problem.cores[name] for name in made.cores)))
    assert seen == [form.chunk, form.chunk, 3]


# --- which ones there are --------------------------------------------------------------------------------------------


@settings(max_examples=cases(300))
@given(graph=graphs(["linear", "conv", "conv_transpose"]), weighing=st.sampled_from(WEIGHINGS))
def test_the_dense_form_is_always_among_them(graph: Graph, weighing: Weighing) -> None:
    forms = layer_forms(graph, 16, weighing, 8)
    is_blocks = graph.kind == "linear" and bool(graph.of_role(Role.GROUP))  # torch has no such layer
    assert any(form.frame.dense.startswith("F.") for form in forms) == (not is_blocks)
    assert any(not form.frame.dense for form in forms) or graph.kernel_size
    if is_blocks and len(graph.terms) == 1:
        assert any(len(form.program.parts) == 1 for form in forms), "all cores contracted, then a product of blocks"
    assert [form.cost for form in forms] == sorted(form.cost for form in forms)


def test_small_graphs_have_forms_of_every_sort() -> None:
    """Through single cores, through parts, and the whole weight; for rows, through one table and through several."""
    tt = tnmars.families.tt("linear", inputs=(4, 4, 4), outputs=(4, 4, 4), rank=4)
    names = {form.name for batch in (1, 1024) for weighing in WEIGHINGS for form in layer_forms(tt, batch, weighing)}
    assert {"dense", "push", "path"} <= names
    rows = tnmars.families.tt("embedding", lookup=(4, 4, 4), outputs=(4, 4, 4), rank=4)
    names = {form.name for weighing in WEIGHINGS for form in lookup_forms(rows, 64, weighing)}
    assert {"tables1", "tables2"} <= names


@settings(max_examples=cases(300))
@given(
    graph=graphs(),
    batch=st.sampled_from((1, 16, 1024)),
    grad=st.booleans(),
    at=st.integers(0, 9),
    is_tight=st.booleans(),
)
def test_the_choice_is_the_cheapest_that_fits_into_memory(
    graph: Graph, batch: int, grad: bool, at: int, is_tight: bool
) -> None:
    """With room as it is, or with so little that only some forms fit."""
    weighing = Weighing(MODEL, grad)
    forms = choice.all_forms(graph, batch, weighing, 8)
    peaks = sorted(peak(form) for form in forms)
    room = peaks[at % len(peaks)] if is_tight else 8 * proportion(graph, batch, 8)
    with pytest.MonkeyPatch.context() as patch:
        if is_tight:
            patch.setattr(choice, "MEMORY", (room + 0.5) / proportion(graph, batch, 8))
        choice.choose.cache_clear()  # it may know this graph from an example with other room
        ranked = choice.choose(graph, batch, weighing, 8)
    assert sorted(map(repr, ranked)) == sorted(map(repr, forms))
    small = [form.cost for form in forms if peak(form) <= room]
    assert ranked[0].cost == min(small, default=min(form.cost for form in forms))


def test_a_form_that_takes_too_much_memory_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest form holds more than another: where there is no room for it, that one is taken."""
    graph = tnmars.families.tt("linear", inputs=(8, 8), outputs=(8, 8), rank=2)
    forms = sorted(choice.all_forms(graph, 64, Weighing(CURVED)), key=lambda form: form.cost)
    peaks = [peak(form) for form in forms]
    assert min(peaks) < peaks[0]
    monkeypatch.setattr(choice, "MEMORY", (min(peaks) + 0.5) / proportion(graph, 64, 8))
    found = choice.choose(graph, 64, Weighing(CURVED), 8)[0]
    assert peak(found) == min(peaks)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_form_that_takes_too_much_memory_is_not_even_timed(frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for a layer that trains nor for a frozen one; where none is small enough, all are."""
    graph = tnmars.families.tt("linear", inputs=(8, 8), outputs=(8, 8), rank=2)
    limit = float("inf")
    forms = choice.choose_frozen(graph, 64, MODEL, limit, 8) if frozen else choice.choose(graph, 64, Weighing(MODEL), 8)
    peaks = sorted({peak(form) for form in forms})
    raced: list[set[int]] = []

    def decide(graph: Graph, forms: Sequence[Form], batch: int, mode: str, image: int, **place: object) -> Form:
        raced.append({peak(form) for form in forms})
        return forms[0]

    monkeypatch.setattr(tuning, "fastest", decide)
    planner = choice.Planner(graph, MODEL, 64, 8, decide=decide)
    for most in (peaks[0], peaks[1], peaks[0] - 1):
        monkeypatch.setattr(choice, "MEMORY", (most + 0.5) / proportion(graph, 64, 8))
        if frozen:
            tuning.fastest_frozen(graph, forms, 64, 8, device=torch.device("cpu"), dtype=torch.float32)
        else:
            planner.plan("infer", 64)
    assert raced == [set(peaks[:1]), set(peaks[:2]), set(peaks)]


def proportion(graph: Graph, batch: int, image: int) -> int:
    """Input, output, cores and dense weight together; of the data axes of a map, all but the first have length 16."""
    numbers = count(graph)
    if graph.inputs:
        modes = {mode.name: mode.size for mode in graph.modes}
        listed = [name for operand in graph.inputs for axis in operand.axes for name in axis]
        sizes = {**modes, **{name: 16 for name in listed if name not in modes}}
        sizes |= dict.fromkeys([name for name in listed if name not in modes][:1], batch)
        tensors = [*(operand.axes for operand in graph.inputs), graph.output]
        return (
            numbers.cores + numbers.dense + sum(prod(sizes[name] for axis in axes for name in axis) for axes in tensors)
        )
    pixels = batch * image ** len(graph.kernel_size)
    inside = graph.in_features if graph.kind in ("linear", "conv", "conv_transpose") else 1
    return numbers.cores + numbers.dense + pixels * (inside + graph.out_features)


# --- folding less ----------------------------------------------------------------------------------------------------


def shipped(program: Program) -> int:
    """How many numbers the folded parts have that a run needs."""
    sizes, axes = dict(program.sizes), program.axes()
    return sum(prod(sizes[label] for group in axes[part] for label in group) for part in program.parts)


@settings(max_examples=cases(500))
@given(graph=graphs(), weighing=st.sampled_from(WEIGHINGS), share=st.floats(0, 2))
def test_refold_holds_its_limit_or_ships_the_cores(graph: Graph, weighing: Weighing, share: float) -> None:
    for form in forms_of(unpadded(graph), 16, weighing):
        limit = share * shipped(form.program)
        program = refold(form.program, limit)
        verify(program)
        made = {instruction.out: instruction for instruction in program.fold}
        assert shipped(program) <= limit or all(isinstance(made[part], Fetch) for part in program.parts)
        assert sorted(map(repr, program.instructions)) == sorted(map(repr, form.program.instructions))
        assert program == form.program if share >= 1 else True
        assert replace(form, program=program).shipped == shipped(program)


@settings(max_examples=cases(200))
@given(graph=graphs(), batch=st.sampled_from((1, 16, 300)), share=st.sampled_from((0.0, 1.0, 2.0, float("inf"))))
def test_frozen_forms_keep_to_their_limit(graph: Graph, batch: int, share: float) -> None:
    graph = unpadded(graph)
    problem = oracle.problem(graph, 3)
    wanted = problem.answer()
    limit = share * count(graph).cores
    forms = choice.choose_frozen(graph, batch, MODEL, limit, 8)
    room = 8 * proportion(graph, batch, 8)
    ranks = [(peak(form) > room, form.cost) for form in forms]
    assert ranks == sorted(ranks)
    for form in forms:
        assert shipped(form.program) <= max(limit, count(graph).cores)
        with torch.no_grad():
            check(form, problem, wanted, None)


# --- estimates -------------------------------------------------------------------------------------------------------


@settings(max_examples=cases(300))
@given(graph=graphs(), batch=st.sampled_from((1, 16, 1024)))
def test_an_estimate_is_of_a_finished_program(graph: Graph, batch: int) -> None:
    """It is positive, smaller without what is folded, and larger with gradients or on a slower machine."""
    slow = replace(MODEL, **{key: value * 2 for key, value in MODEL.to_json().items() if key.endswith("call")})
    for form in forms_of(unpadded(graph), batch, Weighing(MODEL)):
        whole = estimate(form, MODEL)
        assert 0 <= estimate(form, MODEL, folded=True) <= whole
        assert estimate(form, MODEL, grad=True) >= whole
        assert estimate(form, slow) >= whole
        assert form.cost > 0


@pytest.mark.parametrize("weighing", WEIGHINGS)
def test_more_rows_cost_more(weighing: Weighing) -> None:
    graph = tnmars.families.tt("linear", inputs=(7, 4, 7, 4), outputs=(5, 5, 5, 5), rank=20)
    costs = [layer_forms(graph, batch, weighing)[0].cost for batch in (1, 16, 128, 1024)]
    assert costs == sorted(set(costs))


def test_patches_of_an_image_have_a_price_and_a_size() -> None:
    graph = tnmars.network(
        "conv",
        "A[p,r] B[r,o]",
        patch=dict(p=16 * 49),
        outputs=dict(o=16),
        bonds=4,
        kernel_size=(7, 7),
        options=dict(padding=3),
    )
    layer = tnmars.compile(graph, batch=8, image=56)
    assert layer.plan("infer", 8).name == "dense", "taking 49 times the image costs more than the convolution"
    forms = choice.choose(graph, 8, choice.Weighing(layer.planner.model), 56)
    unfolded = [form for form in forms if form.frame.unfold]
    assert unfolded and all(peak(form) >= form.patches() == 8 * 16 * 49 * 56 * 56 for form in unfolded)
