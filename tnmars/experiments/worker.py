"""One run of one experiment, in a process of its own."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

import tnmars
from tnmars.errors import TnmarsError
from tnmars.experiments.catalog import EXPERIMENTS
from tnmars.experiments.jobs import record_name, seeds
from tnmars.experiments.loop import CHECKPOINT, RunOptions, RunStoppedError
from tnmars.experiments.ownership import owned
from tnmars.experiments.progress import Progress
from tnmars.files import make_folder, write_text
from tnmars.shrinking.folder import TABLE

STOPPED = 75
"""The exit code of a run that was asked to stop and can be resumed."""
COMMITS = "commits.json"
"""The file in the folder of a run that lists the commits that have worked on it."""


def commit() -> str:
    """The commit of the code, marked if files were changed since; empty outside a repository."""
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """The versions of the code and of what it ran on."""
    return {
        "tnmars": tnmars.__version__,
        "commit": commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def worked_on(folder: Path, made: str, *, resumed: bool) -> list[str]:
    """The commits that have worked on a run, the last one being `made`; they are written to its folder."""
    path = folder / COMMITS
    known: list[str] = []
    if resumed:
        try:
            known = [str(one) for one in json.loads(path.read_text(encoding="utf-8"))]
        except (OSError, ValueError, TypeError):
            known = ["unknown"]  # the checkpoint is older than this list
    known = list(dict.fromkeys([*known, made]))
    write_text(path, json.dumps(known) + "\n")
    return known


def main(given: list[str] | None = None) -> int:
    """Runs one variant for some seeds, and writes a record of each when done."""
    parser = argparse.ArgumentParser("python -m tnmars.experiments.worker")
    parser.add_argument("name", choices=sorted(EXPERIMENTS))
    parser.add_argument("variant")
    parser.add_argument("seeds", help="such as 3 or 0-9")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--json-progress", action="store_true", help="progress as lines of JSON on standard output")
    parser.add_argument("--save-every", type=float, default=60.0)
    asked = parser.parse_args(given)
    torch.set_num_threads(1)
    try:
        with owned(make_folder(asked.out)):
            return _run(asked)
    except TnmarsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(asked: argparse.Namespace) -> int:
    start, made, numbers = time.time(), versions(), seeds(asked.seeds)
    resumed = asked.resume and any(list(asked.out.rglob(name)) for name in (CHECKPOINT, TABLE))
    commits = worked_on(asked.out, made["commit"], resumed=resumed)
    out = sys.stdout if asked.json_progress else sys.stderr
    progress = Progress(f"{asked.name} {asked.variant} {asked.seeds}", out, as_json=asked.json_progress)
    options = RunOptions(asked.data, asked.epochs, asked.resume, asked.save_every, progress)
    try:
        results = EXPERIMENTS[asked.name].run(asked.variant, numbers, asked.out, options)
    except RunStoppedError:
        print("stopped; run again with --resume to continue from here", file=sys.stderr)
        return STOPPED
    finally:
        progress.close()
    shared = {
        "epochs": asked.epochs,
        "resumed": resumed,
        "seconds": round((time.time() - start) / len(numbers), 1),
        "cpu_seconds": round(time.process_time() / len(numbers), 1),
        "threads": 1,
        "versions": {**made, "commits": commits},
    }
    for seed, result in zip(numbers, results, strict=True):
        record = {"experiment": asked.name, "variant": asked.variant, "seed": seed, "result": result, **shared}
        write_text(asked.out / record_name(seed), json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
