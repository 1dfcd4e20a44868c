"""How fast this machine is. Limits on time are meant for a fast one; a slower machine gets more time."""

from __future__ import annotations

import time
from functools import cache
from statistics import median

STEPS, REFERENCE = 100_000, 0.015
"""The steps of a loop with dicts, calls and comparisons, and the CPU seconds that they take on a fast machine."""
RUNS = 9


@cache
def slowness() -> float:
    """How many times slower than the reference this machine ran Python when it was first asked; at least 1."""
    return max(1.0, median(_loop() for _ in range(RUNS)) / REFERENCE)


def _loop() -> float:
    seen: dict[int, int] = {}
    start = time.process_time()
    for step in range(STEPS):
        place = step % 97
        seen[place] = max(seen.get(place, 0), step)
    return time.process_time() - start
