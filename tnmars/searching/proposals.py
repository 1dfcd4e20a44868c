"""Which candidate comes next: a function of the seed and of the trials so far, so that a search can be continued.

Random search draws directions at random: the logarithm of each rank is uniform. Cross-entropy search (Rubinstein, 1999)
draws them from a normal distribution for each bond, which follows the best trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from tnmars.searching.costs import Sizes
from tnmars.searching.space import Space

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
Past = Sequence[tuple[Sizes, float]]
"""The sizes and the score of each trial."""

METHODS = ("random", "cross-entropy")
GENERATION = 10
"""The number of trials between two updates of the distribution. The first of them are those of random search."""
ELITE = 5
"""How many of the best trials the distribution follows."""
SMOOTHING = 0.8
"""The weight of the best trials in an update; the rest is that of the distribution before."""
PATIENCE = 100
"""How many directions are drawn for a candidate that is new."""
WIDER = 1.05
"""The factor by which the distribution widens with each direction that gives a known candidate."""


@dataclass
class Proposals:
    """The next candidate of a search, given its trials so far."""

    space: Space
    method: str
    seed: int
    start: Sizes | None = None
    """The first candidate."""

    def __post_init__(self) -> None:
        self._rest = self.space.every() if self.space.grows else iter(())

    def next(self, past: Past) -> Sizes | None:
        """A candidate that no trial had; None if there is no other one.

        >>> space = Space(most=(4, 4), cost=lambda sizes: 3 * sizes[0] + 2 * sizes[1], limit=12)
        >>> proposals, past = Proposals(space, "random", seed=0), []
        >>> while (sizes := proposals.next(past)) is not None:
        ...     past.append((sizes, 0.0))
        >>> sorted(sizes for sizes, _ in past)
        [(1, 4), (2, 3), (3, 1)]
        """
        if not past and self.start is not None:
            return self.start
        seen = {sizes for sizes, _ in past}
        for direction in self._directions(past):
            sizes = self.space.along(direction)
            if sizes not in seen:
                return sizes
        return next((sizes for sizes in self._rest if sizes not in seen), None)

    def _directions(self, past: Past) -> Iterator[list[float]]:
        random = np.random.default_rng([self.seed, len(past)])
        most = np.log(np.array(self.space.most, dtype=np.float64))
        normal = distribution(past) if self.method == "cross-entropy" else None
        for attempt in range(PATIENCE):
            if normal is None:
                yield list(map(float, random.uniform(0.0, most)))
            else:
                yield list(map(float, random.normal(normal[0], normal[1] * WIDER**attempt).clip(0.0, most)))


def distribution(past: Past) -> tuple[FloatArray, FloatArray] | None:
    """The mean and the deviation of the logarithm of each size; None before the first generation is complete.

    They begin as those of the first generation. After each generation they move toward those of the best trials so
    far. A deviation is at least half the distance to the next size.

    >>> distribution([((4, 2), 0.5)]) is None
    True
    """
    logs = np.log(np.array([sizes for sizes, _ in past], dtype=np.float64))
    scores = [score if isfinite(score) else -np.inf for _, score in past]
    if len(past) < GENERATION:
        return None
    mean, deviation = logs[:GENERATION].mean(0), logs[:GENERATION].std(0)
    for end in range(GENERATION, len(past) + 1, GENERATION):
        best = sorted((at for at in range(end) if scores[at] > -np.inf), key=lambda at: -scores[at])[:ELITE]
        if best:
            mean = (1 - SMOOTHING) * mean + SMOOTHING * logs[best].mean(0)
            deviation = (1 - SMOOTHING) * deviation + SMOOTHING * logs[best].std(0)
    return mean, np.maximum(deviation, 0.5 * np.log1p(np.exp(-mean)))
