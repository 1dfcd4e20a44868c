"""The command line: what each command prints and how it ends. Bad input gives 2, a bug 1, never a traceback."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit import SPECS
from oracle import spec

from tnmars import __version__, cli
from tnmars.cli import graphs as commands
from tnmars.spec import load, loads, schema_text

TT = str(spec("tt_linear"))
LOOSE = str(spec("odd_unconnected"))
BAD = "tnmars: 1\nkind: linear\nmodes: {in: {i: 4}, out: {o: 5}}\nbonds: {r: 2}\ncores: {A: [i, r], B: [r, o, x]}\n"

Printed = pytest.CaptureFixture[str]


def tnmars(
    *arguments: str, cwd: Path | None = None, given: bytes = b"", **env: str
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tnmars", *arguments],
        cwd=cwd,
        input=given,
        capture_output=True,
        timeout=120,
        check=False,
        env={**os.environ, **env},
    )


# --- help ------------------------------------------------------------------------------------------------------------


def test_the_list_of_commands_shows_whole_sentences(monkeypatch: pytest.MonkeyPatch, capfd: Printed) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run(["--help"]) == 0
    listed = capfd.readouterr().out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == sorted(cli.cli.commands)
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


# --- check -----------------------------------------------------------------------------------------------------------


def test_check_says_that_a_file_is_fine(capfd: Printed) -> None:
    assert cli.run(["check", TT]) == 0
    printed = capfd.readouterr()
    assert printed.err == ""
    assert printed.out == (
        f"{TT}: ok, linear tt-linear: 784 -> 625; 4 cores, 23,100 parameters, 21.21x smaller than dense\n"
    )
    assert cli.run(["check", str(spec("uniform_ring_linear"))]) == 0
    assert "; 1 core in 4 places, 1,024 parameters," in capfd.readouterr().out
    assert cli.run(["show", str(spec("uniform_ring_linear")), "--json"]) == 0
    cores = json.loads(capfd.readouterr().out)["terms"][0]["cores"]
    assert [core.get("tied") for core in cores.values()] == [None, "G1", "G1", "G1"]


def test_check_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Printed) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text(BAD)
    assert cli.run(["check", "bad.yaml"]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "bad.yaml:5:30: error: core 'B' lists edge 'x', which is not declared.\n  Declared edges: r, i, o.\n"
    )


def test_check_takes_several_files_and_says_something_about_each(tmp_path: Path, capfd: Printed) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(BAD)
    assert cli.run(["check", TT, str(bad), str(tmp_path / "none.yaml"), LOOSE]) == 2
    printed = capfd.readouterr()
    assert [line.split(": ")[0] for line in printed.out.splitlines()] == [TT, LOOSE]
    assert f"{bad}:5:30: error: " in printed.err
    assert "none.yaml: cannot be read: No such file or directory." in printed.err
    assert f"{LOOSE}:9:1: warning: " in printed.err


def test_check_of_a_directory_or_of_bytes(tmp_path: Path, capfd: Printed) -> None:
    assert cli.run(["check", str(tmp_path)]) == 2
    assert "cannot be read: Is a directory." in capfd.readouterr().err
    (tmp_path / "bytes.yaml").write_bytes(bytes(range(256)))
    assert cli.run(["check", str(tmp_path / "bytes.yaml")]) == 2
    assert "bytes.yaml:3:115: error: byte 0x80 is not UTF-8 text." in capfd.readouterr().err


def test_a_warning_is_no_error_unless_strict(capfd: Printed) -> None:
    assert cli.run(["check", LOOSE]) == 0
    printed = capfd.readouterr()
    assert f"{LOOSE}:9:1: warning: the cores make 2 parts that nothing joins: (A), (B).\n" in printed.err
    assert printed.out.startswith(f"{LOOSE}: read, ")
    assert cli.run(["check", "--strict", LOOSE]) == 2
    assert f"{LOOSE}:9:1: error: the cores make 2 parts" in capfd.readouterr().err
    assert cli.run(["check", "--strict", TT]) == 0


def test_check_as_json(tmp_path: Path, capfd: Printed) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(BAD)
    assert cli.run(["check", "--json", TT, str(bad), LOOSE, str(tmp_path / "none.yaml")]) == 2
    printed = capfd.readouterr()
    assert printed.err == ""
    fine, wrong, loose, none = json.loads(printed.out)
    assert fine == {
        "file": TT,
        "ok": True,
        "problems": [],
        "name": "tt-linear",
        "kind": "linear",
        "dense_shape": [625, 784],
        "parameters": 23100,
        "dense": 490000,
        "bias": 625,
        "compression": 490000 / 23100,
        "compression_with_bias": 490625 / 23725,
    }
    assert wrong == {
        "file": str(bad),
        "ok": False,
        "problems": [
            {
                "severity": "error",
                "line": 5,
                "column": 30,
                "text": "core 'B' lists edge 'x', which is not declared.",
                "hint": "Declared edges: r, i, o.",
            }
        ],
    }
    assert loose["ok"] is True
    assert {problem["severity"] for problem in loose["problems"]} == {"warning"}
    assert none["problems"][0]["line"] is None
    assert cli.run(["check", "--json", "--strict", LOOSE]) == 2
    (strict,) = json.loads(capfd.readouterr().out)
    assert strict["ok"] is False


def test_a_parameter_is_set_from_outside(capfd: Printed) -> None:
    assert cli.run(["check", TT, "--set", "rank=2"]) == 0
    assert " 330 parameters" in capfd.readouterr().out
    assert load(TT, rank=2).cores["G2"] == (2, 4, 5, 2)
    assert cli.run(["check", TT, "--set", " rank = 2 "]) == 0


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rnk=2", "'rnk' was set from outside, but the file has no such parameter.\n  Parameters of the file: rank."),
        ("rank=0", "parameter 'rank', set from outside, has size 0."),
        (
            "rank=99999999999999999999999999",
            "parameter 'rank', set from outside, has size 99,999,999,999,999,999,999,999,999.",
        ),
        ("rank", "'rank' must be NAME=NUMBER, for example rank=8."),
        ("=2", "'=2' must be NAME=NUMBER, for example rank=8."),
        ("rank=x", "'rank=x' must be NAME=NUMBER, for example rank=8."),
        ("rank=-2", "'rank=-2' must be NAME=NUMBER, for example rank=8."),
        ("rank=2.0", "'rank=2.0' must be NAME=NUMBER, for example rank=8."),
        ("rank=²", "'rank=²' must be NAME=NUMBER, for example rank=8."),
    ],
)
def test_a_parameter_that_cannot_be_set(setting: str, message: str, capfd: Printed) -> None:
    assert cli.run(["check", TT, "--set", setting]) == 2
    assert message in capfd.readouterr().err


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch, capfd: Printed) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(TT).read_bytes())))
    assert cli.run(["check", "-"]) == 0
    assert capfd.readouterr().out.startswith("-: ok, linear tt-linear")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"kind: \xff")))
    assert cli.run(["check", "-"]) == 2
    assert capfd.readouterr().err.startswith("-:1:7: error: byte 0xff is not UTF-8 text.")


def test_check_reads_from_a_pipe() -> None:
    done = tnmars("check", "-", given=Path(TT).read_bytes())
    assert (done.returncode, done.stderr) == (0, b"")
    assert tnmars("check", "-", given=b"x" * 2_000_000).returncode == 2


# --- expand, schema --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_expand_prints_the_explicit_graph(path: Path, capfd: Printed) -> None:
    assert cli.run(["expand", str(path)]) == 0
    text = capfd.readouterr().out
    assert "family" not in text.split()
    assert loads(text) == load(path)
    assert cli.run(["expand", "--json", str(path)]) == 0
    as_json = capfd.readouterr().out
    assert loads(as_json) == load(path)
    assert json.loads(as_json)["kind"] == load(path).kind


def test_expand_writes_parameters_out(capfd: Printed) -> None:
    assert cli.run(["expand", TT, "--set", "rank=3"]) == 0
    printed = capfd.readouterr().out
    assert "bonds: {r1: 3, r2: 3, r3: 3}" in printed
    assert "params" not in printed


def test_expand_keeps_a_name_in_any_script(tmp_path: Path, capfd: Printed) -> None:
    path = tmp_path / "named.yaml"
    path.write_text(Path(TT).read_text().replace("name: tt-linear", "name: größe 模型 😀"), encoding="utf-8")
    for options in ([], ["--json"]):
        assert cli.run(["expand", *options, str(path)]) == 0
        assert loads(capfd.readouterr().out).name == "größe 模型 😀"


def test_expand_of_a_bad_file(tmp_path: Path, capfd: Printed) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    for command in ("expand", "show"):
        assert cli.run([command, str(tmp_path / "bad.yaml")]) == 2
        printed = capfd.readouterr()
        assert printed.out == ""
        assert "bad.yaml:5:30: error: core 'B' lists edge 'x', which is not declared." in printed.err
        assert cli.run([command, str(tmp_path / "none.yaml")]) == 2
        assert "none.yaml: cannot be read: No such file or directory." in capfd.readouterr().err


def test_schema_prints_the_schema(capfd: Printed) -> None:
    assert cli.run(["schema"]) == 0
    assert capfd.readouterr().out == schema_text()


# --- show ------------------------------------------------------------------------------------------------------------


def test_show_draws_in_the_terminal(capfd: Printed) -> None:
    assert cli.run(["show", TT, "--width", "80"]) == 0
    printed = capfd.readouterr()
    assert printed.err == ""
    assert all(name in printed.out for name in ("G1", "G2", "G3", "G4", "20"))
    assert "\x1b" not in printed.out
    assert max(map(len, printed.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("ending", "start"), [("svg", "<svg"), ("html", "<!doctype html>"), ("dot", "graph"), ("SVG", "<svg")]
)
def test_show_writes_a_picture(ending: str, start: str, tmp_path: Path, capfd: Printed) -> None:
    target = tmp_path / f"picture.{ending}"
    assert cli.run(["show", TT, "-o", str(target)]) == 0
    assert capfd.readouterr().out == f"wrote {target}\n"
    assert start in target.read_text(encoding="utf-8").lower()[:300]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("ending", ["svg", "pdf", "png", "tex"])
@pytest.mark.parametrize("command", ["show", "diff"])
def test_show_and_diff_write_pictures_for_a_paper(command: str, ending: str, tmp_path: Path, capfd: Printed) -> None:
    target = tmp_path / f"picture.{ending}"
    pruned = str(Path(TT).with_name("pruned_linear.yaml"))
    assert cli.run([command, TT, *([pruned] if command == "diff" else []), "-o", str(target)]) == 0
    assert capfd.readouterr().out.endswith(f"wrote {target}\n")
    start = {"svg": b"<svg", "pdf": b"%PDF-", "png": b"\x89PNG\r\n\x1a\n", "tex": b"% Written by tnmars"}[ending]
    assert target.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("name", ["picture.gif", "picture", "picture.svg.gz", ".svg"])
def test_show_refuses_what_it_cannot_draw(name: str, tmp_path: Path, capfd: Printed) -> None:
    assert cli.run(["show", TT, "-o", str(tmp_path / name)]) == 2
    assert "must end in one of .svg, .pdf, .png, .tex, .html, .dot." in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_show_says_where_it_cannot_write(tmp_path: Path, capfd: Printed) -> None:
    assert cli.run(["show", TT, "-o", str(tmp_path / "none" / "picture.svg")]) == 2
    assert "picture.svg: cannot be written: No such file or directory." in capfd.readouterr().err
    (tmp_path / "taken.svg").mkdir()
    assert cli.run(["show", TT, "-o", str(tmp_path / "taken.svg")]) == 2
    assert "is a directory" in capfd.readouterr().err


def test_show_as_json(capfd: Printed) -> None:
    assert cli.run(["show", "--json", TT]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["modes"]["i1"] == {"size": 7, "role": "in"}
    (term,) = found["terms"]
    assert term["cores"]["G2"] == {"edges": ["r1", "i2", "o2", "r2"], "shape": [20, 4, 5, 20]}
    assert term["bonds"]["r1"] == {"size": 20, "useful": 35, "ends": ["G1", "G2"]}


# --- around every command --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [[], *([name] for name in cli.cli.commands)])
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_command_explains_itself(command: list[str], option: str, capfd: Printed) -> None:
    assert cli.run([*command, option]) == 0
    printed = capfd.readouterr()
    assert printed.out.startswith(f"Usage: tnmars {' '.join(command)}".rstrip())
    assert printed.err == ""


def test_the_version(capfd: Printed) -> None:
    assert cli.run(["--version"]) == 0
    assert capfd.readouterr().out == f"tnmars, version {__version__}\n"


@pytest.mark.parametrize("arguments", [["chek"], ["check"], ["check", "--strct", TT], ["expand"], ["expand", TT, TT]])
def test_a_call_that_is_wrong_ends_with_2(arguments: list[str], capfd: Printed) -> None:
    assert cli.run(arguments) == 2
    assert "Error: " in capfd.readouterr().err


def test_a_fault_of_our_own_is_1_without_a_traceback(monkeypatch: pytest.MonkeyPatch, capfd: Printed) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("oh no")

    monkeypatch.setattr(commands, "read_file", broken)
    monkeypatch.delenv("TNMARS_DEBUG", raising=False)
    assert cli.run(["check", TT]) == 1
    assert capfd.readouterr().err == (
        "internal error: RuntimeError: oh no\n"
        "  This is a bug in tnmars, not in your input. Please report it with the output of TNMARS_DEBUG=1.\n"
    )
    monkeypatch.setenv("TNMARS_DEBUG", "1")
    with pytest.raises(RuntimeError):
        cli.run(["check", TT])


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, capfd: Printed) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "read_file", interrupted)
    assert cli.run(["check", TT]) == 130
    assert capfd.readouterr().err.strip() == "interrupted"


def test_a_reader_that_goes_away_is_no_fault() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tnmars", "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_the_script_and_the_module_are_the_same_command() -> None:
    script = Path(sys.executable).parent / "tnmars"
    as_script = subprocess.run([script, "check", TT], capture_output=True, timeout=120, check=False)
    as_module = tnmars("check", TT)
    assert (as_script.returncode, as_script.stdout) == (as_module.returncode, as_module.stdout) == (0, as_module.stdout)


def test_output_is_utf_8_safe_in_a_plain_locale(tmp_path: Path) -> None:
    """A locale that cannot print a letter must not turn a message into a fault."""
    path = tmp_path / "named.yaml"
    path.write_text(Path(TT).read_text().replace("name: tt-linear", "name: größe 😀"), encoding="utf-8")
    for command in ("check", "expand", "show"):
        done = tnmars(command, str(path), LC_ALL="C", PYTHONUTF8="0", PYTHONIOENCODING="ascii:strict")
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", TT],
        ["check", LOOSE],
        ["expand", TT],
        ["show", TT],
        ["show", "--json", TT],
        ["schema"],
        ["-h"],
        ["bench", "-h"],
    ],
    ids=" ".join,
)
def test_no_command_loads_torch(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom tnmars.cli import run\n"
        f"assert run({arguments!r}) == 0\n"
        "print([name for name in ('torch', 'numpy', 'networkx') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


# --- sizes beyond memory ---------------------------------------------------------------------------------------------


def test_a_tensor_beyond_memory_is_checked_and_drawn(tmp_path: Path, capfd: Printed) -> None:
    file = tmp_path / "large.yaml"
    sizes = ", ".join(["2147483647"] * 28)
    file.write_text(f"tnmars: 1\nkind: tensor\nfamily: cp\nfree: [{sizes}]\nrank: 1\n")
    assert cli.run(["check", "--json", str(file)]) == 0
    (found,) = json.loads(capfd.readouterr().out)
    assert found["dense"] == 2147483647**28
    assert cli.run(["check", str(file)]) == 0
    assert "x smaller than dense" in capfd.readouterr().out
    assert cli.run(["show", str(file), "-o", str(tmp_path / "large.html")]) == 0
    assert "about 2^867 in the dense weight" in (tmp_path / "large.html").read_text()


def test_check_says_larger_where_it_is(tmp_path: Path, capfd: Printed) -> None:
    file = tmp_path / "wide.yaml"
    file.write_text("tnmars: 1\nkind: linear\nfamily: lowrank\nin: {i: 4}\nout: {o: 4}\nrank: 9\n")
    assert cli.run(["check", str(file)]) == 0
    assert "72 parameters, 4.50x larger than dense" in capfd.readouterr().out


# --- what --set takes, and --json gives ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["rank=08"], "the number in 'rank=08' must not start with 0: write rank=8."),
        (["rank=8", "--set", "rank=9"], "'rank' is set twice."),
        (["rank=" + "9" * 101], "must be NAME=NUMBER"),
        (["rank=" + "9" * 5000], "must be NAME=NUMBER"),
        (["rank=8.0"], "must be NAME=NUMBER"),
        (["rank=-8"], "must be NAME=NUMBER"),
    ],
)
def test_set_guesses_nothing(given: list[str], said: str, capfd: Printed) -> None:
    assert cli.run(["check", TT, "--set", *given]) == 2
    assert said in " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize("command", ["expand", "show"])
def test_all_commands_print_problems_in_the_same_way(command: str, tmp_path: Path, capfd: Printed) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(BAD)
    for file in (str(bad), str(tmp_path / "none.yaml")):
        for options in ([], ["--json"]):
            assert cli.run(["check", file, *options]) == 2
            checked = capfd.readouterr()
            assert cli.run([command, file, *options]) == 2
            assert capfd.readouterr() == checked


def test_schema_takes_json(capfd: Printed) -> None:
    assert cli.run(["schema", "--json"]) == 0
    assert capfd.readouterr().out == schema_text()


def test_show_gives_no_useful_sizes_of_very_many_bonds(tmp_path: Path, capfd: Printed) -> None:
    file = tmp_path / "long.yaml"
    file.write_text(f"tnmars: 1\nkind: tensor\nfamily: tt\nfree: [{', '.join(['1'] * 1024)}]\nrank: 2\n")
    assert cli.run(["show", "--json", str(file)]) == 0
    bonds = json.loads(capfd.readouterr().out)["terms"][0]["bonds"]
    assert [bond["useful"] for bond in bonds.values()] == [None] * 1023


# --- plan, compile, calibrate ----------------------------------------------------------------------------------------

CONV = str(spec("tucker2_conv"))
EMPTY = "tnmars: 1\nkind: linear\nmodes: {in: {i: 4}, out: {o: 5}}\nterms: {}\n"


def test_plan_shows_steps_bytes_and_the_largest_intermediate(capfd: Printed) -> None:
    assert cli.run(["plan", CONV, "--batch", "8"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("batch 8: ")
    assert " MACs, 4.5 MB, " in lines[0]
    assert ", dense 452,984,832 and " in lines[0]
    assert lines[-5] == "  largest intermediate: 8x24x32x32, 786.4 kB"
    assert lines[-4].startswith("  time / dense: 0.")


def test_a_plan_ends_with_the_time_for_inference_and_in_training(capfd: Printed) -> None:
    """Whichever of the two is planned: the figures are those that each plan has on its own."""
    alone = []
    for flags in ([], ["--train"]):
        assert cli.run(["plan", TT, "--batch", "1,32", *flags]) == 0
        printed = capfd.readouterr().out
        alone.append([line.split()[-1] for line in printed.splitlines() if line.startswith("  time / dense: ")])
        head, *rows = (line.split() for line in printed.rstrip().split("\n\n")[-1].splitlines())
        assert head == ["time", "/", "dense", "inference", "training"]
    assert [row[:2] for row in rows] == [["batch", "1"], ["batch", "32"]]
    assert [[row[2] for row in rows], [row[3] for row in rows]] == alone
    assert cli.run(["plan", TT, "--batch", "1", "--json"]) == 0
    (found,) = json.loads(capfd.readouterr().out)
    assert [f"{found['time_ratios'][mode]:.2f}" for mode in ("inference", "training")] == rows[0][2:]
    assert cli.run(["plan", str(spec("tucker_tensor")), "--batch", "1"]) == 0
    assert "time / dense" not in capfd.readouterr().out


def test_a_plan_has_one_part_for_each_batch(capfd: Printed) -> None:
    assert cli.run(["plan", TT, "--batch", "1, 32,1024"]) == 0
    heads = [part.split(":")[0] for part in capfd.readouterr().out.split("\n\n")]
    assert heads[:-1] == ["batch 1", "batch 32", "batch 1024"]
    assert cli.run(["plan", TT, "--batch", "32", "--all", "--train"]) == 0
    assert capfd.readouterr().out.count("batch 32: ") > 2


def test_a_plan_takes_the_side_of_the_image(capfd: Printed) -> None:
    macs = []
    for side in ("16", "32"):
        assert cli.run(["plan", CONV, "--batch", "8", "--image", side, "--json"]) == 0
        (found,) = json.loads(capfd.readouterr().out)
        macs.append(found["macs"])
        assert found["dense_macs"] == 8 * int(side) ** 2 * 64 * 96 * 9
    assert macs[1] == 4 * macs[0]


def test_a_plan_as_json_is_read_back(capfd: Printed) -> None:
    from tnmars.program.codec import form_from_json, form_to_json

    assert cli.run(["plan", TT, "--batch", "1,32", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [entry["batch"] for entry in found] == [1, 32]
    for entry in found:
        form = form_from_json(entry["plan"], load(TT))
        assert (form.name, form.chunk) == (entry["form"], entry["chunk"])
        assert form_to_json(form) == entry["plan"]
        sizes = [step["written"] for step in entry["steps"][:-1]]
        assert entry["largest"]["written"] == max(sizes)


@pytest.mark.parametrize("command", ["plan", "compile", "bench"])
def test_what_cannot_be_planned_is_said_as_check_says_it(command: str, tmp_path: Path, capfd: Printed) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    for options in ([], ["--json"]):
        assert cli.run(["check", str(tmp_path / "bad.yaml"), *options]) == 2
        checked = capfd.readouterr()
        assert cli.run([command, str(tmp_path / "bad.yaml"), *options]) == 2
        assert capfd.readouterr() == checked
    empty = tmp_path / "empty.yaml"
    empty.write_text(EMPTY)
    assert cli.run([command, str(empty)]) == 2
    assert f"{empty}: the graph has no terms, so there is nothing to" in capfd.readouterr().err
    assert cli.run([command, str(empty), "--json"]) == 2
    (said,) = json.loads(capfd.readouterr().out)
    assert (said["ok"], len(said["problems"])) == (False, 1)


@pytest.mark.parametrize("batch", ["0", "x", "1,", "1.5", "-1", "²", "1000000001", ""])
def test_a_batch_is_a_whole_number(batch: str, capfd: Printed) -> None:
    assert cli.run(["plan", TT, "--batch", batch]) == 2
    assert "must be a list of batch sizes, such as 1,32,1024." in capfd.readouterr().err


def test_compile_prints_source(capfd: Printed) -> None:
    assert cli.run(["compile", TT]) == 0
    source = capfd.readouterr().out
    assert "def fold(" in source
    assert "def run(" in source
    assert cli.run(["compile", TT, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["file"], found["batch"], found["mode"], found["source"]) == (TT, 128, "infer", source)


def test_an_optimizer_is_asked_for(capfd: Printed) -> None:
    pytest.importorskip("cotengra")
    for command in ("plan", "compile"):
        texts = set()
        for _ in range(2):
            assert cli.run([command, TT, "--optimizer", "cotengra"]) == 0
            texts.add(capfd.readouterr().out)
        assert len(texts) == 1
    assert cli.run(["plan", TT, "--optimizer", "magic"]) == 2
    assert "'magic' is not one of 'auto'" in capfd.readouterr().err


def test_cotengra_is_asked_for_but_not_there(monkeypatch: pytest.MonkeyPatch, capfd: Printed) -> None:
    from tnmars.plan import hyper

    monkeypatch.setattr(hyper, "find_spec", lambda name: None)
    assert cli.run(["plan", TT, "--optimizer", "cotengra", "--set", "rank=7"]) == 2
    assert capfd.readouterr().err == (
        "optimizer 'cotengra' needs cotengra, which is not installed.\n"
        "  Install it with: pip install 'tnmars[plan]'; or leave the optimizer out.\n"
    )


# --- bench -----------------------------------------------------------------------------------------------------------


def test_bench_times_a_file(capfd: Printed) -> None:
    assert cli.run(["bench", TT, "--batch", "2", "--rounds", "1", "--set", "rank=2"]) == 0
    printed = capfd.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert lines[0] == "linear tt-linear: 784 -> 625; batch 2, 1 thread"
    names = [line.split("|")[1].strip() for line in lines[4:]]
    assert {"dense torch layer", "compiled", "compact", "fast", "pairwise einsum", "rebuild the weight"} == set(names)


def test_bench_of_a_file_as_json(capfd: Printed) -> None:
    assert cli.run(["bench", TT, "--batch", "2", "--rounds", "1", "--threads", "1,2", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [(entry["file"], entry["batch"], entry["threads"]) for entry in found] == [(TT, 2, 1), (TT, 2, 2)]
    for entry in found:
        assert entry["inference"].keys() - entry["training"].keys() == {"compact", "fast"}
        assert all(seconds > 0 for seconds in (*entry["inference"].values(), *entry["training"].values()))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batch", "3"], "Missing argument 'FILE'."),
        ([TT, "--threads", "0"], "'0' must be a list of thread counts, such as 1,2."),
        ([TT, "--batch", "0"], "0 is not in the range"),
    ],
)
def test_bench_says_what_is_wrong_with_its_arguments(arguments: list[str], said: str, capfd: Printed) -> None:
    assert cli.run(["bench", *arguments]) == 2
    assert said in " ".join(capfd.readouterr().err.split())
