"""Reports of a dense model before and a compressed one after: sizes, layers and the table of the plan."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tnmars
from tnmars.reporting import Report, page
from tnmars.reporting.dense_before import one_core


class Tagger(nn.Module):
    """A model with a table, a recurrent layer and a tied output."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(200, 24)
        self.lstm = nn.LSTM(24, 24, batch_first=True)
        self.norm = nn.LayerNorm(24)
        self.out = nn.Linear(24, 200)
        self.out.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.out(self.norm(self.lstm(self.words(ids))[0]))
        return found


def convolutions() -> nn.Module:
    first = nn.Conv2d(3, 24, 3, padding=1)
    return nn.Sequential(first, nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 32, 3, stride=2), nn.Flatten())


def compressed(model: nn.Module, data: Tensor, path: Path, **options: object) -> tuple[nn.Module, nn.Module, Report]:
    dense = copy.deepcopy(model)
    plan = tnmars.compress_(model, budget="2x", data=data)
    report = tnmars.report(dense, model, path / "report.html", measure=False, plan=plan)
    return dense, model, report


def count(model: nn.Module) -> int:
    return sum(value.numel() for value in model.parameters())


@pytest.mark.parametrize("kind", ["tagger", "convolutions"])
def test_sizes_are_those_of_both_models(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model: nn.Module = Tagger() if kind == "tagger" else convolutions()
    data = torch.randint(200, (256, 10)) if kind == "tagger" else torch.randn(128, 3, 12, 12)
    dense, small, report = compressed(model, data, tmp_path)
    assert report.as_json()["parameters"] == {"before": count(dense), "after": count(small)}
    assert report.plan is not None
    assert {layer.name for layer in report.layers} == {name for name, _ in tnmars.layer.module.layers(small)}
    for layer in report.layers:
        assert layer.before.count.cores == layer.after.count.dense
        assert layer.after.count.cores < layer.before.count.cores


def test_the_page_has_the_table_of_the_plan(tmp_path: Path) -> None:
    torch.manual_seed(0)
    dense, small, report = compressed(convolutions(), torch.randn(128, 3, 12, 12), tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert '<section id="plan"' in text
    assert "best left dense" in text or "lowrank" in text
    assert "Budget: 2x parameters, for the whole model." in text
    assert report.as_json()["plan"]["budget"] == "2x parameters"
    assert '<section id="plan"' not in page(tnmars.reporting.collect(dense, small, measure=False))


def test_files_can_be_compared_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    dense, small, report = compressed(convolutions(), torch.randn(128, 3, 12, 12), tmp_path)
    for name, model in (("dense", dense), ("small", small)):
        tnmars.save(model, tmp_path / f"{name}.safetensors")
    paths = [tmp_path / f"{name}.safetensors" for name in ("dense", "small")]
    again = tnmars.report(*paths, tmp_path / "again.html", measure=False)
    assert again.as_json()["parameters"] == report.as_json()["parameters"]
    assert [layer.name for layer in again.layers] == [layer.name for layer in report.layers]


def test_a_layer_of_another_shape_is_not_compared(tmp_path: Path) -> None:
    graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=2)
    small = nn.Sequential(tnmars.compile(graph))
    with pytest.raises(tnmars.TnmarsError, match="no compiled layer of the same name"):
        tnmars.report(nn.Sequential(nn.Linear(7, 5)), small, tmp_path / "r.html", measure=False)


def test_the_one_core_is_the_dense_weight() -> None:
    for graph in (
        tnmars.families.tt("linear", inputs=(2, 3), outputs=(5, 2), rank=2),
        tnmars.families.tucker2("conv", inputs=(4,), outputs=(6,), kernel=(3, 2), rank=2, options={"stride": 2}),
        tnmars.families.lowrank("embedding", lookup=(30,), outputs=(8,), rank=2, options={"padding_idx": 3}),
    ):
        single = one_core(graph)
        assert single.dense_shape == graph.dense_shape == single.shape(single.terms[0], single.terms[0].cores[0])
        assert (single.kind, dict(single.options)) == (graph.kind, dict(graph.options))
