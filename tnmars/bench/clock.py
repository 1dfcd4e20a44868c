"""Timing in turns, so that a slow moment of the machine hits all contenders alike; and the memory of one step."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

if TYPE_CHECKING:
    from collections.abc import Iterator

Action = Callable[[], object]
TURN = 0.002
"""A turn lasts at least so many seconds: short actions are repeated within it."""
WARM = 0.05
"""An action shorter than so many seconds runs once before its turn, as it does in a loop of its own."""
LEAST_ROUNDS = 3


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Within the block, torch has so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_turns(actions: Sequence[Action], rounds: int = 15, budget: float = 6.0) -> list[float]:
    """The shortest time of each action, in seconds.

    With one thread it is processor time, which other processes disturb less. Who comes after whom changes from round
    to round: what one leaves in caches and in the allocator matters to the next. An action that has had `budget`
    seconds sits out the remaining rounds, but for the first few and for the first action, which is the unit.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    shortest, spent = [float("inf")] * len(actions), [0.0] * len(actions)
    for action in actions:
        action()
    draw = random.Random(0)
    for turn in range(rounds):
        for at in draw.sample(range(len(actions)), len(actions)):
            if at and turn >= LEAST_ROUNDS and spent[at] > budget:
                continue
            if shortest[at] < WARM:
                actions[at]()
            took = _turn(actions[at], clock)
            shortest[at] = min([shortest[at], *took])
            spent[at] += sum(took)
    return shortest


def _turn(action: Action, clock: Callable[[], float]) -> list[float]:
    took: list[float] = []
    while sum(took) < TURN and len(took) < 1000:
        start = clock()
        action()
        took.append(clock() - start)
    return took


def forward_action(run: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Action:
    """Inference."""

    @torch.no_grad()
    def action() -> object:
        return run(*inputs)

    return action


def training_action(run: Callable[..., Tensor], inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> Action:
    """Forward and backward, from a gradient that is there already, as the next layer would give it."""
    with torch.no_grad():
        gradient = torch.randn_like(run(*inputs))

    def action() -> None:
        forget(parameters)
        torch.autograd.backward(run(*inputs), gradient)

    return action


def forget(parameters: Sequence[Tensor]) -> None:
    """Sets gradients to none."""
    for parameter in parameters:
        parameter.grad = None


def peak_memory(action: Action, parameters: Sequence[Tensor]) -> int:
    """The most bytes that torch holds at once during an action, beyond those held before it.

    Counted from every allocation that torch makes, so it is the same on every run; buffers inside the libraries that
    torch calls are not seen.
    """
    action()
    forget(parameters)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        action()
        forget(parameters)  # a block that outlives the profile would be taken for another one in the next
    assert seen.profiler is not None
    results = seen.profiler.kineto_results
    assert results is not None
    changes = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most
