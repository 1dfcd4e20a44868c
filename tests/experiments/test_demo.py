"""The demo recovers planted ranks, and its files can be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import tnmars
from tnmars import cli
from tnmars.experiments import demo, network_demo
from tnmars.fitting.room import parameters


@pytest.mark.long
def test_the_demo_finds_what_was_planted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`tests/scripts/demo_seeds.py` recovers tensors for many seeds."""
    assert cli.run(["demo", "--out", str(tmp_path), "--json"]) == 0
    out, err = capfd.readouterr()
    network, found = json.loads(out)
    sizes = [point["parameters"] for point in network["points"]]
    small = tnmars.load_into(network_demo.network(network_demo.START), tmp_path / "network.safetensors")
    kept = sum(value.numel() for value in small.parameters())
    assert kept in sizes and kept < 0.35 * sizes[0]
    x, y = network_demo.lesson(0)
    right = (small.eval()(x[-1000:]).argmax(-1) == y[-1000:]).double().mean().item()
    assert right > network["points"][0]["score"] + 0.05  # fewer ranks learn the planted ones better
    assert "<svg" in (tmp_path / "network.html").read_text(encoding="utf-8")
    assert small[0].graph == tnmars.load(tmp_path / "network.yaml")
    assert found["came_back"] and [bond["after"] for bond in found["ranks"].values()] == [3, 4, 2]
    assert "the planted ranks were recovered" in err
    pruned = tnmars.load(tmp_path / "tensor-train.yaml")
    layer = tnmars.load_into(tnmars.compile(pruned), tmp_path / "tensor-train.safetensors")
    assert layer().shape == (8, 8, 8, 8)
    page = (tmp_path / "tensor-train.html").read_text(encoding="utf-8")
    assert "<svg" in page and "Relative error" in page and "No metric was given" not in page


def test_what_counts_as_recovered() -> None:
    first, second = demo.planted()
    assert first.unique and not second.unique
    assert parameters(first.hidden) == 200 and parameters(second.hidden) == 228
    _, noise = demo.tensor(first.hidden, 0)
    assert 0.009 < noise < 0.011


def test_the_error_before_pruning_is_relative_to_the_data() -> None:
    layer = tnmars.compile(tnmars.families.cp("tensor", free=(3, 4), rank=2, name="x"))
    exact = layer.dense().detach().double()
    unit = exact / exact.square().mean().sqrt()
    with torch.no_grad():
        layer.cores.get("A1").div_(exact.square().mean().sqrt())
    assert demo.relative_error(layer, 7.0 * unit) < 1e-6
    other = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    root_mean_square = (other.numpy() ** 2).mean() ** 0.5
    target = ((unit.numpy() - other.numpy() / root_mean_square) ** 2).mean() ** 0.5
    assert demo.relative_error(layer, other) == pytest.approx(target, rel=1e-5)
