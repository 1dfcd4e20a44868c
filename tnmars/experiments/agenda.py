"""What is missing: the runs of all experiments that have no record, the longest first, and how long they will take.

A run is known by its record, a file in the folder of the run. So runs of several machines are merged by copying their
folders into one.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from pathlib import Path
from statistics import fmean

from tnmars.errors import plural
from tnmars.experiments.catalog import EXPERIMENTS, Experiment
from tnmars.experiments.jobs import Job, planned
from tnmars.experiments.tables import records
from tnmars.text.numbers import waiting_time


@dataclass(frozen=True)
class Agenda:
    """Runs, and the CPU minutes that each will take."""

    jobs: tuple[Job, ...]
    minutes: Mapping[Job, float]

    def left(self, jobs: Sequence[Job], side_by_side: int) -> str:
        """What is left of it, in words, if runs go on side by side."""
        if not jobs:
            return "nothing is left"
        seconds = 60 * wall([self.minutes[job] for job in jobs], side_by_side)
        total = waiting_time(60 * sum(self.minutes[job] for job in jobs))
        return f"{plural(len(jobs), 'run')} left: {total} of CPU time, about {waiting_time(seconds)}"


def missing(root: Path, names: Iterable[str] = (), experiments: Mapping[str, Experiment] = EXPERIMENTS) -> Agenda:
    """The runs that the catalog asks for and that have no record below `root`, the longest first."""
    minutes: dict[Job, float] = {}
    for name in names or experiments:
        experiment, known = experiments[name], _measured(name, root / name)
        for variant, runs in experiment.runs.items():
            seeds = range(runs.seeds)
            for job in planned(name, [variant], seeds, root / name, together=experiment.together):
                if not job.is_done:
                    each = known.get(variant)
                    minutes[job] = runs.minutes if each is None else each * len(job.seeds)
    return Agenda(tuple(sorted(minutes, key=lambda job: -minutes[job])), minutes)


def _measured(name: str, folder: Path) -> dict[str, float]:
    """For each variant, the mean CPU minutes of its records for each seed, trials and resumed runs left out."""
    own = [one for one in records(name, folder) if one.get("epochs") is None and not one.get("resumed")]
    known: dict[str, list[float]] = {}
    for record in own:
        if "cpu_seconds" in record:
            known.setdefault(record["variant"], []).append(record["cpu_seconds"] / 60)
    return {variant: fmean(each) for variant, each in known.items()}


def wall(minutes: Sequence[float], side_by_side: int) -> float:
    """The time until all are done, if a worker that is free takes the next.

    >>> wall([5.0, 4.0, 3.0, 1.0], 2)
    7.0
    """
    ends = [0.0] * side_by_side
    heapify(ends)
    for each in minutes:
        heapreplace(ends, ends[0] + each)
    return max(ends)


def command(job: Job, folder: Path, more: Sequence[str] = ()) -> str:
    """The command that does one run; `folder` is that of its experiment."""
    first, last = job.seeds[0], job.seeds[-1]
    seeds = str(first) if first == last else f"{first}-{last}"
    words = ["tnmars", "reproduce", job.name, "--variants", job.variant, "--seeds", seeds, "--jobs", "1", "--resume"]
    return shlex.join([*words, "--out", str(folder), *more])
