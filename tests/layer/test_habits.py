"""What users of torch do with any layer: replace a parameter, parametrize it, convert, trace, ask for too much."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest
import torch
from kit import EVERY, LINEAR, SKIPPED, every_kind, inputs_of
from oracle import compiled, error
from strategies import THOROUGH
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils import prune as torch_prune
from torch.utils.flop_counter import FlopCounterMode

import tnmars
from tnmars.graph import Graph
from tnmars.layer import memory

LOW = tnmars.families.lowrank("linear", inputs=(8,), outputs=(6,), rank=3)
TERMS = tnmars.families.btd("linear", inputs=(2, 4), outputs=(3, 2), rank=2, terms=2)
HUGE = tnmars.families.lowrank("linear", inputs=(2**30,), outputs=(4,), rank=2**28)


traces = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")


# --- memory that is not there ----------------------------------------------------------------------------------------


def test_cores_without_memory_are_reported_with_their_sizes() -> None:
    with pytest.raises(tnmars.TnmarsError) as told:
        tnmars.compile(HUGE)
    assert str(told.value) == (
        "there is no memory for core 'A': it has shape (1073741824, 268435456), which takes 1,152,921.5 TB.\n"
        "  Make its bonds smaller: 'r' has size 268,435,456."
    )


def test_a_core_or_a_bias_beyond_what_can_be_addressed() -> None:
    one = tnmars.network("linear", "A[i,o]", inputs={"i": 2**31 - 1}, outputs={"o": 2**30})
    with pytest.raises(tnmars.TnmarsError, match=r"core 'A': it has shape .* which takes .* TB"):
        tnmars.compile(one)
    wide = tnmars.families.cp("linear", inputs=(2,), outputs=(2**20, 2**20, 2**20), rank=1)
    words = re.escape("the bias: it has shape (1152921504606846976,), which takes 4,611,686.0 TB.")
    with pytest.raises(tnmars.TnmarsError, match=words):
        tnmars.compile(wide)


def test_an_error_of_another_sort_is_not_called_a_lack_of_memory() -> None:
    with pytest.raises(tnmars.TnmarsError, match="device is 'no such', but must be a device of torch"):
        tnmars.compile(LINEAR, device="no such")
    layer = tnmars.compile(LINEAR)
    layer.cores.G1.data = torch.zeros(1, 2)
    with pytest.raises(RuntimeError, match="shape"):
        layer(*inputs_of(LINEAR))
    assert not memory.is_short(RuntimeError("shapes cannot be multiplied"))
    assert not memory.is_short(torch.OutOfMemoryError("CUDA can't allocate memory"))  # programs wait for this class


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("shape", [(2**22, 4), (2**11, 2**11, 4)])
def test_an_output_without_memory_is_reported_with_the_sizes(grad: bool, shape: tuple[int, ...]) -> None:
    layer = tnmars.compile(tnmars.families.lowrank("linear", inputs=(4,), outputs=(2**24,), rank=1), bias=False)
    x = torch.zeros(1, 4).expand(shape)
    with torch.set_grad_enabled(grad), pytest.raises(tnmars.ShapeError) as told:
        layer(x)
    assert str(told.value) == (
        f"there is no memory to compute the layer for an input of shape {shape}. A tensor of 281.5 TB was to be "
        "made.\n  Use a smaller batch."
    )
    frozen = tnmars.freeze(layer)
    with torch.set_grad_enabled(grad), pytest.raises(tnmars.ShapeError, match="no memory to compute"):
        frozen(x)
    assert layer(torch.ones(2, 4)).shape == (2, 2**24)


def test_a_dense_weight_without_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = tnmars.compile(tnmars.families.lowrank("linear", inputs=(2**20,), outputs=(2**20,), rank=2))
    words = "the whole weight has 1,099,511,627,776 entries, too many for the memory; use the layer on its inputs"
    for ask in (layer.dense, lambda: layer.weight + 1, lambda: tnmars.to_dense_(nn.Sequential(layer))):
        with pytest.raises(tnmars.ShapeError, match=words):
            ask()
    monkeypatch.setattr(memory, "LARGE", 2**60)  # as if there had seemed to be memory
    with pytest.raises(tnmars.ShapeError, match=words):
        layer.dense()


def test_cores_are_refused_together_before_they_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system grants memory that it does not have until it is filled. So it is asked for the sum first."""
    limit, real = 2**20, torch.empty

    def empty(*shape: object, **more: object) -> Tensor:
        made = real(*shape, **more | {"device": "meta"})
        if made.numel() * made.element_size() > limit and str(more.get("device")) != "meta":
            raise RuntimeError(f"can't allocate memory: you tried to allocate {made.numel()} bytes.")
        return real(*shape, **more)

    monkeypatch.setattr(torch, "empty", empty)
    half = tnmars.families.lowrank("linear", inputs=(300,), outputs=(300,), rank=500)  # 600 kB each
    with pytest.raises(tnmars.TnmarsError) as told:
        tnmars.compile(half)
    assert str(told.value) == (
        "there is no memory for the 2 cores, which take 1.2 MB in all.\n  Make bonds smaller: 'r' has size 500."
    )
    assert tnmars.compile(half, device="meta").device.type == "meta"
    with pytest.raises(tnmars.TnmarsError, match=r"no memory for core 'A': it has shape \(300, 1000\)"):
        tnmars.compile(tnmars.families.lowrank("linear", inputs=(300,), outputs=(300,), rank=1000))


SHORT = """
import resource, sys, warnings
from pathlib import Path
import torch, tnmars
from torch import nn
warnings.simplefilter("ignore")
small = tnmars.families.lowrank("linear", inputs=(8,), outputs=(6,), rank=3)
wide = tnmars.families.lowrank("linear", inputs=(2000,), outputs=(2000,), rank=4)
thin = tnmars.families.lowrank("linear", inputs=(1,), outputs=(1,), rank=2**24)
weight, dense, path = torch.randn(2000, 2000), nn.Linear(2000, 2000), Path(sys.argv[1]) / "a"
large = nn.Sequential(tnmars.compile(wide, bias=False))
tnmars.widen_(large, 3000)
tnmars.save(large, path)
two = nn.Sequential(tnmars.compile(small), tnmars.compile(small), tnmars.compile(wide))
# what is needed is imported before memory is short
tnmars.prune(tnmars.compile(small), ranks=2), tnmars.decompose(torch.randn(6, 8), small, ranks=2)
[getattr(tnmars, name) for name in ("fit", "from_dense", "load_into", "Mars")]


def ask(what, room, call):
    used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (used * 1024 + room * 2**20, -1))
    try:
        call()
        said = "done"
    except tnmars.TnmarsError as error:
        said = str(error).splitlines()[0]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    print(what, said)


ask("gates", 100, lambda: tnmars.compile(thin, bias=False, dtype=torch.float16, selector=tnmars.Mars()))
ask("widen", 500, lambda: tnmars.widen_(two, 2**31 - 1))
ask("widen some", 80, lambda: tnmars.widen_(two, 4000))
ask("decompose", 20, lambda: tnmars.decompose(weight, wide, ranks=4))
ask("from_dense", 20, lambda: tnmars.from_dense(dense, wide, ranks=4))
ask("fit", 20, lambda: tnmars.fit(wide, weight, ranks=4))
ask("prune", 20, lambda: tnmars.prune(large, {"0": {"r": range(1000)}}))
ask("by rank", 20, lambda: tnmars.prune(large, ranks=1000))
ask("load", 60, lambda: tnmars.load_into(nn.Sequential(nn.Identity()), path))
print([layer.graph.bonds["r"].size for layer in two])
"""
"""Asks for more than a limit of the address space leaves; no memory is filled."""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of the address space")
def test_every_lack_of_memory_is_said_in_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SHORT, str(tmp_path)]
    given_back = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # else what was freed before is used again
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=given_back)
    assert found.returncode == 0, found.stderr
    *lines, sizes = found.stdout.splitlines()
    asked = ("gates", "widen", "widen some", "decompose", "from_dense", "fit", "prune", "by rank", "load")
    for what, line in zip(asked, lines, strict=True):
        assert line.startswith(f"{what} ") and "there is no memory " in line, found.stdout
    assert "the gates of bond 'r'" in lines[0]
    assert sizes == "[3, 3, 4]"  # nothing was changed


# --- parameters that are replaced -------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", [LOW, TERMS], ids=["one term", "terms"])
def test_a_core_keeps_its_shape(graph: Graph) -> None:
    layer = tnmars.compile(graph)
    x = torch.randn(3, 8)
    before = layer(x)
    for name, shape in graph.cores.items():
        *path, last = name.split(".")
        holder = layer.cores.get_submodule(".".join(path))
        for wrong in ((1, *shape), shape[:-1], (*shape[:-1], shape[-1] + 1), (*reversed(shape), 1)):
            with pytest.raises(tnmars.ShapeError) as told:
                setattr(holder, last, nn.Parameter(torch.zeros(wrong)))
            assert f"'{last}' of the layer has shape {shape}, but it was set to a tensor of shape {wrong}" in str(
                told.value
            )
        with pytest.raises(tnmars.ShapeError, match=f"'{last}' of the layer has shape .* but it was set to None"):
            setattr(holder, last, None)
    assert torch.equal(layer(x), before)
    new = nn.Parameter(torch.randn(graph.cores[name]))
    setattr(holder, last, new)
    assert layer.cores.get(name) is new
    assert not torch.equal(layer(x), before)


def test_gates_and_a_bias_keep_their_shapes() -> None:
    layer = tnmars.compile(LOW, selector=tnmars.Mars())
    with pytest.raises(tnmars.ShapeError, match=r"'r' of the layer has shape \(3,\), but .* shape \(2,\)"):
        layer.gates.r = nn.Parameter(torch.zeros(2))
    with pytest.raises(tnmars.ShapeError, match=r"'bias' of the layer has shape \(6,\), but .* shape \(1,\)"):
        layer.bias = nn.Parameter(torch.zeros(1))
    layer.bias = nn.Parameter(torch.full((6,), 2.0))
    assert torch.equal(layer.bias, torch.full((6,), 2.0))


def test_a_state_can_be_assigned() -> None:
    layer, other = tnmars.compile(TERMS), tnmars.compile(TERMS)
    other.load_state_dict({key: value.clone() for key, value in layer.state_dict().items()}, assign=True)
    x = torch.randn(3, 8)
    assert torch.equal(layer(x), other(x))


# --- logits that are not numbers --------------------------------------------------------------------------------------


SELECTORS = [
    tnmars.Mars(pi=0.1, alpha=0.5),
    tnmars.Mars(price="parameters", min_keep=0),
    tnmars.GaussianGates(),
    tnmars.Annealed(),
]


@pytest.mark.parametrize("selector", SELECTORS, ids=lambda selector: f"{selector.name} {selector.price}")
@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_logits_that_are_not_finite_decide_nothing(selector: tnmars.Selector, value: float) -> None:
    layer = tnmars.compile(LINEAR, selector=selector)
    (x,) = inputs_of(LINEAR)
    layer.eval()(x)  # finite logits have been looked at
    kept = layer.graph
    with torch.no_grad():
        layer.logits()[-1][1] = value
    words = "the logits of bond 'r1'.* are NaN or infinite: training has diverged"
    for ask in (
        lambda: layer(x),
        lambda: layer(x),
        layer.dense,
        lambda: tnmars.keep(layer),
        lambda: tnmars.prune(layer),
        lambda: tnmars.prune_(layer),
        lambda: tnmars.freeze(layer),
    ):
        with pytest.raises(tnmars.TnmarsError, match=words):
            ask()
    assert layer.graph is kept
    layer.train()(x)  # a step of training is not stopped: its loss shows it
    with torch.no_grad():
        layer.logits()[-1][1] = 0.3
    assert layer.eval()(x).isfinite().all()


def test_logits_of_a_loaded_state_are_looked_at() -> None:
    layer = tnmars.compile(LINEAR, selector=tnmars.Mars()).eval()
    (x,) = inputs_of(LINEAR)
    layer(x)
    state = {
        key: torch.full_like(value, nan) if key.startswith("gates") else value
        for key, value in layer.state_dict().items()
    }
    layer.load_state_dict(state)
    with pytest.raises(tnmars.TnmarsError, match="NaN or infinite"):
        layer(x)


NOT_FINITE = "the logits of .*bond.* are NaN or infinite: training has diverged"


def spoil_fill(layer: tnmars.TNModule) -> None:
    layer.gates.r.data.fill_(nan)


def spoil_data(layer: tnmars.TNModule) -> None:
    layer.gates.r.data = torch.tensor([0.0, nan, 1.0])


def spoil_vector(layer: tnmars.TNModule) -> None:
    nn.utils.vector_to_parameters(torch.full((3,), inf), layer.gates.parameters())


SPOILERS = [spoil_fill, spoil_data, spoil_vector]
"""Changes of logits that torch does not count."""


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("selector", [tnmars.Mars(), tnmars.Mars(sample_in_eval=True)], ids=["rounded", "sampled"])
@pytest.mark.parametrize("open_only", [False, True])
def test_logits_are_looked_at_in_every_pass_of_evaluation(
    spoil: Callable[[tnmars.TNModule], None], selector: tnmars.Selector, open_only: bool
) -> None:
    layer = tnmars.compile(LOW, selector=selector, open_only=open_only).eval()
    x = torch.randn(3, 8)
    for _ in range(3):
        assert layer(x).isfinite().all()
    spoil(layer)
    for _ in range(2):
        with pytest.raises(tnmars.TnmarsError, match=NOT_FINITE):
            layer(x)
    assert "; 42 parameters (48 dense)" in str(tnmars.summary(layer))  # not "42 -> 14": nothing can be decided


def test_logits_of_a_functional_call_are_looked_at() -> None:
    layer = tnmars.compile(LOW, selector=tnmars.Mars()).eval()
    x = torch.randn(3, 8)
    for _ in range(20):
        layer(x)
        with pytest.raises(tnmars.TnmarsError, match=NOT_FINITE):
            torch.func.functional_call(layer, {"gates.r": torch.full((3,), nan)}, (x,))
    states = {"gates.r": torch.stack([torch.zeros(3), torch.full((3,), nan)])}
    with pytest.raises(tnmars.TnmarsError, match=NOT_FINITE):
        torch.vmap(lambda state: torch.func.functional_call(layer, state, (x,)))(states)


def test_logits_made_in_inference_mode_are_looked_at() -> None:
    with torch.inference_mode():
        layer = tnmars.compile(LOW, selector=tnmars.Mars()).eval()
        layer(torch.ones(2, 8))
        layer.gates.r[0] = nan
        with pytest.raises(tnmars.TnmarsError, match=NOT_FINITE):
            layer(torch.ones(2, 8))


@pytest.mark.parametrize("fullgraph", [False, True])
def test_logits_are_looked_at_in_compiled_code(fullgraph: bool) -> None:
    layer = tnmars.compile(LOW, selector=tnmars.Mars()).eval()
    fast = torch.compile(layer, backend="eager", fullgraph=fullgraph)
    x = torch.randn(3, 8)
    torch.testing.assert_close(fast(x), layer(x))
    layer.gates.r.data.fill_(nan)
    with pytest.raises((tnmars.TnmarsError, RuntimeError), match=NOT_FINITE):
        fast(x)


def test_finite_logits_of_an_accelerator_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their entries are read after a change, not in every pass. What was looked at is not in a pickle."""
    monkeypatch.setattr("tnmars.layer.masks.NEAR", ())
    layer = tnmars.compile(LOW, selector=tnmars.Mars()).eval()
    x = torch.randn(3, 8)
    layer(x)
    assert "_checked" in vars(layer.masks) and "_checked" not in vars(copy.deepcopy(layer).masks)
    monkeypatch.setattr("tnmars.layer.masks.is_finite", lambda logits: pytest.fail("looked at again"))
    layer(x)
    with torch.inference_mode():
        layer(x)
    layer.train()(x)
    layer.eval()
    with torch.no_grad():
        layer.gates.r.add_(0.0)
    with pytest.raises(pytest.fail.Exception):
        layer(x)
    with pytest.raises(pytest.fail.Exception):
        torch.func.functional_call(layer, {"gates.r": torch.zeros(3)}, (x,))


def test_logits_without_entries_are_not_looked_at() -> None:
    """Under `FakeTensorMode` there is only a shape; other modes, such as a counter, change nothing."""
    layer, x = tnmars.compile(LOW, selector=tnmars.Mars()).eval(), torch.ones(2, 8)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert layer(x).shape == (2, 6)
    with FakeTensorMode():
        assert tnmars.compile(LOW, selector=tnmars.Mars()).eval()(torch.ones(2, 8)).shape == (2, 6)
    layer.gates.r.data.fill_(nan)
    with FlopCounterMode(display=False), pytest.raises(tnmars.TnmarsError, match=NOT_FINITE):
        layer(x)


def test_training_does_not_look_at_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = tnmars.compile(LOW, selector=tnmars.Mars())
    monkeypatch.setattr("tnmars.layer.masks.is_finite", lambda logits: pytest.fail("looked at"))
    layer(torch.randn(3, 8)).sum().backward()


# --- inputs by name ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", [EVERY[kind] for kind in ("linear", "conv", "patch", "embedding", "tensor")])
def test_the_input_has_the_name_that_torch_gives_it(graph: Graph) -> None:
    (x,) = inputs_of(graph)
    layer = tnmars.compile(graph)
    for each in (layer, tnmars.freeze(layer), tnmars.compile(graph, selector=tnmars.Mars()).eval()):
        assert torch.equal(each(input=x), each(x))


@pytest.mark.parametrize("graph", [EVERY[kind] for kind in ("linear", "conv", "patch", "embedding", "map")])
def test_an_input_that_is_missing_or_given_twice(graph: Graph) -> None:
    inputs = inputs_of(graph)
    layer = tnmars.compile(graph)
    for each in (layer, tnmars.freeze(layer), tnmars.compile(graph, selector=tnmars.Mars()).eval()):
        with pytest.raises(tnmars.ShapeError, match=r"input is of type NoneType, but must be a torch\.Tensor"):
            each(*[None] * len(inputs))
        if graph.inputs:
            continue
        with pytest.raises(tnmars.ShapeError, match=r"input is of type NoneType, but must be a torch\.Tensor"):
            each(input=None)
        with pytest.raises(TypeError, match="multiple values for argument 'input'"):  # as torch's own layers
            each(*inputs, input=inputs[0])


def test_bags_take_the_arguments_of_torch() -> None:
    graph = replace(SKIPPED, options=(("mode", "sum"),))
    layer, index = tnmars.compile(graph), torch.tensor([1, 2, 3, 4])
    found = layer(input=index, offsets=torch.tensor([0, 3]), per_sample_weights=torch.ones(4))
    assert torch.equal(found, layer(index, torch.tensor([0, 3]), torch.ones(4)))


# --- parametrized cores -----------------------------------------------------------------------------------------------


class Twice(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return 2 * value


def parametrized(cores: nn.Module, name: str) -> None:
    parametrize.register_parametrization(cores, name, Twice())


def weight_normed(cores: nn.Module, name: str) -> None:
    parametrizations.weight_norm(cores, name)


def old_weight_normed(cores: nn.Module, name: str) -> None:
    with pytest.warns(FutureWarning):
        nn.utils.weight_norm(cores, name)


def torch_pruned(cores: nn.Module, name: str) -> None:
    torch_prune.l1_unstructured(cores, name, 0.5)


WAYS = {
    parametrized: "parametrize.remove_parametrizations",
    weight_normed: "parametrize.remove_parametrizations",
    old_weight_normed: "remove_weight_norm",
    torch_pruned: "prune.remove",
}
"""How a core is made of other parameters, and the function of `torch.nn.utils` that ends it."""
ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
Way = Callable[[nn.Module, str], None]


def computed_layer(way: Way, **settings: object) -> tuple[tnmars.TNModule, nn.Module]:
    layer = tnmars.compile(TERMS, **settings)
    layer(torch.ones(2, 8))  # also what is remembered from before must give way
    holder = layer.cores.t2
    way(holder, "G")
    return layer, holder


def by_hand(layer: tnmars.TNModule, x: Tensor) -> Tensor:
    """The output from the values that torch shows for the cores, in a plain layer of the same graph."""
    plain = tnmars.compile(layer.graph)
    with torch.no_grad():
        for name in layer.graph.cores:
            plain.cores.get(name).copy_(layer.cores.get(name))
        plain.bias.copy_(layer.bias)
    return plain(x)


@ways
@pytest.mark.parametrize("gates", [False, True])
def test_a_computed_core_is_trained(way: Way, gates: bool) -> None:
    """Every step computes the core again from what the optimizer has changed."""
    layer, holder = computed_layer(way, selector=tnmars.Mars(alpha=9.0) if gates else None)
    assert "G" not in holder._parameters
    trained = [value for value in layer.cores.parameters() if value.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    x = torch.randn(5, 8)
    seen = []
    for _ in range(3):
        torch.testing.assert_close(layer.eval()(x), by_hand(layer, x))
        seen.append(layer.cores.get("t2.G").detach().clone())
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        assert all(value.grad is not None for value in trained)
        optimizer.step()
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])


@traces
@ways
def test_a_computed_core_is_in_what_is_made_of_the_layer(way: Way, tmp_path: Path) -> None:
    layer, _ = computed_layer(way)
    x = torch.randn(3, 8)
    layer(x).sum().backward()
    expected = by_hand(layer, x)
    torch.testing.assert_close(copy.deepcopy(layer)(x), expected)
    torch.testing.assert_close(tnmars.freeze(layer)(x), expected)
    torch.testing.assert_close(tnmars.to_dense_(nn.Sequential(copy.deepcopy(layer)))(x), expected)
    torch.testing.assert_close(nn.functional.linear(x, layer.dense(), layer.bias), expected)
    torch.testing.assert_close(torch.jit.trace(layer, (x,), check_trace=False)(x), expected)
    torch.testing.assert_close(torch.compile(layer, backend="eager")(x), expected)
    assert tnmars.summary(layer).layers[0].parameters == tnmars.count(layer.graph).cores
    if way is not parametrized and way is not weight_normed:  # torch itself does not pickle those
        torch.testing.assert_close(pickle.loads(pickle.dumps(layer))(x), expected)  # noqa: S301


@ways
def test_a_computed_core_is_not_cut_or_saved(way: Way, tmp_path: Path) -> None:
    layer, holder = computed_layer(way)
    optimizer = torch.optim.Adam(layer.parameters())
    state = {key: value.clone() for key, value in layer.state_dict().items()}
    bond = next(iter(layer.graph.bonds))
    for ask in (
        lambda: tnmars.prune(layer, {"": {bond: (0,)}}),
        lambda: tnmars.prune_(layer, optimizer, {"": {bond: (0,)}}),
        lambda: tnmars.prune(layer, ranks=1),
        lambda: tnmars.widen_(layer, 4),
        lambda: tnmars.save(layer, tmp_path / "model.safetensors"),
        lambda: tnmars.save_checkpoint(tmp_path / "model.safetensors", layer, optimizer),
        layer.reset_parameters,
    ):
        with pytest.raises(tnmars.TnmarsError) as told:
            ask()
        assert "core 't2.G' of layer '' is not a parameter, because torch computes it. Nothing was" in str(told.value)
        assert f"Make it a parameter first: torch.nn.utils.{WAYS[way]}(layer.cores.t2, 'G')." in str(told.value)
    assert not any(tmp_path.iterdir())
    assert all(torch.equal(value, layer.state_dict()[key]) for key, value in state.items())
    x = torch.randn(3, 8)
    before = layer(x)
    function = nn.utils
    for part in WAYS[way].split("."):
        function = getattr(function, part)
    function(holder, "G")
    torch.testing.assert_close(layer(x), before)
    tnmars.save(layer, tmp_path / "model.safetensors")
    torch.testing.assert_close(tnmars.load_into(nn.Identity(), tmp_path / "model.safetensors")(x), before)
    assert tnmars.prune(layer, ranks=1)(x).shape == before.shape


def test_a_pruned_bias_and_gates_that_are_computed() -> None:
    layer = tnmars.compile(LOW, selector=tnmars.Mars(alpha=9.0))
    torch_prune.l1_unstructured(layer, "bias", 0.5)
    parametrize.register_parametrization(layer.gates, "r", Twice())
    x = torch.randn(3, 8)
    layer(x).sum().backward()
    assert int((layer.bias == 0).sum()) == 3
    assert layer.gates.parametrizations.r.original.grad is not None
    torch.testing.assert_close(copy.deepcopy(layer).eval()(x), layer.eval()(x))


def computed_value(way: Way, what: str) -> tuple[tnmars.TNModule, str]:
    """A layer with a bias or a gate that torch computes, and its name there."""
    layer = tnmars.compile(LOW, selector=tnmars.Mars(alpha=9.0) if what == "gate" else None)
    holder, name = (layer, "bias") if what == "bias" else (layer.gates, "r")
    way(holder, name)
    return layer, name


@ways
@pytest.mark.parametrize("what", ["bias", "gate"])
def test_a_computed_bias_or_gate_is_not_saved_or_lost(way: Way, what: str, tmp_path: Path) -> None:
    layer, name = computed_value(way, what)
    model, path = nn.Sequential(layer), tmp_path / "model.safetensors"
    asked = [
        lambda: tnmars.save(model, path),
        lambda: tnmars.save_checkpoint(path, model, torch.optim.Adam(model.parameters())),
        layer.reset_parameters,
    ]
    if what == "gate":
        asked += [lambda: tnmars.prune(model, keep_gates=True), lambda: tnmars.prune(model)]
    else:
        asked += [lambda: tnmars.gate_(model, tnmars.Mars())]
    for ask in asked:
        with pytest.raises(tnmars.TnmarsError) as told:
            ask()
        words = "the bias" if what == "bias" else "gate 'r'"
        assert str(told.value).startswith(f"{words} of layer '")
        place = "layer" if what == "bias" else "layer.gates"
        assert f"Make it a parameter first: torch.nn.utils.{WAYS[way]}({place}, '{name}')." in str(told.value)
    assert not any(tmp_path.iterdir())
    tnmars.save(nn.Sequential(tnmars.compile(LOW, selector=layer.selector)), path)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(tnmars.TnmarsError, match=f"{words} of layer '0' of the model is not a parameter"):
        tnmars.load_into(model, path)
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in before.items())


@ways
def test_gates_are_not_put_on_a_computed_core(way: Way) -> None:
    layer, _ = computed_layer(way)
    with pytest.raises(tnmars.TnmarsError, match=r"core 't2\.G' of layer '0' is not a parameter"):
        tnmars.gate_(nn.Sequential(layer), tnmars.Mars())


@pytest.mark.parametrize("way", [torch_pruned, old_weight_normed], ids=lambda way: way.__name__)
def test_a_computed_bias_is_up_to_date_in_what_is_made_of_the_layer(way: Way) -> None:
    layer, _ = computed_value(way, "bias")
    x = torch.randn(3, 8)
    layer(x)
    with torch.no_grad():
        next(value for name, value in layer.named_parameters() if name in ("bias_orig", "bias_v")).mul_(-5.0)
    frozen, plain = tnmars.freeze(layer), tnmars.to_dense_(nn.Sequential(copy.deepcopy(layer)))
    expected = layer(x)
    torch.testing.assert_close(frozen(x), expected)
    torch.testing.assert_close(plain(x), expected)


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@ways
def test_computed_gates_keep_their_digits_and_their_learning_rate(way: Way) -> None:
    layer, _ = computed_value(way, "gate")
    groups = tnmars.param_groups(layer, lr=0.1, mask_lr=0.5)
    assert [group["lr"] for group in groups] == [0.1, 0.5]
    trained = {id(value) for value in layer.gates.parameters() if value.requires_grad}
    assert {id(value) for value in groups[1]["params"]} == trained
    for dtype in (torch.float16, torch.complex64):
        layer.to(dtype)
        assert {value.dtype for value in (*layer.gates.parameters(), *layer.gates.buffers())} == {torch.float32}
    assert layer(torch.ones(2, 8, dtype=torch.complex64)).dtype == torch.complex64


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64], ids=str)
def test_the_gradients_of_gates_keep_their_digits(dtype: torch.dtype) -> None:
    layer = tnmars.compile(LOW, selector=tnmars.Mars(alpha=0.5))
    layer(torch.randn(3, 8)).square().sum().backward()
    gradient = layer.gates.r.grad.clone()
    layer.to(dtype)
    assert layer.gates.r.grad.dtype == torch.float32
    assert torch.equal(layer.gates.r.grad, gradient)
    torch.optim.Adam(layer.parameters()).step()


def test_a_bias_stays_what_the_graph_says() -> None:
    layer, without = tnmars.compile(LOW), tnmars.compile(LOW, bias=False)
    with pytest.raises(tnmars.ShapeError, match=r"'bias' of the layer has shape \(6,\), but it was set to None"):
        layer.bias = None
    with pytest.raises(tnmars.ShapeError, match="the layer has no bias, because its graph has none"):
        without.bias = nn.Parameter(torch.zeros(6))
    without.bias = None
    x = torch.randn(2, 8)
    assert layer(x).shape == without(x).shape


# --- dtypes -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@every_kind
@pytest.mark.parametrize("gates", [False, True])
def test_complex_numbers(graph: Graph, gates: bool) -> None:
    """Gates stay real. The layer is linear in its first core: a factor i there is a factor i in the output."""
    layer = compiled(graph, selector=tnmars.Mars(alpha=0.5) if gates else None, bias=False if graph.has_bias else None)
    layer = layer.double()
    inputs = inputs_of(graph, dtype=torch.float64)
    before = layer(*inputs)
    wide = copy.deepcopy(layer).to(torch.complex128)
    assert wide.dtype == torch.complex128
    assert all(logits.dtype == torch.float64 for logits in wide.logits())
    with torch.no_grad():
        wide.cores.get(next(iter(graph.cores))).mul_(1j)
    found = wide(*(value.to(torch.complex128) if value.is_floating_point() else value for value in inputs))
    assert found.dtype == torch.complex128
    assert error(found.imag, before) <= 1e-10 and error(found.real + 1, torch.ones_like(before)) <= 1e-10
    found.abs().sum().backward()
    assert all(value.grad is not None for value in wide.cores.parameters())
    if gates and graph.bonds:
        assert wide.to(torch.complex64).logits()[0].dtype == torch.float64


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
def test_complex_layers_of_half_precision_are_not_saved(tmp_path: Path) -> None:
    model = nn.Sequential(tnmars.compile(LOW).to(torch.complex32))
    with pytest.raises(tnmars.TnmarsError, match=r"layer '0' has dtype torch\.complex32, which cannot be saved"):
        tnmars.save(model, tmp_path / "model.safetensors")
    assert not any(tmp_path.iterdir())


OTHER_TYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32, torch.int32, torch.bool]


@pytest.mark.parametrize("dtype", OTHER_TYPES, ids=str)
@pytest.mark.parametrize("selector", [None, tnmars.Mars()])
def test_types_that_a_layer_cannot_be_made_with(dtype: torch.dtype, selector: tnmars.Selector | None) -> None:
    reals = "torch.float16, torch.bfloat16, torch.float32, torch.float64"
    words = f"dtype is {dtype}, but must be one of {reals}, torch.complex64, torch.complex128."
    for make in (
        lambda: tnmars.compile(LOW, dtype=dtype, selector=selector),
        lambda: tnmars.Linear(8, 6, family="lowrank", rank=2, dtype=dtype, selector=selector),
    ):
        with pytest.raises(tnmars.TnmarsError) as told:
            make()
        assert str(told.value) == words


def test_float8_gates_keep_their_digits() -> None:
    layer = tnmars.compile(LOW, selector=tnmars.Mars()).to(torch.float8_e5m2)
    assert layer.dtype == torch.float8_e5m2
    assert [logits.dtype for logits in layer.logits()] == [torch.float32]


# --- traces -----------------------------------------------------------------------------------------------------------


TRACED = {
    **EVERY,
    "skipped": SKIPPED,
    "bags": replace(SKIPPED, options=(("mode", "mean"), ("padding_idx", 7))),
    "sums": replace(SKIPPED, options=(("mode", "sum"),)),
    "limited": replace(SKIPPED, options=(("mode", "max"), ("max_norm", 0.5))),
    "counted": replace(SKIPPED, options=(("max_norm", 0.5), ("scale_grad_by_freq", True))),
    "counted bags": replace(SKIPPED, options=(("mode", "mean"), ("scale_grad_by_freq", True))),
}


@traces
@pytest.mark.parametrize("name", TRACED if THOROUGH else list(TRACED)[::2])
@pytest.mark.parametrize(
    "selector", [None, tnmars.Mars(alpha=0.5), tnmars.GaussianGates()], ids=["plain", "mars", "gauss"]
)
@pytest.mark.parametrize("mode", ["train", "eval", "no_grad"])
def test_a_trace_computes_the_layer_and_its_gradients(name: str, selector: tnmars.Selector | None, mode: str) -> None:
    """Traced once with torch's own check, then run on another batch; also where the layer would take open slices."""
    graph = TRACED[name]
    layer = compiled(graph, selector=selector, open_only=True).train(mode == "train")
    with torch.set_grad_enabled(mode != "no_grad"):
        traced = torch.jit.trace(layer, inputs_of(graph, 3))
    inputs = inputs_of(graph, 7)
    wanted, found = layer(*inputs), traced(*inputs)
    torch.testing.assert_close(found, wanted)
    ours = torch.autograd.grad(wanted.square().sum(), list(layer.parameters()), allow_unused=True)
    theirs = torch.autograd.grad(found.square().sum(), list(traced.parameters()), allow_unused=True)
    assert any(slope is not None for slope in ours)
    for slope, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(other, slope)


@traces
def test_a_trace_of_rows_takes_any_number_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a batch would be as many as there were when it was traced."""
    layer = compiled(LINEAR)
    monkeypatch.setattr(layer.programs, "pick", lambda *given, pick=layer.programs.pick: replace(pick(*given), chunk=2))
    (x,) = inputs_of(LINEAR, 5)
    traced = torch.jit.trace(layer, (x,))
    for batch in (1, 2, 9):
        (x,) = inputs_of(LINEAR, batch)
        torch.testing.assert_close(traced(x), layer(x))


CUT = {name: graph for name, graph in EVERY.items() if graph.bonds}
every_cut = pytest.mark.parametrize("graph", CUT.values(), ids=CUT)


def without_terms(graph: Graph) -> tnmars.TNModule:
    layer = tnmars.prune(compiled(graph), {"": dict.fromkeys(graph.bonds, ())})
    assert not layer.graph.terms
    return layer


@every_cut
@pytest.mark.parametrize("form", ["compiled", "frozen"])
def test_a_layer_without_terms_compiles_whole(graph: Graph, form: str) -> None:
    layer = without_terms(graph)
    layer = tnmars.freeze(layer) if form == "frozen" else layer
    torch._dynamo.reset()
    run = torch.compile(layer, fullgraph=True, backend="inductor" if THOROUGH else "eager")
    for batch in (3, 5):
        inputs = inputs_of(graph, batch)
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                torch.testing.assert_close(run(*inputs), layer(*inputs))
    if graph.has_bias and form == "compiled":
        run(*inputs).sum().backward()
        assert layer.bias.grad is not None and bool((layer.bias.grad != 0).all())


@traces
@every_cut
def test_a_layer_without_terms_is_traced_and_exported(graph: Graph) -> None:
    layer, inputs = without_terms(graph), inputs_of(graph)
    expected = layer(*inputs)
    torch.testing.assert_close(torch.jit.trace(layer, inputs)(*inputs), expected)
    torch.testing.assert_close(torch.export.export(layer, inputs).module()(*inputs), expected)
