"""No file can do harm: whatever it holds, it is refused with one clear message, and nothing else happens.

The files are made in this folder, and `run.py` gives each to every command and every function that reads such a file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from machine import slowness

from tnmars.cli import cli

RUN = Path(__file__).parent / "run.py"
SECONDS = 1.0
"""The CPU time that a refusal may take on a fast machine: a guard against bombs, not a measurement."""
MEGABYTES = 200
LETTERS = 20_000
"""The length of the longest message: a spec file has all its problems in one."""
KINDS = (
    "spec",
    "model",
    "adapters",
    "checkpoint",
    "npy",
    "safetensors",
    "history",
    "curve",
    "search",
    "cost",
    "record",
    "data",
)
NAMES = {"curve": "curve.json", "cost": "cost_model.json", "record": "record-0.json", "data": "data_batch_1.bin.xz"}
"""What a message calls a file of a kind; every other kind has a file `x`."""
NO_FILES = {"schema", "calibrate", "demo", "reproduce"}
"""Commands that read no file of a user's own; the records of `reproduce` are read by a function."""

Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """What happened to each file in each reader."""
    folder = tmp_path_factory.mktemp("attacks")
    done = subprocess.run(
        [sys.executable, str(RUN), str(folder)],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not (folder / "canary").exists()
    return [json.loads(line) for line in done.stdout.splitlines()]


def complaint(row: Row) -> str:
    """What is wrong with the way in which a file was read, if anything."""
    if row["failed"]:
        return str(row["failed"])
    if row["seen"]:
        return f"did {row['seen']}"
    if not row["message"] and not row["fine"]:
        return "was not refused"
    if not row["fine"] and not re.search(row["says"], row["message"]):
        return f"says {row['message']!r}, not {row['says']!r}"
    if not row["fine"] and NAMES.get(row["kind"], "x.") not in row["message"]:
        return f"does not name the file: {row['message']!r}"
    if row["letters"] > LETTERS:
        return f"says {row['letters']:,} letters"
    if row["seconds"] > SECONDS * slowness() or row["megabytes"] > MEGABYTES:
        return f"took {row['seconds']} s and {row['megabytes']} MB"
    return ""


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_every_file_that_means_harm_is_refused(kind: str, rows: list[Row]) -> None:
    own = [row for row in rows if row["kind"] == kind]
    assert own
    wrong = {f"{row['attack']}, {row['reader']}": complaint(row) for row in own}
    assert {place: text for place, text in wrong.items() if text} == {}


def test_there_are_many_files_of_every_kind(rows: list[Row]) -> None:
    files = {(row["kind"], row["attack"]) for row in rows if row["kind"] != "control"}
    assert len(files) >= 200
    assert {kind for kind, _ in files} == set(KINDS)


def test_every_command_that_reads_a_file_is_attacked(rows: list[Row]) -> None:
    assert {row["reader"].partition(" ")[0] for row in rows} >= set(cli.commands) - NO_FILES


def test_the_guard_sees_what_it_must(rows: list[Row]) -> None:
    """A test of the test: readers that trust what they read."""
    trusting = {row["reader"]: row["seen"] for row in rows if row["kind"] == "control"}
    assert len(trusting) == 7
    assert all(trusting.values()), trusting
