"""Whether losses have risen: rises beyond the noise are seen, noise of several kinds is not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from tnmars.training.trend import Trend

WINDOW, CLOSED = 50, 12
Losses = Callable[[int], float]


def risen(losses: Losses, windows: int) -> bool:
    """Whether a rise is reported above losses of the first windows."""
    trend = Trend[bool]()
    own = [[losses(at * WINDOW + step) for step in range(WINDOW)] for at in range(windows)]
    rises = [trend.add(part, at < CLOSED) for at, part in enumerate(own)]
    return any(rise is not None and rise.state for rise in rises)


def white(seed: int, deviation: float, rise: float = 0.0) -> Losses:
    draw = random.Random(seed)
    return lambda step: 1.0 + draw.gauss(0.0, deviation) + (rise if step >= CLOSED * WINDOW else 0.0)


def skewed(seed: int) -> Losses:
    draw = random.Random(seed)
    return lambda step: math.exp(draw.gauss(0.0, 1.5))


def lasting(seed: int, memory: float) -> Losses:
    """Noise of which a share is kept from step to step, as of batches in an order that is not random."""
    draw, last = random.Random(seed), [0.0]

    def loss(step: int) -> float:
        last[0] = memory * last[0] + math.sqrt(1 - memory**2) * draw.gauss(0.0, 1.0)
        return 1.0 + 0.15 * last[0]

    return loss


NOISE: dict[str, tuple[Callable[[int], Losses], int]] = {
    "white": (lambda seed: white(seed, 0.33), 0),
    "skewed": (skewed, 0),
    "half is kept": (lambda seed: lasting(seed, 0.5), 3),
    "four fifths are kept": (lambda seed: lasting(seed, 0.8), 5),
}
"""Kinds of noise, and how many of twenty runs of 4,000 steps may be mistaken for a rise."""


@pytest.mark.parametrize("name", NOISE)
def test_noise_is_no_rise(name: str) -> None:
    make, most = NOISE[name]
    assert sum(risen(make(seed), 80) for seed in range(20)) <= most


@pytest.mark.parametrize(("deviation", "rise", "windows"), [(0.33, 0.2, 20), (0.33, 0.5, 4), (0.17, 0.1, 20)])
def test_rises_are_seen(deviation: float, rise: float, windows: int) -> None:
    """A rise of a fifth among losses that differ by a third takes many windows; a single one would not show it."""
    assert sum(risen(white(seed, deviation, rise), CLOSED + windows) for seed in range(20)) >= 19


def test_losses_that_fall_on_are_compared_with_the_last_of_them() -> None:
    trend = Trend[int]()
    falling = [[2.0 - 0.01 * (at * WINDOW + step) / WINDOW for step in range(WINDOW)] for at in range(60)]
    assert [trend.add(part, at) for at, part in enumerate(falling)] == [None] * 60
    trend.add([1.8] * WINDOW, 60)
    rise = trend.add([1.8] * WINDOW, 61)
    assert rise is not None and rise.state >= 52
    assert [rise.before, rise.after] == pytest.approx([1.42, 1.8], abs=0.02)


def test_one_window_with_large_losses_is_no_rise() -> None:
    trend = Trend[int]()
    values = [1.0] * 10 + [3.0] + [1.0] * 10
    assert [trend.add([value] * WINDOW, at) for at, value in enumerate(values)] == [None] * 21


@pytest.mark.parametrize(("steps", "closed", "factor"), [(100, 200, 2.0), (200, 300, 1.35), (400, 200, 1.35)])
def test_a_rise_is_seen_while_losses_fall_fast(steps: int, closed: int, factor: float) -> None:
    """They would have fallen on; they stay at a multiple of what they were."""

    def loss(step: int, draw: random.Random) -> float:
        mean = 0.5 + 1.8 * math.exp(-min(step, closed) / steps)
        return mean * (factor if step >= closed else 1.0) + draw.gauss(0.0, 0.1)

    for seed in range(10):
        draw, trend = random.Random(seed), Trend[bool]()
        own = [[loss(at * WINDOW + step, draw) for step in range(WINDOW)] for at in range(20)]
        rises = [trend.add(part, at * WINDOW < closed) for at, part in enumerate(own)]
        assert any(rise is not None and rise.state for rise in rises)
