"""Planned training steps: gradients and memory of the plain program, which takes over where torch needs it."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.memory import peak_memory
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import BLOCKS, LINEAR, MAP, PADDED
from strategies import cases, graphs
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import tnmars
from tnmars.graph import Graph
from tnmars.layer.code import Code, code, runnable
from tnmars.layer.forward import example_inputs
from tnmars.layer.module import TNModule
from tnmars.plan.cost import CostModel
from tnmars.plan.layout import Weighing
from tnmars.program import backward, tape
from tnmars.program.backward import has_step, kept_bytes
from tnmars.program.choice import all_forms
from tnmars.program.form import Form

TERMS = tnmars.families.btd("linear", inputs=(2, 3), outputs=(3, 2), rank=2, terms=2)
HYPER = tnmars.families.cp("linear", inputs=(3, 4), outputs=(2, 5), rank=3)
WIDE = tnmars.families.tt("linear", inputs=(16, 16), outputs=(16, 16), rank=40)
GRAPHS = {"tt": LINEAR, "padded": PADDED, "blocks": BLOCKS, "terms": TERMS, "cp": HYPER}


@pytest.fixture
def all_kept(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every value that may be written into a kept buffer is, and shared factors are added up one by one."""
    monkeypatch.setattr(tape, "LARGE", 1)
    monkeypatch.setattr(tape, "WIDE", 1)
    backward.training_step.cache_clear()
    yield
    backward.training_step.cache_clear()


def forms_of(graph: Graph, batch: int) -> list[Form]:
    forms = all_forms(graph, batch, Weighing(CostModel(), True))
    return [form for form in forms if has_step(form.program, form.frame)]


def planned_form(graph: Graph, batch: int, chunk: int = 0) -> Form:
    """A form with a planned step, in chunks of this size; not torch's own layer with the dense weight."""
    forms = [form for form in forms_of(graph, batch) if form.chunk == chunk and not form.frame.dense]
    return replace(forms[0], is_planned=True)


def layer_of(graph: Graph, batch: int, form: Form, **settings: Any) -> TNModule:
    """A layer that takes a form in training at this batch."""
    planner = tnmars.compile(graph, batch=batch, warn=False).planner
    torch.manual_seed(0)
    return TNModule(planner, plans={("train", batch): form}, **settings)


def both(graph: Graph, batch: int, chunk: int = 0, **settings: Any) -> tuple[TNModule, TNModule]:
    """A layer with a planned step, and the same one without."""
    form = planned_form(graph, batch, chunk)
    one, two = (
        layer_of(graph, batch, form, **settings),
        layer_of(graph, batch, replace(form, is_planned=False), **settings),
    )
    two.load_state_dict(one.state_dict())
    return one, two


def is_planned(output: Tensor) -> bool:
    return type(output.grad_fn).__name__ in ("_WholeBackward", "_ChunksBackward")


def slopes(layer: TNModule, x: Tensor, slope: Tensor) -> list[Tensor]:
    wanted = [x, *layer.parameters()] if x.requires_grad else [*layer.parameters()]
    return list(torch.autograd.grad(layer(x), wanted, slope))


def assert_equal(found: Any, wanted: Any, most: float = 1e-12) -> None:
    for one, two in zip(found, wanted, strict=True):
        assert one.shape == two.shape
        assert one.dtype == two.dtype
        assert (one - two).abs().max() <= most * max(1.0, two.abs().max().item())


def arguments(made: Code, graph: Graph, batch: int = 9) -> tuple[tuple[Tensor, ...], Tensor | None, list[Tensor]]:
    """Random inputs, a bias, cores and gates in float64."""
    inputs = tuple(value.double() for value in example_inputs(graph, batch, 4))
    given = [torch.randn(graph.cores[name], dtype=torch.float64) for name in made.cores]
    given += [torch.rand(graph.bonds[name].size, dtype=torch.float64) + 0.5 for name in made.gates]
    bias = torch.randn(graph.out_features, dtype=torch.float64) if graph.has_bias else None
    return inputs, bias, given


@settings(max_examples=cases(600))
@given(data=st.data())
def test_gradients_are_those_of_the_plain_program(data: Any) -> None:
    """On random graphs, for any part of the arguments that needs a gradient, with and without gates, in chunks or not,
    whatever is kept in buffers."""
    graph = data.draw(graphs(kinds=("linear", "map")))
    form = data.draw(st.sampled_from(forms_of(graph, 8)))
    form = replace(form, is_planned=True, keep=data.draw(st.sampled_from((0, form.chunk))))
    gated = graph if graph.bonds and data.draw(st.booleans()) else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tape, "LARGE", data.draw(st.sampled_from((1, 8, 1 << 18))))
        patch.setattr(tape, "WIDE", data.draw(st.sampled_from((1, 1 << 14))))
        patch.setattr(tape, "ROOM", data.draw(st.sampled_from((20, 1 << 24))))
        backward.training_step.cache_clear()
        made, plain = runnable(form, gated), code(replace(form, is_planned=False), gated)
        inputs, bias, given_ = arguments(made, graph, data.draw(st.sampled_from((1, 5, 9))))
        values = [*inputs, *([] if bias is None else [bias]), *given_]
        for value in values:
            value.requires_grad_(data.draw(st.integers(0, 3)) > 0)
        found, wanted = (one.compute(inputs, bias, given_) for one in (made, plain))
        assert_equal([found], [wanted])
        needed = [value for value in values if value.requires_grad]
        if not wanted.requires_grad:
            return
        if not form.chunk:
            assert is_planned(found)
        slope = torch.randn_like(wanted)
        options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
        truth = torch.autograd.grad(wanted, needed, slope, **options)
        for _ in range(2):  # the graph is kept the first time
            assert_equal(torch.autograd.grad(found, needed, slope, retain_graph=True, **options), truth)
    backward.training_step.cache_clear()


@pytest.mark.parametrize("chunk", [0, 4])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.usefixtures("all_kept")
def test_gradients_by_finite_differences(name: str, chunk: int) -> None:
    """Of first and second order."""
    graph = GRAPHS[name]
    form = planned_form(graph, 8, chunk)
    made = runnable(form, graph)
    inputs, bias, given_ = arguments(made, graph)
    assert bias is not None

    def run(x: Tensor, *more: Tensor) -> Tensor:
        output = made.compute((x,), more[0], more[1:])
        assert is_planned(output)
        return output

    everything = [value.requires_grad_() for value in (inputs[0][:5], bias, *given_)]
    assert torch.autograd.gradcheck(run, everything)
    assert torch.autograd.gradgradcheck(run, everything)


def test_a_map_of_two_inputs() -> None:
    """Its lengths are those of the inputs, which the backward pass does not have."""
    form = replace(forms_of(MAP, 8)[0], is_planned=True)
    made = runnable(form)
    _, _, cores = arguments(made, MAP)
    x, y = torch.randn(5, 2, 3, dtype=torch.float64), torch.randn(5, 7, 2, dtype=torch.float64)
    everything = [value.requires_grad_() for value in (x, y, *cores)]
    assert torch.autograd.gradcheck(lambda x, y, *more: made.compute((x, y), None, more), everything)


# --- the plain program where torch needs it ---------------------------------------------------------------------------


@pytest.fixture(params=[0, 4], ids=["whole", "chunks"])
def pair(request: pytest.FixtureRequest) -> tuple[TNModule, TNModule, Tensor]:
    one, two = both(TERMS, 8, request.param, dtype=torch.float64, selector=tnmars.Mars())
    x = torch.randn(8, 6, dtype=torch.float64)
    assert is_planned(one(x))
    assert not is_planned(two(x))
    one.eval()
    two.eval()  # the same gates for both
    return one, two, x


def test_vmap_and_gradients_of_torch_func(pair: tuple[TNModule, TNModule, Tensor]) -> None:
    one, two, x = pair
    xs = torch.stack([x, 2 * x, -x])
    assert_equal([torch.func.vmap(one)(xs)], [torch.func.vmap(two)(xs)])
    state = dict(one.named_parameters())

    def loss(layer: TNModule, given_: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(layer, given_, (row[None],)).square().sum()

    found, wanted = (
        torch.func.vmap(torch.func.grad(lambda given_, row, own=layer: loss(own, given_, row)), (None, 0))(state, x)
        for layer in (one, two)
    )
    assert_equal(found.values(), wanted.values())


def test_forward_derivatives(pair: tuple[TNModule, TNModule, Tensor]) -> None:
    one, two, x = pair
    found, wanted = (torch.func.jvp(layer, (x,), (torch.ones_like(x),)) for layer in (one, two))
    assert_equal(found, wanted)


def test_many_gradients_at_once(pair: tuple[TNModule, TNModule, Tensor]) -> None:
    """The backward pass itself runs under vmap."""
    one, two, x = pair
    found, wanted = (torch.autograd.functional.jacobian(layer, x, vectorize=True) for layer in (one, two))
    assert_equal([found], [wanted])
    slopes_ = torch.randn(3, *two(x).shape, dtype=torch.float64)
    found, wanted = (
        torch.autograd.grad(layer(x), list(layer.parameters()), slopes_, is_grads_batched=True, allow_unused=True)
        for layer in (one, two)
    )
    assert_equal([value for value in found if value is not None], [value for value in wanted if value is not None])


@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("graph", [LINEAR, TERMS], ids=["tt", "terms"])
@pytest.mark.parametrize("chunk", [0, 4])
def test_many_gradients_at_once_by_vmap(graph: Graph, chunk: int, ways: int) -> None:
    """`torch.vmap` over `torch.autograd.grad`, once and nested, also of a bias, whose value no gradient depends on."""
    found = []
    slopes_ = torch.randn(*(2, 3)[:ways], 8, graph.out_features, dtype=torch.float64)
    x = torch.randn(8, 6, dtype=torch.float64, requires_grad=True)
    for layer in both(graph, 8, chunk, dtype=torch.float64):
        output, leaves = layer(x), [x, *layer.parameters()]
        assert is_planned(output) == (not found)

        def gradients(slope: Tensor, of: Tensor = output, to: list[Tensor] = leaves) -> tuple[Tensor, ...]:
            return torch.autograd.grad(of, to, slope, retain_graph=True)

        function = gradients
        for _ in range(ways):
            function = torch.vmap(function)
        found.append(function(slopes_))
    assert found[0][0].shape == (*slopes_.shape[:ways], 8, 6)
    assert_equal(*found)


def test_compiled_without_a_break(pair: tuple[TNModule, TNModule, Tensor]) -> None:
    one, two, x = pair
    made = torch.compile(one, backend="eager", fullgraph=True)
    slope = torch.randn_like(two(x))
    found = torch.autograd.grad(made(x), list(one.cores.parameters()), slope)
    assert_equal(found, torch.autograd.grad(two(x), list(two.cores.parameters()), slope))


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_checkpoints(pair: tuple[TNModule, TNModule, Tensor], is_reentrant: bool) -> None:
    one, two, x = pair
    x = x.clone().requires_grad_()
    slope = torch.randn_like(two(x))
    output = checkpoint(one, x, use_reentrant=is_reentrant)
    if not is_reentrant:
        assert not is_planned(output)
    output.backward(slope)
    found, x.grad = x.grad, None
    two(x).backward(slope)
    assert_equal([found], [x.grad])
    for mine, other in zip(one.cores.parameters(), two.cores.parameters(), strict=True):
        assert_equal([mine.grad], [other.grad])


def test_hooks_on_saved_tensors_see_all_of_them(pair: tuple[TNModule, TNModule, Tensor]) -> None:
    one, two, x = pair
    seen: dict[int, list[int]] = {}
    for at, layer in enumerate((one, two)):
        sizes = seen.setdefault(at, [])

        def note(value: Tensor, own: list[int] = sizes) -> Tensor:
            own.append(value.numel())
            return value

        with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
            layer(x)
    assert seen[0] == seen[1] != []


def test_autocast(pair: tuple[TNModule, TNModule, Tensor]) -> None:
    one, two, x = pair
    for layer in (one.float(), two.float()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = layer(x.float())
        assert output.dtype == torch.bfloat16
        assert not is_planned(output)


@pytest.mark.parametrize("kind", ["subclass", "dtype", "empty", "frozen", "no_grad"])
def test_other_inputs_take_the_plain_program(pair: tuple[TNModule, TNModule, Tensor], kind: str) -> None:
    one, two, x = pair
    given_ = {
        "subclass": torch.nn.Buffer(x).as_subclass(type("Own", (Tensor,), {})),
        "dtype": x.to(torch.complex128),
        "empty": x[:0],
    }.get(kind, x)
    if kind == "dtype":
        for layer in (one, two):
            layer.to(torch.complex128)
    if kind == "frozen":
        for layer in (one, two):
            layer.requires_grad_(False)
    with torch.set_grad_enabled(kind != "no_grad"):
        output = one(given_)
        assert not is_planned(output)
        assert torch.equal(output, two(given_))


# --- one graph, several passes ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("all_kept")
@pytest.mark.parametrize("chunk", [0, 4])
def test_calls_overlap(chunk: int) -> None:
    """A layer is called twice, and both graphs are alive at once."""
    one, two = both(TERMS, 8, chunk, dtype=torch.float64)
    xs = [torch.randn(rows, 6, dtype=torch.float64, requires_grad=True) for rows in (8, 8, 7)]
    found = [one(x) for x in xs]
    for output, x in zip(found, xs, strict=True):
        slope = torch.randn_like(output)
        wanted = slopes(two, x, slope)
        assert_equal(torch.autograd.grad(output, [x, *one.parameters()], slope), wanted)
    twice = one(one(xs[0]).mul(2)).sum()
    wanted = torch.autograd.grad(two(two(xs[0]).mul(2)).sum(), xs[0])
    assert_equal(torch.autograd.grad(twice, xs[0]), wanted)


@pytest.mark.usefixtures("all_kept")
def test_threads() -> None:
    graph = tnmars.families.tt("linear", inputs=(8, 8), outputs=(8, 8), rank=6)
    one, two = both(graph, 64, dtype=torch.float64)
    xs = [torch.randn(64, 64, dtype=torch.float64) for _ in range(8)]
    slope = torch.randn(64, 64, dtype=torch.float64)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda x: slopes(one, x, slope), xs * 10))
    finally:
        sys.setswitchinterval(before)
    wanted = [slopes(two, x, slope) for x in xs]
    for at, mine in enumerate(found):
        assert_equal(mine, wanted[at % len(xs)])


@pytest.mark.parametrize("chunk", [0, 4])
def test_a_second_backward_pass_is_refused_as_torch_does(chunk: int) -> None:
    one, _ = both(TERMS, 8, chunk)
    output = one(torch.randn(8, 6))
    output.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        output.sum().backward()


@pytest.mark.parametrize("chunk", [0, 4])
def test_a_core_that_is_changed_in_place_is_noticed(chunk: int) -> None:
    one, _ = both(LINEAR, 8, chunk)
    x = torch.randn(8, 6)
    output = one(x)
    with torch.no_grad():
        one.bias.add_(1.0)  # no gradient depends on it
    output.sum().backward()
    output = one(x)
    x.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_slope", [False, True])
@pytest.mark.parametrize("large", [1 << 12, 1 << 40], ids=["kept", "not_kept"])
def test_no_more_memory_than_autograd(large: int, has_slope: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by torch's profiler, from every allocation. Buffers that are kept are not allocated in a step."""
    monkeypatch.setattr(tape, "LARGE", large)
    backward.training_step.cache_clear()
    x, slope = torch.randn(128, 256, requires_grad=has_slope), torch.randn(128, 256)
    held = 0
    for form in (form for form in forms_of(WIDE, 128) if form.chunk in (0, 32)):
        taken = []
        for own in (form, replace(form, is_planned=True)):
            layer = layer_of(WIDE, 128, own)

            def step(layer: TNModule = layer) -> None:
                torch.autograd.backward(layer(x), slope)

            taken.append(peak_memory(step, [*layer.parameters(), x]))
        made = layer.programs.pick(128, "train").planned
        assert made is not None
        assert made.buffers.nbytes <= kept_bytes(replace(form, is_planned=True))
        assert taken[1] <= taken[0]
        held += made.buffers.nbytes
    assert (held > 0) == (large < 1 << 40)
    backward.training_step.cache_clear()


@pytest.mark.usefixtures("all_kept")
def test_copies_and_files_have_no_buffers(tmp_path: Path) -> None:
    one, _ = both(TERMS, 8)
    x = torch.randn(8, 6)
    empty = len(pickle.dumps(one))
    one(x).sum().backward()
    one.zero_grad()
    made = one.programs.pick(8, "train").planned
    assert made is not None
    assert made.buffers.nbytes > 0
    assert len(pickle.dumps(one)) == empty
    for twin in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):  # noqa: S301
        assert is_planned(twin(x))
        assert torch.equal(twin(x), one(x))
    tnmars.save(one, tmp_path / "layer.tnm")
    back = tnmars.load_into(torch.nn.Linear(6, 6), tmp_path / "layer.tnm")
    assert back.plan("train", 8) == one.plan("train", 8)
    assert is_planned(back(x))


@pytest.mark.usefixtures("all_kept")
def test_buffers_are_gone_with_the_plan() -> None:
    one, _ = both(LINEAR, 8)
    x = torch.randn(8, 6)
    one(x).sum().backward()
    made = weakref.ref(one.programs.pick(8, "train").planned)
    tnmars.prune_(one, keep={"": {"r1": [0]}})
    gc.collect()
    assert made() is None
    assert one(x).shape == (8, 20)


@pytest.mark.usefixtures("all_kept")
def test_equal_layers_share_their_buffers() -> None:
    form = planned_form(LINEAR, 8)
    one, two = layer_of(LINEAR, 8, form), layer_of(LINEAR, 8, form)
    assert one.programs.pick(8, "train").planned is two.programs.pick(8, "train").planned
