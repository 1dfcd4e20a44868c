"""`tnmars prune` and `tnmars diff`: what they write and print, and how they end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from oracle import spec
from torch import nn

import tnmars
from tnmars import cli

Printed = pytest.CaptureFixture[str]
TT = tnmars.families.tt("linear", inputs=(4, 3, 2), outputs=(2, 3, 4), rank=5)


def gated(seed: int = 0) -> tnmars.TNModule:
    torch.manual_seed(seed)
    return tnmars.compile(TT, selector=tnmars.Mars(spread=1.0), batch=16)


class Net(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module):
        super().__init__()
        self.first, self.second = first, second
        self.norm = nn.BatchNorm1d(24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.second(self.first(x)))


def same(first: nn.Module, second: nn.Module) -> bool:
    ours, theirs = first.state_dict(), second.state_dict()
    return list(ours) == list(theirs) and all(ours[key].equal(theirs[key]) for key in ours)


# --- prune -----------------------------------------------------------------------------------------------------------


def test_prune_of_a_saved_model(tmp_path: Path, capfd: Printed) -> None:
    model = Net(gated(), nn.Linear(24, 24)).eval()
    tnmars.save(model, tmp_path / "a.safetensors")
    assert cli.run(["prune", str(tmp_path / "a.safetensors"), "-o", str(tmp_path / "b.safetensors")]) == 0
    printed = capfd.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert lines[0] == "first:"
    assert lines[-3:] == [f"wrote {tmp_path / 'b.yaml'}", "", f"wrote {tmp_path / 'b.safetensors'}"]
    expected = tnmars.prune(model)
    back = tnmars.load_into(Net(nn.Linear(24, 24), nn.Linear(24, 24)).eval(), tmp_path / "b.safetensors")
    assert same(back, expected)
    assert back.first.graph.origin == expected.first.graph.origin
    assert tnmars.load(tmp_path / "b.yaml") == back.first.graph
    assert tnmars.load(tmp_path / "b.yaml").origin["sizes"] == {"r1": 5, "r2": 5}
    x = torch.randn(3, 24)
    assert torch.allclose(back(x), model(x), atol=1e-5)


def test_prune_of_a_checkpoint_with_several_layers(tmp_path: Path, capfd: Printed) -> None:
    model = Net(gated(1), gated(2))
    optimizer = torch.optim.Adam(model.parameters())
    schedule = tnmars.MaskSchedule(model, 10)
    schedule.step()
    tnmars.save_checkpoint(tmp_path / "run.ckpt", model, optimizer, schedule)
    command = ["prune", str(tmp_path / "run.ckpt"), "-o", str(tmp_path / "b"), "--spec", str(tmp_path / "s.yaml")]
    assert cli.run([*command, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["file"] == str(tmp_path / "b")
    assert [layer["name"] for layer in found["layers"]] == ["first", "second"]
    assert [layer["spec"] for layer in found["layers"]] == [
        str(tmp_path / f"s.{name}.yaml") for name in ("first", "second")
    ]
    expected = tnmars.prune(model)
    for layer in found["layers"]:
        graph = tnmars.load(layer["spec"])
        assert graph == getattr(expected, layer["name"]).graph
        assert graph.origin["step"] == 1
        assert layer["parameters"] == {"before": 305, "after": tnmars.count(graph).cores}
    assert same(tnmars.load_into(Net(gated(), gated()), tmp_path / "b"), expected)


def test_prune_leaves_all_else_as_it_is(tmp_path: Path) -> None:
    """A layer with two names stays one, and one without gates keeps its plans and its type."""
    shared = gated().double()
    fixed = tnmars.compile(TT, dtype=torch.bfloat16)
    model = nn.ModuleDict({"a": shared, "b": shared, "c": fixed, "d": nn.Linear(2, 2)})
    model["d"].weight.requires_grad_(False)
    tnmars.save(model, tmp_path / "a")
    assert cli.run(["prune", str(tmp_path / "a"), "-o", str(tmp_path / "b")]) == 0
    fresh = nn.ModuleDict({name: nn.Linear(24, 24) for name in "abc"} | {"d": nn.Linear(2, 2)})
    tnmars.load_into(fresh, tmp_path / "b")
    assert fresh["a"] is fresh["b"]
    assert fresh["a"].dtype == torch.float64
    assert same(fresh["c"], fixed)
    assert same(fresh["d"], model["d"])
    assert fresh["c"].programs.plans == fixed.programs.plans


def test_prune_of_a_layer_that_is_the_whole_model(tmp_path: Path, capfd: Printed) -> None:
    tnmars.save(gated(), tmp_path / "a")
    assert cli.run(["prune", str(tmp_path / "a"), "-o", str(tmp_path / "b")]) == 0
    assert capfd.readouterr().out.startswith("layer:\n")
    assert same(tnmars.load_into(nn.Identity(), tmp_path / "b"), tnmars.prune(gated()))


def test_a_name_of_a_layer_is_no_path(tmp_path: Path) -> None:
    model = nn.Module()
    model.add_module("a/x", gated())
    model.add_module("a_x", gated())
    tnmars.save(model, tmp_path / "a")
    (tmp_path / "in").mkdir()
    assert cli.run(["prune", str(tmp_path / "a"), "-o", str(tmp_path / "in" / "out")]) == 0
    written = sorted(path.name for path in (tmp_path / "in").iterdir())
    assert written == ["out", "out.a_x.yaml", "out.a_x_.yaml"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "in"]


@pytest.mark.parametrize("as_json", [False, True])
def test_prune_of_what_cannot_be_pruned(as_json: bool, tmp_path: Path, capfd: Printed) -> None:
    def refused(path: Path) -> str:
        more = ["--json"] if as_json else []
        assert cli.run(["prune", str(path), "-o", str(tmp_path / "out"), *more]) == 2
        printed = capfd.readouterr()
        return json.loads(printed.out)[0]["problems"][0]["text"] if as_json else printed.err

    tnmars.save(nn.Linear(2, 2), tmp_path / "a")
    assert "no selector chooses slices, so there is nothing to prune." in refused(tmp_path / "a")
    assert "cannot be read: No such file or directory." in refused(tmp_path / "none")
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-1])
    assert "is damaged" in refused(tmp_path / "a")
    assert not (tmp_path / "out").exists()


def test_prune_overwrites_nothing_that_it_reads(tmp_path: Path, capfd: Printed) -> None:
    tnmars.save(gated(), tmp_path / "a.yaml")
    assert cli.run(["prune", str(tmp_path / "a.yaml"), "-o", str(tmp_path / "a.yaml")]) == 2
    assert cli.run(["prune", str(tmp_path / "a.yaml"), "-o", str(tmp_path / "a.safetensors")]) == 2
    assert "is also the file of weights" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


# --- diff ------------------------------------------------------------------------------------------------------------


def test_diff_of_two_files(tmp_path: Path, capfd: Printed) -> None:
    small = tnmars.families.tt("linear", inputs=(4, 3, 2), outputs=(2, 3, 4), ranks=(5, 3))
    tnmars.save_spec(TT, tmp_path / "a.yaml")
    tnmars.save_spec(small, tmp_path / "b.yaml")
    files = [str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]
    assert cli.run(["diff", *files]) == 0
    printed = capfd.readouterr().out
    assert "bond r2      5                         3                         -2\n" in printed
    assert cli.run(["diff", *files, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["parameters"] == {"before": 305, "after": 199}
    assert found["bonds"] == [{"name": "r1", "before": 5, "after": 5}, {"name": "r2", "before": 5, "after": 3}]
    assert cli.run(["diff", files[0], files[0]]) == 0
    assert capfd.readouterr().out.endswith("the graphs are equal\n")


def test_diff_of_a_file_that_is_wrong(tmp_path: Path, capfd: Printed) -> None:
    (tmp_path / "bad.yaml").write_text("tnmars: 1\nkind: nonsense\n")
    assert cli.run(["diff", str(spec("tt_linear")), str(tmp_path / "bad.yaml")]) == 2
    assert "bad.yaml:2:7: error: " in capfd.readouterr().err


def test_diff_does_not_load_torch() -> None:
    path = str(spec("tt_linear"))
    code = f"import sys; from tnmars.cli import run; run(['diff', {path!r}, {path!r}]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_prune_writes_over_its_own_spec_but_over_no_other(tmp_path: Path, capfd: Printed) -> None:
    tnmars.save(gated(), tmp_path / "a.safetensors")
    asked = ["prune", str(tmp_path / "a.safetensors"), "-o", str(tmp_path / "b.safetensors")]
    assert cli.run(asked) == 0 and cli.run(asked) == 0
    tnmars.save_spec(TT, tmp_path / "b.yaml")
    before = (tmp_path / "b.safetensors").read_bytes()
    assert cli.run(asked) == 2
    assert "is not the spec of a pruned graph" in capfd.readouterr().err
    assert tnmars.load(tmp_path / "b.yaml") == TT and (tmp_path / "b.safetensors").read_bytes() == before
    assert cli.run([*asked, "--spec", str(tmp_path / "nowhere" / "c.yaml")]) == 2
    assert "does not exist" in capfd.readouterr().err
