"""Runs `tnmars.shrink` on problems of the paper and others, beside its controls, and appends the results to a file.

    python tests/bench/shrinking toy-8 --seeds 20-29 --json docs/results/shrink.json
    python tests/bench/shrinking mnist-2fc --seeds 20-22 --rows budgets,uniform,random

Rows: `untouched` is one call without a budget. `budgets` is one call with several. `random` is `budgets` with slices
chosen at random in the same canonical form, and `gradient` with slices chosen by the gradient of the loss. `uniform`
trains the start ranks times one factor, of at most the asked size (with `--nearest` of the nearest size, which may be
larger), from scratch, in one annealed run of as many steps as the path took to that size. `fixed` trains the network as
it starts, and `dense` a dense one, in stages as long as those of the path. The lengths come from records of the path in
the file, or from `--steps`. `mars` selects ranks with gates but trains in the same way, and `ensemble` averages its
sampled masks. Every choice is made on validation data; each point that is recorded is tested once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from bench.models.run import Recorder
from bench.shrinking import gates, rows
from bench.shrinking.rows import Asked
from bench.shrinking.tasks import TASKS

ROWS = {
    "untouched": rows.path,
    "budgets": rows.path,
    "random": rows.path,
    "gradient": rows.path,
    "uniform": rows.uniform,
    "fixed": rows.held,
    "dense": rows.held,
    "mars": gates.mars,
    "ensemble": gates.ensemble,
}

SETTINGS = {"rate": float, "factor": float, "first": int}


def numbers(text: str) -> tuple[int, ...]:
    """Numbers such as `20-29` or `0,2`.

    >>> numbers("20-22,5")
    (20, 21, 22, 5)
    """
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python tests/bench/shrinking", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--rows", default="untouched", help=f"some of {', '.join(ROWS)}")
    parser.add_argument("--ratios", default="", help="for budgets, random and uniform, such as 100,205")
    parser.add_argument("--steps", default="", help="for controls: the length of each stage, such as 400,235,277")
    parser.add_argument("--max-drop", type=float, default=None, help="for untouched, in the unit of the score")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--checkpoints", type=Path, default=None, help="a folder; killed paths continue from there")
    parser.add_argument("--nearest", action="store_true", help="for uniform: the nearest size, even if it is larger")
    for setting, kind in SETTINGS.items():
        parser.add_argument(f"--{setting}", type=kind, default=None)
    given = parser.parse_args(words)
    asked = given.rows.split(",")
    for row in asked:
        if row not in ROWS:
            parser.error(f"row '{row}' is unknown; rows: {', '.join(ROWS)}")
    torch.set_num_threads(1)
    recorder = Recorder(given.json)
    settings = {name: getattr(given, name) for name in SETTINGS if getattr(given, name) is not None}
    options = {} if given.max_drop is None else {"max_drop": given.max_drop}
    for name in given.tasks:
        for seed in numbers(given.seeds):
            for row in asked:
                ratios, steps = numbers(given.ratios), numbers(given.steps)
                one = Asked(
                    name, row, seed, recorder, settings, ratios, steps, options, given.checkpoints, given.nearest
                )
                ROWS[row](one, TASKS[name](seed))


if __name__ == "__main__":
    main()
