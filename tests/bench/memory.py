"""The memory of one step."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from tnmars.timing.clock import Action


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
