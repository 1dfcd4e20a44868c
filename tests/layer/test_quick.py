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
from tnmars import Graph, ShapeError, TNModule
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


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("graph", [LINEAR, CONV])
def test_sampled_gates_take_the_fast_path_with_the_same_bits(graph: Graph, grad: bool, general: list[str]) -> None:
    """Outputs and gradients, also after another sample; the gates that `prune` decides on take the general path."""
    layer = tnmars.compile(graph, selector=tnmars.Mars(alpha=0.5, temperature=1.0))
    schedule = tnmars.MaskSchedule(layer, 10, seed=3)
    (x,) = inputs_of(graph)
    with torch.set_grad_enabled(grad):
        before = None
        for _ in range(3):
            found = layer(x)
            assert not general
            wanted = by_the_general_path(layer, x)
            assert torch.equal(found, wanted) and (before is None or not torch.equal(found, before))
            if grad:
                slopes = [torch.autograd.grad(out.sum(), list(layer.parameters())) for out in (found, wanted)]
                assert all(torch.equal(*pair) for pair in zip(*slopes, strict=True))
            before = found
            schedule.step()
            general.clear()
        rounded = layer.eval()(x)
        assert general and torch.equal(rounded, by_the_general_path(layer, x))


def test_gates_of_another_kind_or_held_ones_are_seen_at_once(general: list[str]) -> None:
    layer = tnmars.compile(LINEAR, selector=tnmars.Mars(alpha=0.5))
    (x,) = inputs_of(LINEAR)
    layer(x)
    other = tnmars.compile(LINEAR, selector=tnmars.Mars(alpha=-0.5))
    layer.gates = other.gates
    assert torch.equal(layer(x), by_the_general_path(layer, x))
    layer.masks = other.masks
    assert torch.equal(layer(x), by_the_general_path(layer, x))
    layer.masks.held = tuple(torch.zeros(bond.size) for bond in LINEAR.bonds.values())
    assert torch.equal(layer(x), layer.bias.expand(len(x), -1))
    assert layer.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
    gated = tnmars.compile(LINEAR, selector=tnmars.Mars(), open_only=True)
    general.clear()
    gated(x)
    assert general


@pytest.mark.parametrize("way", ["compiled", "gated", "frozen", "copied"])
def test_more_layers_than_torch_keeps_versions_of_a_function_are_compiled(way: str) -> None:
    """Torch keeps eight for each code object, then gives up. A pickle or a copy has code of its own too."""
    torch._dynamo.reset()
    count = torch._dynamo.config.recompile_limit + 2
    for size in range(3, 3 + count):
        graph = tnmars.families.lowrank("linear", inputs=(size,), outputs=(4,), rank=2)
        layer = tnmars.compile(graph, selector=tnmars.Mars() if way == "gated" else None)
        if way == "frozen":
            layer = tnmars.freeze(layer)
        if way == "copied":
            layer = pickle.loads(pickle.dumps(copy.deepcopy(layer)))  # noqa: S301
        x = torch.randn(2, size)
        fast = torch.compile(layer, backend="eager", fullgraph=True)
        torch.testing.assert_close(fast(x), layer(x))


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
    with pytest.raises(ShapeError, match="dtype"):
        layer(x)
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
    assert all(type(length) is int for shape, _ in layer._recent for length in shape)


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
    for batch in range(2 * quick.SHAPES + 1):
        layer(torch.ones(batch, layer.in_features))
    assert 0 < len(layer._recent) <= quick.SHAPES


@pytest.mark.parametrize("name", ["ring_conv", "cp_conv", "tt_conv_proper", "tucker2_conv"])
def test_images_keep_their_layout_on_the_fast_path(name: str, general: list[str]) -> None:
    layer = tnmars.compile(oracle.spec(name), batch=2, image=8, memory_format=torch.channels_last, warn=False)
    (x,) = inputs_of(layer.graph, 2)
    x = x.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        first = layer(x)
        general.clear()
        again = layer(x)
    assert not general, "the second pass takes the fast path"
    assert torch.equal(first, again)
    assert again.is_contiguous(memory_format=torch.channels_last)


def test_a_setting_that_is_changed_later_is_heeded(general: list[str]) -> None:
    layer = tnmars.compile(LINEAR, selector=tnmars.Mars())
    (x,) = inputs_of(LINEAR)
    layer(x)
    general.clear()
    layer.open_only = True
    layer(x)
    assert general, "only the general path looks at which slices are open"


def test_the_shape_is_remembered_again_in_another_dtype(general: list[str]) -> None:
    layer = tnmars.compile(LINEAR)
    (x,) = inputs_of(LINEAR)
    layer(x)
    layer.double()
    layer(x.double())
    general.clear()
    layer(x.double())
    assert not general


@pytest.mark.parametrize("form", ["compact", "fast"])
def test_frozen_layers_keep_the_layout_of_images(form: str) -> None:
    graph = tnmars.families.cp("conv", inputs=(6,), outputs=(5,), kernel=(3, 2, 1), rank=4)
    layer = tnmars.freeze(tnmars.compile(graph, batch=2, image=8), form)
    x = torch.randn(2, 6, 5, 5, 5).contiguous(memory_format=torch.channels_last_3d)
    with torch.no_grad():
        assert all(layer(x).is_contiguous(memory_format=torch.channels_last_3d) for _ in range(2))
