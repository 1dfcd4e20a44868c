"""Counts of operations: those of the emitted code, as torch counts them while it runs."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import MODEL, WEIGHINGS, forms_of, limits, once, run, unpadded
from strategies import cases, graphs
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import tnmars
from tnmars.graph import Core, Edge, Graph, Role, Term
from tnmars.graph.kinds import KINDS
from tnmars.layer.module import code
from tnmars.plan.layout import Weighing
from tnmars.plan.network import BATCH, TOKENS, spatial
from tnmars.plan.network import data as data_label
from tnmars.program import choice
from tnmars.program.base import Work
from tnmars.program.candidates import weight_forms
from tnmars.program.form import Form, measure, total
from tnmars.program.program import refold


class ElementCounter(TorchDispatchMode):
    """Counts elementwise operations on floating-point numbers: entries multiplied, added, or read by a sum.

    The bias, which is added at the end, does not count.
    """

    def __init__(self, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.count = 0
        self.place = None if bias is None else bias.data_ptr()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("mul", "add") and result.is_floating_point():
            is_bias = any(isinstance(value, torch.Tensor) and value.data_ptr() == self.place for value in args)
            self.count += 0 if is_bias else result.numel()
        elif name == "sum":
            self.count += args[0].numel()
        return result


def lengths(graph: Graph, problem: oracle.Problem) -> dict[str, int]:
    """The lengths of the data axes of a problem, by their labels."""
    if graph.inputs:
        modes = {mode.name for mode in graph.modes}
        axes = [
            (axis[0], length)
            for operand, value in zip(graph.inputs, problem.inputs, strict=True)
            for axis, length in zip(operand.axes, value.shape, strict=True)
        ]
        return {data_label(name): length for name, length in axes if name not in modes}
    if graph.of_role(Role.LOOKUP) or graph.of_role(Role.FREE):
        return {TOKENS: problem.inputs[0].shape[0]}
    batch, _, *image = problem.inputs[0].shape
    return {BATCH: batch, **{spatial(axis): length for axis, length in enumerate(image)}}


def counted(form: Form, problem: oracle.Problem) -> Work:
    """What torch counts while the code of a form runs."""
    with torch.no_grad(), FlopCounterMode(display=False) as flops, ElementCounter(problem.bias) as elements:
        run(form, problem)
    return Work(flops.get_total_flops() // 2, elements.count)


def check(form: Form, graph: Graph, problem: oracle.Problem) -> None:
    found = total(measure(form, lengths(graph, problem)))
    wanted = counted(form, problem)
    assert (found.macs, found.elementwise) == (wanted.macs, wanted.elementwise), f"{form.frame}\n{form.program}"


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=cases(500))
@given(data=st.data(), weighing=st.sampled_from(WEIGHINGS), batch=st.sampled_from((3, 1, 17)))
def test_counts_are_those_of_the_code(kind: str, data: st.DataObject, weighing: Weighing, batch: int) -> None:
    """Of every form, also with less of it folded; for other lengths of the data axes than it was made for."""
    graph = unpadded(data.draw(graphs([kind])))
    problem = oracle.problem(graph, batch)
    for form in once(forms_of(graph, 16, weighing)):
        check(form, graph, problem)
        for limit in limits(graph)[:2]:
            folded = Form(form.name, refold(form.program, limit), form.frame, form.cost)
            assert total(measure(folded, lengths(graph, problem))) == total(measure(form, lengths(graph, problem)))
            check(folded, graph, problem)


@settings(max_examples=cases(300))
@given(graph=graphs())
def test_counts_of_the_weight_are_those_of_the_code(graph: Graph) -> None:
    problem = oracle.problem(graph, 1)
    for form in weight_forms(graph, Weighing(MODEL)):
        made = code(form)
        with torch.no_grad(), FlopCounterMode(display=False) as flops, ElementCounter() as elements:
            made.fold(*(problem.cores[name] for name in made.cores))
        found = total(measure(form))
        assert (found.macs, found.elementwise) == (flops.get_total_flops() // 2, elements.count)


@settings(max_examples=cases(300))
@given(graph=graphs(["linear", "map"]), batch=st.sampled_from((3, 0, 17)))
def test_shapes_are_those_of_the_code(graph: Graph, batch: int) -> None:
    """Each instruction's shape; the code's values are seen by name."""
    problem = oracle.problem(graph, batch)
    for form in forms_of(graph, 16, Weighing(MODEL)):
        source = code(form).source.replace("    del ", "    ")
        space: dict[str, Any] = {}
        exec(source.replace("return ", "return locals(), "), space)  # noqa: S102
        values, *parts = space["fold"](*(problem.cores[name] for name in code(form).cores))
        bias = () if problem.bias is None else (problem.bias,)
        more, *_ = space["run"](*problem.inputs, *bias, *parts[0])
        values |= more
        for entry in measure(form, lengths(graph, problem)):
            if entry.instruction.out in values and entry.instruction.reads:
                assert tuple(values[entry.instruction.out].shape) == entry.shape, f"{entry}\n{form.program}"


def test_the_sizes_a_form_was_made_for_are_the_default() -> None:
    graph = tnmars.families.tt("linear", inputs=(4, 5), outputs=(3, 6), rank=2)
    for form in forms_of(graph, 16, Weighing(MODEL)):
        assert total(measure(form)) == total(measure(form, {BATCH: 16}))
        assert total(measure(form)).macs < total(measure(form, {BATCH: 17})).macs


def test_counts_by_hand() -> None:
    """A low-rank layer: through the cores, (6 * 2 + 2 * 5) multiply-adds a row; the dense weight, 6 * 2 * 5 once."""
    graph = tnmars.network("linear", "A[i,r] B[r,o]", inputs={"i": 6}, outputs={"o": 5}, bonds=2)
    forms = {form.name: total(measure(form, {BATCH: 7})) for form in forms_of(graph, 16, Weighing(MODEL))}
    assert forms["dense"].macs == 6 * 2 * 5 + 7 * 6 * 5
    assert forms["push"] == Work(macs=7 * (6 * 2 + 2 * 5), written=7 * (2 + 5))


@pytest.mark.parametrize("spec", ["tucker2_conv", "cp_conv", "tt_conv_proper", "ring_conv", "tt_conv_naive"])
def test_counts_of_a_spec_at_its_real_size(spec: str) -> None:
    graph = tnmars.load(oracle.spec(spec))
    problem = oracle.problem(graph, 2, image=(14, 13))
    for weighing in WEIGHINGS:
        for form in once(choice.all_forms(graph, 16, weighing)):
            check(form, graph, problem)


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"padding": (1, 2)}, {"padding": "same", "dilation": 2}])
def test_counts_of_patches(options: dict[str, object]) -> None:
    """Patches are taken before anything is counted, so that there are as many as outputs."""
    weight = {"outputs": {"o": 4}, "bonds": 2, "kernel_size": (3, 2), "options": options}
    graph = tnmars.network("conv", "A[p,r] B[q,r,o]", patch={"p": 3, "q": 6}, **weight)
    for form in once(forms_of(graph, 16, Weighing(MODEL))):
        check(form, graph, oracle.problem(graph, 3, image=(8, 9)))


def test_counts_of_terms_of_different_shapes() -> None:
    """Each term starts from the image as it is given, whatever another has made of it."""
    bonds = (Edge("r", 2),)
    modes = (Edge("i", 3, Role.IN), Edge("k", 3, Role.KERNEL), Edge("o", 4, Role.OUT))
    one = Term("one", bonds, (Core("A", ("i", "k", "r")), Core("B", ("r", "o"))))
    two = Term("two", bonds, (Core("A", ("i", "r")), Core("B", ("r", "k", "o"))))
    graph = Graph("conv", modes, (one, two), options=(("stride", 2),))
    for form in once(forms_of(graph, 16, Weighing(MODEL))):
        check(form, graph, oracle.problem(graph, 3, image=(11,)))


def test_efforts_add_up() -> None:
    parts = [Work(1, 2, 3), Work(10, 20, 30)]
    assert sum(parts, Work()) == Work(11, 22, 33)
