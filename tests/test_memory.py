"""The line at the end of a test run that says how much memory it took: of each worker, and of its largest child."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit import ROOT

TESTS = """
import subprocess, sys

TAKE = "taken = bytearray({} << 20); taken[::4096] = b'x' * len(taken[::4096])"

def test_worker():
    exec(TAKE.format(300))

def test_child():
    subprocess.run([sys.executable, "-c", TAKE.format(500)], check=True)
"""


@pytest.mark.parametrize("options", [["-n", "2"], ["-p", "no:xdist"]], ids=["two workers", "one process"])
def test_a_run_reports_its_memory(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
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
    line = re.search(r"^peak memory: at most ([\d.]+) GB together \((.+)\)$", done.stdout, re.MULTILINE)
    assert line, done.stdout
    parts = re.findall(r"(\w+) ([\d.]+) \+ ([\d.]+) in a child", line[2])
    assert {name for name, *_ in parts} == ({"main", "gw0", "gw1"} if "-n" in options else {"main"})
    assert 0.3 < max(float(own) for _, own, _ in parts) < 0.5
    assert 0.5 < max(float(child) for *_, child in parts) < 0.7
    assert abs(float(line[1]) - sum(float(own) + float(child) for _, own, child in parts)) < 0.05
