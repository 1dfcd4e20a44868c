"""Other devices than the CPU, as far as they can be tested without one: torch's fake and meta tensors.

A fake tensor has a shape and a device, here `cuda`, but no numbers. Code that reads a number back to the host, or that
mixes devices, is an error under it. So what passes here needs no host round trip. Without CUDA, torch cannot record
gradients for that device: backward passes are tested with fake tensors on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from kit import SPECS, forms_of, once
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import tnmars
from tnmars import Graph
from tnmars.cli import cli
from tnmars.layer.code import code
from tnmars.layer.forward import code_inputs, example_inputs
from tnmars.plan.cost import AcceleratorModel, CostModel, machine_model, shipped_model
from tnmars.plan.layout import Weighing
from tnmars.timing import calibrate as calibration

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


@contextmanager
def fake(device: torch.device) -> Iterator[None]:
    """Within the block every new tensor is fake; on the GPU without gradients.

    Without CUDA, torch cannot slice tensors there either: a test that has to is skipped. A build for CUDA asks the
    driver about fake tensors, too.
    """
    if device == GPU and torch.version.cuda is not None and not torch.cuda.is_available():
        pytest.skip("torch for CUDA needs a GPU even for fake tensors")
    try:
        with FakeTensorMode(), torch.set_grad_enabled(device == CPU):
            yield
    except RuntimeError as error:
        if "PyTorch is not linked with support for cuda" not in str(error):
            raise
        pytest.skip("torch without CUDA cannot slice fake tensors")


def inputs_on(graph: Graph, device: torch.device, batch: int = 3) -> tuple[Tensor, ...]:
    return tuple(value.to(device) for value in example_inputs(graph, batch, 9))


def test_fake_tensors_see_host_round_trips_and_mixed_devices() -> None:
    for device in (CPU, GPU):
        with fake(device), pytest.raises(DataDependentOutputException):
            torch.empty(3, device=device).sum().item()
    with fake(GPU), pytest.raises(RuntimeError, match="device"):
        torch.empty(3, device=GPU) * torch.ones(3)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_emitted_code_stays_on_its_device(path: Path) -> None:
    """The best forms, forward on a GPU, and backward."""
    graph = tnmars.load(path)
    plain = replace(graph, options=()) if graph.is_lookup else graph  # emitted code takes tokens, not bags of them
    for form in once(forms_of(graph, 3, Weighing(AcceleratorModel(), True)))[:3]:
        made = code(form)
        for device in (CPU, GPU):
            with fake(device):
                cores = [torch.empty(graph.cores[graph.nodes[name]], device=device) for name in made.cores]
                bias = torch.empty(graph.out_features, device=device) if graph.has_bias else None
                trained = [core.requires_grad_(device == CPU) for core in cores]
                given = tuple(value.to(device) for value in code_inputs(plain, 3, 9))
                output = made(given, bias, made.fold(*trained))
                assert output.device == device, form.name
                if device == CPU:
                    output.sum().backward()
                    assert all(core.grad is not None for core in trained), form.name


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_layers_need_no_host_round_trip(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with enough tokens for repeated ones to be looked up once, as on a CPU."""
    monkeypatch.setattr(tnmars.TNModule, "reset_parameters", lambda layer: None)  # random numbers need CUDA
    with fake(GPU):
        layer = tnmars.compile(path, batch=3, image=9, device=GPU).requires_grad_(False)
        for batch in (3, 300):
            assert layer(*inputs_on(layer.graph, GPU, batch)).device == GPU


def test_gates_need_no_host_round_trip() -> None:
    with fake(CPU):
        layer = tnmars.compile(SPECS[0].with_name("tt_linear.yaml"), selector=tnmars.Mars())
        (layer(torch.empty(4, 784)).sum() + tnmars.penalty(layer)).backward()
        assert all(logits.grad is not None for logits in layer.logits())


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_shapes_on_the_meta_device(path: Path) -> None:
    layer, real = (tnmars.compile(path, batch=3, image=9, device=device) for device in ("meta", None))
    inputs = example_inputs(layer.graph, 3, 9)
    found = layer(*(value.to("meta") for value in inputs))
    assert found.is_meta
    assert found.shape == real(*inputs).shape


# --- the cost model by device -----------------------------------------------------------------------------------------


def test_each_type_of_device_has_its_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shipped_model() == shipped_model("meta") == CostModel()
    assert type(shipped_model("cpu")) is CostModel
    assert type(shipped_model("cuda")) is type(shipped_model("mps")) is AcceleratorModel
    embedding = SPECS[0].with_name("tt_embedding.yaml")
    with fake(GPU):
        assert isinstance(tnmars.compile(embedding, device=GPU).planner.model, AcceleratorModel)
    assert type(tnmars.compile(SPECS[0], device="cpu").planner.model) is CostModel
    monkeypatch.delenv("TNMARS_COST_MODEL")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "tnmars").mkdir()
    (tmp_path / "tnmars" / "cost_model_cuda.json").write_text('{"peak": 7e12}')
    assert machine_model("cuda") == AcceleratorModel(peak=7e12)
    assert machine_model() == CostModel()


def test_an_accelerator_computes_in_tiles_and_keeps_its_memory() -> None:
    model = AcceleratorModel()
    full, part = (model.matmul(1, 8192, columns, 4096) for columns in (128, 65))
    assert part == pytest.approx(full, rel=0.02), "two tiles each"
    assert model.matmul(1, 8192, 129, 4096) > 1.2 * full
    assert model.fresh(10**9) == 0 < CostModel().fresh(10**9)
    assert model.matmul(1, 0, 5, 5) == model.call


def test_a_saved_layer_keeps_the_kind_of_its_model(tmp_path: Path) -> None:
    graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=2)
    for model in (AcceleratorModel(peak=3e12), CostModel(peak=3e9)):
        tnmars.save(tnmars.compile(graph, model=model), tmp_path / "layer.tnm")
        loaded = tnmars.load_into(torch.nn.Linear(6, 5), tmp_path / "layer.tnm")
        assert loaded.planner.model == model
        assert type(loaded.planner.model) is type(model)


@pytest.mark.parametrize(
    ("device", "said"),
    [("nonsense", "torch has no device 'nonsense' here."), ("meta", "the meta device computes nothing.")],
)
def test_calibrate_refuses_a_device_that_is_not_there(device: str, said: str) -> None:
    result = CliRunner().invoke(cli, ["calibrate", "--device", device])
    assert result.exit_code == 2
    assert said in result.output


def test_operations_are_timed_on_the_device_and_fitted_to_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake clock takes what another accelerator model says; the fit comes closer to it than the shipped one."""
    truth = AcceleratorModel(peak=5e12, rate=4e11)
    monkeypatch.setattr(calibration, "in_turns", lambda actions, **given: [1.0] if given["device"] == "meta" else [2.0])
    found = calibration.samples(device="meta")
    assert {sample.seconds for sample in found} == {1.0}
    timed = [replace(sample, seconds=sample.price(truth)) for sample in found]
    fitted = calibration.fit(timed, shipped_model("cuda"), rounds=300)
    assert isinstance(fitted, AcceleratorModel)
    assert calibration.error(fitted, timed) < 0.5 * calibration.error(AcceleratorModel(), timed)
