"""A folder has one writer at a time, and a record names every commit that worked on its run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tnmars
from tnmars.experiments import worker
from tnmars.experiments.ownership import owned
from tnmars.experiments.tables import summary

ASKED = ["tucker", "direct", "3", "--epochs", "2"]


def test_a_folder_that_another_process_writes_to_is_refused_untouched(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Such as a run whose command was killed with -9."""
    code = (
        "import sys, pathlib; from tnmars.experiments.ownership import owned\n"
        "with owned(pathlib.Path(sys.argv[1])): print('mine', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None and other.stdout.readline() == b"mine\n"
        (tmp_path / "checkpoint.safetensors").write_bytes(b"of the other")
        assert worker.main([*ASKED, "--out", str(tmp_path)]) == 2
        said = capfd.readouterr().err
        assert f"{tmp_path}: process {other.pid} is still working on this run." in said
        assert "Wait until it ends" in said
        assert (tmp_path / "checkpoint.safetensors").read_bytes() == b"of the other", "nothing was removed"
        assert not (tmp_path / "record-3.json").exists()
    finally:
        other.kill()
        other.communicate()
    assert worker.main([*ASKED, "--out", str(tmp_path)]) == 0, "the lock went with its process"


def test_a_folder_is_free_again(tmp_path: Path) -> None:
    for _ in range(2):
        with owned(tmp_path):
            assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
            with pytest.raises(tnmars.TnmarsError, match="is still working on this run"), owned(tmp_path):
                pass


def test_a_record_names_every_commit_that_worked_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [*ASKED, "--out", str(tmp_path)]
    for commit, more in (("a", []), ("b", ["--resume"]), ("b", ["--resume"])):
        monkeypatch.setattr(worker, "commit", lambda commit=commit: commit)
        assert worker.main([*asked, *more]) == 0
    record = json.loads((tmp_path / "record-3.json").read_text())
    assert record["versions"]["commit"] == "b" and record["versions"]["commits"] == ["a", "b"]
    assert summary([record])["direct"]["commits"] == ["a", "b"]
    assert worker.main(asked) == 0, "a run that starts over forgets"
    assert json.loads((tmp_path / "record-3.json").read_text())["versions"]["commits"] == ["b"]
