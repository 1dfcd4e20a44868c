"""Many runs, some in parallel: each in its own process, with one thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tnmars.errors import Problem, TnmarsError
from tnmars.experiments.board import Board
from tnmars.experiments.signals import handled
from tnmars.files import make_folder, read_json

MOST_DIGITS = 6
"""The maximum number of digits of a seed."""


@dataclass(frozen=True)
class Job:
    """One run."""

    name: str
    variant: str
    seeds: tuple[int, ...]
    folder: Path
    epochs: int | None = None
    """The number of epochs, or `None` for the experiment's own."""

    @property
    def is_done(self) -> bool:
        """Whether each seed has a record of a run with this number of epochs."""
        own = {"experiment": self.name, "variant": self.variant, "epochs": self.epochs}
        records = [(seed, self._record(seed)) for seed in self.seeds]
        return all(
            record is not None and all(record.get(key) == value for key, value in {**own, "seed": seed}.items())
            for seed, record in records
        )

    def _record(self, seed: int) -> dict[str, Any] | None:
        try:
            record = read_json(self.folder / record_name(seed))
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None


def record_name(seed: int) -> str:
    """The name of a seed's record in the folder of its run."""
    return f"record-{seed}.json"


def network_name(budget: str = "") -> str:
    """The name of the file of a small network in the folder of its run; a path has one for each budget.

    >>> network_name(), network_name("20x")
    ('small.safetensors', 'small-20x.safetensors')
    """
    return f"small-{budget.replace(' ', '-')}.safetensors" if budget else "small.safetensors"


def seeds(text: str) -> list[int]:
    """The numbers in a text such as `0-9` or `0,3,5-7`.

    >>> seeds("0-2,7")
    [0, 1, 2, 7]
    """
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isascii() and end.isdigit() and len(end) <= MOST_DIGITS for end in ends):
            text = f"seeds are '{text}', but must be numbers of at most {MOST_DIGITS} digits."
            raise TnmarsError(Problem(text, "Write, for example, 0-9 or 0,3,5-7."))
        if int(ends[0]) > int(ends[1]):
            raise TnmarsError(f"seeds are '{part.strip()}', but must be in ascending order: {ends[1]}-{ends[0]}.")
        numbers += range(int(ends[0]), int(ends[1]) + 1)
    return list(dict.fromkeys(numbers))


def planned(
    name: str,
    variants: Sequence[str],
    numbers: Sequence[int],
    folder: Path,
    *,
    together: bool = False,
    epochs: int | None = None,
) -> list[Job]:
    """The jobs of an experiment: one for each variant and seed, or one for all seeds of a variant."""
    if together:
        return [Job(name, variant, tuple(numbers), folder / variant, epochs) for variant in variants]
    pairs = [(variant, seed) for seed in numbers for variant in variants]
    return [Job(name, variant, (seed,), folder / f"{variant}-{seed}", epochs) for variant, seed in pairs]


def run_all(
    jobs: Sequence[Job],
    *,
    side_by_side: int = 1,
    more: Sequence[str] = (),
    left: Callable[[Sequence[Job]], object] = lambda jobs: None,
) -> list[Job]:
    """Runs the jobs that are not done yet, and returns those that failed.

    `left` is called with the jobs that are not finished, at the start and whenever one ends. On Ctrl-C and `kill` each
    run writes a checkpoint and stops.
    """
    waiting = [job for job in jobs if not job.is_done]
    left(waiting)
    running: dict[subprocess.Popen[str], Job] = {}
    failed: list[Job] = []
    board = Board(sys.stderr)
    with handled((signal.SIGTERM,), _interrupt):
        try:
            while waiting or running:
                while waiting and len(running) < side_by_side:
                    job = waiting.pop(0)
                    running[_start(job, more, board)] = job
                time.sleep(0.2)
                before = len(running)
                failed += _finished(running)
                if len(running) < before:
                    left([*running.values(), *waiting])
        finally:
            for process in running:
                process.send_signal(signal.SIGTERM)
            for process in running:
                process.wait()
            board.close()
    return failed


def _interrupt() -> None:
    """The effect of `kill`: the same as Ctrl-C, otherwise the runs would continue without a parent."""
    raise KeyboardInterrupt


def _start(job: Job, more: Sequence[str], board: Board) -> subprocess.Popen[str]:
    make_folder(job.folder)
    command = [sys.executable, "-m", "tnmars.experiments.worker", job.name, job.variant, ",".join(map(str, job.seeds))]
    command += ["--out", str(job.folder), *(["--epochs", str(job.epochs)] if job.epochs else []), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if not board.is_shown:
        return subprocess.Popen(command, env=environment, text=True)
    process = subprocess.Popen([*command, "--json-progress"], env=environment, text=True, stdout=subprocess.PIPE)
    assert process.stdout is not None
    board.follow(f"{job.name} {job.variant} {','.join(map(str, job.seeds))}", process.stdout)
    return process


def _finished(running: dict[subprocess.Popen[str], Job]) -> Iterator[Job]:
    """Removes the processes that have ended, and yields the jobs that failed."""
    for process in [process for process in running if process.poll() is not None]:
        job = running.pop(process)
        if process.returncode:
            yield job
