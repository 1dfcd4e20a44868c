"""The experiments by name, and what a file of one has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tnmars.experiments import idx, mnist, toy, tucker

Results = list[dict[str, Any]]


@dataclass(frozen=True)
class Experiment:
    """An experiment: its variants, how one is run for some seeds, and what the paper says."""

    variants: tuple[str, ...]
    run: Callable[..., Results]
    """Takes a variant, seeds and a folder; gives one result for each seed."""
    paper: Mapping[str, Mapping[str, Any]]
    together: bool = False
    """Whether all seeds are trained as one."""
    prepare: Callable[[str | None], object] | None = None
    """Sees to it that the data are there, before any run begins; raises `TnmarsError` if they cannot be had."""
    ensembled: tuple[str, ...] = ()
    """Variants whose pruned networks are also judged together, by `mnist.ensemble`."""
    over_pi: Mapping[float, str] = field(default_factory=dict)
    """Variants that differ in pi alone, by it."""
    more: tuple[str, ...] = ()
    """Variants that are run only where they are asked for."""


def _one_by_one(run: Callable[..., dict[str, Any]]) -> Callable[..., Results]:
    def all_of_them(variant: str, seeds: Sequence[int], folder: Path, **settings: Any) -> Results:
        return [run(variant, seed, folder, **settings) for seed in seeds]

    return all_of_them


EXPERIMENTS = {
    "toy": Experiment(toy.VARIANTS, toy.run, toy.PAPER, together=True),
    "tucker": Experiment(tucker.VARIANTS, _one_by_one(tucker.run), tucker.PAPER),
    "mnist-2fc": Experiment(
        mnist.VARIANTS,
        _one_by_one(mnist.run),
        mnist.PAPER,
        prepare=idx.mnist,
        ensembled=("soft", "hard"),
        over_pi={float(pi): "soft" if pi == "1e-1" else f"pi-{pi}" for pi in mnist.PIS},
        more=mnist.ABLATION,
    ),
}
