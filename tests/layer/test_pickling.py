"""Pickles and copies of layers: `torch.save`, `pickle`, `copy` and processes that are spawned.

A pickled layer holds no source and no function. What is read is checked, and the source is emitted again.
"""

from __future__ import annotations

import copy
import io
import pickle
import pickletools
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import oracle
import pytest
import torch
from kit import SOME_SPECS
from torch import Tensor, nn

import tnmars
from tnmars import Annealed, Fixed, GaussianGates, Mars, TNModule
from tnmars.errors import TnmarsError

every_spec = pytest.mark.parametrize("path", SOME_SPECS, ids=lambda path: path.stem)
BATCH = 6


def saved(value: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def pickled(value: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(value))  # noqa: S301


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "torch.save": saved,
    "pickle": pickled,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def layer_of(path: Path, **options: object) -> TNModule:
    torch.manual_seed(1)
    return tnmars.compile(path, batch=16, **options)


@lru_cache
def variants(path: Path) -> dict[str, nn.Module]:
    """Layers of a graph of every sort: compiled, with gates of each selector, on open slices, and frozen."""
    plain = layer_of(path)
    selectors = (Mars(alpha=0.5), GaussianGates(), Annealed(), Fixed())
    gated = {selector.name: layer_of(path, selector=selector) for selector in selectors}
    open_only = layer_of(path, selector=Mars(alpha=-0.5), open_only=True)
    frozen = {form: tnmars.freeze(plain, form) for form in ("compact", "fast")}
    return {"plain": plain, **gated, "open_only": open_only, **frozen}


@lru_cache
def inputs_of(path: Path) -> tuple[Tensor, ...]:
    problem = oracle.problem(tnmars.load(path), BATCH)
    return tuple(value.detach().float() if value.is_floating_point() else value for value in problem.inputs)


def answers(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """The output while training, with gradients of every parameter, and the output in evaluation."""
    was = model.training
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    made = model(*inputs)
    slopes = torch.autograd.grad(made.square().sum(), trained, allow_unused=True) if trained else ()
    with torch.no_grad():
        judged = model.eval()(*inputs)
    model.train(was)
    return [made.detach(), judged, *(slope for slope in slopes if slope is not None)]


def assert_same(one: nn.Module, other: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Two models have equal state, and compute the same to the last bit."""
    assert type(one) is type(other)
    assert repr(one) == repr(other)
    state, others = one.state_dict(), other.state_dict()
    assert list(state) == list(others)
    assert all(torch.equal(value, others[name]) for name, value in state.items())
    found = answers(other, inputs)
    for mine, its in zip(answers(one, inputs), found, strict=True):
        assert torch.equal(mine, its)


@every_way
@every_spec
def test_a_copy_computes_the_same(path: Path, way: Callable[[nn.Module], nn.Module]) -> None:
    for name, layer in variants(path).items():
        made = way(layer)
        assert made is not layer, name
        assert_same(layer, made, inputs_of(path))
        assert made.graph == layer.graph
        if isinstance(layer, TNModule):
            assert made.programs.plans == layer.programs.plans, "a copy keeps the plans"
            assert made.planner == layer.planner
            assert made.selector == layer.selector
        assert getattr(made, "source", "") == getattr(layer, "source", "")


@every_spec
def test_a_copy_is_free_of_its_original(path: Path) -> None:
    """Training a pickled or deeply copied layer leaves the original as it was, and its gates and plans too."""
    layer = layer_of(path, selector=Mars(alpha=0.5))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    for way in (pickled, copy.deepcopy):
        made = way(layer)
        with torch.no_grad():
            for value in (*made.parameters(), *made.buffers()):
                value.copy_(torch.ones_like(value))
        made.programs.plans.clear()
        assert layer.programs.plans
        assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


@every_way
def test_models_of_layers(way: Callable[[nn.Module], nn.Module]) -> None:
    """Layers within a model, one of them in two places."""
    torch.manual_seed(0)
    first = tnmars.compile(oracle.spec("tt_linear"), batch=16, selector=Mars(alpha=0.5))
    square = tnmars.compile(tnmars.families.tt("linear", inputs=(5, 5, 5, 5), outputs=(5, 5, 5, 5), rank=3), batch=16)
    model = nn.Sequential(first, nn.ReLU(), square, nn.ReLU(), square, nn.Linear(625, 3))
    inputs = (torch.randn(BATCH, 784),)
    made = way(model)
    assert made[2] is made[4]
    assert_same(model, made, inputs)
    frozen = tnmars.freeze(model)
    assert_same(frozen, way(frozen), inputs)


def test_a_tuned_layer_keeps_its_plans() -> None:
    layer = tnmars.compile(oracle.spec("tt_linear"), batch=16, tune=True)
    layer.plan("infer", 1000)
    made = pickled(layer)
    assert made.programs.plans == layer.programs.plans
    assert made.planner.decide is not None
    assert_same(layer, made, (torch.randn(BATCH, 784),))
    assert_same(tnmars.freeze(layer, tune=True), pickled(tnmars.freeze(layer)), (torch.randn(0, 784),))


def test_a_pruned_layer_is_pickled() -> None:
    layer = tnmars.compile(oracle.spec("tt_linear"), batch=16, selector=Mars(alpha=0.5))
    with torch.no_grad():
        for logits in layer.logits():
            logits[3:] = -9.0
    pruned = tnmars.prune(layer)
    assert pruned.graph != layer.graph
    assert_same(pruned, pickled(pruned), (torch.randn(BATCH, 784),))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    layer = tnmars.compile(oracle.spec("tt_linear"), batch=16, selector=Mars(), dtype=dtype)
    made = pickled(layer)
    assert made.dtype == dtype
    assert_same(layer, made, (torch.randn(BATCH, 784, dtype=dtype),))


def test_a_layer_without_terms() -> None:
    layer = tnmars.compile(replace(tnmars.load(oracle.spec("tt_linear")), terms=()), batch=16)
    assert_same(layer, pickled(layer), (torch.randn(BATCH, 784),))


def test_within_cached_a_copy_is_not_cached() -> None:
    layer = tnmars.compile(oracle.spec("tt_linear"), batch=16)
    with tnmars.cached(layer):
        made = pickled(layer)
    assert made.cached is None
    assert_same(layer, made, (torch.randn(BATCH, 784),))


# --- what a file holds -----------------------------------------------------------------------------------------------


@every_spec
def test_no_source_and_no_function_is_in_a_pickle(path: Path) -> None:
    """Only values: the classes of the package, and what torch and Python need to restore tensors and dicts."""
    for layer in variants(path).values():
        data = pickle.dumps(layer)
        assert b"def " not in data
        assert b"torch.mm" not in data
        assert b"import " not in data
        texts = [value for _, value, _ in pickletools.genops(data) if isinstance(value, str)]
        assert not any("\n" in text for text in texts), "no text has several lines"


def test_a_name_that_is_code_is_refused() -> None:
    layer = tnmars.compile(oracle.spec("tt_linear"), batch=16)
    layer.programs.planner = copy.deepcopy(layer.planner)
    object.__setattr__(layer.planner.graph.terms[0].cores[0], "name", "G1\n    raise SystemExit  #")
    with pytest.raises(TnmarsError):
        pickled(layer)


@pytest.mark.parametrize("form", ["compiled", "compact"])
def test_a_plan_that_is_code_is_refused(form: str) -> None:
    layer = tnmars.compile(oracle.spec("tt_linear"), batch=16)
    changed = layer if form == "compiled" else tnmars.freeze(layer, form)
    bad = copy.deepcopy(layer.plan("train", 16) if form == "compiled" else changed.form)
    object.__setattr__(bad.program.run[-1], "out", "v0 = __import__('os'); v1")
    if form == "compiled":
        layer.programs.plans["train", 16] = bad
    else:
        changed.form = bad
    with pytest.raises(TnmarsError, match="is not a name that a value has"):
        pickled(changed)


# --- other processes -------------------------------------------------------------------------------------------------


Asked = list[tuple[nn.Module, tuple[Tensor, ...], list[Tensor]]]


def _answer(rank: int, asked: Asked) -> None:
    """What a spawned process does: it gets the layers as pickles, and writes their answers to shared memory."""
    torch.set_num_threads(1)
    for layer, inputs, results in asked:
        for result, value in zip(results, answers(layer, inputs), strict=True):
            result.copy_(value)


def test_a_spawned_process_computes_the_same() -> None:
    asked: Asked = []
    expected = []
    for name in ("tt_linear", "tucker2_conv", "tt_embedding"):
        for variant in ("plain", "mars", "open_only", "compact"):
            layer, inputs = variants(oracle.spec(name))[variant], inputs_of(oracle.spec(name))
            expected.append(answers(layer, inputs))
            asked.append((layer, inputs, [torch.full_like(value, torch.nan).share_memory_() for value in expected[-1]]))
    torch.multiprocessing.spawn(_answer, (asked,), nprocs=1)
    for (_, _, results), values in zip(asked, expected, strict=True):
        assert all(torch.equal(mine, its) for mine, its in zip(values, results, strict=True))
