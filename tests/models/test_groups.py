"""Models with grouped and depthwise convolutions: every layer decomposed, compressed under a budget, and back."""

from __future__ import annotations

import copy
from pathlib import Path

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EXACT
from strategies import cases
from torch import Tensor, nn

import tnmars
from tnmars import Metric, decompose, families

FAMILIES = ("lowrank", "tt", "tt_naive", "tucker", "tucker2", "ht")


def inverted(inside: int, outside: int, ratio: int, stride: int) -> nn.Sequential:
    """A block of MobileNetV2."""
    wide = inside * ratio
    return nn.Sequential(
        nn.Conv2d(inside, wide, 1, bias=False),
        nn.BatchNorm2d(wide),
        nn.ReLU6(),
        nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
        nn.BatchNorm2d(wide),
        nn.ReLU6(),
        nn.Conv2d(wide, outside, 1, bias=False),
        nn.BatchNorm2d(outside),
    )


def aggregated(channels: int, groups: int) -> nn.Sequential:
    """A block of ResNeXt."""
    return nn.Sequential(
        nn.Conv2d(channels, channels, 1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1, groups=groups),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 1),
    )


def model() -> nn.Sequential:
    torch.manual_seed(0)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5))
    return nn.Sequential(inverted(4, 8, 6, 2), inverted(8, 16, 4, 1), aggregated(16, 4), head).eval()


def layers(network: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, layer) for name, layer in network.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]


@pytest.mark.parametrize("family", [None, "lowrank", "tucker2", "tt"])
def test_every_layer_at_full_rank_gives_the_same_outputs(family: str | None) -> None:
    plain, network = model(), model()
    for name, layer in layers(plain):
        network.set_submodule(name, tnmars.from_dense(layer, family, error=1e-6))
    x = torch.randn(3, 4, 12, 12)
    assert not layers(network)
    torch.testing.assert_close(network(x), plain(x), rtol=1e-4, atol=1e-4)
    back = tnmars.to_dense_(copy.deepcopy(network))
    assert [layer.groups for _, layer in layers(back) if isinstance(layer, nn.Conv2d)] == [1, 24, 1, 1, 32, 1, 1, 4, 1]
    torch.testing.assert_close(back(x), plain(x), rtol=1e-4, atol=1e-4)


def test_a_budget_for_a_model_with_groups() -> None:
    network, data = model(), [torch.randn(8, 4, 12, 12) for _ in range(8)]
    wanted, before = network(data[0]), sum(value.numel() for value in network.parameters())
    rules = {"0.3": "lowrank", "1.3": "tucker2", "2.2": "lowrank"}
    tnmars.compress_(network, rules, data=data, budget="1.1x")
    assert sum(value.numel() for value in network.parameters()) <= before / 1.1
    changed = [name for name, layer in network.named_modules() if isinstance(layer, tnmars.TNModule)]
    assert changed and set(changed) <= set(rules)
    assert all(network.get_submodule(name).graph.groups > 1 for name in changed)
    assert oracle.error(network(data[0]), wanted) < 0.1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sizes", [(6, 9, 3), (8, 8, 8), (4, 8, 4)], ids=["groups", "depthwise", "multiplied"])
def test_every_family_of_a_grouped_layer(family: str, sizes: tuple[int, int, int]) -> None:
    inside, outside, groups = sizes
    layer = nn.Conv1d(inside, outside, 3, groups=groups).double()
    made = tnmars.from_dense(layer, family, error=1e-3)
    x = torch.randn(2, inside, 7, dtype=torch.float64)
    assert oracle.error(made(x), layer(x)) < 1e-2


# --- one solution for each value of a mode that all cores share -------------------------------------------------------


@settings(max_examples=cases(200), deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))
def test_blocks_are_cut_by_their_own_singular_values(
    groups: int, inside: int, outside: int, rank: int, seed: int
) -> None:
    weight = torch.randn(groups * outside, inside, dtype=torch.float64, generator=torch.manual_seed(seed))
    graph = families.lowrank("linear", groups=(groups,), inputs=(inside,), outputs=(outside,), rank=rank)
    found = decompose(weight, graph)
    values = torch.stack([torch.linalg.svdvals(block).square() for block in weight.chunk(groups)])
    lost = values[:, rank:].sum() / values.sum()
    assert found.error == pytest.approx(float(lost) ** 0.5, abs=1e-9)
    assert found.bound == pytest.approx(found.error, abs=1e-9)
    assert oracle.error(oracle.rebuilt(found), weight) == pytest.approx(
        found.error * float(weight.norm()) / max(float(weight.norm()), 1.0), abs=1e-9
    )


def test_the_size_decides_one_rank_for_all_blocks() -> None:
    weight = torch.randn(12, 5, dtype=torch.float64, generator=torch.manual_seed(0))
    graph = families.lowrank("linear", groups=(3,), inputs=(5,), outputs=(4,), rank=1)
    assert decompose(weight, graph, parameters=60).ranks == {"r": 2}
    spectrum = sum(torch.linalg.svdvals(block).square() for block in weight.chunk(3))
    allowed = float(spectrum[3:].sum() / spectrum.sum()) ** 0.5
    assert decompose(weight, graph, error=allowed + 1e-6).ranks == {"r": 3}
    assert decompose(weight, graph, error=allowed - 1e-6).ranks == {"r": 4}
    with pytest.raises(tnmars.TnmarsError, match="modes on several cores"):
        decompose(weight, graph, ranks="evbmf")


def moment(size: int, seed: int) -> Tensor:
    rows = torch.randn(3 * size, size, dtype=torch.float64, generator=torch.manual_seed(seed))
    return rows.T @ rows / len(rows)


@pytest.mark.parametrize("is_coupled", [False, True])
def test_a_metric_of_blocks(is_coupled: bool) -> None:
    """The loss is `tr(G dW C dW')` over the weight as torch has it; G may couple the outputs of two groups."""
    groups, inside, outside, rank = 3, 5, 4, 2
    weight = torch.randn(12, 5, dtype=torch.float64, generator=torch.manual_seed(0))
    inputs, gradients = moment(inside, 1), moment(groups * outside, 2)
    if not is_coupled:
        gradients = gradients * torch.block_diag(*[torch.ones(outside, outside, dtype=torch.float64)] * groups)
    graph = families.lowrank("linear", groups=(groups,), inputs=(inside,), outputs=(outside,), rank=rank)
    found = decompose(weight, graph, metric=Metric(inputs=inputs, outputs=gradients))
    change = oracle.rebuilt(found) - weight
    loss, total = (float((gradients @ value @ inputs * value).sum()) for value in (change, weight))
    assert found.metric_error == pytest.approx((loss / total) ** 0.5, rel=1e-6)
    plain = oracle.rebuilt(decompose(weight, graph)) - weight
    assert loss < float((gradients @ plain @ inputs * plain).sum())
    if not is_coupled:
        best = 0.0
        for block, own in zip(weight.chunk(groups), range(groups), strict=True):
            part = gradients[own * outside : (own + 1) * outside, own * outside : (own + 1) * outside]
            half = torch.linalg.cholesky(part).T @ block @ torch.linalg.cholesky(inputs)
            best += float(torch.linalg.svdvals(half).square()[rank:].sum())
        assert loss == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("family", ["lowrank", "tucker2"])
def test_calibration_inputs_of_a_grouped_layer(family: str) -> None:
    """A pattern that the inputs of all groups have decides what is kept."""
    torch.manual_seed(0)
    layer = nn.Conv2d(8, 12, 3, groups=4, bias=False).double()
    pattern = torch.randn(2, 5, 5, dtype=torch.float64).repeat(4, 1, 1)
    x = torch.randn(64, 8, 1, 1, dtype=torch.float64) * pattern + 0.1 * torch.randn(64, 8, 5, 5, dtype=torch.float64)
    weighed = tnmars.from_dense(layer, family, parameters=90, inputs=x)
    plain = tnmars.from_dense(layer, family, parameters=90)
    wanted = layer(x)
    assert oracle.error(weighed(x), wanted) < oracle.error(plain(x), wanted)


def test_the_strength_of_a_group_counts() -> None:
    """Filters of channels with strong inputs are kept better."""
    layer = nn.Conv2d(6, 6, 3, groups=6, bias=False).double()
    strength = torch.tensor([10.0, 10.0, 0.1, 0.1, 0.1, 0.1], dtype=torch.float64)
    x = torch.randn(32, 6, 6, 6, dtype=torch.float64) * strength[:, None, None]
    made = tnmars.from_dense(layer, "lowrank", ranks=2, inputs=x)
    assert oracle.error(made.dense()[:2], layer.weight[:2]) < 1e-2
    assert oracle.error(made(x), layer(x)) < 0.1


def test_a_report_of_a_dense_model_with_groups(tmp_path: Path) -> None:
    plain = model()
    small = copy.deepcopy(plain)
    small.set_submodule("0.3", tnmars.from_dense(plain[0][3], "lowrank", ranks=3))
    tnmars.report(plain, small, tmp_path / "report.html")
    assert "24 groups" in (tmp_path / "report.html").read_text()


def test_a_saved_model_with_groups(tmp_path: Path) -> None:
    network, x = model(), torch.randn(2, 4, 12, 12)
    for name, layer in layers(network):
        network.set_submodule(name, tnmars.from_dense(layer, error=0.3))
    network(x)
    tnmars.save(network, tmp_path / "small.safetensors")
    loaded = tnmars.load_into(model(), tmp_path / "small.safetensors").eval()
    torch.testing.assert_close(loaded(x), network(x))
    frozen = tnmars.freeze(network)
    torch.testing.assert_close(frozen(x), network(x), rtol=1e-4, atol=1e-5)
    tnmars.write_source(network[0][3], tmp_path / "depthwise.py")


def test_one_solution_equals_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep over slices is at least as good as alternating least squares."""
    weight = torch.randn(12, 3, 3, dtype=torch.float64, generator=torch.manual_seed(1))
    graph = families.lowrank("conv", groups=(3,), inputs=(3,), outputs=(4,), kernel=(3,), rank=2)
    swept = decompose(weight, graph)
    monkeypatch.setattr("tnmars.decomposing.decompose.is_swept", lambda graph: False)
    searched = decompose(weight, graph, steps=400)
    assert swept.error <= searched.error + EXACT
    assert swept.error == pytest.approx(searched.error, rel=1e-3)
