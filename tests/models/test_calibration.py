"""Calibration data, distances, and statistics of normalization."""

from __future__ import annotations

import pytest
import torch
from compress_kit import cnn, images, untouched
from torch import Tensor, nn

from tnmars.errors import TnmarsError
from tnmars.models.calibration import (
    EVERY,
    MOST,
    Calibration,
    answers,
    as_is,
    check_room,
    distance,
    norms,
    put_,
    reestimated,
)


def test_batches_are_seen_once_and_memory_is_bounded() -> None:
    given = [torch.full((3, 1), float(at)) for at in range(200)]
    found = Calibration(nn.Identity(), iter(given))
    seen = [float(args[0][0]) for args, _ in found.stream()]
    held = [float(args[0][0]) for args, _ in found.held_out]
    assert sorted([*seen, *held]) == [float(at) for at in range(200)]
    assert held == [float(EVERY * at + EVERY - 1) for at in range(MOST)]
    assert len(found.kept) == MOST


class Masked(nn.Module):
    """Takes an input and a mask of one length, and something else."""

    def forward(self, x: Tensor, mask: Tensor, scale: Tensor) -> Tensor:
        return (x * mask).outer(scale)


class Square(nn.Module):
    """Takes a mask between all pairs of positions: it cannot be cut with the batch."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return mask @ x.transpose(0, 1)


def test_a_batch_that_cannot_be_split_is_used_as_it_is() -> None:
    x, mask = torch.randn(10, 10, 3), torch.ones(10, 10)
    found = Calibration(Square(), [{"x": x, "mask": mask}])
    ((_, seen),) = list(found.stream())
    assert seen["x"] is x and seen["mask"] is mask and found.held_out == []


def test_all_inputs_of_a_batch_are_split_the_same_way() -> None:
    x, mask, scale = torch.arange(20.0), torch.arange(20.0) + 100, torch.ones(3)
    found = Calibration(Masked(), [((x, scale), None)], lambda given: {"x": x, "mask": mask, "scale": scale})
    ((_, seen),) = list(found.stream())
    ((_, held),) = found.held_out
    assert torch.equal(torch.cat([seen["x"], held["x"]]), x)
    assert torch.equal(seen["mask"], seen["x"] + 100)
    assert torch.equal(held["mask"], held["x"] + 100)
    assert seen["scale"] is held["scale"] is scale
    assert len(held["x"]) == 4


def test_the_largest_batch_is_what_costs_are_counted_for() -> None:
    found = Calibration(nn.Identity(), [torch.ones(64, 1)] * 3)
    list(found.stream())
    assert [len(args[0]) for args, _ in found.kept] == [52, 64, 64]
    assert len(found.largest[0][0]) == 64


def test_too_few_samples() -> None:
    found = Calibration(nn.Identity(), [torch.ones(9, 1)])
    list(found.stream())
    with pytest.raises(TnmarsError, match="data has too few samples to hold any out"):
        check_room(found.held_out)


def test_answers_are_of_evaluation_mode() -> None:
    model = cnn().train()
    model[1].eval()
    x = images(4)
    with untouched(model):
        ((found,),) = answers(model, [((x,), {})])
    assert torch.equal(found, model.eval()(x))


def test_flags_come_back_after_an_error() -> None:
    model = cnn().train()
    with untouched(model), pytest.raises(KeyError), as_is(model):
        model.eval()
        raise KeyError


def test_distances_are_relative_and_squared() -> None:
    one, other = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0])
    assert distance([[other, other]], [[one, one]]) == pytest.approx(2 / 50)
    assert distance([[one]], [[torch.zeros(2)]]) == 0.0


def test_statistics_are_those_of_the_data() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=0.5)).train()
    parts = [torch.randn(50, 4) + 3 for _ in range(4)]
    with untouched(model):
        found = reestimated(model, [((x,), {}) for x in parts])
    assert set(found) == {"0.running_mean", "0.running_var", "2.running_mean", "2.running_var"}
    x = torch.stack(parts)
    assert torch.allclose(found["0.running_mean"], x.mean((0, 1)), atol=1e-5)
    assert torch.allclose(found["0.running_var"], x.var(1).mean(0), atol=1e-5)
    put_(model, found)
    assert torch.equal(model[2].running_var, found["2.running_var"])


def test_single_samples_give_no_statistics() -> None:
    """Torch refuses them."""
    model = nn.Sequential(nn.BatchNorm1d(4))
    assert reestimated(model, [((torch.randn(1, 4),), {})]) == {}
    assert set(reestimated(model, [((torch.randn(count, 4),), {}) for count in (1, 5)])) == {
        "0.running_mean",
        "0.running_var",
    }


def test_layers_without_running_statistics_are_left_out() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.LayerNorm(4), nn.BatchNorm2d(4))
    assert list(norms(model)) == ["2"]
