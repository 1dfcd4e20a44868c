"""Compiled layers in the tools around torch: each spec goes through every one of them, and gives the same numbers.

An eager call takes the plan of its own batch, a traced one that of the nominal batch; so where the two agree, two
different programs do.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import oracle
import pytest
import safetensors.torch
import torch
from kit import SPECS
from oracle import spec
from strategies import THOROUGH
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tnmars
from tnmars import Graph, TNModule, load
from tnmars.errors import TnmarsError
from tnmars.graph.parts import Operand
from tnmars.ship import export

NAMES = [path.stem for path in SPECS]
SOME = ("lowrank_linear", "odd_two_terms", "odd_names", "tucker2_lenet_conv", "tt_conv_naive", "lowrank_embedding")
SOME += ("tucker_tensor", "bilinear_pooling", "cp_conv_transpose")
"""Specs of every kind that go through what is slow also in a quick run; thorough ones take all."""
BATCHES = (5, 7)
"""So near to each other that inductor splits its sums the same way; it has programs for ranges of sizes."""
FIXED = {"conv": 6, "conv_transpose": 6} if THOROUGH else {}
"""The length of data axes other than the batch, for the kinds where inductor wants one: it takes the size of an image
for a constant also in torch's own layers, and where it is told not to, may fail in training (pytorch issue 185510)."""

every_spec = pytest.mark.parametrize("name", NAMES)
some_specs = pytest.mark.parametrize("name", NAMES if THOROUGH else SOME)
every_tensor = pytest.mark.parametrize("name", [name for name in NAMES if load(spec(name)).kind == "tensor"])
needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in (*export.NEEDED, "onnxruntime")),
    reason="onnx, onnxscript or onnxruntime is not installed: pip install 'tnmars[export]'",
)


@cache
def compiled(name: str) -> TNModule:
    """The layer of a spec. Tests share it, and leave its parameters as they are."""
    return tnmars.compile(spec(name))


@cache
def frozen(name: str, form: str) -> nn.Module:
    return tnmars.freeze(compiled(name), form)


@pytest.fixture(autouse=True)
def clean() -> None:
    """No test sees what another has compiled."""
    torch._dynamo.reset()


def inputs(graph: Graph, batch: int, length: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Inputs of a layer. Data axes other than the batch differ from each other and grow with `length`, else with it."""
    length = length or batch
    if graph.kind == "linear":
        return (torch.randn(batch, graph.in_features, dtype=dtype),)
    if graph.kernel_size:
        image = [5 + length + at for at in range(len(graph.kernel_size))]
        return (torch.randn(batch, graph.in_features, *image, dtype=dtype),)
    if graph.kind == "embedding":
        index = torch.randint(0, graph.vocab, (batch, length + 2))
        index[0, 0] = 0  # the padding, where there is one
        return (index,)
    if graph.kind == "tensor":
        return (torch.stack([torch.randint(0, mode.size, (batch,)) for mode in graph.modes], -1),)
    modes = {mode.name: mode.size for mode in graph.modes}
    lengths: dict[str, int] = {}
    for operand in graph.inputs:
        for axis in operand.axes:
            if axis[0] not in modes:
                lengths.setdefault(axis[0], length + len(lengths) if lengths else batch)
    sizes = {**modes, **lengths}
    shapes = [[prod(sizes[part] for part in axis) for axis in operand.axes] for operand in given(graph)]
    return tuple(torch.randn(shape, dtype=dtype) for shape in shapes)


def given(graph: Graph) -> list[Operand]:
    """The inputs of a map that a caller gives: those in a second place are the same."""
    return [operand for operand in graph.inputs if not operand.same]


def data_axes(graph: Graph) -> list[list[int]]:
    """For each input, the axes whose length is the caller's."""
    if graph.kernel_size:
        return [[0, *range(2, 2 + len(graph.kernel_size))]]
    if graph.kind == "map":
        modes = {mode.name for mode in graph.modes}
        return [[at for at, axis in enumerate(operand.axes) if axis[0] not in modes] for operand in given(graph)]
    return [[0, 1]] if graph.kind == "embedding" else [[0]]


def assert_close(found: Tensor, wanted: Tensor, error: float = 1e-4) -> None:
    """Equal but for rounding: the norm of the difference, relative to that of what is wanted."""
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    difference = (found.detach().double() - wanted.detach().double()).norm().item()
    norm = wanted.detach().double().norm().item()
    assert norm > 0
    assert difference <= error * norm, f"relative error {difference / norm:.2e}"


def gradients(function: Callable[..., Tensor], layer: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The output, then the gradients of a sum with random weights by all parameters and inputs that have one."""
    given = tuple(value.detach().requires_grad_(value.is_floating_point()) for value in given)
    result = function(*given)
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
    wanted = [*layer.parameters(), *(value for value in given if value.requires_grad)]
    return result, *torch.autograd.grad((result * weights.to(result.dtype)).sum(), wanted)


def assert_same(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...], error: float = 1e-4) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, error)


def backend_for(name: str) -> str:
    """torch's default when thorough; else one that makes forward and backward graphs, or the cheapest."""
    return "inductor" if THOROUGH else "aot_eager" if name in SOME else "eager"


# --- torch.compile ---------------------------------------------------------------------------------------------------


def counted(backend: str) -> tuple[Callable[..., Any], list[int]]:
    """A backend of `torch.compile`, and the list that has an entry for each program that it was given."""
    programs: list[int] = []

    def compile_(program: torch.fx.GraphModule, examples: list[Any], **options: Any) -> Any:
        programs.append(len(program.graph.nodes))
        return torch._dynamo.lookup_backend(backend)(program, examples, **options)

    return compile_, programs


def compiled_once(layer: nn.Module, graph: Graph, backend: Callable[..., Any]) -> Callable[..., Tensor]:
    """The layer compiled for data axes of any length, or for any batch alone; an axis that is fixed is an error.

    Not by `dynamic=True`, which takes the sizes of buffers as unknown too, and as the batch's where they are equal.
    """
    fast = torch.compile(layer, fullgraph=True, backend=backend)

    def run(*given: Tensor) -> Tensor:
        for value, axes in zip(given, data_axes(graph), strict=True):
            for axis in axes[:1] if graph.kind in FIXED else axes:
                torch._dynamo.mark_dynamic(value, axis)
        return fast(*given)

    return run


@every_spec
def test_compiles_whole_with_gradients_and_once_for_every_batch(name: str) -> None:
    layer = compiled(name)
    backend, programs = counted(backend_for(name))
    fast = compiled_once(layer, layer.graph, backend)
    for batch in BATCHES:
        given = inputs(layer.graph, batch, length=FIXED.get(layer.graph.kind, batch))
        assert_same(gradients(fast, layer, given), gradients(layer, layer, given))
    assert len(programs) == 1, "a batch has been compiled for"


@some_specs
def test_compiles_for_inference_and_a_batch_of_one(name: str) -> None:
    layer = compiled(name)
    fast = torch.compile(layer, fullgraph=True, backend=backend_for(name))
    given = inputs(layer.graph, 1)
    with torch.no_grad():
        assert_close(fast(*given), layer(*given))


@every_tensor
def test_whole_tensor_compiles_and_exports(name: str) -> None:
    layer = compiled(name)
    fast = torch.compile(layer, fullgraph=True, backend=backend_for(name))
    assert_same(gradients(fast, layer, ()), gradients(layer, layer, ()))
    assert_close(torch.export.export(layer, ()).module()(), layer())


# --- torch.export and ONNX -------------------------------------------------------------------------------------------


def exported(layer: nn.Module, graph: Graph) -> torch.export.ExportedProgram:
    """The layer as a program for data axes of any length."""
    dims = [dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in data_axes(graph)]
    return export.respell(torch.export.export(layer, inputs(graph, 4), dynamic_shapes={"inputs": tuple(dims)}))


def assert_exports(layer: nn.Module, graph: Graph) -> None:
    program = exported(layer, graph)
    axes = {axis for operand in graph.inputs for axis in operand.axes} - {(mode.name,) for mode in graph.modes}
    assert len(program.range_constraints) == (len(axes) or len(data_axes(graph)[0])), "a data axis has been fixed"
    for bounds in program.range_constraints.values():
        assert bounds.lower <= max([2, *graph.kernel_size])
        assert bounds.upper > 2**60
    module = program.module()
    for batch in (1, 2, 11):
        given = inputs(graph, batch)
        assert_close(module(*given), layer(*given))


@every_spec
def test_exports_with_any_length_of_the_data_axes(name: str) -> None:
    with torch.no_grad():
        assert_exports(compiled(name), compiled(name).graph)


@some_specs
def test_exports_with_gradients(name: str) -> None:
    assert_exports(compiled(name), compiled(name).graph)


def onnx_run(path: Path) -> Callable[..., Tensor]:
    """An ONNX file as a function."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(*given: Tensor) -> Tensor:
        named = {entry.name: value.numpy() for entry, value in zip(session.get_inputs(), given, strict=True)}
        return torch.from_numpy(session.run(None, named)[0])

    return run


@needs_onnx
@pytest.mark.parametrize("name", NAMES if THOROUGH else SOME[3:])
def test_onnxruntime_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
    layer = compiled(name)
    export.export_onnx(layer, tmp_path / "layer.onnx", inputs(layer.graph, 3, length=4))
    assert [path.name for path in tmp_path.iterdir()] == ["layer.onnx"]
    run = onnx_run(tmp_path / "layer.onnx")
    for batch in (1, 7):
        given = inputs(layer.graph, batch, length=4)
        assert_close(run(*given), layer(*given))


class Net(nn.Module):
    """A model around a layer, with something that differs between training and evaluation, and two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = compiled("odd_names")
        self.norm = nn.BatchNorm1d(96)
        self.last = nn.Linear(96, 3)

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        return self.last(self.norm(torch.relu(self.first(x)))) + shift


def test_exported_program_is_the_model_in_evaluation() -> None:
    model = Net().train()
    before = copy.deepcopy(model.state_dict())
    given = torch.randn(6, 128), torch.randn(6, 3)
    found = export.export_program(model, given).module()(*given)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.training
    assert model.norm.training
    assert_close(found, model.eval()(*given))


@needs_onnx
def test_onnx_of_a_model_is_for_any_batch(tmp_path: Path) -> None:
    model = Net().eval()
    export.export_onnx(model, tmp_path / "net.onnx", (torch.randn(1, 128), torch.randn(1, 3)))
    for batch in (1, 2, 6):
        given = torch.randn(batch, 128), torch.randn(batch, 3)
        assert_close(onnx_run(tmp_path / "net.onnx")(*given), model(*given))


def test_exported_program_has_names_that_python_can_spell() -> None:
    layer = nn.Module()
    layer._parameters |= {name: nn.Parameter(torch.randn(3)) for name in ("class", "class_", "plain")}
    layer.forward = lambda x: x + layer.get_parameter("class") * 2 + layer.get_parameter("class_") * 3
    layer.register_buffer("if", torch.randn(3), persistent=False)
    program = export.export_program(layer, torch.zeros(1, 3))
    assert {"class__", "class_", "plain"} >= set(program.state_dict) >= {"class__", "class_"}
    assert_close(program.module()(torch.ones(4, 3)), layer(torch.ones(4, 3)))


def test_onnx_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in export.NEEDED:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TnmarsError) as caught:
        export.export_onnx(compiled("odd_one_core"), tmp_path / "layer.onnx", torch.randn(2, 64))
    assert str(caught.value) == (
        "ONNX export needs onnx and onnxscript, which cannot be imported.\n"
        "  Install what is missing with: pip install 'tnmars[export]'"
    )
    assert not list(tmp_path.iterdir())


@needs_onnx
def test_onnx_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "layer.onnx"
    target.write_text("old")
    with pytest.raises(tnmars.ShapeError, match="must be 64"):
        export.export_onnx(compiled("odd_one_core"), target, torch.randn(2, 63))
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(TnmarsError, match=r"nowhere/layer.onnx: cannot be written: No such file or directory\."):
        export.export_onnx(compiled("odd_one_core"), tmp_path / "nowhere" / "layer.onnx", torch.randn(2, 64))


# --- types -----------------------------------------------------------------------------------------------------------


def dense_weight(layer: TNModule) -> Tensor:
    """The weight in torch's layout from one einsum over the parameters, differentiable."""
    graph = layer.graph
    modes = [mode.name for mode in graph.modes]
    total = torch.zeros([mode.size for mode in graph.modes], dtype=layer.dtype)
    for term in graph.terms:
        labels = {edge: at for at, edge in enumerate([*modes, *(bond.name for bond in term.bonds)])}
        operands: list[Any] = []
        for core in term.cores:
            operands += [layer.cores.get(graph.qualified(term, core.name)), [labels[edge] for edge in core.edges]]
        total = total + torch.einsum(*operands, [labels[mode] for mode in modes])
    return oracle.dense(graph, total)


def torchs(layer: TNModule) -> Callable[..., Tensor]:
    """What torch's own layer gives with the weight of this one."""

    def run(*given: Tensor) -> Tensor:
        return oracle.layer(layer.graph, dense_weight(layer), layer.bias, *given)

    return run


@every_spec
def test_float64_is_exact(name: str) -> None:
    layer = copy.deepcopy(compiled(name)).double()
    given = inputs(layer.graph, 5, dtype=torch.float64)
    found = gradients(layer, layer, given)
    assert {value.dtype for value in found} == {torch.float64}
    assert_same(found, gradients(torchs(layer), layer, given), 1e-12)


@every_spec
def test_autocast_gives_the_types_of_torchs_layer(name: str) -> None:
    layer = compiled(name)
    given = inputs(layer.graph, 5)
    exact = gradients(layer, layer, given)
    for batch in (1, 5, 300):
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            some = inputs(layer.graph, batch, length=3)
            assert layer(*some).dtype == torchs(layer)(*some).dtype, f"at batch {batch}"
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(layer, layer, given)
    assert {value.dtype for value in found[1:]} == {torch.float32}
    for one, other in zip(found, exact, strict=True):
        assert_close(one.float(), other, 0.03)
    assert not torch.equal(found[1], exact[1]), "autocast changed nothing"


# --- torch.func ------------------------------------------------------------------------------------------------------


@every_spec
def test_vmap_over_inputs(name: str) -> None:
    layer = compiled(name)
    rows = [inputs(layer.graph, 5) for _ in range(3)]
    stacked = tuple(torch.stack(values, 1) for values in zip(*rows, strict=True))
    found = torch.func.vmap(layer, in_dims=1)(*stacked)
    assert_close(found, torch.stack([layer(*row) for row in rows]))


@every_spec
def test_ensemble_by_functional_call_and_vmap(name: str) -> None:
    members = [copy.deepcopy(compiled(name)) for _ in range(3)]
    for member in members:
        member.reset_parameters()
    state = torch.func.stack_module_state(members)
    base = copy.deepcopy(members[0]).to("meta")
    given = inputs(base.graph, 5)
    found = torch.func.vmap(lambda *state: torch.func.functional_call(base, state, given))(*state)
    assert_close(found, torch.stack([member(*given) for member in members]))


@every_spec
def test_gradients_of_each_sample(name: str) -> None:
    layer = compiled(name)
    parameters = dict(layer.named_parameters())
    samples = [inputs(layer.graph, 2) for _ in range(3)]
    stacked = tuple(torch.stack(values) for values in zip(*samples, strict=True))

    def loss(parameters: dict[str, Tensor], *given: Tensor) -> Tensor:
        return torch.func.functional_call(layer, parameters, given).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, *(0 for _ in stacked)))(parameters, *stacked)
    for at, sample in enumerate(samples):
        alone = torch.autograd.grad(layer(*sample).square().sum(), list(parameters.values()))
        assert_same(tuple(each[key][at] for key in parameters), alone)


# --- copies and state ------------------------------------------------------------------------------------------------


@every_spec
def test_deepcopy_is_independent(name: str) -> None:
    layer = compiled(name)
    given = inputs(layer.graph, 5)
    before = layer(*given)
    copied = copy.deepcopy(layer)
    assert torch.equal(copied(*given), before)
    copied.reset_parameters()
    assert torch.equal(layer(*given), before)
    assert not torch.equal(copied(*given), before)


@every_spec
def test_state_goes_through_safetensors(name: str, tmp_path: Path) -> None:
    layer = compiled(name)
    graph = layer.graph
    assert set(layer.state_dict()) == {f"cores.{core}" for core in graph.cores} | (
        {"bias"} if graph.has_bias else set()
    )
    safetensors.torch.save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    given = inputs(graph, 5)
    other = copy.deepcopy(layer)
    other.reset_parameters()
    assert not torch.equal(other(*given), layer(*given))
    other.load_state_dict(safetensors.torch.load_file(tmp_path / "layer.safetensors"))
    assert torch.equal(other(*given), layer(*given))


@every_spec
def test_checkpointing_gives_the_same_gradients(name: str) -> None:
    layer = compiled(name)
    given = inputs(layer.graph, 5)
    found = gradients(lambda *values: checkpoint(layer, *values, use_reentrant=False), layer, given)
    for one, other in zip(found, gradients(layer, layer, given), strict=True):
        assert torch.equal(one, other)


# --- frozen layers ---------------------------------------------------------------------------------------------------


@some_specs
@pytest.mark.parametrize("form", ["compact", "fast"])
def test_frozen_layer_compiles_exports_and_copies(name: str, form: str, tmp_path: Path) -> None:
    layer, small = compiled(name), frozen(name, form)
    backend, programs = counted("inductor" if THOROUGH else "eager")
    fast = compiled_once(small, layer.graph, backend)
    copied = copy.deepcopy(small)
    with torch.no_grad():
        for batch in BATCHES:
            given = inputs(layer.graph, batch, length=FIXED.get(layer.graph.kind, batch))
            assert_close(small(*given), layer(*given))
            assert_close(fast(*given), small(*given))
            assert torch.equal(copied(*given), small(*given))
        assert len(programs) == 1, "a batch has been compiled for"
        assert_exports(small, layer.graph)
        safetensors.torch.save_file(small.state_dict(), tmp_path / "layer.safetensors")
        for value in copied.state_dict().values():
            value.zero_()
        copied.load_state_dict(safetensors.torch.load_file(tmp_path / "layer.safetensors"))
        assert torch.equal(copied(*given), small(*given))


@every_spec
@pytest.mark.parametrize("form", ["compact", "fast"])
def test_frozen_layer_shares_nothing_with_the_layer(name: str, form: str) -> None:
    own = {value.data_ptr() for value in compiled(name).state_dict().values()}
    assert own.isdisjoint(value.data_ptr() for value in frozen(name, form).state_dict().values())


# --- files that need torch alone -------------------------------------------------------------------------------------

CHILD = """
import importlib.util, json, sys
from pathlib import Path
sys.modules["tnmars"] = None  # so that importing it fails
import torch
from safetensors.torch import load_file

torch.set_num_threads(1)
found = {}
for folder in sorted(Path(sys.argv[1]).iterdir()):
    spec = importlib.util.spec_from_file_location(folder.name, folder / "layer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    layer = module.Layer(dtype=torch.float64)
    layer.load_state_dict(load_file(folder / "state.safetensors"))
    errors = []
    for case in sorted(folder.glob("case*")):
        values = load_file(case)
        wanted = values.pop("wanted")
        result = layer(*(values[key] for key in sorted(values)))
        result.sum().backward()
        same = result.shape == wanted.shape and result.dtype == wanted.dtype
        errors.append(((result - wanted).norm() / wanted.norm()).item() if same else str((result.shape, result.dtype)))
    found[folder.name] = {"errors": errors, "keys": list(layer.state_dict()), "loaded": "opt_einsum" in sys.modules}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def stand_alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Every spec written as a file, and what a fresh interpreter without tnmars finds on running them."""
    root = tmp_path_factory.mktemp("files")
    for name in NAMES:
        layer = copy.deepcopy(compiled(name)).double()
        folder = root / name
        folder.mkdir()
        tnmars.write_source(layer, folder / "layer.py")
        safetensors.torch.save_file(layer.state_dict(), folder / "state.safetensors")
        given = [
            inputs(layer.graph, batch, dtype=torch.float64)
            for batch in (1, 5, 300 if layer.graph.kind == "linear" else 9)
        ]
        given += [()] if layer.graph.kind == "tensor" else []
        has_bags = "mode" in dict(layer.graph.options)
        given += [] if layer.graph.kind == "map" or has_bags else [(given[1][0][0],)]
        for at, values in enumerate(given):
            named = {f"x{place}": value for place, value in enumerate(values)}
            safetensors.torch.save_file({**named, "wanted": layer(*values).detach().contiguous()}, folder / f"case{at}")
    done = subprocess.run([sys.executable, "-c", CHILD, str(root)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return root, json.loads(done.stdout)


@every_spec
def test_written_source_computes_the_layer_without_tnmars(name: str, stand_alone: tuple[Path, dict[str, Any]]) -> None:
    root, found = stand_alone
    text = (root / name / "layer.py").read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if "import" in line] == [
        "import torch",
        "import torch.nn.functional as F",
        "from torch import nn",
    ]
    assert sorted(found[name]["keys"]) == sorted(compiled(name).state_dict())
    assert len(found[name]["errors"]) == len(list((root / name).glob("case*"))) >= 3
    assert all(error < 1e-12 for error in found[name]["errors"]), found[name]["errors"]


def run_source(layer: TNModule, path: Path) -> Any:
    """The layer that a written file makes, with the parameters of the one it was made from."""
    tnmars.write_source(layer, path)
    space: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)  # noqa: S102
    made = space["Layer"]()
    made.load_state_dict(layer.state_dict())
    return made


@pytest.mark.parametrize("title", ['"""', "it's \\", "größe-模型", "{title} %s", ""])
def test_written_source_has_no_code_from_names(title: str, tmp_path: Path) -> None:
    layer = tnmars.compile(replace(load(spec("odd_names")), name=title))
    made = run_source(layer, tmp_path / "layer.py")
    x = torch.randn(2, 3, 128)
    assert_close(made(x), layer(x))


def test_written_source_takes_any_name_of_a_core(tmp_path: Path) -> None:
    names = ["training", "forward", "_parameters", "cores"]
    graph = load(spec("odd_four_ends"))
    (term,) = graph.terms
    cores = tuple(replace(core, name=name) for core, name in zip(term.cores, names, strict=True))
    layer = tnmars.compile(graph.with_terms([replace(term, cores=cores)]))
    made = run_source(layer, tmp_path / "layer.py").eval()
    assert set(made.state_dict()) == {*(f"cores.{name}" for name in names), "bias"}
    x = torch.randn(3, 256)
    assert_close(made(x), layer(x))


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("tt_embedding", [0, 24_999], [[25_000], [-1]]),
        ("tucker_tensor", [0, 7, 7, 0], [[0, 0, 8, 0], [0, -1, 0, 0]]),
    ],
)
def test_written_source_refuses_rows_that_are_not_there(
    name: str, good: list[int], bad: list[list[int]], tmp_path: Path
) -> None:
    made = run_source(compiled(name), tmp_path / "layer.py")
    assert_close(made(torch.tensor(good)), compiled(name)(torch.tensor(good)))
    for index in bad:
        with pytest.raises(IndexError, match="not below"):
            made(torch.tensor(index))


def test_what_has_no_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TnmarsError) as caught:
        tnmars.write_source(frozen("tt_linear", "fast"), tmp_path / "layer.py")
    assert str(caught.value) == "FrozenLayer is not a compiled layer, and has no source to write."
    empty = tnmars.compile(load(spec("tt_linear")).with_terms(()))
    with pytest.raises(TnmarsError) as caught:
        tnmars.write_source(empty, tmp_path / "layer.py")
    assert str(caught.value) == "the layer has no term left, and so no source to write: it is its bias alone."
    assert not list(tmp_path.iterdir())


def test_gates_are_not_lost_on_the_way_out(tmp_path: Path) -> None:
    """A layer with gates is pruned for ONNX; its source alone would compute something else, and is refused."""
    torch.manual_seed(0)
    layer = tnmars.compile(oracle.spec("odd_chords"), selector=tnmars.Mars(spread=2.0)).eval()
    with pytest.raises(TnmarsError, match="the layer has gates"):
        tnmars.write_source(layer, tmp_path / "layer.py")
    tnmars.write_source(tnmars.prune(layer), tmp_path / "layer.py")
    onnxruntime = pytest.importorskip("onnxruntime")
    given = oracle.problem(layer.graph, 3).inputs
    given = tuple(value.detach().float() if value.is_floating_point() else value for value in given)
    tnmars.export_onnx(layer, tmp_path / "layer.onnx", given)
    session = onnxruntime.InferenceSession(tmp_path / "layer.onnx")
    names = [entry.name for entry in session.get_inputs()]
    (found,) = session.run(None, dict(zip(names, (value.numpy() for value in given), strict=True)))
    assert oracle.error(torch.tensor(found), layer(*given)) <= 1e-5
