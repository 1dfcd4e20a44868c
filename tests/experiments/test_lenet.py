"""LeNet-5 has the paper's counts, and its layers are the networks that they should be."""

from __future__ import annotations

import pytest
import torch

import tnmars
from tnmars.experiments.lenet import lenet, normalized
from tnmars.layer.module import layers
from tnmars.select import Mars


@pytest.mark.parametrize(("family", "size", "cut"), [("dense", 431_080, 0), ("tucker", 147_480, 2), ("ring", 0, 3)])
def test_the_network_has_the_counts_of_the_paper(family: str, size: int, cut: int) -> None:
    model = lenet(family)
    found = [layer.graph for _, layer in layers(model)]
    other = sum(value.numel() for value in model.parameters()) - sum(tnmars.count(graph).cores for graph in found)
    assert other + sum(tnmars.count(graph).dense for graph in found) == 431_080
    assert len(found) == cut
    assert not size or sum(value.numel() for value in model.parameters()) == size
    assert model(torch.randn(2, 784)).shape == (2, 10)


def test_pixels_are_normalized() -> None:
    assert normalized(torch.tensor([0.1307, 0.4388])).tolist() == pytest.approx([0.0, 1.0], abs=1e-6)


def test_factors_with_gates_start_as_in_the_paper() -> None:
    """Each is uniform up to 1 / sqrt(fan_in), as if it were a layer of its own."""
    torch.manual_seed(0)
    made = dict(layers(lenet("tucker", selector=Mars())))
    fans = {("4", "U1"): 20, ("4", "G"): 20 * 25, ("4", "U2"): 20, ("8", "A"): 800, ("8", "B"): 100}
    for (name, core), fan in fans.items():
        values = made[name].cores.get(core)
        assert 0.95 * fan**-0.5 < float(values.abs().max()) <= fan**-0.5, core
        assert float(values.std()) == pytest.approx((3 * fan) ** -0.5, rel=0.1)
    assert 0.8 * 800**-0.5 < float(made["8"].bias.abs().max()) <= 800**-0.5
