"""`tnmars compress`: what it prints and writes, and how it ends when what the user names is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import tnmars
from tnmars import cli
from tnmars.cli import compress as command
from tnmars.models.command import built, load_weights_
from tnmars.models.compression import CompressionWarning
from tnmars.store.arrays import read_all

Printed = pytest.CaptureFixture[str]
NET = """
import torch
from torch import nn


class Pair(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.words = nn.Embedding(50, 24)
        self.fc1, self.fc2, self.head = nn.Linear(48, width), nn.Linear(width + 24, width), nn.Linear(width, 10)

    def forward(self, x, ids):
        y = torch.cat([self.fc1(x).relu(), self.words(ids)], 1)
        return self.head(self.fc2(y).relu())


def build(width=64):
    return nn.Sequential(nn.Linear(48, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def pair():
    return Pair()


def broken():
    raise RuntimeError("no such file: model.cfg")


def number():
    return 3


model = build()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module, its weights, and calibration inputs."""
    name = f"net_{abs(hash(tmp_path)) % 10**9}"  # modules stay imported, so each test has its own
    (tmp_path / f"{name}.py").write_text(NET, encoding="utf-8")
    (tmp_path / "broken_module.py").write_text("x = 1 / 0\n", encoding="utf-8")
    (tmp_path / "needy.py").write_text("import no_such_package_here\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    with torch.random.fork_rng():
        save_file(built(f"{name}:build", {}, tmp_path).state_dict(), tmp_path / "net.safetensors")
    np.save("x.npy", np.random.default_rng(0).normal(size=(512, 48)))
    return tmp_path


@pytest.fixture
def net(folder: Path) -> str:
    return next(path.stem for path in folder.glob("net_*.py"))


def module(name: str) -> Any:
    return import_module(name)


def run(*words: str) -> int:
    return cli.run(["compress", *words, "--threads", "1", "-q"])


BASE = ("--data", "x.npy", "--budget", "2x")


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != "__pycache__"}


# --- what it writes --------------------------------------------------------------------------------------------------


def test_it_writes_the_model_and_the_report(net: str, folder: Path, capfd: Printed) -> None:
    asked = [f"{net}:build", "--weights", "net.safetensors", *BASE, "-o", "small.safetensors", "--report", "r.html"]
    assert run(*asked) == 0
    printed = capfd.readouterr().out
    assert "budget 2x parameters: 7,946 -> " in printed
    assert printed.endswith("wrote small.safetensors\nwrote r.html\n")
    fresh = module(net).build()
    small = tnmars.load_into(fresh, "small.safetensors")
    assert sum(value.numel() for value in small.parameters()) <= 7946 / 2
    dense = module(net).build()
    load_weights_(dense, read_all("net.safetensors"), "net.safetensors")
    x = torch.randn(256, 48)
    with torch.no_grad():
        away = (small(x) - dense(x)).square().sum() / dense(x).square().sum()
    assert away < 0.5
    page = (folder / "r.html").read_text(encoding="utf-8")
    assert "Compression plan" in page and "7,946" in page
    assert [name for name in files(folder) if name.endswith(".part")] == []


def test_the_same_seed_gives_the_same_bytes(net: str, folder: Path) -> None:
    for name in ("a", "b"):
        assert run(f"{net}:build", *BASE, "--seed", "3", "-o", f"{name}.safetensors") == 0
    assert (folder / "a.safetensors").read_bytes() == (folder / "b.safetensors").read_bytes()


def test_a_dry_run_writes_nothing(net: str, folder: Path, capfd: Printed) -> None:
    before = files(folder)
    assert run(f"{net}:build", *BASE, "--dry-run", "-o", "small.safetensors", "--report", "r.html") == 0
    printed = capfd.readouterr().out
    assert printed.startswith("layer ") and "wrote" not in printed
    assert files(folder) == before


def test_json(net: str, capfd: Printed) -> None:
    assert run(f"{net}:build", *BASE, "--json", "-o", "small.safetensors") == 0
    found = json.loads(capfd.readouterr().out)
    assert found["files"] == ["small.safetensors"]
    assert found["parameters"]["before"] == 7946
    assert [entry["name"] for entry in found["weights"]] == ["0", "2", "4"]
    assert run(f"{net}:build", *BASE, "--json", "--dry-run") == 0
    assert json.loads(capfd.readouterr().out)["files"] == []


def test_rules_are_ordered_and_dense_keeps_a_layer(net: str, capfd: Printed) -> None:
    rules = ["--rule", "4=dense", "--rule", "2=tt", "--rule", "*=default"]
    assert run(f"{net}:build", *BASE, *rules, "--dry-run", "--json") == 0
    found = {entry["name"]: entry for entry in json.loads(capfd.readouterr().out)["weights"]}
    assert {name: entry["family"] for name, entry in found.items()} == {"0": "lowrank", "2": "tt", "4": ""}
    assert found["4"]["reason"] == "rule '4'"


def test_a_rule_with_several_families_and_a_regular_expression(net: str, capfd: Printed) -> None:
    assert run(f"{net}:build", *BASE, "--rule", "re:[02]=tt, lowrank", "--dry-run", "--json") == 0
    found = {entry["name"]: entry["family"] for entry in json.loads(capfd.readouterr().out)["weights"]}
    assert found == {"0": "lowrank", "2": "lowrank", "4": ""}


def test_arguments_of_the_function(net: str, capfd: Printed) -> None:
    assert run(f"{net}:build", "--arg", "width=32", *BASE, "--dry-run", "--json") == 0
    assert json.loads(capfd.readouterr().out)["parameters"]["before"] == 48 * 32 + 32 + 32 * 32 + 32 + 330


def test_several_inputs_are_arguments_of_the_model(net: str, capfd: Printed) -> None:
    inputs = {"x": torch.randn(256, 48, dtype=torch.float64), "ids": torch.randint(50, (256,))}
    save_file(inputs, "inputs.safetensors")
    assert run(f"{net}:pair", "--data", "inputs.safetensors", "--budget", "2x", "--dry-run") == 0
    assert "words" in capfd.readouterr().out


def test_its_own_files_are_overwritten_but_inputs_are_not(net: str, folder: Path, capfd: Printed) -> None:
    tnmars.save(nn.Linear(1, 1), folder / "small.safetensors")
    old = (folder / "small.safetensors").read_bytes()
    assert run(f"{net}:build", *BASE, "-o", "small.safetensors") == 0
    assert (folder / "small.safetensors").read_bytes() != old
    weights = (folder / "net.safetensors").read_bytes()
    assert run(f"{net}:build", "--weights", "net.safetensors", *BASE, "-o", "net.safetensors") == 2
    assert "is an input and would be overwritten" in capfd.readouterr().err
    assert run(f"{net}:build", *BASE, "-o", "a.safetensors", "--report", "x.npy") == 2
    assert run(f"{net}:build", *BASE, "-o", "same", "--report", "./same") == 2
    assert "is also the file of the model" in capfd.readouterr().err
    assert (folder / "net.safetensors").read_bytes() == weights


def test_if_one_file_cannot_be_written_none_is(
    net: str, folder: Path, capfd: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def full(path: Path, *args: Any, **named: Any) -> int:
        if "r.html" in path.name:
            raise OSError(28, "No space left on device")
        return write(path, *args, **named)

    monkeypatch.setattr(Path, "write_text", full)
    before = files(folder)
    assert run(f"{net}:build", *BASE, "-o", "small.safetensors", "--report", "r.html") == 2
    assert "r.html: cannot be written: No space left on device. Nothing was written." in capfd.readouterr().err
    assert files(folder) == before


def test_warnings_and_progress_are_plain_lines_on_standard_error(
    net: str, capfd: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "EVERY", 0.0)
    np.save("few.npy", np.random.default_rng(0).normal(size=(24, 48)))
    asked = [f"{net}:build", "--data", "few.npy", "--budget", "2x", "--dry-run", "--threads", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
        assert cli.run(["compress", *asked]) == 0
    shown = capfd.readouterr().err
    assert re.search(r"^compress: ranks of 2, 2 of 3$", shown, re.M)
    assert re.search(r"^warning: the calibration data are few", shown, re.M)
    assert CompressionWarning.__name__ not in shown


# --- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("net", "must have the form MODULE:FUNCTION"),
        ("net.py:build", "is a path, but must be a module.\n  Write net:build."),
        ("no_module_of_this_name:build", "there is no module 'no_module_of_this_name' in "),
        ("NET:buidl", "has no function 'buidl'.\n"),
        ("NET:model", "is a model, but must be a function that returns a model."),
        ("NET:number", "returns a int, but must return an nn.Module."),
        ("NET:broken", "failed.\n"),
        ("broken_module:build", "broken_module.py:1: ZeroDivisionError: division by zero"),
        ("needy:build", "it needs 'no_such_package_here', which is not installed."),
    ],
)
def test_models_that_cannot_be_built(model: str, text: str, net: str, folder: Path, capfd: Printed) -> None:
    before = files(folder)
    assert run(model.replace("NET", net), *BASE, "-o", "small.safetensors") == 2
    assert text in capfd.readouterr().err
    assert files(folder) == before


def test_the_place_of_an_error_in_the_function_is_shown(net: str, capfd: Printed) -> None:
    assert run(f"{net}:broken", *BASE, "--dry-run") == 2
    shown = capfd.readouterr().err
    assert f"{net}.py:" in shown and "RuntimeError: no such file: model.cfg" in shown and "Traceback" not in shown
    assert run(f"{net}:build", "--arg", "depth=3", *BASE, "--dry-run") == 2
    assert "unexpected keyword argument 'depth'" in capfd.readouterr().err


def _renamed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"module.{name}": value for name, value in state.items()}


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (lambda state: {k: v for k, v in state.items() if k != "0.bias"}, ["lacks 1 tensor of the model: 0.bias."]),
        (lambda state: state | {"9.bias": torch.ones(2)}, ["has 1 tensor that the model does not have: 9.bias."]),
        (lambda state: state | {"0.bias": torch.ones(7)}, ["'0.bias' has shape (7,), but (64,) in the model."]),
        (lambda state: state | {"0.bias": torch.full((64,), torch.nan)}, ["'0.bias' has entries that are not finite."]),
        (_renamed, ["lacks 6 tensors", "and 2 more.", "All of them begin with 'module.'"]),
    ],
)
def test_weights_that_do_not_fit(
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], texts: list[str], net: str, capfd: Printed
) -> None:
    save_file(change(read_all("net.safetensors")), "bad.safetensors")
    assert run(f"{net}:build", "--weights", "bad.safetensors", *BASE, "--dry-run") == 2
    shown = capfd.readouterr().err
    assert all(text in shown for text in texts), shown


def test_files_of_weights_that_cannot_be_read(net: str, folder: Path, capfd: Printed) -> None:
    torch.save(module(net).build().state_dict() if net in sys.modules else {}, "net.pt")
    for name, text in (
        ("net.pt", "files of torch.save are pickles, which are not read"),
        ("gone.safetensors", "there is no such file"),
        ("noise.safetensors", "cannot be read as a safetensors file"),
    ):
        (folder / "noise.safetensors").write_bytes(b"noise" * 10)
        assert run(f"{net}:build", "--weights", name, *BASE, "--dry-run") == 2
        assert text in capfd.readouterr().err


def test_tied_weights_may_be_in_the_file_once() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    state = {name: torch.ones_like(value) for name, value in model.state_dict().items() if name != "1.weight"}
    load_weights_(model, state, "file")
    assert torch.equal(second.weight, torch.ones(4, 4))


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.ones((64, 47)), "the model cannot be called with a batch of these inputs, of shape (64, 47) float32."),
        (np.ones((0, 48)), "has no samples: its shape is (0, 48) float32."),
        (np.full((64, 48), np.nan), "has NaN in input 1."),
        (np.ones((5, 48)), "too few samples"),
        (np.ones((64, 48), dtype=complex), "entries must be real numbers"),
    ],
)
def test_data_that_do_not_fit(array: Any, text: str, net: str, capfd: Printed) -> None:
    np.save("bad.npy", array)
    assert run(f"{net}:build", "--data", "bad.npy", "--budget", "2x", "--dry-run") == 2
    assert text in capfd.readouterr().err


def test_nan_in_a_later_batch_is_seen(net: str, capfd: Printed) -> None:
    x = np.random.default_rng(0).normal(size=(512, 48))
    x[400, 3] = np.nan
    np.save("bad.npy", x)
    assert run(f"{net}:build", "--data", "bad.npy", "--budget", "2x", "-o", "small.safetensors") == 2
    assert "has NaN" in capfd.readouterr().err
    assert not Path("small.safetensors").exists()


def test_named_inputs_that_do_not_fit(net: str, capfd: Printed) -> None:
    good = {"x": torch.randn(64, 48), "ids": torch.randint(50, (64,))}
    for change, text in (
        ({"idx": good["ids"]}, "'idx' is not an argument of the model.\n  It takes: x, ids."),
        ({"ids": good["ids"][:60].clone()}, "the tensors differ in their first axis, which must be the samples:"),
    ):
        save_file({"x": good["x"], **change}, "bad.safetensors")
        assert run(f"{net}:pair", "--data", "bad.safetensors", "--budget", "2x", "--dry-run") == 2
        assert text in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--budget", "200x"], "the budget 200x parameters cannot be met"),
        (["--budget", "small"], "budget is 'small', but must be a size, or a ratio above 1"),
        (["--rule", "0"], "'0' must be PATTERN=FAMILY"),
        (["--rule", "0=dense,tt"], "stand alone, not in a list"),
        (["--rule", "0=tt", "--rule", "0=lowrank"], "pattern '0' is given twice"),
        (["--rule", "0=lorank"], "family 'lorank' is not known."),
        (["--rule", "fc*=lowrank"], "'fc*' matches no layer of the model."),
        (["--rule", "re:(=lowrank"], "is not a regular expression"),
        (["--arg", "width"], "'width' must be NAME=VALUE"),
        (["-o", "no/such/folder/small.safetensors"], "the folder of 'no/such/folder/small.safetensors' does not exist"),
    ],
)
def test_options_that_are_wrong(words: list[str], text: str, net: str, folder: Path, capfd: Printed) -> None:
    before = files(folder)
    assert run(f"{net}:build", *BASE, "-o", "small.safetensors", *words) == 2
    assert text in capfd.readouterr().err
    assert files(folder) == before


def test_an_output_or_a_dry_run_is_needed(net: str, capfd: Printed) -> None:
    assert run(f"{net}:build", *BASE) == 2
    assert "--dry-run" in capfd.readouterr().err


def test_other_commands_still_start_without_torch() -> None:
    code = "import sys; from tnmars.cli import run; run(['compress', '--help']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "False"
