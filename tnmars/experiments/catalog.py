"""The experiments by name, and what a file of one has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
        mnist.VARIANTS, _one_by_one(mnist.run), mnist.PAPER, prepare=idx.mnist, more=mnist.ABLATION
    ),
}
