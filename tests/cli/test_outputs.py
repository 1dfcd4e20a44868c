"""What commands write: never over an input or a file of the user's, and all of their outputs or none."""

from __future__ import annotations

import json
import re
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


def pasted(ending: str, picture: bytes) -> bytes:
    """A document of the user's that contains a picture of ours."""
    if ending == "pdf":  # as pdfTeX includes one, and as a viewer adds a note to one
        return picture.replace(b"/Info ", b"/Info 1") + b"trailer\n<< /Info 1 0 R >>\nstartxref\n9\n%%EOF\n"
    if ending == "png":
        return picture[:33] + b"\0\0\0\x04tEXta\0bc\0\0\0\0" + picture[33:]
    before = {"tex": b"\\documentclass{article}\n", "dot": b"// my own\n", "svg": b'<svg class="mine">'}
    return before.get(ending, b"<!doctype html>\n<title>Mine</title>") + picture


@pytest.mark.parametrize("ending", ["svg", "pdf", "png", "tex", "html", "dot"])
def test_a_document_with_a_picture_of_ours_is_the_users(ending: str, tmp_path: Path, capfd: Printed) -> None:
    target = tmp_path / f"a.{ending}"
    assert cli.run(["show", str(TT), "-o", str(target)]) == 0
    mine = pasted(ending, target.read_bytes())
    target.write_bytes(mine)
    assert cli.run(["show", str(TT), "-o", str(target)]) == 2
    assert "exists and is not a picture that tnmars drew" in " ".join(capfd.readouterr().err.split())
    assert target.read_bytes() == mine


def test_a_pdf_that_was_written_by_another_is_the_users(tmp_path: Path) -> None:
    """Its creator is another, even where it contains ours, as one of pdfTeX does with a figure."""
    target = tmp_path / "a.pdf"
    assert cli.run(["show", str(TT), "-o", str(target)]) == 0
    ours = target.read_bytes()
    end = ours.index(b"trailer")
    mine = ours[:end] + b"99 0 obj\n<< /Creator (TeX) >>\nendobj\n" + ours[end:]
    mine = re.sub(rb"/Info \d+", b"/Info 99", mine)
    target.write_bytes(mine)
    assert cli.run(["show", str(TT), "-o", str(target)]) == 2
    assert target.read_bytes() == mine


def test_a_page_that_quotes_a_report_is_the_users(tmp_path: Path) -> None:
    source, target = model_file(tmp_path / "a.safetensors"), tmp_path / "page.html"
    command = ["report", source, source, "--no-measure", "-o", str(target)]
    assert cli.run(command) == 0
    mine = b"<!doctype html>\n<title>Mine</title>\n" + target.read_bytes()
    target.write_bytes(mine)
    assert cli.run(command) == 2
    assert target.read_bytes() == mine
    assert cli.run(["show", str(TT), "-o", str(target)]) == 2  # a page, but no picture


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


FILES = (".yaml", ".safetensors", ".json")


@pytest.fixture
def fitting(tmp_path: Path) -> list[str]:
    tnmars.save_spec(GRAPH, tmp_path / "spec.yaml")
    numpy.save(tmp_path / "target.npy", numpy.random.default_rng(0).standard_normal((3, 4)))
    out = str(tmp_path / "out")
    return ["fit", str(tmp_path / "spec.yaml"), str(tmp_path / "target.npy"), "--ranks", "2", "-q", "-o", out]


@pytest.mark.parametrize("ending", FILES)
def test_fit_does_not_replace_a_file_that_was_edited(
    ending: str, fitting: list[str], tmp_path: Path, capfd: Printed
) -> None:
    assert cli.run(fitting) == 0
    edited = tmp_path / f"out{ending}"
    edited.write_bytes(edited.read_bytes().replace(b"r1", b"r9"))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert cli.run(fitting) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert f"out{ending}' exists and was not written by this command, or was changed since" in said
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    edited.unlink()
    assert cli.run(fitting) == (2 if ending == ".json" else 0)


def test_fit_looks_again_before_it_writes(
    fitting: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Printed
) -> None:
    slow = tnmars.fitting.fit

    def meanwhile(*given: object, **options: object) -> object:
        (tmp_path / "out.yaml").write_text("my own")
        return slow(*given, **options)

    monkeypatch.setattr(tnmars.fitting, "fit", meanwhile)
    assert cli.run(fitting) == 2
    assert "was not written by this command" in " ".join(capfd.readouterr().err.split())
    assert (tmp_path / "out.yaml").read_text() == "my own"


def model_file(path: Path) -> str:
    graph = tnmars.families.tt("linear", inputs=(4, 3), outputs=(2, 3), rank=5)
    tnmars.save(tnmars.compile(graph, selector=tnmars.Mars(spread=1.0)), path)
    return str(path)


@pytest.mark.parametrize("ending", ["html", "txt"])
def test_report_writes_over_its_own_pages_only(ending: str, tmp_path: Path, capfd: Printed) -> None:
    source, target = model_file(tmp_path / "a.safetensors"), tmp_path / f"page.{ending}"
    command = ["report", source, source, "--no-measure", "-o"]
    for _ in range(2):
        assert cli.run([*command, str(target)]) == 0
    page = target.read_text()
    target.write_text("<html>my own page about tnmars</html>")
    assert cli.run([*command, str(target)]) == 2
    assert "exists and is not a page that tnmars wrote" in " ".join(capfd.readouterr().err.split())
    assert target.read_text() == "<html>my own page about tnmars</html>"
    target.write_text("")  # as mktemp makes one
    assert cli.run([*command, str(target)]) == 0
    assert target.read_text() == page


def test_report_does_not_write_over_an_input(tmp_path: Path, capfd: Printed) -> None:
    source, log = model_file(tmp_path / "a.safetensors"), tmp_path / "log.jsonl"
    log.write_text('{"epoch": 0, "loss": 1.0}\n')
    link = tmp_path / "link.html"
    link.symlink_to(source)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for target in (source, str(link), str(log)):
        assert cli.run(["report", source, source, "--history", str(log), "--no-measure", "-o", target]) == 2
        assert "is an input and would be overwritten" in " ".join(capfd.readouterr().err.split())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_prune_writes_over_saved_models_only(tmp_path: Path, capfd: Printed) -> None:
    source, target = model_file(tmp_path / "a.safetensors"), tmp_path / "b.safetensors"
    for _ in range(2):
        assert cli.run(["prune", source, "-o", str(target)]) == 0
    target.write_text("my own")
    assert cli.run(["prune", source, "-o", str(target)]) == 2
    assert "exists and is not a model that tnmars saved" in " ".join(capfd.readouterr().err.split())
    assert target.read_text() == "my own"


def test_compress_writes_over_its_own_files_only(tmp_path: Path, capfd: Printed) -> None:
    numpy.save(tmp_path / "x.npy", numpy.zeros((3, 4)))
    for flag, text in (("-o", "is not a model that tnmars saved"), ("--report", "is not a page that tnmars wrote")):
        own = tmp_path / "mine.html"
        own.write_text("my own")
        given = {"-o": str(tmp_path / "new.safetensors"), flag: str(own)}
        words = [word for pair in given.items() for word in pair]
        assert cli.run(["compress", "no:model", "--budget", "2x", "--data", str(tmp_path / "x.npy"), *words]) == 2
        assert text in " ".join(capfd.readouterr().err.split())
        assert own.read_text() == "my own"


def test_a_prune_that_cannot_write_its_spec_writes_nothing(tmp_path: Path, capfd: Printed) -> None:
    torch.manual_seed(0)
    graph = tnmars.families.tt("linear", inputs=(4, 3), outputs=(2, 3), rank=5)
    model = torch.nn.Sequential(*(tnmars.compile(graph, selector=tnmars.Mars(spread=1.0)) for _ in range(2)))
    tnmars.save(model, tmp_path / "a")
    (tmp_path / "s.1.yaml").mkdir()
    assert cli.run(["prune", str(tmp_path / "a"), "-o", str(tmp_path / "b"), "--spec", str(tmp_path / "s.yaml")]) == 2
    assert "s.1.yaml" in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "s.1.yaml"]


def two_layers(path: Path) -> str:
    torch.manual_seed(0)
    graph = tnmars.families.tt("linear", inputs=(4, 3), outputs=(2, 3), rank=5)
    tnmars.save(torch.nn.Sequential(*(tnmars.compile(graph, selector=tnmars.Mars(spread=1.0)) for _ in range(2))), path)
    return str(path)


@pytest.mark.parametrize(
    ("source", "output", "specs", "said"),
    [
        ("s.0.yaml", "p.st", "s.yaml", "s.0.yaml' is also the file of weights"),
        ("a.st", "w.0.yaml", "w.yaml", "w.0.yaml' is also the file of weights"),
        ("a.st", "q.st", None, "q.1.yaml' exists and is not the spec of a pruned graph"),
        ("a.st", "b.st", "q.yaml", "q.1.yaml' exists and is not the spec of a pruned graph"),
        ("a.st", "README", None, "README' exists and is not a model that tnmars saved"),
    ],
)
def test_the_specs_of_several_layers_replace_nothing(
    source: str, output: str, specs: str | None, said: str, tmp_path: Path, capfd: Printed
) -> None:
    two_layers(tmp_path / source)
    (tmp_path / "q.1.yaml").write_text("my own")
    (tmp_path / "README").write_text("my own")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    more = ["--spec", str(tmp_path / specs)] if specs else []
    assert cli.run(["prune", str(tmp_path / source), "-o", str(tmp_path / output), *more]) == 2
    assert said in " ".join(capfd.readouterr().err.split())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_prune_of_several_layers_replaces_its_own_specs(tmp_path: Path) -> None:
    source = two_layers(tmp_path / "a.st")
    for _ in range(2):
        assert cli.run(["prune", source, "-o", str(tmp_path / "b.st")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.st", "b.0.yaml", "b.1.yaml", "b.st"]


@pytest.mark.parametrize("name", ["loop.svg", f"{'a' * 5000}.svg"])
@pytest.mark.parametrize("command", ["show", "diff", "fit", "prune", "report", "compress", "--report"])
def test_an_output_that_cannot_be_used(command: str, name: str, tmp_path: Path, capfd: Printed) -> None:
    tnmars.save_spec(GRAPH, tmp_path / "spec.yaml")
    numpy.save(tmp_path / "x.npy", numpy.zeros((3, 4)))
    for loop in ("loop.svg", "loop.svg.yaml"):
        (tmp_path / loop).symlink_to(loop)
    spec_file, data = str(tmp_path / "spec.yaml"), str(tmp_path / "x.npy")
    arguments = {
        "show": ["show", spec_file, "-o"],
        "diff": ["diff", spec_file, spec_file, "-o"],
        "fit": ["fit", spec_file, data, "--ranks", "2", "-q", "-o"],
        "prune": ["prune", spec_file, "-o"],
        "report": ["report", spec_file, spec_file, "-o"],
        "compress": ["compress", "no:model", "--budget", "2x", "--data", data, "-o"],
        "--report": ["compress", "no:model", "--budget", "2x", "--data", data, "-o", data + ".st", "--report"],
    }
    before = sorted(tmp_path.iterdir())
    assert cli.run([*arguments[command], str(tmp_path / name)]) == 2
    said = capfd.readouterr().err
    assert "is not a usable path" in said and "internal error" not in said
    assert sorted(tmp_path.iterdir()) == before
