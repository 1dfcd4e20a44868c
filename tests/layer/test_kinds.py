"""The table of layer kinds: every kind of the graph side has a torch side, and its parts agree with each other."""

from __future__ import annotations

from pathlib import Path

import oracle
import pytest
import torch
from kit import SPECS

import tnmars
from tnmars.graph.kinds import KINDS
from tnmars.layer.forward import dense_layer, example_inputs
from tnmars.layer.kinds import LAYER_KINDS, kind_of

every_spec = pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)


def test_every_kind_has_a_torch_side() -> None:
    assert LAYER_KINDS.keys() == KINDS.keys()


@every_spec
def test_torchs_own_layer_computes_the_same(path: Path) -> None:
    """With the layer's dense weight; on example inputs, which the layer takes too."""
    layer = oracle.compiled(path, 4, dtype=torch.float64)
    inputs = example_inputs(layer.graph, 4, 12, torch.float64)
    run = dense_layer(layer.graph)
    assert (run is None) == (layer.graph.kind == "map")
    if run is not None:
        with torch.no_grad():
            assert oracle.error(run(layer.dense(), layer.bias, *inputs), layer(*inputs)) < 1e-9
    assert layer(*inputs).shape[0] == 4


def test_no_dense_layer_beyond_a_size() -> None:
    graph = tnmars.load(oracle.spec("tt_linear"))
    assert dense_layer(graph, 784 * 625) is not None
    assert dense_layer(graph, 784 * 625 - 1) is None


@every_spec
def test_a_weight_of_zeros_gives_what_remains_without_terms(path: Path) -> None:
    """The bias, in the shape of the output."""
    graph = tnmars.load(path)
    layer = tnmars.compile(graph, batch=4, image=12)
    bare = tnmars.compile(graph.with_terms(()), batch=4, image=12)
    if bare.bias is not None:
        with torch.no_grad():
            bare.bias.copy_(layer.bias)
    with torch.no_grad():
        for core in layer.cores.parameters():
            core.zero_()
        inputs = example_inputs(graph, 4, 12)
        assert torch.equal(layer(*inputs), bare(*inputs))


def test_sizes_are_those_of_torchs_layers() -> None:
    conv = tnmars.compile(oracle.spec("tucker2_conv"))
    own = torch.nn.Conv2d(conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding)
    names = kind_of(conv.graph).sizes(conv.graph)
    assert set(names) == {
        "in_channels",
        "out_channels",
        "kernel_size",
        "stride",
        "padding",
        "dilation",
        "groups",
        "padding_mode",
    }
    assert all(hasattr(own, name) for name in names)
    assert own.weight.shape == conv.dense().shape
