"""Tuning: a layer is timed where its numbers are, whether it was compiled, loaded, converted or frozen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from kit import square

import tnmars
from tnmars.program import choice
from tnmars.timing import tuning


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

    def times(race: tuning.Race, forms: Any, behind: float = 1.5) -> list[float]:
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
