"""`shrink` in two processes: both get the same curve, and it is that of one process with all the data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kit import ROOT

SCRIPT = ROOT / "tests" / "scripts" / "shrink_ranks.py"

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="torch has no gloo here"
)


def run(launch: list[str], folder: Path) -> None:
    """Runs the script; once more if it hangs, as the rendezvous of torch's launcher has done on a busy machine."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TNMARS_COST_MODEL": "shipped"}
    command = [*launch, str(SCRIPT), str(folder)]
    for timeout in (150, 240):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=timeout, env=environment, check=False
            )
        except subprocess.TimeoutExpired:
            continue
        assert done.returncode == 0, done.stderr[-3000:]
        return
    pytest.fail("the processes hang")


@pytest.mark.long
def test_two_processes_get_the_curve_of_one(tmp_path: Path) -> None:
    run([sys.executable], tmp_path)
    run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"], tmp_path)
    alone, first, second = (
        json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8")) for name in ("1-0", "2-0", "2-1")
    )
    assert first["points"] == second["points"] and first["reason"] == second["reason"]
    assert first["weights"] == second["weights"]
    assert len(first["points"]) > 4
    one, two = (torch.tensor(found["weights"][0]) for found in (alone, first))
    assert (one - two).norm() < 1e-3 * one.norm(), "gradients are averaged over the parts of each batch"
    assert [ranks for ranks, _, _ in alone["points"]][:3] == [ranks for ranks, _, _ in first["points"]][:3]
