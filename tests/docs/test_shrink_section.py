"""The section on `shrink` of the page of results: targets, controls and models that keep their size, from records."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from kit import ROOT

sys.path.insert(0, str(ROOT / "docs" / "generate"))

import shrink_section

Record = dict[str, Any]


def record(task: str, row: str, ratio: float, test: float, seed: int = 20, budget: str = "", **more: Any) -> Record:
    """As `python tests/bench/shrinking --json` writes one."""
    size = {"ratio": ratio, "ranks": [4], "test": test, "cpu_seconds": 1.0, "settings": {}}
    return {"task": task, "row": row, "seed": seed, "budget": budget, "commit": "abc1234", **size, **more}


def section(path: Path, monkeypatch: pytest.MonkeyPatch, *records: Record) -> str:
    path = path / "shrink.json"
    path.write_text("\n".join(map(json.dumps, records)) + "\n", encoding="utf-8")
    monkeypatch.setattr(shrink_section, "RECORDS", path)
    return "\n".join(shrink_section.section())


@pytest.mark.parametrize(
    ("ratio", "test", "verdict"), [(231.0, 98.06, "met"), (229.0, 98.06, "missed"), (231.0, 98.04, "missed")]
)
def test_a_target_is_met_by_ratio_and_score(
    ratio: float, test: float, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = section(tmp_path, monkeypatch, record("mnist-2fc", "untouched", ratio, test))
    assert f"| {test:.2f} % | 230x at 98.05 %: {verdict} |" in text


@pytest.mark.parametrize(("test", "verdict"), [(39.5, "met"), (38.5, "missed"), (36.5, "missed")])
def test_sst5_is_compared_with_the_best_models_that_keep_their_size(
    test: float, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        record("sst5", "untouched", 25.0, test, embedding_ratio=350.0),
        *(record("sst5", row, 1.0, 99.0, which="last", embedding_ratio=1.0) for row in ("dense", "fixed")),
        record("sst5", "dense", 1.0, 39.0, which="best", embedding_ratio=1.0),
        record("sst5", "fixed", 24.0, 37.0, which="best", embedding_ratio=180.0),
    ]
    text = section(tmp_path, monkeypatch, *records)
    assert f"| 340x, not below dense (39.00 %) and start ranks held (37.00 %): {verdict} |" in text


def test_the_control_of_a_path_without_a_budget_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the path on the same seeds; a row of random slices alone has no path to stand beside."""
    records = [
        *(record("mnist-2fc", "untouched", 250.0 + seed, 98.0 + seed / 100, seed) for seed in (20, 21)),
        record("mnist-2fc", "uniform", 273.0, 97.5, 21, "273x parameters"),
        record("mnist-2fc", "random", 700.0, 90.0, 21, "700x parameters"),
    ]
    text = section(tmp_path, monkeypatch, *records)
    assert "| MNIST, 2FC-Net, tensor trains | untouched | 1 | 98.21 % at 271x | 97.50 % at 273x |  |" in text
    assert "at 700x" not in text


def test_the_dense_start_of_a_path_is_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [
        record("cifar-cnn", "budgets", size, 80.0, budget=f"{size:g}x parameters", dense_test=76.4)
        for size in (5.0, 8.0)
    ]
    text = section(tmp_path, monkeypatch, *paths, record("cifar-cnn", "dense", 1.0, 85.0, which="last"))
    assert text.count("| CIFAR-10, CNN from `compress_` | dense, where the path began | 1 | 1x | 76.40 % |") == 1
    assert "| not below the dense start, 76.40 %: met |" in text
