"""Many runs, some side by side: each in a process of its own, with one thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tnmars.errors import TnmarsError
from tnmars.experiments.board import Board


@dataclass(frozen=True)
class Job:
    """One run."""

    name: str
    variant: str
    seeds: tuple[int, ...]
    folder: Path

    @property
    def is_done(self) -> bool:
        names = ["record.json"] if len(self.seeds) == 1 else [f"record-{seed}.json" for seed in self.seeds]
        return all((self.folder / name).exists() for name in names)


def seeds(text: str) -> list[int]:
    """The numbers in a text such as `0-9` or `0,3,5-7`.

    >>> seeds("0-2,7")
    [0, 1, 2, 7]
    """
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise TnmarsError(f"seeds '{text}' are not numbers; write, for example, 0-9 or 0,3,5-7.")
        found += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(found))


def planned(
    name: str, variants: Sequence[str], numbers: Sequence[int], folder: Path, *, together: bool = False
) -> list[Job]:
    """The jobs of an experiment: one for each variant and seed, or one for all seeds of a variant."""
    if together:
        return [Job(name, variant, tuple(numbers), folder / variant) for variant in variants]
    return [Job(name, variant, (seed,), folder / f"{variant}-{seed}") for seed in numbers for variant in variants]


def run_all(jobs: Sequence[Job], *, side_by_side: int = 1, more: Sequence[str] = ()) -> list[Job]:
    """Runs the jobs that are not done yet; those that failed are returned. Ctrl-C stops them with a checkpoint each."""
    waiting = [job for job in jobs if not job.is_done]
    running: dict[subprocess.Popen[str], Job] = {}
    failed: list[Job] = []
    board = Board(sys.stderr)
    try:
        while waiting or running:
            while waiting and len(running) < side_by_side:
                job = waiting.pop(0)
                running[_start(job, more, board)] = job
            time.sleep(0.2)
            failed += _finished(running)
    except KeyboardInterrupt:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.wait()
        raise
    finally:
        board.close()
    return failed


def _start(job: Job, more: Sequence[str], board: Board) -> subprocess.Popen[str]:
    job.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tnmars.experiments.worker", job.name, job.variant, ",".join(map(str, job.seeds))]
    command += ["--out", str(job.folder), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if not board.is_shown:
        return subprocess.Popen(command, env=environment, text=True)
    process = subprocess.Popen([*command, "--json-progress"], env=environment, text=True, stdout=subprocess.PIPE)
    assert process.stdout is not None
    board.follow(f"{job.name} {job.variant} {','.join(map(str, job.seeds))}", process.stdout)
    return process


def _finished(running: dict[subprocess.Popen[str], Job]) -> Iterator[Job]:
    """Takes out the processes that have ended; yields the jobs that failed."""
    for process in [process for process in running if process.poll() is not None]:
        job = running.pop(process)
        if process.returncode:
            yield job
