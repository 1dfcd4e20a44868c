"""Tuning: a layer is timed where its numbers are, whether it was compiled, loaded, converted or frozen."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import oracle
import pytest
import torch
from kit import square
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import tnmars
from tnmars.layer.predicted import predicted
from tnmars.plan.layout import Weighing
from tnmars.program import backward, choice, tape
from tnmars.program.codec import form_from_json, form_to_json
from tnmars.program.explain import explain, table
from tnmars.timing import records, tuning


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test takes over what another has timed; one round is enough where the times do not matter."""
    records.forget()
    for name in ("PROGRAMS", "CHUNKS"):
        monkeypatch.setattr(tuning, name, tuning.Effort(1, 1, 0.1))
    monkeypatch.setattr(tuning, "STEP_ROUNDS", 1)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The device and the dtype of every form that is timed from now on."""
    seen: list[dict[str, Any]] = []
    action = tuning._action

    def noted(*arguments: Any) -> tuning.Action:
        seen.append(arguments[0].place)
        return action(*arguments)

    monkeypatch.setattr(tuning, "_action", noted)
    return seen


CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_loaded_layer_is_timed_in_its_dtype(tmp_path: Path, places: list[dict[str, Any]], dtype: torch.dtype) -> None:
    layer = tnmars.compile(oracle.spec("tt_linear"), batch=16, tune=True, dtype=dtype)
    tnmars.save(layer, tmp_path / "layer.tnm")
    loaded = tnmars.load_into(torch.nn.Linear(784, 625), tmp_path / "layer.tnm")
    assert isinstance(loaded, tnmars.TNModule)
    places.clear()
    loaded.plan("infer", 1000)
    assert places
    assert all(place == {"device": CPU, "dtype": dtype} for place in places)


def test_a_converted_layer_is_timed_in_its_new_dtype(places: list[dict[str, Any]]) -> None:
    layer = tnmars.compile(oracle.spec("tt_linear"), batch=16, tune=True)
    assert {place["dtype"] for place in places} == {torch.float32}
    places.clear()
    layer.double()
    layer(torch.zeros(1000, 784, dtype=torch.float64))
    assert {place["dtype"] for place in places} == {torch.float64}


def test_a_frozen_layer_is_timed_in_its_dtype_with_its_optimizer(
    places: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizers = []
    candidates = choice.all_forms

    def noted(*arguments: Any) -> Any:
        optimizers.append(arguments[-1])
        return candidates(*arguments)

    layer = tnmars.compile(oracle.spec("tt_linear"), batch=16, dtype=torch.float64, optimizer="greedy")
    choice.choose_frozen.cache_clear()
    monkeypatch.setattr(choice, "all_forms", noted)
    tnmars.freeze(layer, "fast", tune=True)
    assert places
    assert all(place == {"device": CPU, "dtype": torch.float64} for place in places)
    assert set(optimizers) == {"greedy"}


def test_tuning_in_the_middle_of_a_pass_leaves_the_user_alone() -> None:
    layer = tnmars.compile(square(), batch=8, tune=True)
    state = torch.get_rng_state()
    layer(torch.ones(300, 64))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.func.vmap(layer)(torch.ones(2, 2000, 64)).shape == (2, 2000, 64)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every form counts as taking the seconds in its name's entry of `SECONDS`; the names that were timed."""
    names: list[str] = []

    def times(race: tuning.Race, forms: Any, *rest: object) -> list[float]:
        names.extend(form.name for form in forms)
        return [SECONDS.get(form.name, 1.0) for form in forms]

    monkeypatch.setattr(tuning, "_times", times)
    return names


SECONDS: dict[str, float] = {}


@pytest.mark.parametrize(("share", "is_dense"), [(0.5, False), (0.98, True), (1.5, True)])
def test_a_frozen_layer_is_dense_unless_another_form_is_clearly_faster(
    timed: list[str], monkeypatch: pytest.MonkeyPatch, share: float, is_dense: bool
) -> None:
    """Also where the estimate sees the dense weight so far behind that it would not be timed."""
    graph = tnmars.families.lowrank("linear", inputs=(512,), outputs=(512,), rank=4)
    monkeypatch.setitem(SECONDS, "dense", 1.0 / share)
    monkeypatch.setattr(tuning, "HOPELESS", (1.0, 1.0))
    frozen = tnmars.freeze(tnmars.compile(graph, batch=64), "fast", tune=True)
    assert "dense" in timed
    assert bool(frozen.form.frame.dense) == is_dense


def test_the_dense_weight_is_always_in_the_race(timed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in training and where the estimate sees it far behind; the clock decides."""
    graph = tnmars.families.lowrank("linear", inputs=(512,), outputs=(512,), rank=4)
    monkeypatch.setitem(SECONDS, "dense", 0.5)
    layer = tnmars.compile(graph, batch=64, tune=True)
    assert {layer.plan(mode, 64).name for mode in ("train", "infer")} == {"dense"}


@pytest.mark.parametrize("mode", ["train", "infer", "folded"])
def test_only_a_kept_dense_weight_is_raced_in_both_layouts(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Making it in every pass takes as long in one layout as in the other."""
    races: list[list[str]] = []

    def times(race: tuning.Race, forms: Any, *rest: object) -> list[float]:
        races.append([form.name for form in forms])
        return [1.0] * len(forms)

    monkeypatch.setattr(tuning, "_times", times)
    graph = tnmars.families.lowrank("linear", inputs=(64,), outputs=(64,), rank=60)
    weighing = Weighing(tnmars.CostModel(), grad=mode == "train", folded=mode == "folded")
    forms = sorted(choice.all_forms(graph, 64, weighing), key=lambda form: form.cost)
    tuning.fastest(graph, forms, 64, mode)
    assert [form.name for form in forms].count("dense") == 2
    assert races[0].count("dense") == (2 if mode == "folded" else 1)


def test_programs_and_chunks_have_races_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    efforts: dict[bool, set[tuning.Effort]] = {True: set(), False: set()}

    def times(race: tuning.Race, forms: Any, behind: float, effort: tuning.Effort) -> list[float]:
        is_one = len({tuning._shape(form) for form in forms}) == 1
        efforts[is_one].add(effort)
        return [1.0 + form.chunk for form in forms]

    monkeypatch.setattr(tuning, "_times", times)
    monkeypatch.setattr(tuning, "PROGRAMS", tuning.Effort(7, 3, 1.0))
    monkeypatch.setattr(tuning, "CHUNKS", tuning.Effort(3, 2, 0.5))
    graph = tnmars.families.tt("linear", inputs=(8, 8, 12), outputs=(8, 8, 12), rank=64)
    tnmars.compile(graph, batch=512, tune=True, device="cpu", warn=False)
    assert efforts == {True: {tuning.CHUNKS}, False: {tuning.PROGRAMS}}


# --- what is kept -----------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of this test's own cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(records.SETTING, "on")
    return tmp_path / "tnmars" / "tuned.json"


def names(layer: tnmars.TNModule) -> list[str]:
    return [layer.plan(mode, layer.nominal).name for mode in ("train", "infer")]


def test_equal_layers_are_timed_once(places: list[dict[str, Any]]) -> None:
    one = tnmars.compile(square(), batch=8, tune=True)
    assert places
    places.clear()
    two = tnmars.compile(square(), batch=8, tune=True)
    assert not places
    assert two.programs.plans == one.programs.plans


@pytest.mark.parametrize(
    "change",
    [
        {"batch": 9},
        {"dtype": torch.float64},
        {"model": tnmars.CostModel(peak=1e9)},
    ],
)
def test_another_batch_dtype_or_cost_model_is_timed(places: list[dict[str, Any]], change: dict[str, Any]) -> None:
    tnmars.compile(square(), batch=8, tune=True)
    places.clear()
    tnmars.compile(square(), **{"batch": 8, "tune": True, **change})
    assert places


def test_another_number_of_threads_is_timed(places: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    tnmars.compile(square(), batch=8, tune=True)
    places.clear()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    tnmars.compile(square(), batch=8, tune=True)
    assert places


def test_inputs_in_another_memory_layout_are_timed(places: list[dict[str, Any]]) -> None:
    layer = tnmars.compile(oracle.spec("tucker2_conv"), batch=2, image=8)
    x = torch.randn(2, layer.in_channels, 8, 8)
    tnmars.freeze(layer, "fast", example=x, tune=True)
    places.clear()
    tnmars.freeze(layer, "fast", example=x, tune=True)
    assert not places
    tnmars.freeze(layer, "fast", example=x.contiguous(memory_format=torch.channels_last), tune=True)
    assert places


def test_a_later_process_takes_the_winner_from_the_file(cache: Path, places: list[dict[str, Any]]) -> None:
    """What the file says is taken: here the last candidate, whoever won."""
    layer = tnmars.compile(square(), batch=8, tune=True)
    rows = json.loads(cache.read_text())
    assert len(rows) == 2
    count = min(len(layer.planner.candidates(mode, 8)) for mode in ("train", "infer"))
    cache.write_text(json.dumps({key: {"winner": count - 1, "ratio": 0.25, "planned": False} for key in rows}))
    records.forget()
    places.clear()
    again = tnmars.compile(square(), batch=8, tune=True)
    assert not places
    for mode in ("train", "infer"):
        assert again.plan(mode, 8) == again.planner.candidates(mode, 8)[count - 1]
        assert measured(again, mode, 8) == 0.25


DAMAGED = [
    "",
    "[]",
    "{",
    '{"a": 3}',
    "null",
    '{"KEY": {"winner": 10000, "ratio": 1.0, "planned": false}}',
    '{"KEY": {"winner": -1, "ratio": 1.0, "planned": false}}',
    '{"KEY": {"winner": true, "ratio": 1.0, "planned": false}}',
    '{"KEY": {"winner": 0, "ratio": NaN, "planned": false}}',
    '{"KEY": {"winner": 0, "ratio": 1.0, "planned": 1}}',
    '{"KEY": {"winner": 0, "ratio": 1.0}}',
    "[" * 100_000,
]


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_written_again(cache: Path, places: list[dict[str, Any]], text: str) -> None:
    tnmars.compile(square(), batch=8, tune=True)
    rows = json.loads(cache.read_text())
    damaged = {key: json.loads(text)["KEY"] for key in rows} if "KEY" in text else None
    cache.write_text(text if damaged is None else json.dumps(damaged))
    records.forget()
    places.clear()
    tnmars.compile(square(), batch=8, tune=True)
    assert places
    assert json.loads(cache.read_text()).keys() == rows.keys()


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv(records.SETTING, "on")
    assert names(tnmars.compile(square(), batch=8, tune=True))


def test_the_file_is_bounded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST", 3)
    for batch in (1, 2, 3):
        tnmars.compile(square(), batch=batch, tune=True)
    assert len(json.loads(cache.read_text())) == 3


def measured(layer: tnmars.TNModule, mode: str, batch: int) -> float | None:
    place = {"device": layer.device, "dtype": layer.dtype}
    return tuning.measured_ratio(layer.planner, mode, batch, **place)


def test_the_ratio_to_the_dense_layer_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The form that wins takes 1 s, and what is timed after it 4 s: torch's own layer."""
    monkeypatch.setattr(tuning, "in_turns", lambda actions, **_: [1.0, *[4.0] * (len(actions) - 1)])
    layer = tnmars.compile(square(), batch=256, tune=True)
    assert [measured(layer, mode, 256) for mode in ("train", "infer")] == [0.25, 0.25]
    assert measured(layer, "train", 64) is None
    assert measured(tnmars.compile(square(), batch=32), "train", 32) is None


@pytest.mark.parametrize(("seconds", "is_reported"), [(1.0, False), (8.0, True)])
def test_a_tuned_layer_is_judged_by_what_was_measured(
    seconds: float, is_reported: bool, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Predicted slow and measured fast: silence. Predicted fast and measured slow: a warning."""
    monkeypatch.setattr(tuning, "has_step", lambda *_: False)  # then the first of a race is what was chosen
    monkeypatch.setattr(tuning, "in_turns", lambda actions, **_: [seconds, *[4.0] * (len(actions) - 1)])
    graph = tnmars.families.lowrank("linear", inputs=(256,), outputs=(256,), rank=4 if is_reported else 250)
    is_predicted = predicted(tnmars.compile(graph, batch=64, warn=False))["train"].ratio > 1.05
    assert is_predicted != is_reported
    layer = tnmars.compile(graph, batch=64, tune=True)
    row = tnmars.summary(layer).layers[0]
    assert row.time_ratio == row.train_time_ratio == seconds / 4
    told = [str(one.message) for one in recwarn]
    assert len(told) == is_reported
    assert not is_reported or "is slower than torch's own at batch 64: inference 2.00 times (measured)" in told[0]


@pytest.mark.parametrize(
    ("stem", "dense"),
    [
        ("tt_linear", torch.nn.Linear(784, 625)),
        ("padded_linear", torch.nn.Linear(781, 250)),
        ("cp_conv", torch.nn.Conv2d(64, 64, 3, stride=2, padding=1)),
    ],
)
def test_the_unit_of_the_ratio_does_the_work_of_the_dense_layer(stem: str, dense: torch.nn.Module) -> None:
    """By torch's own counter: stride, padding and sizes that are no product of modes included."""
    graph = tnmars.load(oracle.spec(stem))
    place: dict[str, Any] = {"device": CPU, "dtype": torch.float32}
    race = tuning._race(graph, "infer", place, tuning._random_inputs(graph, 3, 9, place, False))
    action = tuning._dense_action(race)
    assert action is not None
    with FlopCounterMode(display=False) as counted:
        action()
    with FlopCounterMode(display=False) as wanted, torch.no_grad():
        dense(*race.inputs)
    assert counted.get_total_flops() == wanted.get_total_flops() > 0


def test_a_layer_that_torch_does_not_have_has_no_ratio() -> None:
    layer = tnmars.compile(oracle.spec("bilinear_pooling"), batch=4, tune=True)
    assert measured(layer, "train", 4) is None


def test_a_layer_on_the_meta_device_is_not_timed(places: list[dict[str, Any]]) -> None:
    assert names(tnmars.compile(square(), batch=8, tune=True, device="meta"))
    assert not places


def test_under_a_mode_that_looks_at_operations_nothing_is_timed(places: list[dict[str, Any]]) -> None:
    layer = tnmars.compile(square(2), batch=4, tune=True)
    known = len(places)
    with FlopCounterMode(display=False), torch.no_grad():
        layer(torch.randn(77, layer.in_features))
    with FakeTensorMode():
        tnmars.compile(square(4), batch=4, tune=True)
    assert len(places) == known


@pytest.mark.parametrize(("share", "is_planned"), [(0.9, True), (0.96, False)])
def test_a_backward_pass_is_planned_only_if_that_is_clearly_faster(
    cache: Path, monkeypatch: pytest.MonkeyPatch, share: float, is_planned: bool
) -> None:
    """Also in a later process, from the file. Plans and summaries say so, with the memory that is kept."""
    monkeypatch.setattr(tape, "LARGE", 1)
    backward.training_step.cache_clear()
    timed = tuning.in_turns

    def times(actions: Any, **settings: Any) -> list[float]:
        return [1.0, share, 1.0] if settings.get("result") is median else timed(actions, **settings)

    monkeypatch.setattr(tuning, "in_turns", times)
    layer = tnmars.compile(square(), batch=8, tune=True)
    assert layer.plan("train", 8).is_planned == is_planned
    assert not layer.plan("infer", 8).is_planned
    records.forget()
    monkeypatch.setattr(tuning, "_action", None)  # nothing is timed again
    again = tnmars.compile(square(), batch=8, tune=True)
    assert again.plan("train", 8) == layer.plan("train", 8)
    (row,) = tnmars.summary(layer).layers
    assert row.is_planned == is_planned
    assert (row.kept_bytes > 0) == is_planned
    assert ("planned backward pass that keeps" in str(tnmars.summary(layer))) == is_planned
    shown = table(explain(layer.graph, layer.plan("train", 8), 8, layer.planner.model, grad=True))
    assert ("of buffers kept between steps" in shown) == is_planned
    backward.training_step.cache_clear()


def test_a_convolution_has_no_planned_backward_pass() -> None:
    layer = tnmars.compile(oracle.spec("tucker2_conv"), batch=2, image=8, tune=True)
    form = layer.plan("train", 2)
    assert not form.is_planned
    with pytest.raises(tnmars.TnmarsError, match="a backward pass of its own, but there is none for its steps"):
        form_from_json({**form_to_json(form), "is_planned": True}, layer.graph)
