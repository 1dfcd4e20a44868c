"""What commands write: never over an input or a file of the user's, and all of their outputs or none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
import torch
from oracle import spec

import tnmars
from tnmars import cli

Printed = pytest.CaptureFixture[str]
TT = spec("tt_linear")
GRAPH = tnmars.families.tt("tensor", free=(3, 4), rank=3)


@pytest.mark.parametrize("ending", ["svg", "pdf", "png", "tex", "html", "dot"])
def test_show_draws_over_its_own_pictures_only(ending: str, tmp_path: Path, capfd: Printed) -> None:
    target = tmp_path / f"a.{ending}"
    for _ in range(2):
        assert cli.run(["show", str(TT), "-o", str(target)]) == 0
    target.write_bytes(b"my own")
    assert cli.run(["show", str(TT), "-o", str(target)]) == 2
    assert "exists and is not a picture that tnmars drew" in " ".join(capfd.readouterr().err.split())
    assert target.read_bytes() == b"my own"
    target.write_bytes(b"")  # as mktemp makes one
    assert cli.run(["show", str(TT), "-o", str(target)]) == 0


@pytest.mark.parametrize("command", ["show", "diff"])
def test_a_picture_is_not_drawn_over_an_input(command: str, tmp_path: Path, capfd: Printed) -> None:
    source = tmp_path / "graph.svg"
    source.write_bytes(TT.read_bytes())
    link = tmp_path / "link.svg"
    link.symlink_to(source)
    for target in (source, link):
        read = [str(source)] * (2 if command == "diff" else 1)
        assert cli.run([command, *read, "-o", str(target)]) == 2
        assert "is an input and would be overwritten" in " ".join(capfd.readouterr().err.split())
    assert source.read_bytes() == TT.read_bytes()


def test_fit_writes_over_its_own_files_only(tmp_path: Path, capfd: Printed) -> None:
    tnmars.save_spec(GRAPH, tmp_path / "spec.yaml")
    numpy.save(tmp_path / "target.npy", numpy.random.default_rng(0).standard_normal((3, 4)))
    command = ["fit", str(tmp_path / "spec.yaml"), str(tmp_path / "target.npy"), "--ranks", "2", "-q"]
    stem = str(tmp_path / "out")
    for _ in range(2):
        assert cli.run([*command, "-o", stem]) == 0
    for ending in (".yaml", ".safetensors", ".json"):
        own = tmp_path / f"mine{ending}"
        own.write_text("{}")
        assert cli.run([*command, "-o", str(tmp_path / "mine")]) == 2
        assert "exists and was not written by this command" in " ".join(capfd.readouterr().err.split())
        assert own.read_text() == "{}"
        own.unlink()
    assert json.loads((tmp_path / "out.json").read_text())["ranks"] == {"r1": {"before": 3, "after": 2}}


def test_a_prune_that_cannot_write_its_spec_writes_nothing(tmp_path: Path, capfd: Printed) -> None:
    torch.manual_seed(0)
    graph = tnmars.families.tt("linear", inputs=(4, 3), outputs=(2, 3), rank=5)
    model = torch.nn.Sequential(*(tnmars.compile(graph, selector=tnmars.Mars(spread=1.0)) for _ in range(2)))
    tnmars.save(model, tmp_path / "a")
    (tmp_path / "s.1.yaml").mkdir()
    assert cli.run(["prune", str(tmp_path / "a"), "-o", str(tmp_path / "b"), "--spec", str(tmp_path / "s.yaml")]) == 2
    assert "s.1.yaml" in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "s.1.yaml"]
