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
    slack: float = 0.0
    """By how much it may be below that figure."""
    seeds: int = 1
    """The minimum number of seeds."""

    def against(self, summary: Mapping[str, Mapping[str, Any]]) -> Target | None:
        """The target with its bounds, or `None` if they depend on a variant that was not run."""
        if not self.above:
            return self
        other = summary.get(self.above, {}).get(self.figure)
        return None if other is None else replace(self, low=nextafter(other[self.statistic] - self.slack, inf))

    @property
    def bounds(self) -> str:
        """The bounds in words.

        >>> Target("hard", "accuracy", 97.5).bounds
        'at least 97.5'
        """
        if self.above:
            less = f" less {self.slack:g}" if self.slack else ""
            return f"above {self.above}{less}" + (f", {self.low:.4g}" if self.low > -inf else "")
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
        for way in ("ard", "search"):
            yield Target(f"{way}-{rank}", "accuracy", above=f"dense-{rank}", seeds=10)


TARGETS: dict[str, tuple[Target, ...]] = {
    "toy": tuple(_toy()),
    "tucker": (
        *(Target("settled", f"rank {at}", 4.0, 5.5, seeds=10) for at in (1, 2, 3, 4)),
        *(Target(way, "log_likelihood", -0.1, statistic="median", seeds=10) for way in ("settled", "ard", "search")),
    ),
    "mnist-2fc": (
        Target("soft", "compression", 130.0, seeds=5),
        Target("soft", "accuracy", 98.05, seeds=5),
        Target("soft", "ensemble", 98.75, seeds=5),
        Target("hard", "compression", 190.0, seeds=5),
        Target("hard", "accuracy", 97.75, seeds=5),
        Target("shrink", "compression", 230.0, seeds=5),
        Target("shrink", "accuracy", 98.05, seeds=5),
        Target("ard", "compression", 100.0, seeds=5),
        Target("ard", "accuracy", 97.0, seeds=5),
        Target("dense", "accuracy", 98.0),
        Target("tt-20", "accuracy", 97.5),
    ),
    "lenet5": (
        Target("mars-tucker", "compression", 9.0, seeds=5),
        Target("mars-tucker", "accuracy", 98.9, seeds=5),
        Target("mars-tucker", "speed", 1.19, seeds=5),
        Target("mars-tucker", "ensemble", 99.3, seeds=5),
        Target("shrink-tucker 10x", "accuracy", 99.05, seeds=5),
        *(Target(f"trn-{rank}", "accuracy", low, seeds=3) for rank, low in ((10, 98.5), (15, 99.1), (20, 99.2))),
        Target("shrink-ring 20x", "accuracy", 99.3, seeds=5),
        Target("shrink-ring 40x", "accuracy", 99.2, seeds=5),
        Target("shrink-ring 20x", "accuracy", above="ring-20x", seeds=3),
        Target("shrink-ring 40x", "accuracy", above="ring-40x", seeds=3),
        Target("musco", "compression", above="evbmf", seeds=5),
        Target("musco", "accuracy", above="evbmf", slack=0.1, seeds=5),
    ),
    "sst": (
        Target("mars-tt-4", "compression", 300.0, seeds=3),
        Target("mars-tt-4", "accuracy", 40.0, seeds=3),
        Target("mars-tt-4", "accuracy", above="dense", seeds=3),
        Target("shrink-tt-4 340x embedding", "accuracy", above="mars-tt-4", seeds=3),
    ),
    "imdb": (
        Target("tt-6", "accuracy", above="dense", slack=0.5, seeds=3),
        Target("mars-tt-6", "compression", 441.0, seeds=3),
        Target("mars-tt-6", "accuracy", above="tt-6", slack=0.3, seeds=3),
        Target("shrink-tt-6 559x embedding", "accuracy", above="tt-6", slack=0.3, seeds=3),
    ),
    "resnet110": (
        Target("counts", "naive", 2.69195, 2.69205),
        Target("counts", "proper", 2.30535, 2.30545),
        Target("shrink-proper 5x layers", "accuracy", above="pretrained", slack=1.5, seeds=3),
        Target("ard-naive", "layers_compression", above="tt-naive"),
        Target("ard-naive", "accuracy", above="tt-naive", slack=1.0),
    ),
    "completion": tuple(Target(variant, "as_planted", 0.8, seeds=10) for variant in ("fit", "ard", "shrink")),
    "regression": tuple(Target(variant, "as_planted", 0.8, seeds=10) for variant in ("mars", "shrink")),
    "greedy": tuple(Target(variant, "as_planted", 0.8, seeds=10) for variant in ("tt", "ring", "topology")),
    "tt-rnn": (
        Target("tt-gru", "compression", 20.0, seeds=3),
        Target("tt-gru", "accuracy", above="gru", slack=1.0, seeds=3),
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
