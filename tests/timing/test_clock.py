"""The one clock: turns, budgets, dropping of slow actions, devices."""

from __future__ import annotations

import mmap
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
import torch

from tnmars.timing import clock
from tnmars.timing.clock import in_turns, inference, threads, training_step


class Fake:
    """A clock that actions advance: each takes the seconds it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 0.0
        self.calls: list[str] = []
        for name in ("process_time", "perf_counter"):
            monkeypatch.setattr(time, name, lambda: self.now)

    def action(self, name: str, *seconds: float) -> Callable[[], None]:
        """Takes the first of some durations in its first run, and so on; then always the last."""
        left = list(seconds)

        def run() -> None:
            self.calls.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake(monkeypatch)


def test_the_shortest_run_of_each_action(fake: Fake) -> None:
    actions = [fake.action("a", 5.0, 3.0, 4.0), fake.action("b", 2.0, 2.5)]
    assert in_turns(actions, rounds=2, budget=100.0) == [3.0, 2.0]
    assert fake.calls[:2] == ["a", "b"], "each runs once at first"
    assert sorted(fake.calls) == ["a"] * 3 + ["b"] * 3


def test_another_result_of_all_runs(fake: Fake) -> None:
    assert in_turns([fake.action("a", 9.0, 1.0, 2.0, 8.0)], rounds=3, budget=100.0, result=median) == [5.0]


def test_the_order_changes_from_round_to_round(fake: Fake) -> None:
    in_turns([fake.action(name, 1.0) for name in "abc"], rounds=8, budget=100.0)
    orders = {tuple(fake.calls[at : at + 3]) for at in range(0, len(fake.calls), 3)}
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert len(orders) > 2


def test_a_short_action_is_repeated_within_its_turn_and_warmed_up_before(fake: Fake) -> None:
    in_turns([fake.action("a", 0.001)], rounds=1, budget=1.0, turn=0.0035)
    assert len(fake.calls) == 1 + 1 + 4
    fake.calls.clear()
    in_turns([fake.action("a", 0.001)], rounds=1, budget=1.0, turn=0.0)
    assert len(fake.calls) == 1 + 1, "no turn, no repetition"


def test_an_action_that_has_spent_its_budget_sits_out(fake: Fake) -> None:
    in_turns([fake.action("slow", 1.0), fake.action("fast", 0.1)], rounds=10, budget=2.0)
    assert fake.calls.count("slow") == 1 + 2, "the first run does not count"
    assert fake.calls.count("fast") == 1 + 10


def test_but_it_takes_part_in_the_least_number_of_rounds(fake: Fake) -> None:
    in_turns([fake.action("slow", 5.0)], rounds=10, budget=2.0, least=3)
    assert len(fake.calls) == 1 + 3


def test_an_action_that_falls_behind_is_dropped(fake: Fake) -> None:
    actions = [fake.action("a", 0.01), fake.action("b", 0.012), fake.action("c", 0.016)]
    assert in_turns(actions, rounds=5, budget=9.0, behind=1.5, warm=0.0) == pytest.approx([0.01, 0.012, 0.016])
    assert [fake.calls.count(name) for name in "abc"] == [6, 6, 3], "after two rounds"
    fake.calls.clear()
    in_turns(
        [fake.action("a", 0.01), fake.action("b", 0.012), fake.action("c", 0.031)], rounds=5, budget=9.0, behind=1.5
    )
    assert fake.calls.count("c") == 3, "far behind: after one, with its warm-up"


def test_the_more_rounds_the_less_an_action_may_be_behind(fake: Fake) -> None:
    actions = [fake.action("a", 0.1), fake.action("b", 0.112), fake.action("c", 0.13)]
    in_turns(actions, rounds=9, budget=9.0, behind=1.5)
    assert [fake.calls.count(name) for name in "abc"] == [10, 10, 5]


def test_no_action_is_dropped_for_its_first_run(fake: Fake) -> None:
    """The first one in a process also pays for what is set up once: 0.3 s instead of 0.04 were seen."""
    actions = [fake.action("a", 0.3, 0.04), fake.action("b", 0.07)]
    assert in_turns(actions, rounds=5, budget=9.0, behind=1.5) == pytest.approx([0.04, 0.07])
    assert fake.calls.count("b") == 3, "dropped after the second round, and the one that is left has won"


def test_cpu_time_on_one_thread() -> None:
    with threads(1):
        assert in_turns([lambda: time.sleep(0.05)], rounds=1, budget=0.0) < [0.02]
    with threads(2):
        assert in_turns([lambda: time.sleep(0.05)], rounds=1, budget=0.0) >= [0.05]
        assert torch.get_num_threads() == 2


def test_another_device_is_synchronized_after_every_run(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is queued at once and takes its time later, as on a GPU."""
    queued: list[float] = []

    def synchronize(device: torch.device) -> None:
        assert device.type == "cuda"
        fake.now += sum(queued)
        queued.clear()

    monkeypatch.setattr(torch.accelerator, "synchronize", synchronize)
    queued.append(100.0)
    actions = [lambda: queued.append(3.0), lambda: queued.append(2.0)]
    assert in_turns(actions, rounds=2, budget=50.0, device="cuda") == [3.0, 2.0]
    assert clock._timer(torch.device("cpu"))(actions[0]) == 0.0


def test_inference_has_no_gradient_and_a_training_step_has() -> None:
    weight = torch.ones(3, requires_grad=True)
    x = torch.ones(3)
    made = inference(lambda x: weight * x, [x])()
    assert isinstance(made, torch.Tensor)
    assert not made.requires_grad
    step = training_step(lambda x: weight * x, [x], [weight])
    step()
    first = weight.grad
    step()
    assert first is not None
    assert weight.grad is not None
    assert torch.equal(weight.grad, first), "gradients do not add up"


FAULTS = """
import resource
import torch
from tnmars.timing.clock import in_turns

faults = []

def action():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [torch.ones(2**21) for _ in range(4)]
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

in_turns([action], rounds=4, budget=10.0)
print(min(faults), faults[0])
"""


HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
IS_USUAL = platform.libc_ver()[0] == "glibc" and not (HUGE.exists() and "[always]" in HUGE.read_text())


@pytest.mark.skipif(not IS_USUAL, reason="it counts small pages from glibc's malloc")
def test_memory_is_kept_from_run_to_run() -> None:
    """Four blocks of 8 MB. In a fresh process each run would fetch them anew."""
    changes = ("MALLOC_", "GLIBC_", "LD_PRELOAD")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(changes)}
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, env=plain)
    least, first = map(int, done.stdout.split())
    pages = 4 * 2**23 // mmap.PAGESIZE
    assert least < 0.02 * pages < 0.5 * pages < first
