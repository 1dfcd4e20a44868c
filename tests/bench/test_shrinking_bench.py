"""Each task and each row of the benchmark of `shrink` runs on small made-up data. No figures here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.shrinking import tasks
from bench.shrinking.__main__ import main

from tnmars.experiments.cifar import Cifar
from tnmars.experiments.idx import Mnist

KEYS = (
    "task row seed budget parameters ratio ranks validation test macs steps points settings cpu_seconds commit command"
)


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    x, y = torch.rand(160, 784), torch.arange(160) % 10
    monkeypatch.setattr(tasks.Batches.__init__, "__kwdefaults__", {"size": 32})
    monkeypatch.setattr(tasks, "mnist", lambda: Mnist(x, y, x[:50], y[:50]))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    assert torch.get_num_threads() == threads


def records(tmp_path: Path, *words: str) -> list[dict[str, Any]]:
    """The records that a command writes, by tasks with very few steps."""
    path = tmp_path / "records.json"
    main([*words, "--first", "1", "--factor", "0.5", "--json", str(path)])
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(set(KEYS.split()) <= set(record) for record in found)
    return found


def test_a_table_of_words_has_its_own_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def texts(classes: int) -> Any:
        part = [[2 + at, 9, 4] for at in range(130)], torch.arange(130) % classes
        return part, part, part

    monkeypatch.setattr(tasks, "sst", lambda: texts(5))
    monkeypatch.setattr(tasks, "imdb", lambda: texts(2))
    rows = ("--rows", "budgets,random,uniform,fixed,dense")
    found = records(tmp_path, "sst5", *rows, "--ratios", "340")
    found += records(tmp_path, "imdb-bag", *rows, "--ratios", "559")[len(found) :]
    for task, ratio in (("sst5", 340), ("imdb-bag", 559)):
        own = {record["row"]: record for record in found if record["task"] == task}
        assert own["budgets"]["budget"] == f"{ratio}x embedding"
        for row in ("budgets", "random", "uniform"):
            assert own[row]["embedding_ratio"] >= ratio
            assert own[row]["ratio"] < own[row]["embedding_ratio"]
        assert own["dense"]["embedding_ratio"] == 1.0
        assert own["fixed"]["embedding_ratio"] == pytest.approx({340: 182.49, 559: 441.50}[ratio], abs=0.01)


@pytest.mark.filterwarnings("ignore")
def test_a_trained_network_is_compressed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randint(256, (400, 3, 32, 32)).byte(), torch.arange(400) % 10
    monkeypatch.setattr(tasks, "images", lambda: Cifar(x, y, x[:50], y[:50]))
    monkeypatch.setattr(tasks, "IMAGES", 16)
    tasks._compressed.cache_clear()
    found = {record["row"]: record for record in records(tmp_path, "cifar-cnn", "--rows", "budgets,uniform")}
    tasks._compressed.cache_clear()
    assert found["budgets"]["ratio"] >= 8
    assert found["budgets"]["dense_steps"] == 24
    assert {"dense_test", "dense_validation", "compressed_validation"} <= set(found["budgets"])
    assert found["uniform"]["steps"] == found["budgets"]["steps"] + 24
    assert found["uniform"]["ratio"] >= 8


@pytest.mark.parametrize(("task", "ratio"), [("mnist-2fc", 100), ("lenet-tucker", 10), ("lenet-ring", 20)])
def test_a_path_and_its_controls_run(tmp_path: Path, task: str, ratio: int) -> None:
    found = records(tmp_path, task, "--rows", "budgets,random,uniform,fixed,dense", "--ratios", str(ratio))
    rows = {record["row"]: record for record in found}
    assert list(rows) == ["budgets", "random", "uniform", "fixed", "dense"]
    for row in ("budgets", "random", "uniform"):
        assert rows[row]["ratio"] >= ratio
        assert rows[row]["budget"] == f"{ratio}x parameters"
    assert sum(rows["budgets"]["stages"]) == rows["budgets"]["steps"] == rows["uniform"]["steps"]
    assert rows["dense"]["ratio"] == 1.0
    assert len(rows["fixed"]["ranks"]) == len(rows["budgets"]["ranks"])


def test_a_control_needs_a_path_or_steps(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="Run that row first"):
        records(tmp_path, "toy-8", "--rows", "uniform")
    (record,) = records(tmp_path, "toy-8", "--rows", "uniform", "--steps", "2,3")
    assert record["steps"] == 5


def test_gates_are_trained_pruned_and_sampled(tmp_path: Path) -> None:
    found = records(tmp_path, "mnist-2fc", "--rows", "mars,ensemble", "--steps", "20,4")
    assert [record["budget"] for record in found[:2]] == ["hard", "soft"]
    assert found[0]["stages"] == [20, 4]
    assert {"test_before", "validation_before"} <= set(found[0])
    assert [record["budget"] for record in found[2:5]] == ["hard, 1 mask", "hard, 10 masks", "hard, 50 masks"]
    assert found[2]["parameters"] < found[3]["parameters"] == 27_235
    assert found[2]["test"] == found[0]["test_before"]


def test_uniform_ranks_of_the_nearest_size_may_be_larger(tmp_path: Path) -> None:
    """2FC-Net with trains of rank 1 is 540x smaller than the dense net, with rank 2 it is 390x."""
    asked = ("--rows", "uniform", "--ratios", "400", "--steps", "1")
    (below,) = records(tmp_path, "mnist-2fc", *asked)
    _, nearest = records(tmp_path, "mnist-2fc", *asked, "--nearest")
    assert set(below["ranks"]) == {1} and set(nearest["ranks"]) == {2}
    assert nearest["ratio"] < 400 < below["ratio"]
