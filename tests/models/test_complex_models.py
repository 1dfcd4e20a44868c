"""Complex layers within models: shrunk, adapted, rebuilt, made dense again, suggested; calibration is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from complex_oracle import error
from shrink_kit import HASTY
from torch import Tensor, nn

import tnmars

C = torch.complex64


class Halves(nn.Module):
    """ReLU of the real and the imaginary part."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.complex(torch.relu(x.real), torch.relu(x.imag))


class Size(nn.Module):
    """The absolute value, which is real."""

    def forward(self, x: Tensor) -> Tensor:
        return x.abs()


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 24, dtype=C), Halves(), nn.Linear(24, 12, dtype=C), Size(), nn.Linear(12, 4))


def compressed() -> nn.Sequential:
    made = model()
    made[0] = tnmars.from_dense(made[0], "tt", ranks=4)
    made[2] = tnmars.from_dense(made[2], "tt", ranks=4)
    return made


X = torch.randn(64, 16, dtype=C, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (64,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("saliency", ["norm", "gradient"])
def test_ranks_shrink_while_it_trains(saliency: str) -> None:
    def evaluate(model: nn.Module) -> tuple[float, int]:
        return float((model(X).argmax(-1) == Y).float().mean()), 64

    given = {"train": [(X, Y)], "loss": nn.CrossEntropyLoss(), "evaluate": evaluate, "progress": False}
    curve = tnmars.shrink(compressed(), saliency=saliency, settings=HASTY, budget=250, **given)
    sizes = [point.parameters for point in curve.points]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= 250 < sizes[0]
    last = curve.points[-1].model
    assert last[0].dtype is C
    assert evaluate(last)[0] == pytest.approx(curve.points[-1].score)


def test_dense_layers_again_compute_the_same() -> None:
    made = compressed().eval()
    before = made(X)
    tnmars.to_dense_(made)
    assert type(made[0]) is nn.Linear
    assert made[0].weight.dtype is C
    assert error(made(X), before) < 1e-5


def test_an_adapter_starts_at_nothing_and_merges() -> None:
    made = model().eval()
    before = made(X)
    tnmars.adapter_(made, {"0": "lowrank"}, rank=2)
    assert error(made(X), before) == 0.0
    loss = nn.functional.cross_entropy(made(X), Y)
    loss.backward()
    assert any(value.grad is not None and value.is_complex() for value in made.parameters())


def test_a_parameter_is_rebuilt() -> None:
    made = model().eval()
    before = made(X)
    graph = tnmars.families.lowrank("linear", inputs=(16,), outputs=(24,), rank=16)
    tnmars.parametrize_(made[0], "weight", graph)
    assert made[0].weight.dtype is C
    assert error(made(X), before) < 1e-4


def test_suggestions_are_sorted_by_the_error_of_singular_values() -> None:
    weight = torch.randn(12, 18, dtype=torch.complex128, generator=torch.Generator().manual_seed(4))
    found = tnmars.suggest(weight, parameters=90)
    singular = np.linalg.svd(weight.numpy(), compute_uv=False)
    wanted = float(np.sqrt((singular[3:] ** 2).sum() / (singular**2).sum()))
    (lowrank,) = [entry for entry in found.entries if "lowrank" in entry.family.split(", ")]
    assert lowrank.error == pytest.approx(wanted, rel=1e-6)


def test_calibration_data_are_refused_by_name() -> None:
    made = model()
    with pytest.raises(tnmars.TnmarsError, match=r"type torch.complex64, but a metric is for real ones\."):
        tnmars.compress_(made, {"*": "lowrank"}, budget="1.5x", data=[X])
    assert type(made[0]) is nn.Linear


def test_torchs_own_chain_has_the_conjugates() -> None:
    graph = tnmars.network("linear", "A[i,r] B*[r,o]", inputs={"i": 16}, outputs={"o": 24}, bonds=3)
    made = nn.Sequential(tnmars.compile(graph, dtype=C, warn=False)).eval()
    before = made(X)
    tnmars.as_torch_(made)
    assert not any(isinstance(module, tnmars.TNModule) for module in made.modules())
    assert error(made(X), before) < 1e-5


@pytest.mark.parametrize("made", [tnmars.LSTM, tnmars.GRU])
def test_recurrent_layers_are_refused_by_name(made: type) -> None:
    with pytest.raises(tnmars.TnmarsError, match=rf"torch's {made.__name__} has no complex form"):
        made(8, 8, family="lowrank", rank=2, dtype=C)
