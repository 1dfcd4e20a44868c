"""`show`, `diff` and `plan` of a saved model, and what `check` asks about a spec file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import tnmars
from tnmars import cli

Printed = pytest.CaptureFixture[str]
FIRST = tnmars.families.tt("linear", inputs=(4, 3), outputs=(2, 3), rank=5)
SECOND = tnmars.families.lowrank("linear", inputs=(6,), outputs=(3,), rank=2)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    net = nn.ModuleDict({"a": tnmars.compile(FIRST), "b": tnmars.compile(SECOND), "c": nn.Linear(900, 900)})
    tnmars.save(net, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_show_and_plan_of_a_model(model: Path, tmp_path: Path, capfd: Printed) -> None:
    assert cli.run(["show", str(model), "--width", "80"]) == 0
    printed = capfd.readouterr().out
    assert printed.startswith("a:\n") and "\n\nb:\n" in printed and "G1" in printed
    assert cli.run(["show", str(model), "--json"]) == 0
    assert [entry["layer"] for entry in json.loads(capfd.readouterr().out)] == ["a", "b"]
    assert cli.run(["show", str(model), "-o", str(tmp_path / "a.svg")]) == 2
    assert "has 2 layers, and a picture shows one: a, b." in " ".join(capfd.readouterr().err.split())
    assert cli.run(["show", str(model), "--layer", "b", "-o", str(tmp_path / "a.svg")]) == 0
    assert cli.run(["plan", str(model), "--batch", "8", "--json"]) == 0
    assert {entry["layer"] for entry in json.loads(capfd.readouterr().out.partition("\n")[2])} == {"a", "b"}
    assert cli.run(["plan", str(model), "--layer", "nope"]) == 2
    assert "has no layer 'nope'; its layers: a, b." in " ".join(capfd.readouterr().err.split())


def test_plan_counts_the_bytes_of_the_numbers(tmp_path: Path, capfd: Printed) -> None:
    def written(file: Path) -> int:
        assert cli.run(["plan", str(file), "--batch", "8", "--json"]) == 0
        return json.loads(capfd.readouterr().out)[0]["steps"][-1]["written"]

    for dtype, item in ((torch.float32, 4), (torch.float64, 8), (torch.complex64, 8), (torch.complex128, 16)):
        tnmars.save(tnmars.compile(SECOND, dtype=dtype), tmp_path / "model")
        assert written(tmp_path / "model") == item * 8 * 3
    (term,) = SECOND.terms
    conjugated = replace(SECOND, terms=(replace(term, cores=(replace(term.cores[0], conj=True), term.cores[1])),))
    for graph, item in ((SECOND, 4), (conjugated, 8)):
        tnmars.save_spec(graph, tmp_path / "spec.yaml")
        assert written(tmp_path / "spec.yaml") == item * 8 * 3


def test_plan_times_the_numbers_of_the_file(tmp_path: Path, capfd: Printed) -> None:
    """Two thirds of the work or more are products, which take twice as long with numbers of 8 bytes."""
    graph = tnmars.families.lowrank("linear", inputs=(1024,), outputs=(1024,), rank=512)
    seconds = []
    for dtype in (torch.float32, torch.float64):
        tnmars.save(tnmars.compile(graph, dtype=dtype, device="cpu"), tmp_path / "model")
        assert cli.run(["plan", str(tmp_path / "model"), "--batch", "512", "--json"]) == 0
        seconds.append(json.loads(capfd.readouterr().out)[0]["seconds"])
    assert 1.7 < seconds[1] / seconds[0] < 2.3


def test_numbers_of_an_unknown_type_are_damage(model: Path, capfd: Printed) -> None:
    model.write_bytes(model.read_bytes().replace(b"torch.float32", b"torch.float33"))
    assert cli.run(["plan", str(model)]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "is damaged: layer 'a' has numbers of type 'float33'." in said


def test_diff_of_models_and_of_a_model_with_a_spec(model: Path, tmp_path: Path, capfd: Printed) -> None:
    smaller = tnmars.families.tt("linear", inputs=(4, 3), outputs=(2, 3), rank=3)
    tnmars.save(nn.ModuleDict({"a": tnmars.compile(smaller), "x": tnmars.compile(SECOND)}), tmp_path / "b")
    tnmars.save_spec(smaller, tmp_path / "s.yaml")
    assert cli.run(["diff", str(model), str(tmp_path / "b"), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["layer"], found["bonds"]) == ("a", [{"name": "r1", "before": 5, "after": 3}])
    assert cli.run(["diff", str(model), str(tmp_path / "s.yaml"), "--layer", "a"]) == 0
    assert "bond r1" in capfd.readouterr().out
    said = "Invalid value for --layer: the model has 2 layers, and a spec file is compared with one: a, b."
    for files in ([str(model), str(tmp_path / "s.yaml")], [str(tmp_path / "s.yaml"), str(model)]):
        assert cli.run(["diff", *files]) == 2
        assert said in " ".join(capfd.readouterr().err.split())
    tnmars.save(nn.ModuleDict({"y": tnmars.compile(smaller), "x": tnmars.compile(SECOND)}), tmp_path / "b")
    assert cli.run(["diff", str(model), str(tmp_path / "b")]) == 2
    assert "have no layer in common: a, b; and y, x." in " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize("command", ["check", "expand", "compile", "bench"])
def test_a_model_in_place_of_a_spec_is_called_one(command: str, model: Path, capfd: Printed) -> None:
    for _ in range(2):
        assert cli.run([command, str(model)]) == 2
        assert "the file is a saved model, not a spec file." in capfd.readouterr().err
        tnmars.save(tnmars.compile(FIRST), model)  # a small one


def test_a_layer_whose_name_cannot_be_printed(model: Path, capfd: Printed) -> None:
    """As an earlier tnmars saved one."""
    data = model.read_bytes()
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    about = json.loads(table["__metadata__"]["tnmars"])
    about["layers"][0]["names"] = ["a\ud800"]
    table["__metadata__"]["tnmars"] = json.dumps(about)
    head = json.dumps(table, separators=(",", ":")).encode()
    model.write_bytes(len(head).to_bytes(8, "little") + head + data[8 + length :])
    assert cli.run(["show", str(model)]) == 2
    assert "is damaged: UnicodeEncodeError" in capfd.readouterr().err


def test_a_damaged_header_is_reported(model: Path, capfd: Printed) -> None:
    whole = model.read_bytes()
    for data in (whole[:200], b"\xff" * 7 + b"\x7f" + whole[8:], whole.replace(b'\\"layers', b'\\"loyers')):
        model.write_bytes(data)
        assert cli.run(["show", str(model)]) == 2
        assert "is damaged" in capfd.readouterr().err


def test_a_model_without_compiled_layers(tmp_path: Path, capfd: Printed) -> None:
    tnmars.save(nn.Linear(2, 2), tmp_path / "a")
    assert cli.run(["plan", str(tmp_path / "a")]) == 2
    assert "is a saved model without compiled layers" in capfd.readouterr().err


def test_torch_is_not_loaded(model: Path) -> None:
    code = f"import sys; from tnmars.cli import run; run(['show', {str(model)!r}]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert torch is not None


@pytest.mark.parametrize(
    "command", [["show"], ["plan", "--batch", "4"], ["diff", "SPEC"], ["check"]], ids=lambda words: words[0]
)
def test_a_spec_may_come_through_a_pipe(command: list[str], tmp_path: Path, capfd: Printed) -> None:
    tnmars.save_spec(FIRST, tmp_path / "s.yaml")
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(
        target=(tmp_path / "pipe").write_bytes, args=[(tmp_path / "s.yaml").read_bytes()], daemon=True
    )
    writer.start()
    words = [str(tmp_path / "s.yaml") if word == "SPEC" else word for word in command]
    assert cli.run([*words, str(tmp_path / "pipe")]) == 0
    assert capfd.readouterr().out
    writer.join(10)


# --- specs -----------------------------------------------------------------------------------------------------------


KERNEL = """tnmars: 1
kind: conv
modes: {in: {i: 4}, out: {o: 3}, kernel: {k: 9}}
bonds: {r: 2}
cores: {A: [i, r], B: [r, k, o]}
"""


@pytest.mark.parametrize(
    ("more", "asks"), [("", True), ("kernel_size: [9]\n", False), ("kernel_size: [3, 3]\n", False)]
)
def test_check_asks_which_kernel_is_meant(more: str, asks: bool, tmp_path: Path, capfd: Printed) -> None:
    (tmp_path / "a.yaml").write_text(KERNEL + more)
    assert cli.run(["check", str(tmp_path / "a.yaml")]) == 0
    said = "a.yaml:3:43: warning: kernel mode 'k' has size 9: is a kernel of 9 or of 3x3 meant?"
    assert (said in capfd.readouterr().err) == asks
    (tmp_path / "b.yaml").write_text(KERNEL.replace("k: 9", "k: 7"))
    assert cli.run(["check", str(tmp_path / "b.yaml")]) == 0
    assert "meant?" not in capfd.readouterr().err


def test_a_size_that_is_not_declared_suggests_params(capfd: Printed, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(KERNEL.replace("{r: 2}", "{r: rank}"))
    assert cli.run(["check", str(tmp_path / "a.yaml")]) == 2
    assert "Parameters: none. To declare it, add for example params: {rank: 8}." in capfd.readouterr().err


def test_a_bond_named_like_the_batch_is_distinguished(tmp_path: Path, capfd: Printed) -> None:
    graph = tnmars.network("linear", "A[i,b] B[b,o]", inputs={"i": 4}, outputs={"o": 3}, bonds=2)
    tnmars.save_spec(graph, tmp_path / "a.yaml")
    assert cli.run(["plan", str(tmp_path / "a.yaml"), "--batch", "8", "--all"]) == 0
    printed = capfd.readouterr().out
    assert "  batch o  <- sum over b" in printed
    assert " b b " not in printed
