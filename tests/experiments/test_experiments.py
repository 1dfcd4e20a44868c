"""The training loop and its users: stopped runs resume bit for bit, members of a crew are separate models, and records
become tables."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from bench.reference import Chain
from oracle import error
from torch import Tensor, nn

import tnmars
from tnmars import Mars, cli
from tnmars.experiments import idx, jobs, mnist, results, tables, targets, toy, tucker
from tnmars.experiments.board import Board, _parsed
from tnmars.experiments.crew import Crew, CrewSchedule
from tnmars.experiments.loop import Run, RunOptions, RunStoppedError, Settings
from tnmars.experiments.progress import Progress
from tnmars.experiments.task import Task
from tnmars.reporting import charts


class Line(Task):
    """A tiny task: a linear map, by a layer with gates."""

    def __init__(self, stop_after: int | None = None):
        torch.manual_seed(0)
        graph = tnmars.network("linear", "A[i,r] B[r,o]", inputs=dict(i=6), outputs=dict(o=5), bonds=4)
        self.model = nn.Sequential(tnmars.compile(graph, selector=Mars(alpha=0.5), batch=8, open_only=True))
        self.x = torch.randn(50, 6)
        self.y = self.x[:, :5] * 2.0
        self.size = 50
        self.steps, self.stop_after = 0, stop_after

    def data_loss(self, rows: Tensor) -> Tensor:
        self.steps += 1
        if self.steps == self.stop_after:
            signal.raise_signal(signal.SIGTERM)
        return (self.model(self.x[rows]) - self.y[rows]).square().mean()

    def judge(self) -> dict[str, float]:
        return {"error": (self.model(self.x) - self.y).square().mean().item()}


SETTINGS = Settings(epochs=6, batch=8, warmup_epochs=1)


@pytest.mark.parametrize("stop_after", [1, 7, 20, 35])
def test_a_run_that_is_stopped_resumes_bit_for_bit(stop_after: int, tmp_path: Path) -> None:
    uninterrupted = Line()
    expected = Run(uninterrupted, SETTINGS).train()
    with pytest.raises(RunStoppedError):
        Run(Line(stop_after), SETTINGS, tmp_path).train()
    again = Line()
    torch.manual_seed(99)  # what the run does not depend on
    found = Run(again, SETTINGS, tmp_path).train(resume=True)
    ours, theirs = again.model.state_dict(), uninterrupted.model.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert found == expected
    lines = (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(6))


@pytest.mark.parametrize("stop_after", [7, 30])
def test_a_run_killed_within_an_epoch_resumes_bit_for_bit(stop_after: int, tmp_path: Path) -> None:
    """A checkpoint is written within an epoch too: here after every step, and nothing is written when it is killed."""

    class Killed(Line):
        def data_loss(self, rows: Tensor) -> Tensor:
            if self.steps + 1 == stop_after:
                raise KeyboardInterrupt
            return super().data_loss(rows)

    uninterrupted, again = Line(), Line()
    expected = Run(uninterrupted, SETTINGS).train()
    with pytest.raises(KeyboardInterrupt):
        Run(Killed(), SETTINGS, tmp_path, save_every=0.0).train()
    assert Run(again, SETTINGS, tmp_path).train(resume=True) == expected
    assert again.steps == 6 * 7 - stop_after + 1, "no step was lost"
    ours, theirs = again.model.state_dict(), uninterrupted.model.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("stop_after", [7, 30])
def test_an_annealed_run_that_keeps_its_best_model_resumes_bit_for_bit(stop_after: int, tmp_path: Path) -> None:
    settings = replace(SETTINGS, anneals=True, keep_best="error")
    whole = Line()
    (tmp_path / "whole").mkdir()
    expected = Run(whole, settings, tmp_path / "whole").train()
    with pytest.raises(RunStoppedError):
        Run(Line(stop_after), settings, tmp_path).train()
    again = Line()
    assert Run(again, settings, tmp_path).train(resume=True) == expected
    ours, theirs = again.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert again.judge()["error"] == pytest.approx(max(one["error"] for one in expected)), "the largest was asked for"


def test_the_loop_learns_and_records() -> None:
    task = Line()
    history = Run(task, Settings(epochs=40, batch=8, prior_weight=0.0)).train()
    assert history[-1]["error"] < 0.5 * history[0]["error"]
    assert set(history[0]) == {
        "epoch",
        "loss",
        "ranks",
        "temperature",
        "expected_parameters",
        "expected_compression",
        "error",
    }
    assert history[0]["temperature"] == pytest.approx(0.1 * 0.99, rel=1e-6)  # of the step that comes next


def test_a_crew_computes_what_its_members_do() -> None:
    students = []
    for seed in range(3):
        torch.manual_seed(seed)
        students.append(toy.student("mars-8"))
    crew = Crew(students)
    CrewSchedule(crew, 10, seed=4)
    x = torch.randn(3, 5, toy.INSIDE)
    found, penalties = crew(x)
    for at, member in enumerate(crew.members()):
        assert error(found[at], member(x[at])) <= 1e-5
        assert penalties[at].item() == pytest.approx(tnmars.penalty(member).item(), rel=1e-5)
    noises = [member.masks.noise for member in crew.members()]
    assert not torch.equal(noises[0], noises[1])


def test_the_toy_runs(tmp_path: Path) -> None:
    found = toy.run("mars-8", [0, 1], tmp_path, RunOptions(epochs=1))
    assert [set(result) for result in found] == [{"accuracy", "rank"}] * 2
    (dense,) = toy.run("dense-8", [0], tmp_path / "dense", RunOptions(epochs=2))
    assert dense["accuracy"] > 50


def test_tucker_runs(tmp_path: Path) -> None:
    """Log-likelihoods are those of the tensor itself: a few hundred steps fit most of it, with gates and without."""
    short, longer = (
        tucker.run("direct", [0], tmp_path / str(steps), RunOptions(epochs=steps))[0] for steps in (1, 300)
    )
    nothing = -tucker.target(0).square().mean().item()
    assert short["ranks"] == [4, 4, 4, 4]
    assert longer["log_likelihood"] > 0.1 * nothing, "nine tenths of the tensor are fitted"
    assert short["log_likelihood"] < 0.5 * nothing
    (masked,) = tucker.run("settled", [0], tmp_path / "masked", RunOptions(epochs=600))
    assert masked["log_likelihood"] > 0.1 * nothing
    assert masked["history"][-1]["log_likelihood"] == pytest.approx(masked["log_likelihood"], rel=1e-4), (
        "eval is the cut"
    )


# --- data ------------------------------------------------------------------------------------------------------------


def test_idx_files_are_read_and_checked(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    raw = b"\0\0\x08\x03" + np.array(values.shape, ">u4").tobytes() + values.tobytes()
    (tmp_path / "a.gz").write_bytes(gzip.compress(raw))
    np.testing.assert_array_equal(idx.read_idx(tmp_path / "a.gz"), values)
    (tmp_path / "b.gz").write_bytes(gzip.compress(raw[:-1]))
    with pytest.raises(tnmars.TnmarsError, match="holds 23 bytes, but its header says"):
        idx.read_idx(tmp_path / "b.gz")
    (tmp_path / "c.gz").write_bytes(gzip.compress(b"no"))
    with pytest.raises(tnmars.TnmarsError, match="is not an IDX file"):
        idx.read_idx(tmp_path / "c.gz")


def test_missing_and_wrong_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(tnmars.TnmarsError, match=r"(?s)MNIST is not in .*--data DIR"):
        idx.mnist(tmp_path, download=False)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"x")
    with pytest.raises(tnmars.TnmarsError, match="is not the published file"):
        idx.mnist(tmp_path, download=False)


HAS_MNIST = all((idx.folder() / "mnist" / name).exists() for name in idx.FILES)


@pytest.mark.skipif(not HAS_MNIST, reason="MNIST is not in $TNMARS_DATA")
def test_mnist_is_read() -> None:
    data = idx.mnist(download=False)
    assert data.train_x.shape == (60_000, 784) and data.test_y.bincount().tolist()[:2] == [980, 1135]
    assert float(data.train_x.min()) == 0.0 and float(data.train_x.max()) == 1.0


def test_compression_is_counted_as_in_the_notebooks() -> None:
    """23,100 and 3,500 numbers of cores and 635 biases, of 496,250 and 635."""
    assert mnist.compression(mnist.network("tt-20")) == pytest.approx(496_885 / 27_235)


# --- jobs and tables -------------------------------------------------------------------------------------------------


def test_jobs(tmp_path: Path) -> None:
    apart = jobs.planned("tucker", ["paper"], [0, 1], tmp_path)
    assert [job.folder.name for job in apart] == ["paper-0", "paper-1"]
    (together,) = jobs.planned("toy", ["mars-8"], [0, 1], tmp_path, together=True)
    assert together.seeds == (0, 1) and not together.is_done
    with pytest.raises(tnmars.TnmarsError, match="Write, for example, 0-9"):
        jobs.seeds("a-b")


def test_reproduce_on_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ["reproduce", "tucker", "--variants", "direct", "--seeds", "0", "--epochs", "5", "--out", str(tmp_path)]
    assert cli.run([*asked, "--jobs", "1"]) == 0
    assert "| direct | 1 |" in capfd.readouterr().out
    assert cli.run([*asked, "--json"]) == 0, "what is done is not done again"
    found = json.loads(capfd.readouterr().out)
    assert found["records"][0]["versions"]["torch"] == torch.__version__
    assert cli.run(["reproduce", "tucker", "--variants", "nothing"]) == 2
    assert "tucker has no variant 'nothing'; its variants are paper, " in capfd.readouterr().err


def test_tables_over_seeds() -> None:
    records = [
        {
            "variant": "a",
            "seed": seed,
            "result": {"x": value, "ranks": [1, value]},
            "seconds": 60,
            "versions": {"commit": "c"},
        }
        for seed, value in enumerate((2.0, 4.0))
    ]
    found = tables.summary(records)
    assert found["a"]["x"] == {"mean": 3.0, "deviation": 1.0, "median": 3.0, "all": [2.0, 4.0]}
    assert found["a"]["rank 2"]["mean"] == 3.0 and found["a"]["minutes"] is None, "the clock is not the processor"
    assert "| a | 2 | 3 ± 1 |" in tables.markdown(found, {"a": {"x": 5}})


def test_targets_say_by_how_much_they_are_missed() -> None:
    seeds = list(range(10))
    summary: dict[str, dict[str, Any]] = {
        "mars-8": {"rank": {"mean": 10.4}, "accuracy": {"mean": 91.0}, "seeds": seeds},
        "dense-8": {"accuracy": {"mean": 90.0}, "seeds": seeds},
    }
    rows = targets.judged("toy", summary)
    assert rows[0] == ["mars-8, mean rank", "6.9 to 9.9", "10.4", "10", "missed by 0.5"]
    assert rows[1][1:] == ["at least 88", "91", "10", "met"]
    assert rows[2][1:] == ["above dense-8, 90", "91", "10", "met"]
    assert rows[3][2] == "not run"
    summary["mars-8"]["accuracy"]["mean"] = 90.0
    assert targets.judged("toy", summary)[2][4].startswith("missed"), "the same is not above"
    del summary["dense-8"]
    assert targets.judged("toy", summary)[2][1:] == ["above dense-8", "not run", "", ""]
    summary["mars-8"]["seeds"] = [0, 1, 2]
    assert targets.judged("toy", summary)[1][4] == "too few seeds: 10 are needed"


def test_every_target_is_of_a_variant_that_can_be_run() -> None:
    for name, listed in targets.TARGETS.items():
        known = set(results.EXPERIMENTS[name].variants)
        assert {target.variant.partition(" ")[0] for target in listed} <= known, "budgets follow the variant"
        assert {target.above for target in listed} - {""} <= known


def test_a_target_may_be_below_another_variant_by_a_slack() -> None:
    summary = {
        name: {"accuracy": {"mean": value}, "seeds": [0, 1, 2]} for name, value in (("gru", 98.0), ("tt-gru", 97.2))
    }
    row = targets.judged("tt-rnn", summary)[1]
    assert row[1:] == ["above gru less 1, 97", "97.2", "3", "met"]


def mnist_record(variant: str, seed: int, compression: float) -> dict[str, object]:
    result = {
        "accuracy": 98.0,
        "compression": compression,
        "probabilities": {"0.r1": [0.9, 0.1]},
        "history": [{"epoch": 0}],
    }
    made = {"commit": "c"}
    about = {"experiment": "mnist-2fc", "epochs": None}
    return about | {
        "variant": variant,
        "seed": seed,
        "result": result,
        "seconds": 60,
        "cpu_seconds": 30,
        "versions": made,
    }


def test_results_are_collected_shown_and_drawn(tmp_path: Path) -> None:
    for variant, seed, compression in (("soft", 0, 140.0), ("soft", 1, 160.0), ("pi-1e-3", 0, 180.0)):
        folder = tmp_path / f"{variant}-{seed}"
        folder.mkdir()
        (folder / f"record-{seed}.json").write_text(json.dumps(mnist_record(variant, seed, compression)))
    other = tmp_path / "soft-2" / "record-2.json"
    other.parent.mkdir()
    other.write_text(json.dumps(mnist_record("soft", 2, 1.0) | {"epochs": 5}))  # a try, which does not count
    found = results.collected("mnist-2fc", tmp_path)
    assert "history" not in found["records"][0]["result"]
    text = results.page(found)
    assert "| soft, mean compression | at least 130 | 150 | 2 | too few seeds: 5 are needed |" in text
    assert "| hard, compression | at least 190 | not run |  |  |" in text
    written = {path.name for path in results.save(found, tmp_path / "out")}
    assert written == {"mnist-2fc.json", "mnist-2fc-gates-soft.svg", "mnist-2fc-pi.svg", "mnist-2fc-size.svg"}
    sizes = (tmp_path / "out" / "mnist-2fc-size.svg").read_text()
    ElementTree.fromstring(sizes)
    assert sizes.count('class="point"') == 3 + 5, "a point for each run, and for each row of the paper"
    drawing = (tmp_path / "out" / "mnist-2fc-pi.svg").read_text()
    assert drawing.count('class="run"') == 6, "a point for each run in both panels"
    assert ">0.1</text>" in drawing and ">0.001</text>" in drawing


def test_an_ensemble_has_the_first_five_seeds_of_the_runs_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def ensemble(files: list[Path], variant: str, data: str | None) -> float:
        asked.append([file.parent.name for file in files])
        return 99.0

    monkeypatch.setattr(idx, "is_there", lambda data: True)
    monkeypatch.setitem(results.EXPERIMENTS, "mnist-2fc", replace(results.EXPERIMENTS["mnist-2fc"], ensemble=ensemble))
    for seed in (11, 0, 1, 2, 3, 4, 5, 6):
        folder = tmp_path / f"soft-{seed}"
        folder.mkdir()
        trial = {"epochs": 5} if seed == 1 else {}
        (folder / f"record-{seed}.json").write_text(json.dumps(mnist_record("soft", seed, 140.0) | trial))
        (folder / "small.safetensors").touch()
    found = results.collected("mnist-2fc", tmp_path)
    assert asked == [[f"soft-{seed}" for seed in (0, 2, 3, 4, 5)]], "the trial with seed 1 does not count"
    assert found["summary"]["soft"]["ensemble"] == {"mean": 99.0, "deviation": 0.0, "median": 99.0, "of": 5}


def test_bars_are_as_high_as_the_gates() -> None:
    drawing = charts.gates_file({"r<1>": [1.0, 0.25, 0.5]}, "gates")
    ElementTree.fromstring(drawing)
    assert "r&lt;1&gt;: 1 of 3" in drawing, "what is at the threshold is not kept"
    assert [float(found) for found in re.findall(r'height="([\d.]+)"', drawing)] == [110.0, 27.5, 55.0]


@pytest.mark.parametrize(("low", "high"), [(98.1, 98.4), (110.0, 180.0), (3.0, 3.0), (0.0, 1e-3), (-5.0, 400.0)])
def test_ticks_hold_the_values(low: float, high: float) -> None:
    ticks = charts._ticks(*charts._widened(low, high))
    assert ticks[0] <= low and high <= ticks[-1] and 2 <= len(ticks) <= 8


def test_the_chain_of_the_benchmark_is_the_same_layer() -> None:
    chain = Chain((3, 2, 4), (2, 5, 3), 4).double()
    layer = tnmars.compile(tnmars.families.tt("linear", inputs=(3, 2, 4), outputs=(2, 5, 3), rank=4)).double()
    with torch.no_grad():
        for logits in chain.logits:
            logits.fill_(1e3)  # every gate is open
        for core, ours in zip(chain.cores, layer.cores.parameters(), strict=True):
            ours.copy_(core.reshape(ours.shape))
        layer.bias.copy_(chain.bias)
    x = torch.randn(5, 24, dtype=torch.float64)
    assert error(chain(x), layer(x)) < 1e-12


@pytest.mark.long
def test_a_run_killed_with_9_ends_with_the_same_numbers(tmp_path: Path) -> None:
    """Two processes run; one is killed as soon as it has left a checkpoint, and resumes from there."""
    steps = "3000"

    def start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
        asked = ["tucker", "paper", "3", "--out", str(folder), "--epochs", steps, "--save-every", "0.5", *more]
        return subprocess.Popen([sys.executable, "-m", "tnmars.experiments.worker", *asked], stderr=subprocess.DEVNULL)

    whole, killed = start(tmp_path / "whole"), start(tmp_path / "killed")
    checkpoint = tmp_path / "killed" / "checkpoint.safetensors"
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    assert not (tmp_path / "killed" / "record-3.json").exists(), "it was killed too late to show anything"
    assert checkpoint.exists()
    assert start(tmp_path / "killed", "--resume").wait() == 0
    assert whole.wait() == 0
    ours, theirs = (json.loads((tmp_path / name / "record-3.json").read_text()) for name in ("killed", "whole"))
    assert ours["result"] == theirs["result"], "history and all"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_runs_side_by_side_have_a_bar_each_on_a_terminal() -> None:
    stream = Terminal()
    board = Board(stream)
    lines = ['{"done": 3, "total": 10, "text": "loss 0.5"}\n', "a warning\n", "[1]\n"]
    seen = Event()

    def written() -> Iterator[str]:
        yield from lines
        seen.wait(5.0)

    board.follow("one", written())
    board.follow("two", written())
    deadline = time.monotonic() + 5.0
    while [task.completed for task in board._bars.tasks] != [3, 3] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [(task.description, task.total, task.fields["text"]) for task in board._bars.tasks] == [
        ("one", 10, "loss 0.5"),
        ("two", 10, "loss 0.5"),
    ]
    seen.set()
    board.close()
    assert not Board(io.StringIO()).is_shown


def test_progress_as_json_is_what_the_board_reads() -> None:
    stream = Terminal()
    Progress("run", stream, as_json=True).show({"loss": 0.25}, 10, 10)
    assert _parsed(stream.getvalue()) == {"done": 10, "total": 10, "text": "loss 0.25"}


def test_expected_compression_counts_biases() -> None:
    record = Untrained().record()
    size = record["expected_parameters"]
    assert record["expected_compression"] == pytest.approx(496_885 / (size + 635))


class Untrained(mnist.Digits):
    def __init__(self) -> None:
        self.model = mnist.network("soft")


def test_a_try_is_not_taken_for_the_run(tmp_path: Path) -> None:
    (tmp_path / "record-4.json").write_text(
        json.dumps({"experiment": "tucker", "variant": "direct", "seed": 4, "epochs": 5})
    )
    assert jobs.Job("tucker", "direct", (4,), tmp_path, 5).is_done
    assert not jobs.Job("tucker", "direct", (4,), tmp_path).is_done, "it was shorter"
    assert not jobs.Job("tucker", "paper", (4,), tmp_path, 5).is_done
    assert not jobs.Job("tucker", "direct", (3, 4), tmp_path, 5).is_done
    (tmp_path / "record-4.json").write_text("half a rec")
    assert not jobs.Job("tucker", "direct", (4,), tmp_path, 5).is_done


@pytest.mark.parametrize("other", [{"seed": 1}, {"lr": 1e-3}, {"batch": 4}, {"epochs": 7}])
def test_a_checkpoint_of_another_run_is_refused(other: dict[str, float], tmp_path: Path) -> None:
    Run(Line(), SETTINGS, tmp_path).train()
    with pytest.raises(tnmars.TnmarsError, match=rf"belongs to another run: {next(iter(other))} is .*, but must be "):
        Run(Line(), replace(SETTINGS, **other), tmp_path).train(resume=True)
    with pytest.raises(tnmars.TnmarsError, match="belongs to another run: variant is None, but must be b"):
        Run(Line(), SETTINGS, tmp_path, about={"variant": "b"}).train(resume=True)


def test_a_run_that_starts_over_leaves_nothing_of_the_one_before(tmp_path: Path) -> None:
    Run(Line(), SETTINGS, tmp_path, save_every=0.0).train()
    shorter = Run(Line(), replace(SETTINGS, epochs=1), tmp_path)
    shorter.train()
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 1
    assert not (tmp_path / "checkpoint.safetensors.previous").exists()


def test_the_last_checkpoint_is_of_the_trained_model(tmp_path: Path) -> None:
    """So that a report can show the gates that made the pruned model."""
    task = Line()
    Run(task, SETTINGS, tmp_path).train()
    again = Line()
    tnmars.load_into(again.model, tmp_path / "checkpoint.safetensors")
    assert all(torch.equal(value, again.model.state_dict()[key]) for key, value in task.model.state_dict().items())


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "²", "5-2", "1" * 23, "0,,1"])
def test_seeds_that_are_no_numbers(text: str) -> None:
    with pytest.raises(tnmars.TnmarsError, match="seeds"):
        jobs.seeds(text)


@pytest.mark.long
def test_kill_stops_the_runs_too(tmp_path: Path) -> None:
    """The command is killed; its run leaves a checkpoint and ends, and is not left behind."""
    asked = [
        "reproduce",
        "tucker",
        "--variants",
        "paper",
        "--seeds",
        "0",
        "--out",
        str(tmp_path),
        "--save-every",
        "0.2",
    ]
    parent = subprocess.Popen(
        [sys.executable, "-m", "tnmars", *asked], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    checkpoint = tmp_path / "paper-0" / "checkpoint.safetensors"
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.send_signal(signal.SIGTERM)
    _, said = parent.communicate(timeout=60)  # the run has the same standard error: it would keep it open
    assert b"stopped; run again with --resume to continue from here" in said
    assert not (tmp_path / "paper-0" / "record-0.json").exists()


def test_folders_that_cannot_be_made_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    asked = ["reproduce", "tucker", "--variants", "direct", "--seeds", "0", "--epochs", "5"]
    for command in (asked, ["demo"]):
        assert cli.run([*command, "--out", str(tmp_path / "file" / "x")]) == 2
        assert "the folder cannot be created" in capfd.readouterr().err


def test_missing_data_is_reported_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idx, "PAGE", "file:///nowhere/")
    assert cli.run(["reproduce", "mnist-2fc", "--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert capfd.readouterr().err.count("MNIST is not in") == 1


def test_mnist_runs_and_members_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On other data: the pruned network that is left has the accuracy of the record, and so has an ensemble of one."""
    random = torch.Generator().manual_seed(0)
    x = torch.rand(256, 784, generator=random)
    y = (x[:, :10] * 3).argmax(-1)
    monkeypatch.setattr(mnist, "mnist", lambda given=None: idx.Mnist(x, y, x[:100], y[:100]))
    (found,) = mnist.run("soft", [0], tmp_path / "soft-0", RunOptions(epochs=2))
    assert found["ranks"].keys() == {"0", "2"} and found["compression"] > 18.0
    assert mnist.ensemble([tmp_path / "soft-0" / "small.safetensors"], "soft") == pytest.approx(found["accuracy"])


def test_files_are_downloaded_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(iter(idx.FILES))
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / name).write_bytes(b"not the images")
    monkeypatch.setattr(idx, "PAGE", (tmp_path / "page").as_uri() + "/")
    with pytest.raises(tnmars.TnmarsError, match="the downloaded file is not the published one"):
        idx.mnist(tmp_path)
    assert not (tmp_path / "mnist" / name).exists()
    monkeypatch.setitem(idx.FILES, name, hashlib.sha256(b"not the images").hexdigest())
    with pytest.raises(tnmars.TnmarsError, match=r"t10k|train-labels"):  # the next one is not there
        idx.mnist(tmp_path)
    assert (tmp_path / "mnist" / name).read_bytes() == b"not the images"
