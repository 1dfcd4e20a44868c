"""The experiments by name, and what is known about each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tnmars.experiments import idx, mnist, toy, tucker
from tnmars.experiments.loop import RunOptions

Runner = Callable[[str, Sequence[int], Path, RunOptions], list[dict[str, Any]]]
"""Takes a variant, seeds, a folder and options; returns one result for each seed."""


@dataclass(frozen=True)
class Runs:
    """How many seeds of a variant `tnmars reproduce --all` runs, and an estimate of the time."""

    seeds: int
    minutes: float
    """CPU minutes of one run; where all seeds are trained as one, of all of them. Records replace the estimate."""


@dataclass(frozen=True)
class Experiment:
    """An experiment: its variants, how a variant is run, and the paper's figures."""

    variants: tuple[str, ...]
    run: Runner
    paper: Mapping[str, Mapping[str, Any]]
    together: bool = False
    """Whether all seeds are trained as one."""
    prepare: Callable[[str | None], object] | None = None
    """Makes sure that the data are available before any run starts; raises `TnmarsError` if it cannot."""
    ensembled: tuple[str, ...] = ()
    """Variants whose pruned networks are also judged together, by `mnist.ensemble`."""
    over_pi: Mapping[float, str] = field(default_factory=dict)
    """Variants that differ only in pi, by their pi."""
    more: tuple[str, ...] = ()
    """Variants that run only on request."""
    runs: Mapping[str, Runs] = field(default_factory=dict)
    """What `tnmars reproduce --all` runs."""


EXPERIMENTS = {
    "toy": Experiment(
        toy.VARIANTS,
        toy.run,
        toy.PAPER,
        together=True,
        runs=dict.fromkeys(toy.VARIANTS, Runs(10, 1.5)),
    ),
    "tucker": Experiment(
        tucker.VARIANTS,
        tucker.run,
        tucker.PAPER,
        runs=dict.fromkeys(tucker.VARIANTS, Runs(10, 0.4)),
    ),
    "mnist-2fc": Experiment(
        mnist.VARIANTS,
        mnist.run,
        mnist.PAPER,
        prepare=idx.mnist,
        ensembled=("soft", "hard"),
        over_pi={float(pi): "soft" if pi == "1e-1" else f"pi-{pi}" for pi in mnist.PIS},
        more=mnist.ABLATION,
        runs={
            **dict.fromkeys(("soft", "hard"), Runs(10, 20.0)),
            "tt-20": Runs(3, 60.0),
            "dense": Runs(3, 10.0),
            **dict.fromkeys(mnist.ABLATION, Runs(3, 20.0)),
        },
    ),
}
