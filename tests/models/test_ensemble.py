"""Ensembles: what is averaged, how it is counted, and one file for all members."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from kit import lowrank
from torch import Tensor, nn

import tnmars
from tnmars.errors import TnmarsError

X = torch.randn(7, 6, dtype=torch.float64)


def members(count: int = 3) -> list[nn.Module]:
    """Models with a compiled layer, all different."""
    return [nn.Sequential(lowrank(), nn.ReLU(), nn.Linear(5, 4, dtype=torch.float64)) for _ in range(count)]


def test_probabilities_are_averaged() -> None:
    models = members()
    found = tnmars.ensemble(models)(X)
    expected = torch.stack([model(X).softmax(-1) for model in models]).mean(0)
    torch.testing.assert_close(found.exp(), expected)
    torch.testing.assert_close(found.softmax(-1), expected)
    labels = torch.arange(7) % 4
    torch.testing.assert_close(F.cross_entropy(found, labels), F.nll_loss(expected.log(), labels))


def test_outputs_are_averaged() -> None:
    models = members()
    found = tnmars.ensemble(models, average="outputs")(X)
    torch.testing.assert_close(found, torch.stack([model(X) for model in models]).mean(0))


def test_classes_may_be_on_another_axis() -> None:
    models = [nn.Conv2d(3, 5, 1), nn.Conv2d(3, 5, 1)]
    x = torch.randn(2, 3, 4, 4)
    expected = torch.stack([model(x).softmax(1) for model in models]).mean(0)
    torch.testing.assert_close(tnmars.ensemble(models, dim=1)(x).exp(), expected)


def test_extreme_logits_stay_finite() -> None:
    class Given(nn.Module):
        def __init__(self, *logits: float):
            super().__init__()
            self.register_buffer("logits", torch.tensor(logits))

        def forward(self, x: Tensor) -> Tensor:
            return self.logits.expand(len(x), -1)

    found = tnmars.ensemble([Given(1e4, 0.0), Given(0.0, 1e4)])(torch.ones(1))
    torch.testing.assert_close(found.exp(), torch.tensor([[0.5, 0.5]]))


def test_objects_with_logits_are_understood() -> None:
    class Wrapped(nn.Module):
        def forward(self, x: Tensor) -> SimpleNamespace:
            return SimpleNamespace(loss=x.sum(), logits=x)

    torch.testing.assert_close(tnmars.ensemble([Wrapped(), Wrapped()])(X), X.log_softmax(-1))


def test_size_counts_shared_parameters_once() -> None:
    first, second = members(2)
    second[2] = first[2]
    both = tnmars.ensemble([first, second])
    found = tnmars.summary(both)
    assert [layer.name for layer in found.layers] == ["members.0.0", "members.1.0"]
    total = found.count.cores + found.other
    assert total == sum(value.numel() for value in both.parameters()) == 2 * (44 + 5) + 24
    assert f"{total:,} parameters" in repr(both)


def test_one_file_holds_all_members(tmp_path: Path) -> None:
    models = members()
    models[2][2] = models[0][2]
    models[1][0] = tnmars.prune(models[1][0], keep={"": {"r": (0, 2)}})
    both = tnmars.ensemble(models)
    tnmars.save(both, tmp_path / "all.safetensors")
    fresh = [nn.Sequential(nn.Linear(6, 5).double(), nn.ReLU(), nn.Linear(5, 4).double()) for _ in range(3)]
    loaded = tnmars.load_into(tnmars.ensemble(fresh), tmp_path / "all.safetensors")
    torch.testing.assert_close(loaded(X), both(X), rtol=1e-10, atol=1e-12)
    assert loaded.members[1][0].graph.bonds["r"].size == 2
    size = sum(value.numel() * 8 for value in both.parameters())
    headers = (tmp_path / "all.safetensors").stat().st_size - size
    assert 0 < headers < 200_000


def test_members_train_and_are_copied() -> None:
    both = copy.deepcopy(tnmars.ensemble(members(2)))
    F.cross_entropy(both(X), torch.arange(7) % 4).backward()
    assert all(value.grad is not None and value.grad.abs().sum() > 0 for value in both.parameters())


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TnmarsError, match="average is 'mean', but must be 'probabilities' or 'outputs'"):
        tnmars.ensemble(members(), average="mean")
    with pytest.raises(TnmarsError, match="needs at least one model"):
        tnmars.ensemble([])
    with pytest.raises(TnmarsError, match="Give a list"):
        tnmars.ensemble(nn.Linear(2, 2))
    with pytest.raises(TnmarsError, match="model 1 of the ensemble is of type int"):
        tnmars.ensemble([nn.Linear(2, 2), 3])
    with pytest.raises(TnmarsError, match="model 0 of the ensemble returns 3 tensors"):
        tnmars.ensemble([nn.LSTM(6, 2).double()])(X)
