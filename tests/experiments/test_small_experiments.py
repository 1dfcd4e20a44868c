"""Completion, regression, growth and TT-GRU: planted ranks come back, and every variant runs for a few steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tnmars import families
from tnmars.decomposing.growing import Grower
from tnmars.experiments import mnist, planted, regression, toy, tt_rnn, tucker
from tnmars.experiments.idx import Mnist
from tnmars.experiments.loop import RunOptions
from tnmars.graph.counts import count

TRIAL = RunOptions(epochs=1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that take less than a second."""
    monkeypatch.setattr(planted, "CUBE", (8, 8, 8))
    monkeypatch.setattr(planted, "TRUE", 2)
    monkeypatch.setattr(planted, "START", 4)
    monkeypatch.setattr(planted, "SHARE", 0.7)
    given = planted.Growth(
        families.tr("tensor", free=(4, 4, 4), ranks=(2, 2, 2)), families.tr("tensor", free=(4, 4, 4), rank=3), (2, 2, 2)
    )
    monkeypatch.setitem(planted.GROWN, "ring", given)
    hidden, start = (families.tt("tensor", free=(4, 4, 4), ranks=ranks) for ranks in ((2, 3), (4, 4)))
    monkeypatch.setitem(planted.GROWN, "tt", planted.Growth(hidden, start, (2, 3)))


@pytest.mark.usefixtures("small")
def test_completion_finds_the_planted_rank(tmp_path: Path) -> None:
    (result,) = planted.complete("fit", [0], tmp_path, RunOptions())
    assert result["rank"] == 2 and result["as_planted"] == 1.0


@pytest.mark.usefixtures("small")
def test_completion_by_a_path_runs(tmp_path: Path) -> None:
    (result,) = planted.complete("shrink", [0], tmp_path, RunOptions(epochs=100))
    assert result.keys() == {"rank", "unseen_error_to_noise", "as_planted"}
    assert result["unseen_error_to_noise"] < 30


@pytest.mark.usefixtures("small")
def test_a_bayesian_model_finds_the_planted_rank(tmp_path: Path) -> None:
    """Without knowing the noise."""
    (result,) = planted.complete("ard", [0], tmp_path, RunOptions(epochs=1500))
    assert result["rank"] == 2 and result["as_planted"] == 1.0


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("variant", ["ring", "tt"])
def test_bonds_grow_to_the_planted_ranks(variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor train grows too, though singular values would solve it."""
    steps = []
    wider = Grower._wider
    monkeypatch.setattr(Grower, "_wider", lambda self, found: steps.append(found.loss) or wider(self, found))
    (result,) = planted.grow(variant, [0], tmp_path, RunOptions())
    assert len(steps) >= 2 and steps == sorted(steps, reverse=True), "the error falls as bonds grow"
    assert result["error"] < 1e-4 and result["as_planted"] == 1.0 and result["size_to_planted"] == 1.0


def test_ranks_of_a_chain_in_the_complete_graph() -> None:
    found = dict(zip(planted.GROWN["topology"].start.bonds, planted.GROWN["topology"].ranks, strict=True))
    assert {bond: rank for bond, rank in found.items() if rank > 1} == {"r1_2": 2, "r2_3": 3, "r3_4": 6, "r4_5": 5}
    closed = dict(zip(found, planted._joined(planted.RING, is_closed=True), strict=True))
    assert closed["r1_5"] == 5 and closed["r4_5"] == 5


def test_coefficients_of_low_rank_are_found(tmp_path: Path) -> None:
    (ridge,) = regression.run("ridge", [0], tmp_path, TRIAL)
    (found,) = regression.run("shrink", [0], tmp_path, RunOptions())
    assert found["rank"] == 3 and found["error"] < 0.1 < ridge["error"]
    (gated,) = regression.run("mars", [0], tmp_path, TRIAL)
    assert gated["rank"] >= 1


def digits() -> Mnist:
    x, y = torch.rand(256, 784, generator=torch.Generator().manual_seed(0)), torch.arange(256) % 10
    return Mnist(x, y, x[:50], y[:50])


@pytest.mark.filterwarnings("ignore::tnmars.ShrinkWarning")
@pytest.mark.parametrize("variant", tt_rnn.VARIANTS)
def test_a_recurrent_network_runs(variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tt_rnn, "mnist", lambda given=None: digits())
    (result,) = tt_rnn.run(variant, [0], tmp_path, TRIAL)
    if variant == "shrink":
        assert result["points"][0]["compression"] >= 40
    else:
        assert result["compression"] == pytest.approx({"gru": 1.0, "tt-gru": 10_752 / 488}[variant])


def test_input_weights_are_counted() -> None:
    graph = families.tt("linear", inputs=tt_rnn.INPUTS, outputs=tt_rnn.OUTPUTS, rank=4)
    assert (count(graph).cores, count(graph).dense) == (488, 10_752)


# --- shrink beside MARS ----------------------------------------------------------------------------------------------


def test_shrink_runs_on_the_first_experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (result,) = toy.run("shrink-8", [3], tmp_path / "toy", RunOptions(epochs=20))
    assert result.keys() == {"accuracy", "rank"} and result["accuracy"] > 20
    (result,) = tucker.run("shrink", [0], tmp_path / "tucker", RunOptions(epochs=5))
    assert len(result["ranks"]) == 4 and result["log_likelihood"] < 0
    monkeypatch.setattr(mnist, "mnist", lambda given=None: digits())
    (result,) = mnist.run("shrink-to", [0], tmp_path / "mnist", TRIAL)
    assert [point["budget"] for point in result["points"]] == ["141x", "205x"]
    assert result["points"][1]["compression"] >= 205


def test_priors_and_searches_run_on_the_first_experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = toy.run("ard-8", [0, 1], tmp_path / "toy", TRIAL)
    assert [result.keys() for result in found] == [{"accuracy", "rank"}] * 2
    (result,) = tucker.run("ard", [0], tmp_path / "tucker", RunOptions(epochs=20))
    assert len(result["ranks"]) == 4 and result["log_likelihood"] < 0
    monkeypatch.setattr(mnist, "mnist", lambda given=None: digits())
    (result,) = mnist.run("ard", [0], tmp_path / "mnist", TRIAL)
    assert result["compression"] >= 18 and max(result["ranks"]["0"]) <= 20


def test_a_search_finds_the_ranks_of_a_tensor(tmp_path: Path) -> None:
    (result,) = tucker.run("search", [0], tmp_path, RunOptions())
    assert result["ranks"] == [4, 4, 4, 4] and -1e-6 < result["log_likelihood"] <= 0, "no noise: it fits exactly"
    (again,) = tucker.run("search", [0], tmp_path, RunOptions(resume=True))
    assert again == result


def test_a_search_takes_the_smallest_rank_that_is_almost_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy, "TRIED", (1, 4, 8, 32))
    monkeypatch.setattr(toy, "COUNT", 3000)
    (result,) = toy.run("search-8", [0], tmp_path, RunOptions(epochs=4))
    scores = {rank: _score(tmp_path / "seed-0" / f"search-{rank}.json") for rank in toy.TRIED}
    best = max(scores.values())
    near = [rank for rank, score in scores.items() if score >= best - 2 * (best * (1 - best) / toy.HELD) ** 0.5]
    assert result["rank"] == min(near) > 1
    assert abs(result["accuracy"] / 100 - scores[result["rank"]]) < 0.1, "validation and test agree"
    (again,) = toy.run("search-8", [0], tmp_path, RunOptions(epochs=4, resume=True))
    assert again == result


def _score(path: Path) -> float:
    (trial,) = json.loads(path.read_text())["trials"]
    return float(trial["score"])


def test_a_path_that_is_started_again_does_not_resume(tmp_path: Path) -> None:
    (first,) = tucker.run("shrink", [0], tmp_path, RunOptions(epochs=5))
    (again,) = tucker.run("shrink", [0], tmp_path, RunOptions(epochs=5, resume=True))
    assert again == first
    (other,) = tucker.run("shrink", [1], tmp_path, RunOptions(epochs=5))
    assert other != first, "another seed would be refused if the path were resumed"
