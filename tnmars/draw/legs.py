"""Directions for the open legs of one core, away from its lines. Angles are in radians, clockwise from the right."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin

STEP = 38 * pi / 180
"""The widest angle between two legs of a fan."""
_OUTWARDS = 0.2


def fan(angle: float, count: int, room: float, widest: float = STEP) -> list[float]:
    """Angles for `count` legs around one, none further than `room` from it; from left to right.

    >>> [round(leg * 180 / pi) for leg in fan(pi / 2, 3, pi / 2)]
    [128, 90, 52]
    """
    step = min(widest, 2 * room / max(1, count - 1)) if count > 1 else 0.0
    return _left_to_right([angle + step * (at - (count - 1) / 2) for at in range(count)])


def around(count: int) -> list[float]:
    """Angles all around, for a core that nothing is joined to: two to the sides, else the first downwards."""
    start = pi if count == 2 else pi / 2
    return [start + 2 * pi * at / count for at in range(count)]


def into_gaps(lines: Sequence[float], out: float | None, count: int) -> list[float]:
    """Angles for `count` legs in the gaps between lines: each leg in turn takes the widest room, outwards if it can.

    >>> [round(leg * 180 / pi) for leg in into_gaps([0, pi], out=-pi / 2, count=1)]
    [270]
    """
    if not lines:
        return around(count)
    turns = sorted({round(angle % (2 * pi), 6) for angle in lines})
    gaps = [(turn, (turns[(at + 1) % len(turns)] - turn) % (2 * pi) or 2 * pi) for at, turn in enumerate(turns)]
    taken = [0] * len(gaps)
    for _ in range(count):
        scores = []
        for at, (start, width) in enumerate(gaps):
            outwards = cos(start + width / 2 - (pi / 2 if out is None else out))
            scores.append(round(min(width / (taken[at] + 2), pi / 3) + _OUTWARDS * outwards, 6))
        taken[scores.index(max(scores))] += 1
    angles = []
    for (start, width), legs in zip(gaps, taken, strict=True):
        if legs:
            angles += fan(start + width / 2, legs, (width / 2) * (legs - 1) / (legs + 1))
    return angles


def _left_to_right(angles: Sequence[float]) -> list[float]:
    return sorted(angles, key=lambda angle: (round(cos(angle), 6), round(sin(angle), 6)))
