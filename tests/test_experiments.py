"""The training loop and what stands on it: a run that is stopped goes on bit for bit, members of a crew are models of
their own, records become tables."""

from __future__ import annotations

import gzip
import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import error
from torch import Tensor, nn

import tnmars
from tnmars import Mars, cli
from tnmars.experiments import idx, jobs, mnist, tables, toy, tucker
from tnmars.experiments.crew import Crew, CrewSchedule
from tnmars.experiments.loop import Run, RunStoppedError, Settings
from tnmars.experiments.task import Task


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


SETTINGS = Settings(epochs=6, batch=8, warmup_epochs=1, save_every=0.0)


@pytest.mark.parametrize("stop_after", [1, 7, 20, 35])
def test_a_run_that_is_stopped_goes_on_bit_for_bit(stop_after: int, tmp_path: Path) -> None:
    whole = Line()
    wanted = Run(whole, SETTINGS).train()
    with pytest.raises(RunStoppedError):
        Run(Line(stop_after), SETTINGS, tmp_path).train()
    again = Line()
    torch.manual_seed(99)  # what the run does not depend on
    found = Run(again, SETTINGS, tmp_path).train(resume=True)
    ours, theirs = again.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert [entry["error"] for entry in found] == [entry["error"] for entry in wanted]
    lines = (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(6))


def test_the_loop_learns_and_tells() -> None:
    task = Line()
    history = Run(task, Settings(epochs=40, batch=8, prior_weight=0.0)).train()
    assert history[-1]["error"] < 0.5 * history[0]["error"]
    assert set(history[0]) == {"epoch", "loss", "ranks", "temperature", "expected_parameters", "error"}
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
    found = toy.run("mars-8", [0, 1], tmp_path, epochs=1)
    assert [set(result) for result in found] == [{"accuracy", "rank"}] * 2
    (dense,) = toy.run("dense-8", [0], tmp_path / "dense", epochs=2)
    assert dense["accuracy"] > 50


def test_tucker_runs(tmp_path: Path) -> None:
    found = tucker.run("paper", 0, tmp_path, epochs=20)
    assert len(found["ranks"]) == 4 and found["log_likelihood"] < 0


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


def test_missing_and_wrong_data_are_told(tmp_path: Path) -> None:
    with pytest.raises(tnmars.TnmarsError, match=r"(?s)MNIST is not in .*--data DIR"):
        idx.mnist(tmp_path, download=False)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"x")
    with pytest.raises(tnmars.TnmarsError, match="is not the published file"):
        idx.mnist(tmp_path, download=False)


@pytest.mark.skipif(not (idx.folder() / "mnist").is_dir(), reason="MNIST is not in $TNMARS_DATA")
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
    with pytest.raises(tnmars.TnmarsError, match="write, for example, 0-9"):
        jobs.seeds("a-b")


def test_reproduce_on_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ["reproduce", "tucker", "--variants", "direct", "--seeds", "0", "--epochs", "5", "--out", str(tmp_path)]
    assert cli.run([*asked, "--jobs", "1"]) == 0
    assert "| direct | 1 |" in capfd.readouterr().out
    assert cli.run([*asked, "--json"]) == 0, "what is done is not done again"
    found = json.loads(capfd.readouterr().out)
    assert found["records"][0]["versions"]["torch"] == torch.__version__
    assert cli.run(["reproduce", "tucker", "--variants", "nothing"]) == 2
    assert "is no variant of tucker" in capfd.readouterr().err


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
    assert found["a"]["rank 2"]["mean"] == 3.0 and found["a"]["minutes"] == 1.0
    assert "| a | 2 | 3 ± 1 |" in tables.markdown("t", found, {"a": {"x": 5}})
