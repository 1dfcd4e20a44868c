"""LeNet-5: every variant runs for a few steps on made-up digits, and tensor-ring nets have the paper's counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tnmars.experiments import lenet5
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
    assert compression(lenet("ring", (9, 9, 5))) > 40 and compression(lenet("ring", (13, 13, 7))) > 20


@pytest.mark.parametrize("variant", ["dense", "trn-10", "ring-9", "mars-tucker", "mars-ring", "evbmf"])
def test_a_variant_runs(variant: str, tmp_path: Path) -> None:
    result = run(variant, tmp_path)
    assert 0 <= result["accuracy"] <= 100
    assert (result["compression"] > 1.5) == (variant != "dense")
    assert result["speed"] > 0
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
    assert summary([record])["shrink-tucker 20x"]["compression"]["mean"] >= 20


def test_an_ensemble_of_one_is_the_network(tmp_path: Path) -> None:
    result = run("mars-tucker", tmp_path)
    assert lenet5.ensemble([tmp_path], "mars-tucker") == pytest.approx(result["accuracy"])
