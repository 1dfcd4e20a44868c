"""The line at the end of a test run that says how much memory its processes took together, at one time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import peak_memory
import pytest
from kit import ROOT

pytestmark = pytest.mark.skipif(not peak_memory.SHARE.exists(), reason="Linux says what a process takes")

TESTS = """
import subprocess, sys, time

TAKE = "taken = bytearray({} << 20); taken[::4096] = b'x' * len(taken[::4096]); import time; time.sleep(2)"

def test_one_child():
    subprocess.run([sys.executable, "-c", TAKE.format(400)], check=True)

def test_another_child_later():
    subprocess.run([sys.executable, "-c", TAKE.format(400)], check=True)
"""


@pytest.mark.parametrize("workers", [2, 0], ids=["two workers", "one process"])
def test_a_run_reports_what_its_processes_take_at_one_time(workers: int, tmp_path: Path) -> None:
    """Two children of two workers live at the same time; of one process, one after the other."""
    (tmp_path / "test_it.py").write_text(TESTS)
    options = ["-n", "2"] if workers else ["-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", *options, "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    line = re.search(
        r"^peak memory: ([\d.]+) GB in (\w+) process(?:es)?; the largest took ([\d.]+) GB$", done.stdout, re.MULTILINE
    )
    assert line, done.stdout
    together, largest = float(line[1]), float(line[3])
    assert int(line[2]) == (5 if workers else 2)
    assert 0.41 < largest < 0.55
    assert (0.85 < together < 1.3) if workers else (0.41 < together < 0.7)


def test_a_look_counts_shared_pages_once() -> None:
    """A forked child shares almost all pages with its parent."""
    held = bytearray(200 << 20)
    held[::4096] = b"x" * len(held[::4096])
    before = sum(peak_memory.family(os.getpid()).values())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reading, 1)
        os._exit(0)
    after = peak_memory.family(os.getpid())
    os.write(writing, b"x")
    os.waitpid(child, 0)
    assert len(held) and child in after
    assert sum(after.values()) < before + (100 << 20)
