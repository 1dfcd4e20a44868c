"""Checkpoints: a path continues bit for bit, wherever it was killed, and a checkpoint of another run is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from shrink_kit import (
    HASTY,
    QUICK,
    Killed,
    assert_same,
    figures,
    killed_after,
    killed_at,
    loader,
    shrunk,
    student,
    trained,
)
from torch import Tensor, nn

import tnmars
from tnmars import CheckpointError, TnmarsError


@pytest.mark.parametrize(
    "data", [lambda: loader(), lambda: loader(generator=torch.Generator()), lambda: list(loader())]
)
def test_a_killed_path_continues_bit_for_bit(tmp_path: Path, data: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    batches = data()
    whole = shrunk(train=batches, budget=70)
    assert len(whole.points) > 4
    last = whole.points[-1].stage
    assert whole.points[-1].ranks == whole.points[-2].ranks, "the last stage trains the chosen point once more"
    for stage in (1, 3, 4, last - 1, last):
        with pytest.raises(Killed):
            shrunk(train=batches, budget=70, checkpoint=tmp_path, watch=killed_after(stage))
    assert_same(shrunk(train=batches, budget=70, checkpoint=tmp_path), whole)
    seen: list[Any] = []
    assert_same(shrunk(train=batches, budget=70, checkpoint=tmp_path, watch=seen.append), whole)  # nothing is trained
    assert not seen


def test_a_finished_path_whose_last_stage_made_it_worse_is_returned_as_it_is(tmp_path: Path) -> None:
    calls = 0

    def worse_at_last(model: nn.Module) -> float:
        """Falls with each model that is new, and is the same for the same model."""
        nonlocal calls
        calls += 1
        return -float(sum(value.square().sum() for value in model.parameters())) * 1e-3

    whole = shrunk(evaluate=worse_at_last, max_drop=0.0, settings=tnmars.Staircase(first=10, finish=0.0))
    options = {"evaluate": worse_at_last, "max_drop": 0.0, "settings": tnmars.Staircase(first=10, finish=0.0)}
    for _ in range(2):
        found = shrunk(checkpoint=tmp_path, **options)
        assert_same(found, whole)
    assert whole.chosen_at < len(whole.points) - 1, "otherwise this says nothing"


def test_a_path_with_random_saliencies_continues_too(tmp_path: Path) -> None:
    def by_chance(model: nn.Module, weights: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        return {name: {bond: torch.rand(len(each)) for bond, each in own.items()} for name, own in weights.items()}

    whole = shrunk(budget=90, saliency=by_chance)
    with pytest.raises(Killed):
        shrunk(budget=90, saliency=by_chance, checkpoint=tmp_path, watch=killed_after(1))
    assert_same(shrunk(budget=90, saliency=by_chance, checkpoint=tmp_path), whole)


def test_a_kill_in_the_middle_of_a_stage_costs_that_stage(tmp_path: Path) -> None:
    whole = shrunk(budget=70)
    with pytest.raises(Killed):
        shrunk(loss=killed_at(whole.points[1].steps + 10), budget=70, checkpoint=tmp_path)
    found = tnmars.load_curve(tmp_path, student())
    assert len(found.points) == 2 and not found.is_finished and "not finished" in str(found)
    assert_same(shrunk(budget=70, checkpoint=tmp_path), whole)
    assert not list(tmp_path.glob("*.pt")) and not list(tmp_path.glob("*.pkl"))


def test_a_checkpoint_of_another_seed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        shrunk(budget=70, checkpoint=tmp_path, seed=1, watch=killed_after(1))
    with pytest.raises(CheckpointError, match="is a path with seed 1, but seed is 2"):
        shrunk(budget=70, checkpoint=tmp_path, seed=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": student(seed=4)}, "it began with other weights than the model given"),
        ({"saliency": "gradient"}, "is another path: its saliency is norm, but now gradient"),
        ({"train": list(loader())[:4]}, "is another path: its train_samples is 512, but now 256"),
        ({"evaluate": lambda model: (0.1, 128)}, r"the model of its last stage has a score of 0\.1 now, but had"),
    ],
    ids=["weights", "saliency", "data", "evaluate"],
)
@pytest.mark.parametrize("is_finished", [False, True], ids=["killed", "finished"])
def test_a_checkpoint_of_another_run_is_refused(
    tmp_path: Path, options: dict[str, Any], words: str, is_finished: bool
) -> None:
    quick = {"budget": 100, "checkpoint": tmp_path, "settings": tnmars.Staircase(first=5)}
    if is_finished:
        shrunk(**quick)
    else:
        with pytest.raises(Killed):
            shrunk(watch=killed_after(1), **quick)
    with pytest.raises(CheckpointError, match=words):
        shrunk(**quick, **options)


def test_a_model_without_a_seed_continues_from_the_weights_that_are_saved(tmp_path: Path) -> None:
    quick = {"budget": 80, "checkpoint": tmp_path, "settings": tnmars.Staircase(first=5)}
    with pytest.raises(Killed):
        shrunk(watch=killed_after(2), **quick)
    with pytest.raises(CheckpointError, match=r"tnmars\.load_into\(model, '.*start\.safetensors'\)"):
        shrunk(student(seed=4), **quick)
    again = tnmars.load_into(student(seed=4), tmp_path / "start.safetensors")
    assert_same(shrunk(again, **quick), shrunk(**{**quick, "checkpoint": None}))


def test_stages_and_shrink_do_not_continue_each_other(tmp_path: Path) -> None:
    model = student()
    options = {"budget": 100, "settings": QUICK, "checkpoint": tmp_path}
    next(iter(tnmars.Stages(model, **options))).report(0.5)
    with pytest.raises(CheckpointError, match=r"was written by tnmars\.Stages, not by tnmars\.shrink"):
        shrunk(**options)


def test_a_curve_is_not_saved_over_its_checkpoint(tmp_path: Path) -> None:
    curve = shrunk(budget=100, checkpoint=tmp_path, settings=tnmars.Staircase(first=5))
    with pytest.raises(TnmarsError, match=r"is the checkpoint of a path, which this curve would overwrite"):
        curve.save(tmp_path)
    assert_same(shrunk(budget=100, checkpoint=tmp_path, settings=tnmars.Staircase(first=5)), curve)


def test_a_path_in_milliseconds_continues_with_the_time_that_was_measured(tmp_path: Path) -> None:
    options = {"budget": "50 ms", "settings": tnmars.Staircase(first=5), "checkpoint": tmp_path}
    first = shrunk(nn.Sequential(student(), nn.Linear(8, 8)), **options)
    again = shrunk(nn.Sequential(student(), nn.Linear(8, 8)), **options)
    assert again.dense["ms"] == first.dense["ms"] and figures(again) == figures(first)


def test_a_repeated_stage_continues_bit_for_bit(tmp_path: Path) -> None:
    whole = shrunk(trained(), settings=HASTY, max_drop=0.1)
    assert "All rates were divided by" in whole.reason
    for steps in (3, 9, 9):
        with pytest.raises(Killed):
            shrunk(trained(), settings=HASTY, max_drop=0.1, loss=killed_at(steps), checkpoint=tmp_path)
    assert_same(shrunk(trained(), settings=HASTY, max_drop=0.1, checkpoint=tmp_path), whole)


def test_a_curve_is_saved_and_loaded(tmp_path: Path) -> None:
    curve = shrunk(budget=["1.2x", 70])
    curve.save(tmp_path / "curve")
    back = tnmars.load_curve(tmp_path / "curve", nn.Sequential(nn.Dropout(0.05), nn.Linear(12, 8)))
    assert_same(back, curve)
    assert str(back) == str(curve)
    assert back.at("1.2x").parameters == curve.at("1.2x").parameters
    with pytest.raises(CheckpointError, match=r"can be loaded, but not continued"):
        shrunk(budget=["1.2x", 70], checkpoint=tmp_path / "curve")
    with pytest.raises(CheckpointError, match="does not exist"):
        tnmars.load_curve(tmp_path / "nowhere", student())
