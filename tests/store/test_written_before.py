"""Files that an earlier version wrote still load, bit for bit: a model, a checkpoint, a spec.

What is loaded equals the file exactly. What is computed from it equals what the earlier version computed up to
rounding, because the files were written on another processor, whose matrix products round differently.
`tests/scripts/written_before.py` compares two versions on one machine, exactly.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import tnmars

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(autouse=True)
def one_thread() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write", DATA / "write.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def empty(writer: ModuleType) -> nn.Module:
    """The same model with other numbers."""
    torch.manual_seed(99)
    return writer.model()


def assert_near(value: Tensor, expected: Tensor, what: object) -> None:
    """Equal up to the rounding of another processor; what is not a floating-point number is equal."""
    if not expected.is_floating_point():
        assert torch.equal(value, expected), what
        return
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()), msg=str(what))


def test_a_model_holds_the_same_bits_and_computes_the_same(writer: ModuleType) -> None:
    expected = load_file(DATA / "expected.safetensors")
    net = tnmars.load_into(empty(writer), DATA / "model.safetensors")
    assert net["wide"].plan("infer", 1024).chunk == 64, "the file has a plan in chunks"
    held = load_file(DATA / "model.safetensors")
    state = net.state_dict()
    assert state.keys() == held.keys() and all(torch.equal(state[name], held[name]) for name in held)
    for mode in ("train", "eval"):
        net.train(mode == "train")
        with torch.no_grad():
            for name, value in writer.outputs(net).items():
                assert_near(value, expected[f"{mode}.{name}"], (mode, name))


def test_a_model_loads_into_torchs_own_layers(writer: ModuleType) -> None:
    plain = nn.ModuleDict(
        {
            "image": nn.Conv2d(4, 16, 3, stride=2, padding=1),
            "wide": nn.Linear(4096, 4096),
            "table": nn.Embedding(25, 4),
            "head": nn.Linear(4, 3),
        }
    )
    expected = load_file(DATA / "expected.safetensors")
    net = tnmars.load_into(plain, DATA / "model.safetensors").eval()
    with torch.no_grad():
        assert_near(writer.outputs(net)["image"], expected["eval.image"], "image")


def test_training_goes_on_from_a_checkpoint(writer: ModuleType) -> None:
    expected = load_file(DATA / "expected.safetensors")
    net = empty(writer)
    optimizer, schedule = writer.parts(net)
    resumed = tnmars.load_checkpoint(DATA / "checkpoint.safetensors", net, optimizer, schedule)
    assert resumed.position == [3, 0]
    for _ in range(2):
        writer.step(net, optimizer, schedule)
    state = net.state_dict()
    assert state.keys() == {name.removeprefix("after.") for name in expected if name.startswith("after.")}
    for name, value in state.items():
        assert_near(value, expected[f"after.{name}"], name)


def test_a_spec_reads_and_writes_the_same_text() -> None:
    text = (DATA / "pruned.yaml").read_text(encoding="utf-8")
    graph = tnmars.load(DATA / "pruned.yaml")
    assert graph.bonds["r2"].size == 2
    assert tnmars.dump(graph) == text
