"""The clock: how long actions take, measured in turns, so that a slow moment of the machine hits all of them.

Everything that the package times goes through `in_turns`. It knows nothing about graphs or layers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf

import torch
from torch import Tensor

Action = Callable[[], object]

TURN = 0.002
"""The least duration of a turn in seconds: a shorter action is repeated within its turn."""
MOST_RUNS = 1000
"""The largest number of runs within one turn."""
SURE = 2
"""The number of rounds after which an action is dropped if it is behind."""
WARM = 0.05
"""An action shorter than this many seconds runs once, unmeasured, before each of its turns: as in a loop of its own."""
SETTLED = 31 * 2**20
"""The bytes of a block that is freed before anything is timed. glibc's malloc returns free memory at the end of its
heap to the system once there is twice as much of it as the largest block that was freed so far, counting blocks of less
than 32 MB. Until a process has freed a large one, a step can therefore fetch its memory anew each time and take twice
as long, and another form can be the fastest."""


def in_turns(
    actions: Sequence[Action],
    *,
    rounds: int,
    budget: float,
    least: int = 0,
    behind: float = inf,
    turn: float = TURN,
    warm: float = WARM,
    device: torch.device | str | None = None,
    result: Callable[[Sequence[float]], float] = min,
) -> list[float]:
    """The seconds that each action takes, by default the shortest of its runs.

    On one CPU thread this is CPU time, which other processes disturb less; else it is wall-clock time, and a device
    other than the CPU is synchronized after every run.

    Every action runs once, which also warms it up. Then each has a turn in every round, in an order that changes from
    round to round: what one leaves in caches and in the allocator matters to the next. No action is dropped for its
    first run, because the first one in a process also pays for what is set up only once. From here on the process
    keeps up to 62 MB of free memory; see `SETTLED`.

    Args:
        actions: What to time.
        rounds: The largest number of rounds after the first run.
        budget: An action that has run for this many seconds after its first run sits out the remaining rounds.
        least: The number of rounds that an action takes part in whatever its budget.
        behind: An action that is this many times slower than the fastest is dropped after the second round, so after
            three runs, and after the first round if it is twice as far behind. The more rounds there were, the less an
            action may be behind.
        turn: The least duration of a turn in seconds; 0 for one run.
        warm: An action shorter than this many seconds runs once before each of its turns.
        device: Where the actions compute, by default on the CPU.
        result: What to make of the times of an action.
    """
    torch.empty(SETTLED, dtype=torch.uint8, device="cpu")  # freed at once
    timed = _timer(torch.device(device or "cpu"))
    times = [[timed(action)] for action in actions]
    spent = [0.0 for _ in actions]  # the first run does not count here either
    running = list(range(len(actions)))
    order = random.Random(0)
    for number in range(rounds):
        fastest = min(map(min, times))
        if number:
            allowed = 2 * behind if number < SURE else 1 + (behind - 1) * SURE / number
            running = [at for at in running if min(times[at]) <= allowed * fastest]
        running = [at for at in running if number < least or spent[at] < budget]
        if not running or (len(running) == 1 and behind < inf):
            break
        for at in order.sample(running, len(running)):
            if turn and times[at][-1] < warm:
                spent[at] += timed(actions[at])
            runs = _turn(actions[at], timed, turn)
            spent[at] += sum(runs)
            times[at] = [*times[at], *runs] if result is not min else [min(*times[at], *runs)]
    return [result(runs) for runs in times]


def _turn(action: Action, timed: Callable[[Action], float], least: float) -> list[float]:
    runs = [timed(action)]
    while sum(runs) < least and len(runs) < MOST_RUNS:
        runs.append(timed(action))
    return runs


def _timer(device: torch.device) -> Callable[[Action], float]:
    """A function that measures one run of an action on a device."""
    is_cpu = device.type == "cpu"
    clock = time.process_time if is_cpu and torch.get_num_threads() == 1 else time.perf_counter

    def timed(action: Action) -> float:
        start = clock()
        action()
        if not is_cpu:
            torch.accelerator.synchronize(device)
        return clock() - start

    if not is_cpu:
        torch.accelerator.synchronize(device)  # work that is queued already belongs to nobody
    return timed


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Within the block, torch uses this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def inference(run: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Action:
    """A forward pass without gradients."""

    @torch.no_grad()
    def action() -> object:
        return run(*inputs)

    return action


def training_step(run: Callable[..., Tensor], inputs: Sequence[Tensor], trained: Sequence[Tensor]) -> Action:
    """Forward and backward, from a gradient that is there already, as the next layer would give it."""
    with torch.no_grad():
        gradient = torch.randn_like(run(*inputs))

    @torch.enable_grad()
    def action() -> None:
        for value in trained:
            value.grad = None
        torch.autograd.backward(run(*inputs), gradient)

    return action
