"""Plans as data: what is written is read back equal, and nothing else is read."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, graphs

import tnmars
from tnmars import Graph, TnmarsError
from tnmars.plan.cost import CostModel
from tnmars.plan.layout import Weighing
from tnmars.program import choice
from tnmars.program.audit import audit
from tnmars.program.candidates import weight_forms
from tnmars.program.codec import form_from_json, form_to_json, plan_from_json, plan_to_json
from tnmars.program.emit import emit
from tnmars.program.form import Form
from tnmars.program.program import refold

MODEL = CostModel()
WEIGHINGS = [Weighing(MODEL, grad, folded) for grad in (False, True) for folded in (False, True)]
TT = tnmars.families.tt("linear", inputs=(4, 5), outputs=(3, 6), rank=2)
CONV = tnmars.network(
    "conv", "A[i,r] K[r,h,w,s] B[s,o]", inputs={"i": 3}, outputs={"o": 4}, kernel={"h": 3, "w": 2}, bonds=2
)


def through_text(data: object) -> Any:
    return json.loads(json.dumps(data, allow_nan=False))


# --- what is written is read back ------------------------------------------------------------------------------------


@pytest.mark.long
@settings(max_examples=cases(1000))
@given(graph=graphs(), weighing=st.sampled_from(WEIGHINGS), batch=st.sampled_from((16, 1, 300)))
def test_every_form_is_read_back_equal(graph: Graph, weighing: Weighing, batch: int) -> None:
    forms = choice.all_forms(graph, batch, weighing, 8)
    forms += [replace(form, program=refold(form.program, limit)) for form in forms[:2] for limit in (0, 40)]
    for form in forms:
        audit(form, graph)
        read = form_from_json(through_text(form_to_json(form)), graph)
        assert read == form
        assert hash(read) == hash(form)
        assert emit(read.program, read.frame) == emit(form.program, form.frame)


@settings(max_examples=cases(200))
@given(graph=graphs())
def test_the_plans_of_a_layer_are_read_back_equal(graph: Graph) -> None:
    layer = oracle.compiled(graph)
    plans = layer.programs.plans
    assert plan_from_json(through_text(plan_to_json(plans)), graph) == plans
    assert {mode for mode, _ in plans} == {"train", "infer"}


def test_a_plan_is_plain_data() -> None:
    form = Form("push", *_parts(TT), cost=0.25)
    data = plan_to_json({("train", 16): form, ("train", 2): form})
    assert list(data) == ["version", "train", "infer"]
    assert (list(data["train"]), data["infer"]) == (["2", "16"], {})
    assert data["train"]["16"] == form_to_json(form)
    first = data["train"]["16"]["program"]["fold"][0]
    assert first["op"] == "fetch"
    assert through_text(data) == data


def _parts(graph: Graph) -> tuple[Any, Any]:
    form = _pushed(graph)
    return form.program, form.frame


def _pushed(graph: Graph) -> Form:
    return next(form for form in choice.all_forms(graph, 16, WEIGHINGS[0], 8) if not form.frame.dense)


# --- what is not read ------------------------------------------------------------------------------------------------


def refused(graph: Graph, change: Callable[[Any], object], form: Form | None = None) -> str:
    """The message for a form that is changed."""
    data = through_text(form_to_json(form or _pushed(graph)))
    form_from_json(copy.deepcopy(data), graph)
    change(data)
    with pytest.raises(TnmarsError) as caught:
        form_from_json(data, graph)
    assert "planned again" in str(caught.value)
    return str(caught.value)


def first(data: Any, op: str) -> Any:
    return next(step for step in (*data["program"]["fold"], *data["program"]["run"]) if step["op"] == op)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(more=1), "the form has 'more', which is not known; known: name, program, frame,"),
        (lambda data: data.pop("chunk"), "the form has no 'chunk'."),
        (lambda data: data.update(chunk="64"), "chunk is '64', which is not an integer."),
        (lambda data: data.update(chunk=True), "chunk is True, which is not an integer."),
        (lambda data: data.update(chunk=-1), "a chunk of -1 does not go with the layer."),
        (lambda data: data.update(chunk=10**30), "which is too large."),
        (lambda data: data.update(cost=float("nan")), "the form has the cost nan."),
        (lambda data: data.update(name="a\nb"), "which is not an identifier."),
        (lambda data: data.update(program=[]), "program is [], which is not a table."),
        (lambda data: data["program"].update(run={}), "program.run is {}, which is not a list."),
        (lambda data: data["program"]["run"].append(7), "is 7, which is not an instruction."),
        (lambda data: data["program"]["run"][-1].update(op="system"), "is 'system', which is not known; known: fetch,"),
        (lambda data: data["program"]["run"][-1].update(op="instruction"), "which is not known; known: fetch,"),
        (lambda data: data["program"]["run"][-1].update(also=1), "has 'also', which is not known; known: op, out,"),
        (lambda data: first(data, "matmul").update(left=3), ".left is 3, which is not text."),
        (lambda data: data["program"].update(result="v99"), "v99 is not made"),
        (lambda data: data["program"].update(result="x0"), "'x0' is not a name that a value has."),
        (lambda data: first(data, "fetch").update(cores=["G9"]), "takes 'G9', but the graph has no such cores."),
        (lambda data: first(data, "fetch").update(cores=["G1\nimport os"]), "the graph has no such cores."),
        (lambda data: first(data, "fetch").update(has_ones=True), "with other axes than it has."),
        (lambda data: first(data, "receive").update(name="y"), "takes input 'y', which is not an input of the layer"),
        (lambda data: data["program"]["dynamic"].clear(), "the data axes of the plan are not those of the graph."),
        (lambda data: data["program"]["dynamic"].append("i1"), "the data axes of the plan are not those of the graph."),
        (lambda data: data["program"]["dynamic"].append("@@b"), "which is not in order, each once."),
        (lambda data: data["frame"].update(cut=2), "the frame of the plan is not one that the graph has."),
        (lambda data: data["frame"].update(dense="os.system"), "the frame of the plan is not one that the graph has."),
        (lambda data: data["frame"].update(padding=[1.5]), "frame.padding[0] is 1.5, which is not an integer."),
        (lambda data: data["frame"].update(strides=[["i1", 2]]), "frame.strides[0] has 2 entries, not 3."),
    ],
)
def test_a_form_that_was_changed_is_refused(change: Callable[[Any], object], said: str) -> None:
    assert said in refused(TT, change)


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_dense_weight_is_not_made_in_chunks(is_planned: bool) -> None:
    forms = choice.all_forms(TT, 16, Weighing(MODEL, grad=True))
    form = replace(next(form for form in forms if form.frame.dense), is_planned=is_planned)
    assert "a chunk of 4 does not go with the layer." in refused(TT, lambda data: data.update(chunk=4), form)


def _rename(data: Any, old: str, new: str) -> None:
    """Another name for a value or a label, wherever it stands."""
    data["program"] = json.loads(json.dumps(data["program"]).replace(json.dumps(old), json.dumps(new)))


@pytest.mark.parametrize("name", ["torch", "x0", "bias", "v1; import os", "v1\n", "w0", "V1", "_", "", "v1_2", "v١"])
def test_a_value_has_a_name_of_ours(name: str) -> None:
    result = _pushed(TT).program.result
    assert "is not a name that a value has." in refused(TT, lambda data: _rename(data, result, name))


@pytest.mark.parametrize("label", ["r9", "r1\n    import os", "@@b2", "#r1", ""])
def test_a_label_is_one_of_the_graph(label: str) -> None:
    assert "the graph has no such edge." in refused(TT, lambda data: _rename(data, "r1", label))


def test_a_size_is_that_of_the_graph() -> None:
    def grow(data: Any) -> None:
        data["program"]["sizes"] = [[label, size + (label == "r1")] for label, size in data["program"]["sizes"]]

    assert "edge 'r1' has size 3 in the plan, but the graph has 2." in refused(TT, grow)
    assert "has two sizes" in refused(TT, lambda data: data["program"]["sizes"].append(["r1", 2]))
    other = tnmars.families.tt("linear", inputs=(4, 5), outputs=(3, 6), rank=3)
    with pytest.raises(TnmarsError, match="edge 'r1' has size 2 in the plan, but the graph has 3"):
        form_from_json(form_to_json(_pushed(TT)), other)


def test_another_length_of_a_data_axis_is_read() -> None:
    """It is nominal: the program runs for any."""
    form = _pushed(TT)
    sizes = tuple((label, 99 if label == "@@b" else size) for label, size in form.program.sizes)
    other = replace(form, program=replace(form.program, sizes=sizes))
    assert form_from_json(through_text(form_to_json(other)), TT) == other


def _dense(graph: Graph) -> Form:
    return next(form for form in choice.all_forms(graph, 16, WEIGHINGS[0], 8) if form.frame.dense)


def test_a_program_that_leaves_a_core_out_is_refused() -> None:
    """All of the output is there: the other core of the term has only a mode of size 1 and the bond."""
    graph = tnmars.network("linear", "A[i,o] B[j]", inputs={"i": 3, "j": 1}, outputs={"o": 3}, options={"bias": False})
    data = through_text(form_to_json(_pushed(graph)))
    receive = first(data, "receive")
    core = next(step for step in data["program"]["fold"] if step["op"] == "fetch" and step["cores"] == ["A"])
    data["program"]["fold"] = [core]
    data["program"]["run"] = [
        receive,
        {"op": "matmul", "out": "v9", "axes": [["@@b"], ["o"]], "left": receive["out"], "right": core["out"]},
    ]
    data["program"]["result"] = "v9"
    with pytest.raises(TnmarsError, match="the result of the plan is not made of all cores and inputs"):
        form_from_json(data, graph)


def test_a_sum_that_comes_too_early_is_refused() -> None:
    """The bond of three cores is summed between two of them."""
    graph = tnmars.network("linear", "A[i,r] B[o,r] C[p,r]", inputs={"i": 2}, outputs={"o": 3, "p": 4}, bonds=2)
    data = through_text(form_to_json(_dense(graph)))
    cores = {step["cores"][0]: step for step in data["program"]["fold"] if step["op"] == "fetch"}
    a, b = cores["A"]["out"], cores["B"]["out"]
    data["program"]["fold"] = [
        *cores.values(),
        {"op": "arrange", "out": "v10", "axes": [["r"], ["o"]], "source": b},
        {"op": "matmul", "out": "v11", "axes": [["i"], ["o"]], "left": a, "right": "v10"},
    ]
    data["program"]["result"] = "v11"
    with pytest.raises(TnmarsError, match="v11 sums edge 'r' before core 'C' is joined"):
        form_from_json(data, graph)


def test_the_weight_alone_is_no_plan() -> None:
    """Its frame is that of a linear layer without bias or padding."""
    graph = tnmars.network(
        "linear", "A[i,r] B[r,o]", inputs={"i": 3}, outputs={"o": 3}, bonds=2, options={"bias": False}
    )
    for form in weight_forms(graph, WEIGHINGS[0]):
        with pytest.raises(TnmarsError, match=r"the dense weight, which nothing takes|the frame of the plan"):
            form_from_json(form_to_json(form), graph)


def test_an_output_in_another_order_is_refused() -> None:
    graph = tnmars.families.tt("linear", inputs=(4, 5), outputs=(3, 3), rank=2)
    form = _pushed(graph)

    def swap(data: Any) -> None:
        result = data["program"]["result"]
        step = {"op": "arrange", "out": "v99", "axes": [["@@b"], ["o2", "o1"]], "source": result}
        data["program"]["run"].append(step)
        data["program"]["result"] = "v99"

    assert "the result of the plan has other axes than the output." in refused(graph, swap, form)


def numbers(data: Any) -> list[tuple[Any, Any]]:
    """Every whole number of a form, as the list or table that holds it and its place there."""
    inner = list(data.items()) if isinstance(data, dict) else list(enumerate(data)) if isinstance(data, list) else []
    own = [(data, key) for key, value in inner if type(value) is int]
    return own + [place for _, value in inner for place in numbers(value)]


@pytest.mark.parametrize("number", [0, -1])
def test_a_convolution_with_a_number_that_makes_no_sense(number: int) -> None:
    """It is refused in words; a nominal length of the data, or a setting that may be 0, is read."""
    for form in choice.choose(CONV, 4, Weighing(MODEL), 8):
        for at in range(len(numbers(form_to_json(form)))):
            data = form_to_json(form)
            holder, key = numbers(data)[at]
            holder[key] = number
            try:
                read = form_from_json(data, CONV)
            except TnmarsError:
                continue
            assert number == 0, (holder, key)
            assert all(min(entry.taps, default=1) > 0 for entry in read.program.instructions if hasattr(entry, "taps"))


def test_terms_that_are_multiplied_are_refused() -> None:
    graph = tnmars.families.btd("linear", inputs=(2, 3), outputs=(2, 2), ranks=[[2, 2, 1, 1], [1, 3, 1, 2]])
    form = _dense(graph)

    def multiply(data: Any) -> None:
        first(data, "plus")["op"] = "times"

    assert "or parts of different terms." in refused(graph, multiply, form)


def test_a_convolution_along_another_axis_is_refused() -> None:
    form = next(
        form
        for form in choice.all_forms(CONV, 16, WEIGHINGS[0], 8)
        if not form.frame.dense and any(getattr(step, "spatial", ()) for step in form.program.run)
    )

    def turn(data: Any) -> None:
        step = next(entry for entry in data["program"]["run"] if entry.get("spatial"))
        step["spatial"] = [1, 0] if step["spatial"] == [0, 1] else [1 - step["spatial"][0]]

    message = refused(CONV, turn, form)
    assert "its taps are of other axes." in message or "is wrong" in message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(version=2), "the plan has version 2; this version of tnmars reads 1."),
        (lambda data: data.update(version=True), "the plan has version True;"),
        (lambda data: data.pop("infer"), "the plan has no 'infer'."),
        (lambda data: data.update(eval={}), "the plan has 'eval', which is not known; known: version, train, infer."),
        (lambda data: data.update(train=[]), "'train' of the plan is [], which is not a table."),
        (lambda data: data["train"].update(x={}), "'train' of the plan has 'x', which is not a batch."),
        (lambda data: data["train"].update({"01": {}}), "has '01', which is not a batch."),
        (lambda data: data["train"].update({"9" * 5000: {}}), "which is not a batch."),
        (lambda data: data["train"].update({"7": {}}), "plan 'train' for batch 7: the form has no 'name'."),
    ],
)
def test_a_plan_that_was_changed_is_refused(change: Callable[[Any], object], said: str) -> None:
    data = through_text(plan_to_json({("train", 16): _pushed(TT)}))
    change(data)
    with pytest.raises(TnmarsError) as caught:
        plan_from_json(data, TT)
    assert said in str(caught.value)
    for nothing in (None, [], "x", 3):
        with pytest.raises(TnmarsError, match="which is not a table"):
            plan_from_json(nothing, TT)


# --- mutations: a changed file is refused, or still computes the layer -----------------------------------------------


def leaves(data: Any, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    if isinstance(data, dict):
        return [found for key, value in data.items() for found in leaves(value, (*path, key))]
    if isinstance(data, list):
        return [path, *(found for at, value in enumerate(data) for found in leaves(value, (*path, at)))]
    return [path]


@settings(max_examples=cases(1000))
@given(graph=graphs(terms=2), data=st.data())
def test_a_change_is_refused_or_changes_no_result(graph: Graph, data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(choice.all_forms(graph, 3, WEIGHINGS[0], 8)))
    written = through_text(form_to_json(form))
    path = data.draw(st.sampled_from(leaves(written["program"])))
    place = written["program"]
    for key in path[:-1]:
        place = place[key]
    others = [found for other in leaves(written["program"]) if (found := _at(written["program"], other)) is not None]
    place[path[-1]] = data.draw(st.sampled_from(others))
    try:
        read = form_from_json(through_text(written), graph)
    except TnmarsError:
        return
    problem = oracle.problem(graph, 3)
    answers = [_run(each, problem) for each in (form, read)]
    assert oracle.error(answers[1], answers[0]) <= 1e-10


def _at(data: Any, path: tuple[object, ...]) -> object:
    for key in path:
        data = data[key]
    return copy.deepcopy(data)


def _run(form: Form, problem: oracle.Problem) -> Any:
    from tnmars.layer.code import code

    made = code(form)
    parts = made.fold(*(problem.cores[name] for name in made.cores))
    return made(problem.inputs, problem.bias, parts)
