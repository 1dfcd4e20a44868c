"""The tables of measurements in the how-to on trained models, from records of the benchmark."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from kit import ROOT

sys.path.insert(0, str(ROOT / "docs" / "generate"))

import compress_page

Record = dict[str, Any]


def record(row: str, ratio: float, score: float, seed: int | None = None, **more: Any) -> Record:
    """As `python tests/bench/models --json` writes one."""
    known = {"task": "resnet20", "row": row, "ratio": ratio, "seed": seed, "accuracy": score, "same as dense": score}
    size = {"parameters": 1000, "whole ratio": ratio, "layer ratio": ratio, "cpu seconds": 1.0}
    return {**known, **size, "commit": "abc1234", **more}


def timing(row: str) -> Record:
    figures = {"ms": 1.5, "time to dense": 0.8, "multiply-adds to dense": 0.5}
    return {"task": "resnet20", "row": row, "ratio": 2.0, "batch": 64, "commit": "abc1234", **figures}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of records in place of docs/results."""
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(compress_page, "DOCS", tmp_path)
    return tmp_path / "results"


def write(path: Path, records: list[Record], *, as_list: bool = False) -> None:
    lines = "\n".join(map(json.dumps, records)) + "\n"
    path.write_text(json.dumps(records) if as_list else lines, encoding="utf-8")


def test_without_records_the_page_says_so(results: Path) -> None:
    text = compress_page.text()
    assert text.count("Not measured yet: run `python tests/bench/models") == 2
    assert text.startswith("# I have a trained model")


@pytest.mark.parametrize("as_list", [False, True])
def test_scores_are_means_over_seeds(results: Path, as_list: bool) -> None:
    records = [record("dense", 1.0, 91.7), *(record("tnmars", 2.0, score, seed) for seed, score in enumerate((84, 86)))]
    records += [record("C and G prototype", 2.0, 1.0, 0), record("plain SVD", 2.0, 14.7), timing("tnmars")]
    write(results / "compress.json", records, as_list=as_list)
    text = compress_page.text()
    assert "| ResNet-20, CIFAR-10 | **tnmars** | 2.00x | 2 | 85.0 % (84.0 to 86.0) |" in text
    assert "| ResNet-20, CIFAR-10 | dense |  |  | 91.7 % |" in text
    assert text.index("plain SVD, the same") < text.index("| **tnmars** |")
    assert "| ResNet-20, CIFAR-10 | 2x | 64 | 1.50 | 0.80 | 0.50 |" in text
    assert "prototype" not in text
    assert "Means over the calibration seeds" in text
    assert "Commit abc1234." in text


def test_a_measurement_that_was_repeated_counts_once(results: Path) -> None:
    write(results / "compress.json", [record("tnmars", 2.0, 10.0, 0), record("tnmars", 2.0, 84.0, 0)])
    assert "| **tnmars** | 2.00x | 1 | 84.0 % |" in compress_page.text()


def test_peers_stand_beside_our_figures_at_their_ratios(results: Path) -> None:
    write(results / "compress.json", [record("tnmars", 2.0, 84.0, 0), record("tnmars", 3.0, 59.0, 0)])
    peers = [record("dense", 1.0, 91.7), record("Torch-Pruning, magnitude + matching", 2.0, 70.0)]
    write(results / "compress_peers.json", peers)
    peers_part = compress_page.text().partition("<!-- peers")[2]
    assert "Torch-Pruning, magnitude, then matching | 2.00x |  | 70.0 %" in peers_part
    assert "| **tnmars** | 2.00x | 1 | 84.0 % |" in peers_part
    assert "59.0 %" not in peers_part


def test_the_page_is_not_changed_by_a_second_run(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(results / "compress.json", [record("tnmars", 2.0, 84.0, 0)])
    once = compress_page.text()
    page = results / "page.md"
    page.write_text(once, encoding="utf-8")
    monkeypatch.setattr(compress_page, "PAGE", page)
    assert compress_page.text() == once
