"""Commands in a hostile shell: odd arguments, files and streams. None of them ends in an internal error."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest
from oracle import spec

from tnmars import cli
from tnmars.cli import graphs as commands
from tnmars.cli import plans
from tnmars.errors import TnmarsError
from tnmars.plan.cost import CostModel, cache_file, machine_model
from tnmars.store.arrays import read

Printed = pytest.CaptureFixture[str]
TT = str(spec("tt_linear"))
DIGITS = "9" * 5000


def refused(capfd: Printed, *arguments: str) -> str:
    assert cli.run(list(arguments)) == 2
    printed = capfd.readouterr()
    assert "internal error" not in printed.err + printed.out
    return " ".join((printed.err + printed.out).split())


# --- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", TT, "--batch", DIGITS],
        ["compile", TT, "--batch", DIGITS],
        ["plan", TT, "--image", DIGITS],
        ["bench", TT, "--threads", DIGITS],
        ["check", TT, "--set", f"rank={DIGITS}"],
        ["reproduce", "toy", "--seeds", DIGITS],
        ["report", "a", "b", "--metric", "x=1"],
    ],
)
def test_a_number_of_5000_digits(arguments: list[str], capfd: Printed) -> None:
    assert refused(capfd, *arguments)


@pytest.mark.parametrize("name", ["", "a\0b"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["show", TT, "-o"],
        ["diff", TT, TT, "-o"],
        ["prune", TT, "-o"],
        ["report", "a", "b", "-o"],
        ["fit", TT, "a.npy", "-o"],
        ["check"],
        ["plan"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_name_that_no_file_can_have(arguments: list[str], name: str, capfd: Printed) -> None:
    assert ("is empty" if not name else "holds a NUL") in refused(capfd, *arguments, name)


def test_devices_without_an_end(tmp_path: Path, capfd: Printed) -> None:
    (tmp_path / "a.npy").symlink_to("/dev/zero")
    for command in (["check", "/dev/zero"], ["prune", "/dev/zero", "-o", str(tmp_path / "b")]):
        assert refused(capfd, *command)
    with pytest.raises(TnmarsError, match="there is no such file"):
        read(tmp_path / "a.npy")


def test_not_enough_memory_is_said_in_words(monkeypatch: pytest.MonkeyPatch, capfd: Printed) -> None:
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 4 bytes")):

        def fails(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(plans, "read_graphs", fails)
        assert "there is not enough memory for this. Use smaller sizes" in refused(capfd, "plan", TT)


# --- errors as JSON --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(cli.cli.commands) - {"schema"}))
def test_every_command_prints_its_errors_as_json(name: str, capfd: Printed) -> None:
    assert cli.run([name, "--json", "--no-such-option"]) == 2
    printed = capfd.readouterr()
    assert printed.err == ""
    (said,) = json.loads(printed.out)
    assert said["ok"] is False
    assert "No such option" in said["problems"][0]["text"]


def test_an_error_deep_inside_is_json_too(monkeypatch: pytest.MonkeyPatch, capfd: Printed) -> None:
    monkeypatch.delenv("TNMARS_DEBUG", raising=False)
    for error, status in ((TnmarsError("oh"), 2), (RuntimeError("oh"), 1)):

        def fails(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(commands, "read_file", fails)
        assert cli.run(["expand", TT, "--json"]) == status
        (said,) = json.loads(capfd.readouterr().out)
        assert said["problems"][0]["text"].endswith("oh")


# --- the cost model of the machine -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["[" * 100_000, "{}" * 3, '{"peak": 1e999}', f'{{"peak": {DIGITS}}}', "\xff", "[1]"])
def test_a_cache_that_is_not_a_cost_model(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TNMARS_COST_MODEL")
    cache_file().parent.mkdir()
    cache_file().write_text(text, encoding="latin-1")
    with pytest.raises(TnmarsError, match="must be a cost model; run 'tnmars calibrate' again, or remove the file"):
        machine_model()


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("TNMARS_COST_MODEL")
    monkeypatch.setattr(Path, "home", homeless)
    assert machine_model() == CostModel()
    with pytest.raises(TnmarsError, match="this user has no home folder"):
        cache_file()


# --- .npy files ------------------------------------------------------------------------------------------------------


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    "data",
    [
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000), }"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }", bytes(16)),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }", bytes(8)),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"cos\nsystem\n"),
        npy("{'descr': 'nonsense', 'fortran_order': False, 'shape': (1,), }"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (10**9,), }"),
        npy("__import__('os').system('true')"),
        npy("(" * 110),
        b"\x93NUMPY",
        b"\x93NUMPY\x09\x00" + bytes(200),
        b"",
    ],
)
def test_an_array_whose_header_lies(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(TnmarsError, match="cannot be read as a numpy array: ") as caught:
        read(tmp_path / "a.npy")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_an_array_of_every_version_is_read(version: tuple[int, int], tmp_path: Path) -> None:
    values = numpy.arange(6.0).reshape(2, 3)
    with (tmp_path / "a.npy").open("wb") as stream:
        numpy.lib.format.write_array(stream, values, version=version)
    assert read(tmp_path / "a.npy").tolist() == values.tolist()


# --- streams and signals ---------------------------------------------------------------------------------------------


def shell(line: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["/bin/sh", "-c", line.replace("tnmars", f"{sys.executable} -m tnmars", 1)],
        capture_output=True,
        timeout=120,
        check=False,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("tnmars schema > /dev/full", 3),
        ("tnmars schema >&-", 0),
        (f"tnmars show {TT} >&-", 0),
        (f"tnmars show {TT} <&- >&- 2>&-", 0),
        ("tnmars check - <&-", 2),
        ("tnmars check none.yaml 2>&-", 2),
        ("tnmars check none.yaml 2> /dev/full", 3),
        ("tnmars check none.yaml > /dev/full 2>&1", 3),
    ],
)
def test_streams_that_take_nothing(line: str, status: int) -> None:
    done = shell(line)
    assert done.returncode == status
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr
    assert b"internal error" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_have_one_exit_status_and_are_quiet(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tnmars", "check", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin and process.stderr
    caught = Path(f"/proc/{process.pid}/status")
    if not caught.exists():
        pytest.skip("only Linux says which signals a process handles")
    for _ in range(3000):  # until the command has begun
        mask = next(line for line in caught.read_text().splitlines() if line.startswith("SigCgt")).split()[1]
        if int(mask, 16) >> (signal.SIGTERM - 1) & 1:
            break
        time.sleep(0.02)
    os.kill(process.pid, number)
    assert process.wait(60) == 130
    assert process.stderr.read().strip() == b"interrupted"
    process.stdin.close()


def test_an_import_that_is_interrupted_is_quiet(monkeypatch: pytest.MonkeyPatch, capfd: Printed) -> None:
    """A library may turn the interrupt into an error of its own."""

    def importing(*_: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        except KeyboardInterrupt:
            raise ImportError("cannot load library") from None

    monkeypatch.setattr(commands, "read_file", importing)
    assert cli.run(["check", TT]) == 130
    assert capfd.readouterr().err.strip() == "interrupted"


def entry_point() -> str:
    """The code of the installed `tnmars`."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^\[project\.scripts\]\ntnmars = "(.+):(.+)"$', text, re.MULTILINE)
    assert found
    module, name = found.groups()
    return f"import sys; from {module} import {name}; sys.exit({name}())"


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("is_installed", [True, False])
def test_a_signal_during_the_first_imports_is_quiet(number: str, is_installed: bool, tmp_path: Path) -> None:
    """The signal comes while the command line's library is imported, and that import fails because of it."""
    code = f"import os, signal, time\ntry:\n  os.kill(os.getpid(), signal.{number})\n  time.sleep(5)\n"
    (tmp_path / "click.py").write_text(f"{code}except BaseException:\n  raise ImportError('cannot load') from None\n")
    command = ["-c", entry_point()] if is_installed else ["-m", "tnmars"]
    folders = os.pathsep.join([str(tmp_path), str(Path(cli.__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, *command, "check", TT],
        capture_output=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": folders},
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


@pytest.mark.parametrize("is_installed", [True, False])
def test_an_interrupt_before_signals_are_handled_is_quiet(is_installed: bool, tmp_path: Path) -> None:
    """Handling signals needs a module of Python, and the interrupt comes while that is imported."""
    (tmp_path / "signal.py").write_text("raise KeyboardInterrupt")
    command = ["-c", entry_point()] if is_installed else ["-m", "tnmars"]
    folders = os.pathsep.join([str(tmp_path), str(Path(cli.__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, *command, "check", TT],
        capture_output=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": folders},
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


def test_an_interrupt_in_code_that_a_library_makes_has_the_same_status(tmp_path: Path) -> None:
    """Python notes that text it runs was interrupted, and would end with its own status although that was handled."""
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass"
    (tmp_path / "opt_einsum.py").write_text(f"exec({code!r})")
    done = subprocess.run(
        [sys.executable, "-m", "tnmars", "plan", TT],
        capture_output=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(cli.__file__).parents[2])])},
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, b"", b"interrupted")


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_after_the_work_changes_nothing(number: str) -> None:
    late = f"import atexit, os, signal; atexit.register(lambda: os.kill(os.getpid(), signal.{number}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{late}; {entry_point()}", "check", TT], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0 and done.stdout and done.stderr == b""
