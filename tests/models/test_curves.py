"""The choices for one weight: sizes and losses along the path, against plain sums of singular values."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

import tnmars
from tnmars import families
from tnmars.decomposing.decompose import decompose
from tnmars.decomposing.metric import Metric
from tnmars.models.curves import Choice, choices, needs_inputs, widest
from tnmars.models.rules import Candidate, candidates
from tnmars.models.torch_layers import describe

F64 = torch.float64


def paths(module: nn.Module, family: str, metric: Metric | None = None) -> list[Choice]:
    (candidate,) = candidates(family, describe(module), "layer")
    return choices(candidate, module.weight.detach(), metric or Metric())


def matrix(size: int, seed: int) -> Tensor:
    root = torch.randn(size, size, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return root @ root.T / size


def test_a_matrix_loses_the_squares_of_the_values_that_go() -> None:
    layer = nn.Linear(12, 9, bias=False).double()
    path = paths(layer, "lowrank")
    squares = torch.linalg.svdvals(layer.weight.detach()).square()
    assert [choice.sizes["r"] for choice in path] == [5, 4, 3, 2, 1]  # six would have 126 parameters, the weight 108
    for choice in path:
        rank = choice.sizes["r"]
        assert choice.parameters == rank * 21
        assert choice.loss == pytest.approx(float(squares[rank:].sum()))
        assert choice.graph.bonds["r"].size == rank


def test_with_a_metric_the_values_are_those_of_the_whitened_matrix() -> None:
    layer = nn.Linear(12, 9, bias=False).double()
    inside, outside = matrix(12, 1), matrix(9, 2)
    path = paths(layer, "lowrank", Metric(inputs=inside, outputs=outside))
    squares = torch.linalg.svdvals(
        torch.linalg.cholesky(outside).T @ layer.weight.detach() @ torch.linalg.cholesky(inside)
    ).square()
    for choice in path:
        assert choice.loss == pytest.approx(float(squares[choice.sizes["r"] :].sum()), rel=1e-6)


def test_the_loss_of_a_choice_is_what_its_decomposition_loses() -> None:
    """One bond: exact. `metric_error` is relative to the weight's own norm in the metric."""
    layer = nn.Linear(12, 9, bias=False).double()
    weight = layer.weight.detach()
    metric = Metric(inputs=matrix(12, 1), outputs=matrix(9, 2))
    norm = float(torch.einsum("ab,bi,ij,aj->", metric.outputs, weight, metric.inputs, weight))
    for choice in paths(layer, "lowrank", metric):
        made = decompose(layer.weight.detach(), choice.graph, metric=metric)
        assert made.metric_error**2 * norm == pytest.approx(choice.loss, rel=1e-6)


@pytest.mark.parametrize("family", ["tucker2", "tt", "tr", "cp"])
def test_a_path_only_gets_smaller_and_loses_more(family: str) -> None:
    layer = nn.Conv2d(8, 6, 3, bias=False).double()
    dense = describe(layer)
    graph = families.of_layer(family, "conv", 8, 6, kernel=(3, 3), rank=1, options=dense.options)
    path = choices(Candidate(family, graph, False), layer.weight.detach(), Metric())
    assert path
    assert all(choice.parameters < layer.weight.numel() for choice in path)
    for wide, narrow in itertools.pairwise(path):
        assert narrow.parameters < wide.parameters
        assert narrow.loss >= wide.loss
        (bond,) = [name for name in wide.sizes if wide.sizes[name] != narrow.sizes[name]]
        assert narrow.sizes[bond] == wide.sizes[bond] - 1
    assert set(path[-1].sizes.values()) == {1}
    for choice in path[:: max(1, len(path) // 5)]:
        counted = sum(core.numel() for core in tnmars.compile(choice.graph).cores.parameters())
        assert choice.parameters == counted


@pytest.mark.parametrize("family", ["cp", "tr"])
def test_losses_of_graphs_with_hyperedges_and_cycles_are_those_of_their_decompositions(family: str) -> None:
    """Squared norms of slices would be up to 100 times too large: slices of CP are far from orthogonal."""
    torch.manual_seed(0)
    layer = nn.Conv2d(6, 6, 3, bias=False).double()
    weight = layer.weight.detach()
    metric = Metric(inputs=matrix(54, 1), outputs=matrix(6, 2))
    norm = float(torch.einsum("ab,bi,ij,aj->", metric.outputs, weight.flatten(1), metric.inputs, weight.flatten(1)))
    path = paths(layer, family, metric)
    for choice in path[2 :: max(1, len(path) // 3)]:
        made = decompose(weight, choice.graph, metric=metric, starts=1, steps=30, seed=5)
        assert choice.loss == pytest.approx(made.metric_error**2 * norm, rel=0.4, abs=0.01 * norm)


@pytest.mark.parametrize("has_inputs", [False, True])
def test_a_ring_loses_in_the_unit_of_the_metric(has_inputs: bool) -> None:
    """At its widest it loses what its decomposition does, and the metric counts: all of it tripled, losses triple."""
    layer = nn.Linear(16, 12, bias=False).double()
    weight = layer.weight.detach()
    inside, outside = matrix(16, 1), matrix(12, 2)

    def metric(factor: float) -> Metric:
        if has_inputs:
            return Metric(inputs=factor * inside, outputs=outside)
        return Metric(responses=factor * weight @ inside @ weight.T, outputs=outside)

    (candidate,) = candidates("tr", describe(layer), "layer")
    one, three = (choices(candidate, weight, metric(factor)) for factor in (1.0, 3.0))
    assert three[0].loss == pytest.approx(3 * one[0].loss, rel=1e-3)
    norm = float(torch.einsum("ab,bi,ij,aj->", outside, weight, inside, weight))
    assert 0 < one[0].loss < norm
    made = decompose(weight, one[0].graph, metric=metric(1.0), starts=1, steps=10)
    error = made.metric_error if has_inputs else made.error  # without C there is no error in the metric
    assert one[0].loss == pytest.approx(error**2 * norm, rel=1e-6)


def test_slices_go_by_loss_per_parameter_saved() -> None:
    """Of a Tucker-2 with one strong and many weak output channels, outputs go first."""
    layer = nn.Conv2d(6, 6, 3, bias=False).double()
    with torch.no_grad():
        layer.weight[1:] *= 1e-3
    path = paths(layer, "tucker2")
    first, second = list(path[0].graph.bonds)
    last = path[-2].sizes
    assert (last[first], last[second]) != (1, 1)
    sides = {
        bond: torch.linalg.svdvals(layer.weight.detach().transpose(0, axis).flatten(1))
        for axis, bond in ((1, first), (0, second))
    }
    at_one = {bond: next(i for i, choice in enumerate(path) if choice.sizes[bond] == 1) for bond in (first, second)}
    weak, strong = sorted(sides, key=lambda bond: float(sides[bond][1]))
    assert at_one[weak] < at_one[strong]


def test_a_spec_never_gets_wider_than_it_is() -> None:
    layer = nn.Linear(12, 9)
    graph = families.lowrank("linear", inputs=(12,), outputs=(9,), rank=3)
    (candidate,) = candidates(graph, describe(layer), "layer")
    path = choices(candidate, layer.weight.detach(), Metric())
    assert [choice.sizes["r"] for choice in path] == [3, 2, 1]


def test_a_graph_without_bonds_and_a_weight_that_is_too_small_have_no_choices() -> None:
    layer = nn.Linear(4, 3)
    graph = tnmars.network("linear", "W[i,o]", inputs={"i": 4}, outputs={"o": 3})
    (candidate,) = candidates(graph, describe(layer), "layer")
    assert choices(candidate, layer.weight.detach(), Metric()) == []
    assert paths(nn.Linear(1, 3), "lowrank") == []


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (families.of_layer("lowrank", "linear", 8, 6, rank=1), False),
        (families.of_layer("lowrank", "conv", 8, 6, kernel=(3, 3), rank=1), False),
        (families.of_layer("tucker2", "conv", 8, 6, kernel=(3, 3), rank=1), True),
        (families.of_layer("tt", "linear", 8, 6, ways=2, rank=1), True),
        (families.of_layer("cp", "linear", 8, 6, ways=2, rank=1), True),
    ],
)
def test_whether_the_outputs_are_enough(graph: tnmars.Graph, expected: bool) -> None:
    assert needs_inputs(graph) is expected


def test_the_widest_graph_below_a_size() -> None:
    graph = families.of_layer("tr", "linear", 16, 16, ways=2, rank=1)
    found = widest(graph, 256)
    (size,) = {bond.size for bond in found.bonds.values()}
    cost = [2 * 16 * rank * rank for rank in (size, size + 1)]
    assert cost[0] < 256 <= cost[1]
