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


EXPERIMENTS = {
    "toy": Experiment(toy.VARIANTS, toy.run, toy.PAPER, together=True),
    "tucker": Experiment(tucker.VARIANTS, tucker.run, tucker.PAPER),
    "mnist-2fc": Experiment(
        mnist.VARIANTS,
        mnist.run,
        mnist.PAPER,
        prepare=idx.mnist,
        ensembled=("soft", "hard"),
        over_pi={float(pi): "soft" if pi == "1e-1" else f"pi-{pi}" for pi in mnist.PIS},
        more=mnist.ABLATION,
    ),
}
