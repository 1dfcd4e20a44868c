"""The targets of the experiments' figures, and whether they are met."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, nextafter
from typing import Any


@dataclass(frozen=True)
class Target:
    """A figure of a variant over its seeds, and the bounds that it must be within."""

    variant: str
    figure: str
    low: float = -inf
    high: float = inf
    statistic: str = "mean"
    above: str = ""
    """A variant whose figure it must exceed, instead of fixed bounds."""
    seeds: int = 1
    """The minimum number of seeds."""

    def against(self, summary: Mapping[str, Mapping[str, Any]]) -> Target | None:
        """The target with its bounds, or `None` if they depend on a variant that was not run."""
        if not self.above:
            return self
        other = summary.get(self.above, {}).get(self.figure)
        return None if other is None else replace(self, low=nextafter(other[self.statistic], inf))

    @property
    def bounds(self) -> str:
        """The bounds in words.

        >>> Target("hard", "accuracy", 97.5).bounds
        'at least 97.5'
        """
        if self.above:
            return f"above {self.above}" + (f", {self.low:.4g}" if self.low > -inf else "")
        if self.high == inf:
            return f"at least {self.low:g}"
        return f"at most {self.high:g}" if self.low == -inf else f"{self.low:g} to {self.high:g}"

    def verdict(self, value: float) -> str:
        """Whether a value meets the target, and by how much it misses it."""
        if self.low <= value <= self.high:
            return "met"
        return f"missed by {max(self.low - value, value - self.high):.3g}"


def _toy() -> Iterator[Target]:
    for rank, paper, accuracy in ((8, 8.4, 88.0), (12, 12.6, 89.5), (16, 18.0, 85.4)):
        yield Target(f"mars-{rank}", "rank", paper - 1.5, paper + 1.5, seeds=10)
        yield Target(f"mars-{rank}", "accuracy", accuracy, seeds=10)
        yield Target(f"mars-{rank}", "accuracy", above=f"dense-{rank}", seeds=10)


TARGETS: dict[str, tuple[Target, ...]] = {
    "toy": tuple(_toy()),
    "tucker": (
        *(Target("settled", f"rank {at}", 4.0, 5.5, seeds=10) for at in (1, 2, 3, 4)),
        Target("settled", "log_likelihood", -0.1, statistic="median", seeds=10),
    ),
    "mnist-2fc": (
        Target("soft", "compression", 120.0, seeds=3),
        Target("soft", "accuracy", 97.9, seeds=3),
        Target("soft", "ensemble", 98.4, seeds=3),
        Target("hard", "compression", 170.0, seeds=3),
        Target("hard", "accuracy", 97.5, seeds=3),
        Target("dense", "accuracy", 98.0),
        Target("tt-20", "accuracy", 97.5),
    ),
}
HEAD = ["figure", "target", "result", "seeds", ""]


def judged(name: str, summary: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """The rows of a table: the targets of an experiment, the results, and whether the targets are met."""
    rows = []
    for given in TARGETS.get(name, ()):
        entry = summary.get(given.variant, {})
        figure, target = entry.get(given.figure), given.against(summary)
        if figure is None or target is None:
            rows.append([f"{given.variant}, {given.figure}", given.bounds, "not run", "", ""])
            continue
        value, count = figure[target.statistic], len(entry["seeds"])
        what = f"{target.variant}, {target.statistic} {target.figure.replace('_', ' ')}"
        verdict = target.verdict(value) if count >= target.seeds else f"too few seeds: {target.seeds} are needed"
        rows.append([what, target.bounds, f"{value:.4g}", str(count), verdict])
    return rows
