"""Complex layers that leave the library: frozen, compiled, exported, as source."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from complex_oracle import compiled, error, problem
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EVERY, LINEAR, every_kind
from oracle import load
from strategies import cases, conjugates, graphs

import tnmars
from tnmars.graph import Graph


@settings(max_examples=cases(200))
@given(graphs().flatmap(conjugates), st.sampled_from(("compact", "fast")))
def test_frozen_layers_compute_the_same(graph: Graph, form: str) -> None:
    asked = problem(graph, 3)
    layer = compiled(graph, dtype=torch.complex128)
    load(layer, asked)
    frozen = tnmars.freeze(layer, form)
    assert error(frozen(*asked.inputs), asked.answer()) < 1e-10
    again = pickle.loads(pickle.dumps(frozen))  # noqa: S301
    assert torch.equal(again(*asked.inputs), frozen(*asked.inputs))


@every_kind
def test_source_computes_the_same(graph: Graph, tmp_path: Path) -> None:
    layer = compiled(graph, dtype=torch.complex128)
    asked = problem(graph, 3)
    load(layer, asked)
    tnmars.write_source(layer, tmp_path / "layer.py")
    space: dict[str, type] = {}
    exec((tmp_path / "layer.py").read_text(), space)  # noqa: S102
    alone = space["Layer"](dtype=torch.complex128)
    alone.load_state_dict(layer.state_dict())
    assert torch.equal(alone(*asked.inputs), layer(*asked.inputs))


@pytest.mark.parametrize("name", ["linear", "conv", "embedding", "map", "grouped"])
def test_exported_programs_compute_the_same(name: str) -> None:
    layer = compiled(EVERY[name], dtype=torch.complex128).eval()
    asked = problem(layer.graph, 3)
    inputs = tuple(value.detach() for value in asked.inputs)
    program = torch.export.export(layer, inputs)
    assert error(program.module()(*inputs), layer(*inputs)) < 1e-12


@pytest.mark.parametrize("name", ["linear", "conv", "embedding", "map"])
def test_traced_by_torch_compile_with_gradients(name: str) -> None:
    layer = compiled(EVERY[name], dtype=torch.complex128, selector=tnmars.Mars())
    asked = problem(layer.graph, 3)
    inputs = tuple(value.detach() for value in asked.inputs)
    fast = torch.compile(layer, backend="aot_eager", fullgraph=True)
    found, wanted = fast(*inputs), layer(*inputs)
    assert error(found, wanted) < 1e-12
    parameters = list(layer.parameters())
    ours = torch.autograd.grad(found.abs().square().sum(), parameters, allow_unused=True)
    theirs = torch.autograd.grad(wanted.abs().square().sum(), parameters, allow_unused=True)
    for parameter, one, other in zip(parameters, ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.dtype is parameter.dtype
            assert error(one, other) < 1e-10


def test_onnx_is_refused_by_name(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    layer = tnmars.compile(LINEAR, dtype=torch.complex64, warn=False)
    with pytest.raises(tnmars.TnmarsError, match="complex numbers, which ONNX's operators do not take"):
        tnmars.export_onnx(layer, tmp_path / "layer.onnx", torch.randn(2, 6, dtype=torch.complex64))
    assert not list(tmp_path.iterdir())
