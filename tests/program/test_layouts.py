"""Memory layouts of convolutions: channels_last stays, a kept bond as groups, and plans for a layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from kit import forms_of, once, run

import tnmars
from tnmars import TnmarsError
from tnmars.layer.code import LAYOUTS, code
from tnmars.layer.open_slices import _fitted, resized
from tnmars.plan.cost import CostModel
from tnmars.plan.layout import Weighing
from tnmars.program.audit import audit
from tnmars.program.choice import choose
from tnmars.program.form import Form, keeps_layout
from tnmars.program.instructions import Arrange, Conv, Kernel, Repeat, Total
from tnmars.timing import records, tuning

RING = tnmars.network(
    "conv",
    "A[r4,i1,r1] B[r1,k1,r2] C[r2,k2,r3] D[r3,o1,r4]",
    inputs={"i1": 12},
    outputs={"o1": 10},
    kernel={"k1": 3, "k2": 3},
    bonds={"r1": 2, "r2": 3, "r3": 4, "r4": 5},
    options={"padding": 1, "stride": 2},
)
"""Its closing bond r4 is kept while the taps are summed. All sizes differ, so that a transpose shows."""
SQUARE: dict[str, Any] = {"inputs": (6,), "outputs": (5,), "kernel": (3, 3), "options": {"padding": 1}}
SPLIT: dict[str, Any] = {"inputs": (2, 3), "outputs": (3, 2), "kernel": (3, 3)}
CUBE: dict[str, Any] = {"inputs": (6,), "outputs": (5,), "kernel": (3, 2, 1)}
CONVOLUTIONS = {
    "ring": RING,
    "tucker2": tnmars.families.tucker2("conv", rank=3, **SQUARE),
    "cp": tnmars.families.cp("conv", rank=4, **SQUARE),
    "tt": tnmars.families.tt_naive("conv", rank=3, order=("in", "kernel", "out"), **SQUARE),
    "two modes": tnmars.families.tt("conv", rank=3, **SPLIT),
    "two terms": tnmars.families.btd("conv", rank=2, terms=2, **SPLIT),
    "cube": tnmars.families.cp("conv", rank=4, **CUBE),
}


def in_layout(problem: oracle.Problem) -> oracle.Problem:
    """The same problem in float32, with its images in channels_last."""
    (x,) = problem.inputs
    turned = x.detach().float().contiguous(memory_format=LAYOUTS[x.dim() - 2])
    cores = {name: value.detach().float() for name, value in problem.cores.items()}
    return replace(problem, inputs=(turned,), cores=cores, bias=None if problem.bias is None else problem.bias.float())


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("grad", [False, True])
def test_every_form_takes_channels_last_and_gives_it_back(name: str, grad: bool) -> None:
    graph = CONVOLUTIONS[name]
    problem = oracle.problem(graph, 2)
    wanted = problem.answer()
    for form in once(forms_of(graph, 2, Weighing(CostModel(), grad))):
        found = run(form, in_layout(problem))
        assert oracle.error(found, wanted) <= 1e-5, form.name
        assert found.is_contiguous(memory_format=LAYOUTS[graph.window.ndim]), form.name
        assert not found.is_contiguous(), form.name


@pytest.mark.parametrize(("name", "chosen"), [("tucker2", "push"), ("cp", "taps"), ("tt", "push")])
def test_a_chain_of_convolutions_moves_no_image(name: str, chosen: str) -> None:
    """Between input and output nothing but torch's own convolutions, each in the layout that it gets."""
    form = named(forms_of(CONVOLUTIONS[name], 2, Weighing(CostModel())), chosen)
    assert keeps_layout(form)
    body = code(form).source.partition("def run")[2]
    assert body.count("F.conv2d") >= 3
    assert not any(word in body for word in ("reshape", "permute", "bmm", "contiguous"))


def test_plain_images_stay_plain() -> None:
    for form in forms_of(RING, 2, Weighing(CostModel())):
        assert run(form, oracle.problem(RING, 2)).is_contiguous()


def test_one_channel_or_one_pixel_lies_in_both_layouts() -> None:
    """Torch cannot tell the two layouts apart there, and no copy is made."""
    made = code(next(form for form in forms_of(RING, 1, Weighing(CostModel())) if not keeps_layout(form)))
    cores = [torch.ones(RING.cores[name]) for name in made.cores]
    x = torch.ones(1, 12, 1, 1).contiguous(memory_format=torch.channels_last)
    assert made((x,), torch.zeros(10), made.fold(*cores)).is_contiguous()


# --- a kept bond as groups --------------------------------------------------------------------------------------------


def groups_in(form: Form) -> list[int]:
    return [entry.groups for entry in form.program.run if isinstance(entry, Conv)]


def named(forms: list[Form], name: str) -> Form:
    return next(form for form in forms if form.name == name)


def test_a_kept_bond_may_be_groups_or_part_of_the_batch() -> None:
    forms = forms_of(RING, 2, Weighing(CostModel(), True))
    batch, groups = named(forms, "push"), named(forms, "push_groups")
    assert groups_in(batch) == [1, 1, 1, 1]
    assert groups_in(groups) == [1, 5, 5, 1]
    assert keeps_layout(groups)
    assert not keeps_layout(batch)
    problem = oracle.problem(RING, 2)
    leaves = [*problem.cores.values(), *problem.inputs]
    for form in (batch, groups):
        found, wanted = run(form, problem), problem.answer()
        assert oracle.error(found, wanted) <= 1e-12
        pairs = zip(oracle.gradients(found, leaves), oracle.gradients(wanted, leaves), strict=True)
        assert all(oracle.error(one, two) <= 1e-12 for one, two in pairs)


@pytest.mark.parametrize(("share", "name"), [(0.5, "push_groups"), (2.0, "push")])
def test_the_cost_model_decides_between_them(share: float, name: str) -> None:
    model = CostModel(grouped=share)
    graph = replace(RING, options=(("padding", 1),))
    assert choose(graph, 8, Weighing(model, True), 56)[0].name.endswith("groups") == name.endswith("groups")


def test_the_clock_decides_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    records.forget()
    monkeypatch.setattr(
        tuning, "_times", lambda race, forms, *rest: [0.1 if form.name == "push" else 1.0 for form in forms]
    )
    monkeypatch.setattr(tuning, "_ratio", lambda race, form: 1.0)
    layer = tnmars.compile(RING, batch=2, image=8, tune=True, model=CostModel(grouped=0.5))
    assert layer.plan("train", 2).name == "push"


def test_a_graph_without_kept_bonds_has_no_groups() -> None:
    for name in ("tucker2", "tt"):
        names = [form.name for form in forms_of(CONVOLUTIONS[name], 2, Weighing(CostModel()))]
        assert not any(form.endswith("groups") for form in names)


def grouped() -> Form:
    return named(forms_of(RING, 2, Weighing(CostModel())), "push_groups")


def with_fold(form: Form, *fold: Any) -> Form:
    return replace(form, program=replace(form.program, fold=fold))


def test_a_kernel_that_is_repeated_for_something_else_is_refused() -> None:
    """Summed over a label that it was repeated along, a kernel would count as often as the label is long."""
    form = grouped()
    audit(form, RING)
    first = next(entry for entry in form.program.fold if isinstance(entry, Repeat))
    kernel = next(entry for entry in form.program.fold if first.out in entry.reads)
    assert isinstance(kernel, Kernel)
    rest = (first.labels, first.axes[0][len(first.labels) :], first.axes[1])
    summed = [
        Arrange("v90", rest, first.out),
        Total("v91", rest[1:], "v90", (0,)),
        replace(first, out="v92", source="v91"),
        replace(kernel, source="v92"),
    ]
    changed = [new for entry in form.program.fold for new in (summed if entry is kernel else [entry])]
    with pytest.raises(TnmarsError, match="is repeated for something else than the groups of a convolution"):
        audit(with_fold(form, *changed), RING)


def test_a_kernel_is_repeated_along_labels_that_it_does_not_have() -> None:
    form = grouped()
    entry = next(entry for entry in form.program.fold if isinstance(entry, Repeat))
    read = form.program.read_by(entry)
    sizes = dict(form.program.sizes)
    assert entry.holds(read, sizes)
    assert not replace(entry, labels=read[0].axes[0][:1]).holds(read, sizes)
    assert not replace(entry, axes=(entry.axes[0][::-1], entry.axes[1])).holds(read, sizes)


def test_a_form_with_groups_fits_other_sizes_of_bonds() -> None:
    """As open slices need it: the groups are as many as the bond is long now."""
    sizes = {"r1": 2, "r2": 3, "r3": 4, "r4": 2}
    fitted = _fitted(grouped(), sizes)
    assert groups_in(fitted) == [1, 2, 2, 1]
    problem = oracle.problem(resized(RING, sizes), 2)
    assert oracle.error(run(fitted, problem), problem.answer()) <= 1e-12


# --- plans for a layout -----------------------------------------------------------------------------------------------


def test_a_plan_for_channels_last_pays_for_copies() -> None:
    plain, last = (
        {form.name: form for form in choose(RING, 8, Weighing(CostModel(), channels_last=is_last), 32)}
        for is_last in (False, True)
    )
    assert last["push_groups"].cost == plain["push_groups"].cost
    image, output = 8 * 12 * 32 * 32, 8 * 10 * 16 * 16
    copies = CostModel().copy(image, 12, True) + CostModel().copy(output, 10, True)
    assert last["push"].cost == pytest.approx(plain["push"].cost + copies)


def test_a_layer_is_planned_and_timed_for_its_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records.forget()
    seen: list[bool] = []

    def times(race: tuning.Race, forms: list[Form], *rest: object) -> list[float]:
        seen.append(race.inputs[0].is_contiguous(memory_format=torch.channels_last))
        return [1.0] * len(forms)

    monkeypatch.setattr(tuning, "_times", times)
    monkeypatch.setattr(tuning, "_ratio", lambda race, form: 1.0)
    layer = tnmars.compile(RING, batch=2, image=8, tune=True, memory_format=torch.channels_last)
    assert seen
    assert all(seen)
    tnmars.save(layer, tmp_path / "layer.tnm")
    loaded = tnmars.load_into(torch.nn.Conv2d(12, 10, 3, stride=2, padding=1), tmp_path / "layer.tnm")
    assert loaded.planner == layer.planner
    assert loaded.planner.channels_last


def test_another_layout_is_refused() -> None:
    with pytest.raises(TnmarsError, match=r"memory_format is torch.preserve_format, but must be torch.contiguous"):
        tnmars.compile(RING, memory_format=torch.preserve_format)
