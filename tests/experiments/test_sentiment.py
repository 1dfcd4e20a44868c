"""SST-5 and IMDB: tables have the paper's counts, and every variant runs for a few steps on made-up texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tnmars.errors import TnmarsError
from tnmars.experiments import readers, sentiment
from tnmars.experiments.loop import RunOptions
from tnmars.experiments.paths import best_within
from tnmars.experiments.sentiment import IMDB, SST, Corpus
from tnmars.graph import Graph
from tnmars.graph.counts import count
from tnmars.shrinking.curve import Curve, Point


@pytest.mark.parametrize(
    ("graph", "cores", "ratio"),
    [
        (readers.sst_table(cores=3), 56_576, 77.83),
        (readers.sst_table(cores=4), 24_128, 182.49),
        (readers.sst_table(cores=6), 14_336, 307.14),
        (readers.sst_table((6, 14, 14), cores=4), 12_952, 339.96),
        (readers.imdb_table(), 14_496, 441.50),
        (readers.imdb_table((8, 11, 15, 16, 16), mode=None), 11_442, 559.34),
    ],
)
def test_tables_have_the_counts_of_the_paper(graph: Graph, cores: int, ratio: float) -> None:
    assert count(graph).cores == cores
    assert count(graph).compression == pytest.approx(ratio, abs=0.005)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentiment, "HIDDEN", 4)


def small(corpus: Corpus) -> Corpus:
    """The corpus with made-up texts."""
    rows = [[2 + at % 40, 9, 4][: 1 + at % 3] for at in range(48)]
    part = rows, torch.arange(48) % corpus.classes
    return replace(corpus, read=lambda data: (part, part, part), batch=16)


@pytest.mark.usefixtures("few")
@pytest.mark.filterwarnings("ignore::tnmars.ShrinkWarning")
@pytest.mark.parametrize(
    ("corpus", "variant"),
    [*((SST, variant) for variant in SST.variants), *((IMDB, variant) for variant in IMDB.variants)],
)
def test_a_variant_runs(corpus: Corpus, variant: str, tmp_path: Path) -> None:
    (result,) = small(corpus).run(variant, [0], tmp_path, RunOptions(epochs=2))
    if variant in corpus.paths:
        ratios = corpus.paths[variant][1]
        assert [point["budget"] for point in result["points"]] == [f"{ratio}x embedding" for ratio in ratios]
        assert all(point["compression"] >= ratio for point, ratio in zip(result["points"], ratios, strict=True))
        return
    assert result["validation"] == result["accuracy"], "the model that was best on validation is tested"
    known = {"dense": 1.0, "tt-3": 77.83, "tt-4": 182.49, "tt-6": 307.14 if corpus is SST else 441.50}
    if variant in known:
        assert result["compression"] == pytest.approx(known[variant], abs=0.005)


def test_networks_are_those_of_the_paper() -> None:
    model = SST.network("dense")
    assert (model.lstm.hidden_size, model.lstm.num_layers, model.lstm.bidirectional) == (128, 2, True)
    assert model.embedding.weight.shape == (17_200, 256)


def test_the_best_point_within_a_budget_is_taken() -> None:
    """By its score on validation data, though a larger one meets the budget too."""

    def point(stage: int, parameters: int, score: float) -> Point:
        sizes = {"parameters": parameters, "bytes": 4 * parameters, "macs": 1, "ms": 1.0, "ratio": 1000 / parameters}
        return Point(stage=stage, ranks={}, score=score, error=None, steps=1, seconds=1.0, make=lambda: None, **sizes)

    points = [point(0, 900, 0.6), point(1, 400, 0.3), point(2, 300, 0.4), point(3, 300, 0.35), point(4, 100, 0.2)]
    curve = Curve(tuple(points), None, 0, "", {}, {"parameters": 1000.0})
    assert curve.at(500).stage == 1
    assert best_within(curve, 500).stage == best_within(curve, "2x").stage == 2
    assert best_within(curve, "4x").stage == 4
    with pytest.raises(TnmarsError, match="no point of the curve meets the budget"):
        best_within(curve, 50)


def test_gates_do_not_move_while_the_cores_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentiment, "HIDDEN", 4)
    corpus = replace(small(SST), warmup=2)
    (result,) = corpus.run("mars-tt-4", [0], tmp_path, RunOptions(epochs=4))
    sizes = [record["expected_parameters"] for record in result["history"]]
    assert sizes[0] == sizes[1] != sizes[2] != sizes[3]


def test_tables_start_with_the_variance_of_tt_pytorch() -> None:
    torch.manual_seed(0)
    table = SST.network("tt-3").embedding
    assert float(table.dense().detach().var()) == pytest.approx(2 / (18_000 + 256), rel=0.2)
