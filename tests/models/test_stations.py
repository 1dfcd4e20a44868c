"""Whole models on all their ways, by the script that a person may run too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit import ROOT
from stations import MOST, NAMES


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_equal_outputs_at_each_station(name: str, tmp_path: Path) -> None:
    script = ROOT / "tests" / "scripts" / "stations.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path), name], env=environment, capture_output=True, text=True, check=False
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith(name)]
    assert run.returncode == 0, run.stdout + run.stderr
    assert len(lines) == 11
    for line in lines:
        last = line.split()[-1]
        assert "skipped" in line or float(last) < MOST, line
