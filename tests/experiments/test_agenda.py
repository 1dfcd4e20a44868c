"""What is missing is found by its records, is run the longest first, and can be done on other machines."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tnmars import cli
from tnmars.cli.experiments import NAMES
from tnmars.experiments import catalog, jobs
from tnmars.experiments.agenda import command, missing
from tnmars.experiments.catalog import EXPERIMENTS, Runs

TUCKER = EXPERIMENTS["tucker"]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs of `tucker`, of which `settled` is the longest."""
    runs = {"direct": Runs(2, 1.0), "settled": Runs(1, 5.0)}
    monkeypatch.setitem(catalog.EXPERIMENTS, "tucker", replace(TUCKER, runs=runs))


def write(job: jobs.Job, **more: Any) -> None:
    """The record of a run, without the run."""
    job.folder.mkdir(parents=True, exist_ok=True)
    for seed in job.seeds:
        record = {"experiment": job.name, "variant": job.variant, "seed": seed, "epochs": job.epochs}
        record |= {"result": {"ranks": [4], "log_likelihood": -1.0}, "versions": {"commit": "c"}, **more}
        (job.folder / jobs.record_name(seed)).write_text(json.dumps(record), encoding="utf-8")


def test_the_command_line_names_every_experiment() -> None:
    assert tuple(EXPERIMENTS) == NAMES


def test_the_catalog_says_how_often_every_variant_is_run() -> None:
    for name, experiment in EXPERIMENTS.items():
        assert set(experiment.runs) == {*experiment.variants, *experiment.more}, name
        assert all(runs.seeds >= 1 and runs.minutes > 0 for runs in experiment.runs.values())


@pytest.mark.usefixtures("few")
def test_the_longest_is_first_and_records_replace_estimates(tmp_path: Path) -> None:
    agenda = missing(tmp_path, ["tucker"])
    assert [(job.variant, job.seeds) for job in agenda.jobs] == [("settled", (0,)), ("direct", (0,)), ("direct", (1,))]
    assert agenda.left(agenda.jobs, 2) == "3 runs left: 7 min 00 s of CPU time, about 5 min 00 s"
    write(agenda.jobs[1], cpu_seconds=600.0)
    again = missing(tmp_path, ["tucker"])
    assert [(job.variant, again.minutes[job]) for job in again.jobs] == [("direct", 10.0), ("settled", 5.0)]


def test_seeds_that_are_trained_as_one_are_one_run(tmp_path: Path) -> None:
    agenda = missing(tmp_path, ["toy"])
    assert {job.seeds for job in agenda.jobs} == {tuple(range(10))}
    assert "--seeds 0-9 " in command(agenda.jobs[0], tmp_path / "toy")


@pytest.mark.usefixtures("few")
def test_commands_lead_to_the_same_records(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What one machine has run is found by another once its files are there."""
    asked = ["reproduce", "tucker", "--list-missing"]
    assert cli.run([*asked, "--out", str(tmp_path / "a b")]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 3
    for line in lines:
        words = shlex.split(line)
        out, seed = Path(words[words.index("--out") + 1]), int(words[words.index("--seeds") + 1])
        variant = words[words.index("--variants") + 1]
        (job,) = jobs.planned("tucker", [variant], [seed], out)
        write(job)
    shutil.copytree(tmp_path / "a b", tmp_path / "other")
    assert cli.run([*asked, "--out", str(tmp_path / "other")]) == 0
    shown = capfd.readouterr()
    assert shown.out == "" and "nothing is left" in shown.err


@pytest.mark.usefixtures("few")
def test_all_runs_what_is_missing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def run_all(
        given: Sequence[jobs.Job], *, side_by_side: int, more: Sequence[str], left: Callable[[Sequence[jobs.Job]], None]
    ) -> list[jobs.Job]:
        assert "--resume" in more
        left(given)
        for job in given:
            started.append(job.variant)
            write(job)
        return []

    monkeypatch.setattr(jobs, "run_all", run_all)
    asked = ["reproduce", "tucker", "--all", "--out", str(tmp_path), "--jobs", "2"]
    assert cli.run(asked) == 0
    assert started == ["settled", "direct", "direct"]
    shown = capfd.readouterr()
    assert "3 runs left: 7 min 00 s of CPU time, about 5 min 00 s" in shown.err
    assert "| direct | 2 |" in shown.out
    assert (tmp_path / "tucker" / "tucker.json").exists()
    assert cli.run([*asked, "--json"]) == 0
    assert len(started) == 3, "what is done is not done again"
    assert cli.run([*asked, "--seeds", "3"]) == 2
    assert "--seeds cannot be given with --all" in capfd.readouterr().err


def test_a_name_is_needed(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["reproduce"]) == 2
    assert "no experiment is given." in capfd.readouterr().err


@pytest.mark.usefixtures("few")
def test_what_is_left_is_said_whenever_a_run_ends(tmp_path: Path) -> None:
    said: list[int] = []
    todo = jobs.planned("tucker", ["direct"], [0, 1], tmp_path, epochs=2)
    assert jobs.run_all(todo, side_by_side=2, left=lambda left: said.append(len(left))) == []
    assert said[0] == 2 and said[-1] == 0
