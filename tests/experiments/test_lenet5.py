"""LeNet-5: every variant runs for a few steps on made-up digits, and tensor-ring nets have the paper's counts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tnmars.experiments import jobs, lenet5, results
from tnmars.experiments.idx import Mnist
from tnmars.experiments.lenet import CONV, WIDE, lenet
from tnmars.experiments.loop import RunOptions
from tnmars.experiments.problems import compression
from tnmars.experiments.tables import expanded, summary
from tnmars.layer.module import layers


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(0)
    x, y = torch.rand(96, 784, generator=random), torch.arange(96) % 10
    monkeypatch.setattr(lenet5, "mnist", lambda given=None: Mnist(x, y, x[:40], y[:40]))
    for name, value in {"BATCH": 16, "ROUNDS": 1, "CALL": 20, "MOST_STEPS": 2}.items():
        monkeypatch.setattr(lenet5, name, value)


def run(variant: str, folder: Path, **more: Any) -> dict[str, Any]:
    (result,) = lenet5.run(variant, [0], folder, RunOptions(epochs=1, **more))
    return result


@pytest.mark.parametrize(("rank", "ratio"), [(10, 39.3), (15, 18.5), (20, 10.6)])
def test_rings_are_as_small_as_in_the_paper(rank: int, ratio: float) -> None:
    """The paper prints 39x, 18x and 11x."""
    assert compression(lenet("trn", (rank,) * 3)) == pytest.approx(ratio, abs=0.05)


def test_networks_with_start_ranks_have_the_counts_of_the_paper() -> None:
    assert compression(lenet("tucker")) == pytest.approx(431_080 / 147_480)
    assert compression(lenet5.network("mars-tucker")) == pytest.approx(431_080 / 147_480), "logits do not count"


@pytest.mark.parametrize("variant", lenet5.CONTROLS)
def test_uniform_ranks_are_as_large_as_the_budget_allows(variant: str) -> None:
    """So that they are a fair control: within the budget, and at most 3 % smaller."""
    ratio = float(variant.removeprefix("ring-").removesuffix("x"))
    assert ratio <= compression(lenet5.network(variant)) <= 1.03 * ratio


@pytest.mark.parametrize("variant", ["dense", "trn-10", "ring-40x", "mars-tucker", "mars-ring", "evbmf"])
def test_a_variant_runs(variant: str, tmp_path: Path) -> None:
    result = run(variant, tmp_path)
    assert 0 <= result["accuracy"] <= 100
    assert (result["compression"] > 1.5) == (variant != "dense")
    held = variant in ("ring-40x", "evbmf")
    assert result["training_images"] == (48 if held else 96), "controls of what chooses do without its images"
    assert "speed" not in result, "a record does not depend on a clock"
    assert (tmp_path / "small.safetensors").exists()


def test_ranks_fall_step_by_step(tmp_path: Path) -> None:
    result = run("musco", tmp_path)
    first, second = (step["ranks"] for step in result["steps"])
    for name in (CONV, WIDE):
        assert all(after < before for before, after in zip(first[name], second[name], strict=True))
    again = run("musco", tmp_path, resume=True)
    assert again["steps"] == result["steps"], "every training is read from its checkpoint"


def test_weakened_ranks_are_between_the_present_ones_and_those_of_evbmf() -> None:
    model = lenet()
    with torch.no_grad():
        weight = model.get_submodule(WIDE).weight
        weight.copy_(torch.randn(500, 6) @ torch.randn(6, 800) + 0.01 * torch.randn(500, 800))
    ranks = lenet5.weakened(model)
    assert ranks[WIDE] == (155,), "500 - 0.7 (500 - 6), rounded up"
    small = lenet5.decomposed(model, ranks)
    assert {name: [bond.size for bond in layer.graph.bonds.values()] for name, layer in layers(small)} == {
        CONV: list(ranks[CONV]),
        WIDE: [155],
    }


@pytest.mark.filterwarnings("ignore::tnmars.ShrinkWarning")
def test_a_path_has_a_point_for_each_budget(tmp_path: Path) -> None:
    result = run("shrink-tucker", tmp_path)
    assert [point["budget"] for point in result["points"]] == ["10x", "20x"]
    assert [point["compression"] >= ratio for point, ratio in zip(result["points"], (10, 20), strict=True)] == [
        True
    ] * 2
    record = {"variant": "shrink-tucker", "seed": 0, "result": result, "versions": {"commit": "c"}}
    assert [one["variant"] for one in expanded([record])] == ["shrink-tucker 10x", "shrink-tucker 20x"]
    for point in result["points"]:
        file = tmp_path / jobs.network_name(point["budget"])
        assert lenet5.ensemble([file], "shrink-tucker") == pytest.approx(point["accuracy"]), "each budget has a network"
    assert summary([record])["shrink-tucker 20x"]["compression"]["mean"] >= 20


def test_an_ensemble_of_one_is_the_network(tmp_path: Path) -> None:
    result = run("mars-tucker", tmp_path)
    assert lenet5.ensemble([tmp_path / "small.safetensors"], "mars-tucker") == pytest.approx(result["accuracy"])


def test_evbmf_is_tuned_as_long_as_all_steps_of_musco(tmp_path: Path) -> None:
    run("evbmf", tmp_path)
    lines = (tmp_path / "tuned" / "log.jsonl").read_text().splitlines()
    assert len(lines) == lenet5.MOST_STEPS * 1


def test_networks_are_timed_once_and_from_their_files(tmp_path: Path) -> None:
    for seed in (0, 1):
        folder = tmp_path / f"trn-10-{seed}"
        (result,) = lenet5.run("trn-10", [seed], folder, RunOptions(epochs=1))
        about = {"experiment": "lenet5", "variant": "trn-10", "seed": seed, "epochs": 1}
        record = {**about, "result": result, "versions": {"commit": "c"}}
        (folder / jobs.record_name(seed)).write_text(json.dumps(record))
    assert "speed" not in results.collected("lenet5", tmp_path, epochs=1)["summary"]["trn-10"]
    said: list[str] = []
    results.timed("lenet5", tmp_path, epochs=1, say=said.append)
    assert said == [f"timing lenet5 trn-10 {seed}: small.safetensors" for seed in (0, 1)]
    found = results.collected("lenet5", tmp_path, epochs=1)["summary"]["trn-10"]["speed"]["all"]
    assert len(found) == 2 and min(found) > 0
    results.timed("lenet5", tmp_path, epochs=1, say=said.append)
    assert len(said) == 2, "they are timed already"
    shutil.copy(tmp_path / "trn-10-1" / "small.safetensors", tmp_path / "trn-10-0" / "small.safetensors")
    assert len(results.collected("lenet5", tmp_path, epochs=1)["summary"]["trn-10"]["speed"]["all"]) == 1, (
        "the time of another network does not count"
    )
