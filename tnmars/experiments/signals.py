"""Signal handlers that apply within a block."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handled(numbers: tuple[signal.Signals, ...], action: Callable[[], object]) -> Iterator[None]:
    """Within the block these signals call `action`; outside the main thread nothing changes."""
    before: dict[signal.Signals, Any] = {}
    try:
        for number in numbers:
            before[number] = signal.signal(number, lambda *_: action())
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
