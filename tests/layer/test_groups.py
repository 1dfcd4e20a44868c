"""Modes that input, cores and output share: against torch's own layers with `groups`, and one einsum for a map."""

from __future__ import annotations

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import BLOCKS, DEPTHWISE, EXACT, GROUPED, SCALED, Given, mask_of, set_gates
from strategies import cases, graphs, keeps
from torch import nn

import tnmars
from tnmars.graph import Graph

KINDS = ("linear", "conv", "map")


@settings(max_examples=cases(1000), deadline=None)
@given(graph=graphs(KINDS, grouped=True), batch=st.sampled_from((16, 3, 1)), seed=st.integers(0, 2**20))
def test_forward_and_gradients_equal_torchs_layer(graph: Graph, batch: int, seed: int) -> None:
    layer = oracle.compiled(graph, batch, dtype=torch.float64)
    task = oracle.problem(graph, batch, seed)
    oracle.load(layer, task)
    answer, gradients = oracle.ask(layer, task)
    wanted = task.answer()
    assert oracle.error(answer, wanted) <= EXACT
    for found, right in zip(gradients, oracle.gradients(wanted, task.leaves), strict=True):
        assert oracle.error(found, right) <= EXACT
    assert oracle.error(layer.dense(), oracle.dense(graph, oracle.whole(graph, task.cores))) <= EXACT


@settings(max_examples=cases(1000), deadline=None)
@given(graph=graphs(KINDS, grouped=True, bonded=True), data=st.data(), seed=st.integers(0, 2**20))
def test_masked_equals_pruned(graph: Graph, data: st.DataObject, seed: int) -> None:
    kept = data.draw(keeps(graph))
    masked = oracle.compiled(graph, 3, dtype=torch.float64, selector=Given()).eval()
    task = oracle.problem(graph, 3, seed)
    oracle.load(masked, task, strict=False)
    set_gates(masked, {name: mask_of(kept[name], bond.size) for name, bond in graph.bonds.items()})
    small = tnmars.prune(masked)
    assert small.graph.groups == graph.groups
    assert oracle.error(small(*task.inputs), masked(*task.inputs)) <= EXACT


def test_groups_are_in_torchs_order() -> None:
    """The first group of channels is the first run of them, at the input, at the output and in the weight."""
    layer = tnmars.compile(GROUPED)
    own = nn.Conv2d(6, 8, (3, 2), groups=2)
    assert (layer.groups, layer.in_channels, layer.out_channels) == (2, 6, 8)
    with torch.no_grad():
        own.weight.copy_(layer.dense())
        own.bias.copy_(layer.bias)
    x = torch.randn(2, 6, 5, 5)
    torch.testing.assert_close(layer(x), own(x))
    assert torch.equal(layer(torch.cat([x[:, :3], 0 * x[:, 3:]], dim=1))[:, :4], layer(x)[:, :4])


def test_a_map_that_scales_each_column() -> None:
    layer = tnmars.compile(SCALED)
    x = torch.randn(4, 3)
    torch.testing.assert_close(layer(x), torch.einsum("ij,j->ij", x, layer.cores.get("A")))


def test_group_modes_need_not_be_declared_as_shared() -> None:
    """A file does not list them, and a graph that does is the same graph."""
    assert BLOCKS.shared == ("g1", "g2")
    assert "shared" not in tnmars.dump(BLOCKS)
    assert tnmars.loads(tnmars.dump(BLOCKS)) == BLOCKS
    declared = tnmars.network(
        "linear", "A[g,i,r] B[g,r,o]", groups={"g": 2}, inputs={"i": 3}, outputs={"o": 4}, bonds=2, shared=["g"]
    )
    assert tnmars.loads(tnmars.dump(declared)) == declared


@pytest.mark.parametrize("graph", [BLOCKS, GROUPED, DEPTHWISE], ids=["blocks", "grouped", "depthwise"])
def test_counts_are_those_of_torchs_weight(graph: Graph) -> None:
    own = nn.Conv2d(graph.in_features, graph.out_features, graph.kernel_size or 1, groups=graph.groups)
    found = tnmars.count(graph)
    assert (found.dense, found.other) == (own.weight.numel(), own.bias.numel())
    assert found.cores == sum(core.numel() for core in tnmars.compile(graph).cores.parameters())


@pytest.mark.parametrize("graph", [BLOCKS, GROUPED, DEPTHWISE], ids=["blocks", "grouped", "depthwise"])
def test_back_to_torch(graph: Graph) -> None:
    layer = tnmars.compile(graph).eval()
    (x,) = (value.detach() for value in oracle.problem(graph, 3).inputs)
    plain = tnmars.to_dense_(nn.Sequential(layer))
    assert isinstance(plain[0], nn.Linear if graph.kind == "linear" else nn.Conv2d)
    torch.testing.assert_close(plain(x.float()), layer(x.float()))


def test_chains_of_torchs_layers() -> None:
    model = nn.Sequential(tnmars.compile(GROUPED), tnmars.compile(BLOCKS), tnmars.compile(DEPTHWISE))
    x = torch.randn(2, 6, 5, 5)
    wanted = model[0](x)
    done = tnmars.as_torch_(model)
    assert str(done).splitlines() == [
        "0: Conv2d(6, 4, 3x2, groups=2), Conv2d(4, 8, 1x1, groups=2)",
        "1: stays compiled, because it has 4 groups, and nn.Linear has none",
        "2: stays compiled, because its cores are not a chain from the inputs to the outputs",
    ]
    torch.testing.assert_close(model[0](x), wanted)


def test_an_input_of_a_wrong_size() -> None:
    with pytest.raises(tnmars.ShapeError, match=r"the last axis must be 12 \(modes g1=2, g2=2, i1=3\)"):
        tnmars.compile(BLOCKS)(torch.randn(2, 6))
