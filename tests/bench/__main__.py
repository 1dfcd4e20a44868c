"""`python tests/bench`: the benchmark against dense torch layers, plain torch and peers, or some rows of it.

Every figure is a ratio within one interleaved run. It is not part of the package: it needs `pip install '.[bench]'`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

# before torch is loaded: the profiler that counts memory would print a line for each use
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import masks, report, sweep
from bench.cases import cases
from bench.counting import write_json
from bench.run import Row, run_case

from tnmars.text.tables import markdown

QUICK = "784,ring,tucker-2 conv,d=3"
"""The rows of a smoke run: each kind, and nothing slow."""


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python tests/bench", description="Times compiled layers against others.")
    parser.add_argument("--rows", default="", help="only cases whose names contain one of these, separated by commas")
    parser.add_argument("--threads", default="1", help="numbers of threads, for example 1,2")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--budget", type=float, default=6.0, help="seconds that a slow contender has, at most")
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run: few rounds, no tuning, the figures mean little"
    )
    parser.add_argument("--input-grad", action="store_true", help="training steps give the input a gradient too")
    parser.add_argument("--no-sweep", action="store_true")
    parser.add_argument("--no-rows", action="store_true")
    parser.add_argument("--no-masks", action="store_true", help="do not time what gates add to a training step")
    parser.add_argument("--json", type=Path, help="write all timings to this file")
    return parser.parse_args(given)


def _rows(asked: argparse.Namespace, count: int, written: dict[str, Any]) -> list[Row]:
    found: list[Row] = []
    before = written["rows"]
    for case in cases(asked.rows or (QUICK if asked.quick else "")):
        start = time.perf_counter()
        row = run_case(
            case,
            count,
            rounds=2 if asked.quick else asked.rounds,
            budget=0.5 if asked.quick else asked.budget,
            tune=not asked.quick,
            memory=not asked.quick,
            input_grad=asked.input_grad,
        )
        found.append(row)
        written["rows"] = before + report.as_json(found)
        write_json(asked.json, **written)  # after each row: a long run that is stopped leaves what it has
        print(f"{case.name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return found


def main(given: list[str] | None = None) -> int:
    """Runs what is asked for, prints tables, and writes JSON."""
    asked = _arguments(given)
    written: dict[str, Any] = {"input_grad": asked.input_grad, "rows": []}
    if not asked.no_rows:
        for count in map(int, asked.threads.split(",")):
            rows = _rows(asked, count, written)
            if not rows:
                print(f"no case has a name with '{asked.rows}'; cases: {', '.join(c.name for c in cases())}")
                return 2
            print("\n".join([markdown(report.table(rows), padded=True), "", *report.summary(rows), ""]))
    if not asked.no_masks:
        given_names = asked.rows or (QUICK if asked.quick else "")
        rounds = 2 if asked.quick else 25
        written["masks"] = []
        for count in map(int, asked.threads.split(",")):
            timed = [masks.run_masks(case, count, rounds=rounds, tune=not asked.quick) for case in cases(given_names)]
            print("\n".join([markdown(masks.table(timed), padded=True), "", *masks.summary(timed), ""]))
            written["masks"] += masks.as_json(timed)
            write_json(asked.json, **written)
    if not asked.no_sweep:
        found = sweep.run_sweeps(rounds=2 if asked.quick else 9, most=6 if asked.quick else 10**6)
        print("\n".join([markdown(sweep.table(found), padded=True), "", *sweep.summary(found)]))
        written["sweep"] = sweep.as_json(found)
    write_json(asked.json, **written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
