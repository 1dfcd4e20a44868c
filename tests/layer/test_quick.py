"""The fast path through `forward`: the same bits as the general path, and only where nothing must be prepared."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import CONV, EXACT, LINEAR, inputs_of
from strategies import cases, graphs
from torch import Tensor, nn
from torch.nn.utils import parametrize

import tnmars
from tnmars import Graph, TNModule
from tnmars.layer import module, quick
from tnmars.layer.quick import ordinary


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A note for every pass that takes the general path."""
    notes: list[str] = []
    way = module.forward

    def noted(layer: TNModule, *given: object) -> Tensor:
        notes.append(layer.graph.kind)
        return way(layer, *given)

    monkeypatch.setattr(module, "forward", noted)
    yield notes


def by_the_general_path(layer: TNModule, x: Tensor) -> Tensor:
    return module.forward(layer, (x,), {})


@settings(max_examples=cases(1000))
@given(
    graph=graphs(kinds=("linear", "conv"), least_terms=0),
    batch=st.sampled_from((3, 1, 0, 300)),
    grad=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_both_paths_give_the_same_bits(graph: Graph, batch: int, grad: bool, seed: int) -> None:
    """Outputs and gradients; and the first is right, by the oracle."""
    problem = oracle.problem(graph, batch, seed, image=(3, 2, 2))
    layer = oracle.compiled(graph, dtype=torch.float64)
    oracle.load(layer, problem)
    (x,) = problem.inputs
    assert ordinary(x, layer._fits, layer.dtype) is x
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            found, wanted = layer(x), by_the_general_path(layer, x)
            assert torch.equal(found, wanted)
            assert found.requires_grad == wanted.requires_grad
    assert oracle.error(found, problem.answer()) <= EXACT
    cores = list(layer.parameters())
    if found.requires_grad and cores:
        for one, other in zip(*(torch.autograd.grad(out.sum(), cores) for out in (found, wanted)), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("graph", [LINEAR, CONV])
def test_ordinary_inputs_take_the_fast_path_and_others_do_not(graph: Graph, general: list[str]) -> None:
    layer = tnmars.compile(graph)
    (x,) = inputs_of(graph)
    layer(x)
    with torch.no_grad():
        layer(x)
    assert not general
    layer(input=x)
    layer(nn.Parameter(x))
    layer(x[0] if graph.kernel_size else x.requires_grad_(False).as_subclass(Sub))
    with torch.autocast("cpu"):
        assert layer(x).dtype == torch.bfloat16
    with tnmars.cached(layer), torch.no_grad():
        layer(x)
    for wrong in (x.double(), x[:, :-1], "image"):
        with pytest.raises(tnmars.ShapeError):
            layer(wrong)
    assert len(general) == 8


def test_a_layer_with_gates_takes_the_general_path(general: list[str]) -> None:
    layer = tnmars.compile(LINEAR, selector=tnmars.Mars())
    layer(*inputs_of(LINEAR))
    assert general


def test_other_cores_are_seen_at_once() -> None:
    """Changed in place, put in their place, loaded, cut, moved to another dtype."""
    layer, other = tnmars.compile(LINEAR), tnmars.compile(LINEAR)
    (x,) = inputs_of(LINEAR)
    layer(x)
    name = next(iter(LINEAR.cores))
    changes = [
        lambda: layer.cores.get(name).data.mul_(2.0),
        lambda: layer.cores.put(name, nn.Parameter(torch.randn(LINEAR.cores[name]))),
        lambda: layer.load_state_dict(other.state_dict()),
        lambda: setattr(layer, "cores", tnmars.compile(LINEAR).cores),
        lambda: layer.cores.get(name).data.add_(1.0),
        lambda: setattr(layer, "bias", nn.Parameter(torch.randn(layer.out_features))),
        lambda: tnmars.prune_(layer, keep={"": {next(iter(LINEAR.bonds)): (0,)}}),
    ]
    for change in changes:
        before = layer(x)
        change()
        assert not torch.equal(layer(x), before)
        assert torch.equal(layer(x), by_the_general_path(layer, x))
    layer.double()
    assert oracle.error(layer(x.double()), by_the_general_path(layer, x.double())) == 0


def test_copies_and_pickles_have_a_fast_path_of_their_own() -> None:
    layer = tnmars.compile(LINEAR)
    (x,) = inputs_of(LINEAR)
    wanted = layer(x)
    for made in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):  # noqa: S301
        assert torch.equal(made(x), wanted)
        with torch.no_grad():
            for value in made.parameters():
                value.mul_(-3.0)
        assert not torch.equal(made(x), wanted)
        assert torch.equal(layer(x), wanted)


class Sub(Tensor):
    """A tensor that may do anything."""


@pytest.mark.parametrize("shape", [(8,), (5, 8), (2, 5, 8), (2, 0, 8), (3, 1, 2, 8)])
def test_rows_of_any_number_of_axes_take_the_fast_path(shape: tuple[int, ...], general: list[str]) -> None:
    graph = tnmars.families.lowrank("linear", inputs=(8,), outputs=(6,), rank=2)
    layer, x = tnmars.compile(graph), torch.randn(shape)
    frozen = tnmars.freeze(layer, "fast")
    found = [layer(x), frozen(x)]
    assert not general
    torch.testing.assert_close(found[0], nn.functional.linear(x, layer.dense(), layer.bias))
    for each, made in zip(found, (layer, frozen), strict=True):
        assert torch.equal(each, by_the_general_path(made, x))


@pytest.mark.parametrize("graph", [LINEAR, CONV])
def test_layers_without_numbers_take_the_fast_path(graph: Graph) -> None:
    """On the meta device, which has no autocast."""
    layer = tnmars.compile(graph, device="meta")
    (x,) = inputs_of(graph)
    assert layer(x.to("meta")).shape == tnmars.compile(graph)(x).shape


def test_a_trace_remembers_nothing() -> None:
    layer = tnmars.compile(LINEAR)
    torch.jit.trace(layer, inputs_of(LINEAR), check_trace=False)
    assert all(type(batch) is int for batch, _ in layer._recent)


class Twice(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return 2 * value


@pytest.mark.parametrize("name", ["core", "bias"])
def test_a_parametrized_core_or_bias_is_used(name: str) -> None:
    graph = tnmars.families.lowrank("linear", inputs=(8,), outputs=(6,), rank=2)
    layer = tnmars.compile(graph)
    x = torch.randn(3, 8)
    plain = layer(x)
    place = (layer, "bias") if name == "bias" else (layer.cores, "A")
    parametrize.register_parametrization(*place, Twice())
    found = layer(x)
    wanted = plain + layer.bias / 2 if name == "bias" else 2 * plain - layer.bias
    torch.testing.assert_close(found, wanted)


def test_functional_calls_use_their_own_parameters() -> None:
    layer = tnmars.compile(LINEAR)
    (x,) = inputs_of(LINEAR)
    layer(x)
    others = {name: torch.randn_like(value) for name, value in layer.named_parameters()}
    found = torch.func.functional_call(layer, others, (x,))
    layer.load_state_dict(others, strict=False)
    assert torch.equal(found, layer(x))
    per_sample = torch.func.vmap(lambda row: layer(row[None])[0])(x)
    torch.testing.assert_close(per_sample, layer(x))


def test_the_number_of_remembered_batches_is_bounded() -> None:
    layer = tnmars.compile(LINEAR)
    for batch in range(3 * quick.BATCHES):
        layer(torch.ones(batch, layer.in_features))
    assert 0 < len(layer._recent) <= 2 * quick.BATCHES
