"""ResNet-110 has the paper's counts; ResNets begin with what they are decomposed from, and every variant runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tnmars
from tnmars.experiments import resnet110
from tnmars.experiments.cifar import IMAGENET, Cifar, shifted
from tnmars.experiments.loop import RunOptions
from tnmars.experiments.problems import pictures
from tnmars.experiments.resnet import ResNet, equal_convolutions, replace_
from tnmars.layer.module import layers


def test_resnet_110_has_the_counts_of_the_paper() -> None:
    assert sum(value.numel() for value in resnet110.resnet110().parameters()) == 1_730_714
    found = resnet110.counted()
    assert {form: f"{ratio:.4f}" for form, ratio in found.items()} == {"naive": "2.6920", "proper": "2.3054"}


@pytest.mark.parametrize("form", ["naive", "proper"])
def test_decomposed_convolutions_are_close_at_high_rank(form: str) -> None:
    torch.manual_seed(0)
    model = ResNet(2).eval()
    x = torch.randn(2, 3, 32, 32)
    before, convolutions = model(x), len(list(equal_convolutions(model)))
    assert convolutions == 6
    replace_(model, form, rank=96, batch=2)
    assert len(list(layers(model))) == 6
    assert not list(equal_convolutions(model))
    error = (model.eval()(x) - before).norm() / before.norm()
    assert error < 0.2


def test_gates_leave_the_cores_as_they_are() -> None:
    torch.manual_seed(0)
    first, second = ResNet(1), ResNet(1)
    second.load_state_dict(first.state_dict())
    plain = replace_(first, "naive", rank=3)
    gated = replace_(second, "naive", rank=3, selector=tnmars.Mars(alpha=3.0, spread=0.0))
    for (_, one), (_, other) in zip(layers(plain), layers(gated), strict=True):
        assert other.masks is not None
        torch.testing.assert_close(one.dense(), other.eval().dense())


def test_images_are_shifted() -> None:
    images = torch.randint(1, 256, (64, 3, 32, 32)).byte()
    found = shifted(images)
    assert found.shape == images.shape
    rows = (found[:, 0] == 0).all(2).sum(1)
    assert int(rows.max()) == 4 and int(rows.min()) == 0
    same = [at for at in range(64) if torch.equal(found[at, :, 4:-4, 4:-4], images[at, :, 4:-4, 4:-4])]
    assert len(same) < 8


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randint(256, (48, 3, 32, 32)).byte(), torch.arange(48) % 10
    monkeypatch.setattr(resnet110, "cifar", lambda folder: Cifar(x, y, x[:10], y[:10]))
    monkeypatch.setattr(resnet110, "pretrained", lambda depth, data: ResNet(1).eval())
    monkeypatch.setattr(resnet110, "BATCH", 8)


def run(variant: str, folder: Path) -> dict[str, Any]:
    (result,) = resnet110.run(variant, [0], folder, RunOptions(epochs=1))
    return result


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(
    "variant", ["pretrained", "tt-naive", "mars-proper", "ard-naive", "resnet20", "resnet20-proper"]
)
def test_a_variant_runs(variant: str, tmp_path: Path) -> None:
    result = run(variant, tmp_path)
    assert 0 <= result["accuracy"] <= 100
    assert (result["compression"] > 1) == (variant not in ("pretrained", "resnet20"))


@pytest.mark.usefixtures("made_up")
@pytest.mark.filterwarnings("ignore::tnmars.ShrinkWarning")
def test_a_path_goes_to_the_compression_of_its_layers(tmp_path: Path) -> None:
    first, second = run("shrink-proper", tmp_path)["points"]
    assert (first["budget"], second["budget"]) == ("5x layers", "7x layers")
    assert first["layers_compression"] >= 5 > first["compression"] and second["layers_compression"] >= 7


def test_published_networks_get_the_statistics_that_they_were_trained_with() -> None:
    """A white pixel as the data's README has it, through every way to a network."""
    white = torch.full((2, 3, 32, 32), 255).byte()
    expected = [(1 - mean) / std for mean, std in zip((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), strict=True)]
    seen: list[list[float]] = []

    class Seeing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x[0, :, 16, 16].tolist())
            return torch.zeros(len(x), 10)

    data = Cifar(white, torch.zeros(2).long(), white, torch.zeros(2).long())
    task = resnet110.Photos(Seeing(), data)
    task.data_loss(torch.tensor([0]))
    task.judge()
    learnable = pictures(data, 1, channels=IMAGENET)
    learnable.test(Seeing())
    learnable.evaluate(Seeing())
    seen.append(next(iter(learnable.train))[0][0, :, 16, 16].tolist())
    assert len(seen) == 5
    for found in seen:
        assert found == pytest.approx(expected)
