"""Progress: one line or bar per record, not too often, for training loops and for fits."""

from __future__ import annotations

import io

import pytest
import torch

import tnmars
from tnmars.experiments import progress
from tnmars.experiments.progress import Progress, described, fit_callbacks
from tnmars.fitting import Point


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_lines_are_not_printed_too_often_but_the_last_one_is(clock: Clock) -> None:
    stream = io.StringIO()
    shown = Progress("toy", stream, every=10.0)
    for done in range(1, 7):
        clock.now += 4.0
        shown.show({"loss": 0.25}, done, 6)
    assert stream.getvalue().splitlines() == [
        "toy: epoch 3 of 6, loss 0.25, 12 s left",
        "toy: epoch 6 of 6, loss 0.25",
    ]


def test_epochs_done_before_do_not_count_for_the_time_left(clock: Clock) -> None:
    stream = io.StringIO()
    shown = Progress("toy", stream, every=0.0)
    clock.now += 1000.0
    shown.begin(90)
    clock.now += 30.0
    shown.show({}, 95, 100)
    assert stream.getvalue() == "toy: epoch 95 of 100, 30 s left\n"


def test_the_two_phases_of_a_fit() -> None:
    stream = io.StringIO()
    watch, shown = fit_callbacks(Progress("fit", stream, every=0.0))
    shown({"loss": 0.5, "expected_parameters": 1234.4, "ranks": {"": [3, 4]}}, 100, 100)
    watch(Point(67, {"r1": 2, "r2": 3}, 0.01, -5.0))
    watch(Point(1067, {"r1": 2, "r2": 3}, 0.02, -6.0))
    assert stream.getvalue().splitlines() == [
        "fit: step 100 of 100, error 0.5, ranks 3-4, expected parameters 1,234",
        "fit: network 1, error 0.01, 67 parameters, ranks 2-3",
        "fit: network 2, error 0.02, 1,067 parameters, ranks 2-3",
    ]


def test_a_fit_calls_what_shows_its_progress() -> None:
    stream = io.StringIO()
    watch, shown = fit_callbacks(Progress("fit", stream, every=0.0))
    graph = tnmars.families.lowrank("tensor", free=(6, 8), rank=2)
    target = torch.outer(torch.arange(1.0, 7.0), torch.arange(1.0, 9.0))
    tnmars.fit(graph, target, selector=tnmars.Annealed(), steps=100, watch=watch, shown=shown)
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("fit: step 100 of 100, error ")
    assert lines[-1].startswith("fit: network ") and lines[-1].endswith("14 parameters, ranks 1")


def test_a_terminal_has_one_bar_at_a_time() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Progress("fit", Terminal())
    try:
        shown.show({"error": 0.5}, 100, 200, unit="step")
        assert [(task.completed, task.total, task.fields["text"]) for task in shown._bar.tasks] == [
            (100, 200, "error 0.5")
        ]
        shown.show({"error": 0.25}, 1, unit="network")
        assert [(task.completed, task.total, task.fields["text"]) for task in shown._bar.tasks] == [
            (1, None, "error 0.25")
        ]
    finally:
        shown.close()


def test_other_figures_are_shown_and_text_is_not() -> None:
    assert described({"epoch": 3, "loss": 1.0, "accuracy": 97.5, "note": "x"}) == "loss 1, accuracy 97.5"
