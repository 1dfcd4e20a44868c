"""The experiments by name, and what is known about each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tnmars.experiments import idx, lenet5, mnist, planted, regression, resnet110, toy, tt_rnn, tucker
from tnmars.experiments.loop import RunOptions
from tnmars.experiments.sentiment import IMDB, SST, Corpus

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
    """Variants whose pruned networks are also judged together; for a path, with a budget behind it."""
    ensemble: Callable[[Sequence[Path], str, str | None], float] | None = None
    """Judges them: takes the files of networks, the variant and the folder of the data; returns the accuracy."""
    timed: Callable[[Path, str, str | None], tuple[float, float]] | None = None
    """Times a network: takes its file, the variant and the folder of the data; returns the seconds of a dense one and
    its own."""
    over_pi: Mapping[float, str] = field(default_factory=dict)
    """Variants that differ only in pi, by their pi."""
    more: tuple[str, ...] = ()
    """Variants that run only on request."""
    runs: Mapping[str, Runs] = field(default_factory=dict)
    """What `tnmars reproduce --all` runs."""


def _of_texts(corpus: Corpus, seeds: int, minutes: float) -> Experiment:
    longer = corpus.gated_epochs / corpus.epochs
    runs = {name: Runs(seeds, (longer if name in corpus.gated else 1.0) * minutes) for name in corpus.variants}
    return Experiment(corpus.variants, corpus.run, corpus.paper, prepare=corpus.prepare, runs=runs)


EXPERIMENTS = {
    "toy": Experiment(
        toy.VARIANTS,
        toy.run,
        toy.PAPER,
        together=True,
        runs={variant: Runs(10, 4.0 if variant.startswith("search") else 1.5) for variant in toy.VARIANTS},
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
        ensembled=("soft", "hard", "shrink", *(f"shrink-to {ratio}" for ratio in mnist.PATHS["shrink-to"])),
        ensemble=mnist.ensemble,
        over_pi={float(pi): "soft" if pi == "1e-1" else f"pi-{pi}" for pi in mnist.PIS},
        more=mnist.ABLATION,
        runs={
            **dict.fromkeys(("soft", "hard"), Runs(10, 20.0)),
            "ard": Runs(5, 13.0),
            "tt-20": Runs(3, 15.0),
            "dense": Runs(3, 10.0),
            **dict.fromkeys(mnist.PATHS, Runs(10, 2.0)),
            **dict.fromkeys(mnist.ABLATION, Runs(3, 20.0)),
        },
    ),
    "lenet5": Experiment(
        lenet5.VARIANTS,
        lenet5.run,
        lenet5.PAPER,
        prepare=idx.mnist,
        ensembled=(*lenet5.GATED, *(f"{path} {ratio}" for path, (_, each) in lenet5.PATHS.items() for ratio in each)),
        ensemble=lenet5.ensemble,
        timed=lenet5.timed,
        runs={
            "dense": Runs(5, 2.5),
            "evbmf": Runs(5, 5.5),
            "musco": Runs(5, 5.5),
            **dict.fromkeys(lenet5.FIXED, Runs(3, 9.0)),
            **dict.fromkeys(lenet5.GATED, Runs(5, 10.0)),
            **dict.fromkeys(lenet5.PATHS, Runs(5, 6.0)),
        },
    ),
    "sst": _of_texts(SST, 3, 4.0),
    "imdb": _of_texts(IMDB, 3, 20.0),
    "resnet110": Experiment(
        resnet110.VARIANTS,
        resnet110.run,
        resnet110.PAPER,
        prepare=resnet110.prepare,
        runs={
            "counts": Runs(1, 0.5),
            "pretrained": Runs(1, 0.5),
            **dict.fromkeys((*resnet110.FIXED, *resnet110.CHOOSING), Runs(1, 17.0)),
            **{path: Runs(3 if path == "shrink-proper" else 1, 20.0) for path in resnet110.PATHS},
            **dict.fromkeys(resnet110.FRESH, Runs(1, 52.0)),
        },
    ),
    "completion": Experiment(
        planted.COMPLETION, planted.complete, {}, runs=dict.fromkeys(planted.COMPLETION, Runs(10, 0.3))
    ),
    "regression": Experiment(
        regression.VARIANTS, regression.run, {}, runs=dict.fromkeys(regression.VARIANTS, Runs(10, 0.2))
    ),
    "greedy": Experiment(
        planted.GREEDY,
        planted.grow,
        {},
        runs={variant: Runs(10, 0.1 if variant == "tt" else 2.0) for variant in planted.GREEDY},
    ),
    "tt-rnn": Experiment(
        tt_rnn.VARIANTS, tt_rnn.run, {}, prepare=idx.mnist, runs=dict.fromkeys(tt_rnn.VARIANTS, Runs(3, 5.0))
    ),
}
