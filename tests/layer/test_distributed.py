"""The same training script in one process, under DDP and under FSDP2: the same masks on all ranks, the same cut."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from kit import ROOT
from oracle import spec

import tnmars

SCRIPT = ROOT / "tests" / "scripts" / "scale_out.py"

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="torch has no gloo here"
)


def _run(launch: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a command; once more if it hangs, as the rendezvous of torch's launcher has done on a busy machine."""
    try:
        return subprocess.run(launch, capture_output=True, text=True, timeout=150, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.run(launch, capture_output=True, text=True, timeout=240, env=environment, check=False)


@lru_cache
def run(mode: str) -> list[dict]:
    """What each rank printed."""
    folder = tempfile.mkdtemp()
    launch = [sys.executable, str(SCRIPT), mode, folder]
    if mode != "plain":
        launch = [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nproc-per-node", "2", "--standalone", str(SCRIPT), mode, folder),
        ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TNMARS_COST_MODEL": "shipped"}
    done = _run(launch, environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(folder).glob("*.json"))]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_ranks_agree_with_each_other_and_with_one_process(mode: str) -> None:
    (alone,) = run("plain")
    ranks = run(mode)
    assert [entry["rank"] for entry in ranks] == [0, 1]
    for entry in ranks:
        assert entry["keep"] == alone["keep"], "the cut is decided once"
        assert entry["graphs"] == alone["graphs"], "the same pruned graph on every rank"
        difference = max(abs(one - two) for one, two in zip(entry["losses"], alone["losses"], strict=True))
        assert difference <= 1e-4
    kept = [len(indices) for layer in alone["keep"].values() for indices in layer.values()]
    assert 1 < sum(kept) < 5 + 2 * 3 * 3, "some slices are cut and some are kept"


def test_sharded_layers_are_not_cut_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = tnmars.compile(spec("lowrank_linear"), selector=tnmars.Mars())
    monkeypatch.setattr("tnmars.pruning.prune_model.is_sharded", lambda value: True)
    with pytest.raises(tnmars.TnmarsError, match=r"sharded over ranks\. Nothing was changed"):
        tnmars.prune_(layer)
