"""SST-5 and IMDB: tables have the paper's counts, and every variant runs for a few steps on made-up texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tnmars.experiments import readers, sentiment
from tnmars.experiments.loop import RunOptions
from tnmars.experiments.sentiment import IMDB, SST, Corpus
from tnmars.graph import Graph
from tnmars.graph.counts import count


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
