"""`suggest`: every family at one size, ordered by errors that are measured here again, without its code."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from strategies import THOROUGH
from torch import nn

import tnmars
from tnmars.cli import cli
from tnmars.families import FAMILIES


def listed(found: tnmars.Suggestions) -> set[str]:
    return {name for entry in found.entries for name in entry.family.split(", ")} | {
        name for names in found.refused for name in names.split(", ")
    }


LAYERS = [(nn.Linear(16, 16), 150), (nn.Conv2d(4, 6, 3), 120), (nn.Conv1d(8, 6, 3), 90), (nn.Embedding(60, 16), 400)]


@pytest.mark.parametrize(
    ("layer", "parameters"),
    LAYERS if THOROUGH else LAYERS[:1],
    ids=lambda given: type(given).__name__ if isinstance(given, nn.Module) else str(given),
)
def test_every_family_is_there_with_its_true_error(layer: nn.Module, parameters: int) -> None:
    found = tnmars.suggest(layer, parameters)
    assert listed(found) == set(FAMILIES)
    errors = [entry.error for entry in found.entries]
    assert errors == sorted(errors)
    weight = layer.weight.detach()
    for entry in found.entries:
        made = found.build(entry.family.split(", ")[0])
        assert sum(core.numel() for core in made.cores.parameters()) == entry.parameters <= parameters
        again = float((made.dense().detach() - weight).norm() / weight.norm())
        assert again == pytest.approx(entry.error, abs=1e-5)


def test_two_factors_lose_what_singular_values_say() -> None:
    layer = nn.Linear(24, 16)
    values = torch.linalg.svdvals(layer.weight.detach().double())
    expected = float(values[5:].norm() / values.norm())
    (entry,) = tnmars.suggest(layer, 5 * (24 + 16), families=["lowrank"]).entries
    assert (entry.ranks, entry.error) == ({"r": 5}, pytest.approx(expected, abs=1e-6))


@pytest.mark.parametrize("family", ["tt", "tr", "btt", "tucker2"])
def test_a_planted_family_is_found(family: str) -> None:
    """A weight that one family holds exactly: that one is first, with no error to speak of."""
    kernel = {"kernel": (3, 3)} if family == "tucker2" else {}
    kind = "conv" if kernel else "linear"
    rank = 2 if family in ("tr", "btt") else 4
    graph = tnmars.families.of_layer(family, kind, 16, 16, rank=rank, **kernel)
    planted = tnmars.compile(graph, dtype=torch.float64)
    size = sum(core.numel() for core in planted.cores.parameters())
    others = ["lowrank", "tt", "tt_naive", "tr", "tucker2", "btt"]
    found = tnmars.suggest(planted.dense().detach(), size, kind=kind, families=others)
    assert family in found.best.family.split(", ")
    assert found.best.error < 1e-3 < 0.05 < found.entries[-1].error


def test_errors_are_those_of_the_outputs_if_there_are_inputs() -> None:
    """Inputs that see one half of the weight: a low rank is enough for them, though not for the weight."""
    layer = nn.Linear(24, 16)
    x = torch.randn(200, 24) * torch.cat([torch.ones(4), torch.zeros(20)])
    found = tnmars.suggest(layer, 5 * 40, inputs=x, families=["lowrank", "tt"])
    for entry in found.entries:
        made = found.build(entry.family)
        expected = float(((made(x) - layer(x)).norm() / (x @ layer.weight.T).norm()).detach())
        assert entry.error == pytest.approx(expected, abs=1e-4)
    blind = tnmars.suggest(layer, 5 * 40, families=["lowrank"])
    assert found.best.error < 0.01 < 0.2 < blind.best.error


def test_the_layer_is_left_as_it_is() -> None:
    layer = nn.Linear(24, 16).eval()
    before = layer.weight.clone()
    made = tnmars.suggest(layer, 200, families=["lowrank"]).build()
    assert torch.equal(layer.weight, before)
    assert not made.training
    assert torch.equal(made.bias, layer.bias)
    assert made.bias is not layer.bias


def test_mistakes() -> None:
    with pytest.raises(tnmars.TnmarsError, match="family 'lowrnk' is not known"):
        tnmars.suggest(nn.Linear(8, 8), 30, families=["lowrnk"])
    with pytest.raises(tnmars.TnmarsError, match="no family fits 3 parameters"):
        tnmars.suggest(nn.Linear(8, 8), 3)
    with pytest.raises(tnmars.TnmarsError, match="ReLU cannot be decomposed"):
        tnmars.suggest(nn.ReLU(), 30)
    with pytest.raises(tnmars.TnmarsError, match="a weight of 1 axes cannot be that of kind 'conv'"):
        tnmars.suggest(torch.ones(3), 30)
    with pytest.raises(tnmars.TnmarsError, match="parameters is 0"):
        tnmars.suggest(nn.Linear(8, 8), 0)
    with pytest.raises(tnmars.TnmarsError, match="'tt' is not among the suggestions"):
        tnmars.suggest(nn.Linear(8, 8), 60, families=["lowrank"]).build("tt")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weight = torch.randn(16, 24)
    np.save("weight.npy", weight.numpy())
    np.save("inputs.npy", torch.randn(50, 24).numpy())
    Path("net.py").write_text("from torch import nn\ndef build():\n    return nn.Sequential(nn.Linear(24, 16))\n")
    some = ["--parameters", "200", "--family", "lowrank", "--family", "tt", "-q"]
    done = CliRunner().invoke(cli, ["suggest", "weight.npy", *some, "--json"])
    expected = tnmars.suggest(weight, 200, families=["lowrank", "tt"])
    assert json.loads(done.output)["suggestions"] == expected.as_json()["suggestions"]
    done = CliRunner().invoke(cli, ["suggest", "weight.npy", *some, "--inputs", "inputs.npy"])
    assert "errors are of the outputs for the given inputs" in done.output
    done = CliRunner().invoke(cli, ["suggest", "net:build", "--key", "0", *some])
    assert done.output.startswith("family"), done.output
    done = CliRunner().invoke(cli, ["suggest", "net:build", "--key", "fc", *some])
    assert "the model has no layer 'fc'" in str(done.exception)


def test_grouped_convolutions_have_families_too() -> None:
    torch.manual_seed(0)
    found = tnmars.suggest(nn.Conv2d(8, 8, 3, groups=4, bias=False), 100, families=["lowrank", "cp"])
    assert len(found.entries) == 2 and all(entry.parameters <= 100 and entry.error < 1.0 for entry in found.entries)


@pytest.mark.parametrize("with_inputs", [False, True])
@pytest.mark.parametrize(
    "layer", [nn.Conv2d(8, 8, 3, groups=4), nn.ConvTranspose2d(8, 4, 3, stride=2, groups=2)], ids=str
)
def test_errors_of_grouped_layers_are_recomputed_from_the_dense_weight(layer: nn.Module, with_inputs: bool) -> None:
    torch.manual_seed(0)
    layer = copy.deepcopy(layer).double()
    x = torch.randn(9, 8, 5, 5, dtype=torch.float64) * torch.linspace(0.1, 2.0, 8, dtype=torch.float64)[:, None, None]
    found = tnmars.suggest(layer, 100, families=["lowrank", "cp", "tt"], inputs=x if with_inputs else None)
    assert len(found.entries) == 3
    for entry in found.entries:
        other = copy.deepcopy(layer)
        with torch.no_grad():
            other.weight.copy_(found.build(entry.family).dense())
            if not with_inputs:
                expected = (other.weight - layer.weight).norm() / layer.weight.norm()
            else:
                other.bias.zero_()
                whole = layer(x) - layer.bias[:, None, None]
                expected = (other(x) - whole).norm() / whole.norm()
        assert entry.error == pytest.approx(float(expected), rel=1e-6)


def test_more_parameters_than_the_dense_weight_has() -> None:
    with pytest.raises(
        tnmars.TnmarsError, match="parameters is 65, but the dense weight has 64: it is exact and smaller"
    ):
        tnmars.suggest(nn.Linear(8, 8), 65)


@pytest.mark.parametrize(
    ("layer", "x", "text"),
    [
        (nn.Linear(8, 4), torch.randn(5, 7), r"shape \(5, 7\) and dtype torch.float32, which Linear\("),
        (nn.Linear(8, 4), torch.ones(5, 8, dtype=torch.int64), "dtype torch.int64, which Linear"),
        (nn.Conv2d(2, 4, 3), torch.randn(5, 8), r"which Conv2d\("),
        (nn.Embedding(9, 4), torch.tensor([[9]]), r"which Embedding\(9, 4\) does not take"),
        (nn.Embedding(9, 4), torch.randn(3), r"which Embedding\(9, 4\) does not take"),
    ],
)
def test_inputs_that_the_layer_does_not_take(layer: nn.Module, x: torch.Tensor, text: str) -> None:
    with pytest.raises(tnmars.TnmarsError, match=text):
        tnmars.suggest(layer, 20, inputs=x, families=["lowrank"])
