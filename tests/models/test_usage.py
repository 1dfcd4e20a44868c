"""What a pass of a model costs, against sizes counted by hand; and costs of single weights."""

from __future__ import annotations

import pytest
import torch
from compress_kit import cnn, images, mlp, untouched
from torch import Tensor, nn

import tnmars
from tnmars.decomposing.tensors import with_sizes
from tnmars.models import costs
from tnmars.models.costs import Setting, along
from tnmars.models.curves import choices
from tnmars.models.rules import candidates
from tnmars.models.sites import sites
from tnmars.models.statistics import Metric
from tnmars.models.usage import Use, one_pass
from tnmars.plan.cost import CostModel


def batch(x: Tensor) -> tuple[tuple[Tensor], dict[str, Tensor]]:
    return (x,), {}


def test_rows_images_calls_and_macs() -> None:
    model = cnn().train()
    x = images(10)
    with untouched(model):
        found = one_pass(model, batch(x), ["0", "3", "8"])
    first, second, last = (found.uses[name] for name in ("0", "3", "8"))
    assert (first.rows, first.image, first.calls, first.macs) == (10, 8, 1, 10 * 64 * 12 * 27)
    assert (second.rows, second.image, second.calls, second.macs) == (10, 8, 1, 10 * 16 * 16 * 108)
    assert (last.rows, last.image, last.calls, last.macs) == (10, 1, 1, 10 * 256 * 10)
    assert first.numbers == 10 * 64 * (3 + 12)
    assert found.macs == first.macs + second.macs + last.macs
    assert found.ms is None


def test_times_are_of_the_whole_and_of_each_layer() -> None:
    model = mlp(200, 400, 400, 10)
    found = one_pass(model, batch(torch.randn(300, 200)), ["0", "2", "4"], is_timed=True)
    times = [use.ms for use in found.uses.values()]
    assert all(value > 0 for value in times)
    assert times[1] > times[0] > times[2]  # 160,000, 80,000 and 4,000 weights
    assert sum(times) < 3 * found.ms


def test_torchs_fast_path_hides_nothing() -> None:
    """It calls no layers, and torch does not count its operations. The switch is left as it was."""
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    assert torch.backends.mha.get_fastpath_enabled()
    found = one_pass(model, batch(torch.randn(4, 5, 16)), ["linear1", "linear2"])
    assert torch.backends.mha.get_fastpath_enabled()
    assert found.uses["linear1"].macs == 4 * 5 * 16 * 32
    assert found.macs >= 20 * (16 * 48 + 16 * 16 + 2 * 16 * 32)


def test_a_layer_that_is_not_reached_has_no_calls() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    found = one_pass(Half(), batch(torch.randn(5, 3)), ["used", "unused"])
    assert found.uses["unused"] == Use()
    assert found.uses["used"].calls == 1


# --- costs of a weight -----------------------------------------------------------------------------------------------


def setting(module: nn.Module, *uses: Use, **options: object) -> tuple[Setting, tnmars.Graph]:
    found = list(sites(nn.Sequential(module))[0].values())
    (candidate,) = candidates("lowrank", found[0].layer, "0")
    return Setting(found, uses, CostModel(), **options), with_sizes(candidate.graph, {"r": 4})


def test_costs_of_a_linear_layer() -> None:
    own, graph = setting(nn.Linear(60, 40), Use(rows=100, calls=1, macs=100 * 2400, numbers=10_000))
    dense, small = own.dense(graph), own.decomposed(graph)
    assert (dense.parameters, dense.macs) == (2400, 240_000)
    assert (small.parameters, small.macs) == (400, 40_000)
    assert small.ms <= dense.ms
    assert [small.of(unit, 8) for unit in ("parameters", "bytes", "macs")] == [400.0, 3200.0, 40_000.0]


def test_all_calls_count() -> None:
    one, graph = setting(nn.Linear(60, 40), Use(rows=100, calls=1, macs=240_000))
    three, _ = setting(nn.Linear(60, 40), Use(rows=100, calls=3, macs=720_000))
    assert three.decomposed(graph).macs == 3 * one.decomposed(graph).macs
    assert three.decomposed(graph).ms == pytest.approx(3 * one.decomposed(graph).ms)
    assert three.dense(graph).ms == pytest.approx(3 * one.dense(graph).ms)


def test_a_weight_that_is_rebuilt_saves_parameters_only() -> None:
    own, graph = setting(nn.RNN(60, 40), Use(), Use())
    assert own.dense(graph).macs == own.decomposed(graph).macs == 0
    assert own.decomposed(graph).parameters == 400


def test_a_dense_layer_in_the_model_is_never_slower_than_itself_decomposed_and_folded() -> None:
    """In the model it takes longer than alone; a decomposition whose fast form is the dense weight does too."""
    use = Use(rows=512, calls=1, macs=512 * 256 * 1024, numbers=512 * 1280, ms=5.0)
    own, _ = setting(nn.Linear(256, 1024), use)
    wide = tnmars.families.of_layer("lowrank", "linear", 256, 1024, rank=204)
    assert own.dense(wide).ms == 5.0
    assert own.decomposed(wide).ms == pytest.approx(5.0, rel=0.01)
    assert own.decomposed(tnmars.families.of_layer("lowrank", "linear", 256, 1024, rank=8)).ms < 4.5


@pytest.mark.parametrize("unit", ["parameters", "bytes", "macs"])
def test_costs_along_a_path(unit: str) -> None:
    layer = nn.Linear(60, 40)
    own, _ = setting(layer, Use(rows=100, calls=1, macs=240_000))
    (candidate,) = candidates("lowrank", own.sites[0].layer, "0")
    path = choices(candidate, layer.weight.detach(), Metric())
    assert len(path) > costs.SAMPLES
    found = along(path, own, unit, 4)
    exact = [own.decomposed(choice.graph).of(unit, 4) for choice in path]
    assert found == pytest.approx(exact, rel=0.25)  # where the form changes, there is a step
    assert (found[0], found[-1]) == (exact[0], exact[-1])
