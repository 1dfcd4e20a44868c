"""`python tests/bench/cold_tuning.py`: fresh processes whose first work is `compile(conv, tune=True)`.

In each process the chosen form is then timed against all candidates. A run fails if it takes more than 1.1 times as
long as the fastest. Nothing is read from the cache of earlier tuning.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.counting import write_json

WITHIN = 1.1
CONVOLUTIONS = ("Tucker-2 r32 128", "CP r64 128", "TT r32 128", "ring r8 128", "Tucker-2 r16 64")


@dataclass(frozen=True)
class Outcome:
    """What one fresh process chose, and how it compares with the fastest candidate."""

    ratio: float
    macs: float
    """The multiply-adds of the chosen form relative to those of the fastest candidate."""
    chosen: str
    fastest: str


def child(name: str, mode: str, count: int) -> Outcome:
    """Tunes one convolution, then times all of its candidates."""
    import torch
    from bench.convs import cases
    from bench.counting import macs

    from tnmars.compiler import compile
    from tnmars.timing import tuning
    from tnmars.timing.clock import in_turns

    torch.set_num_threads(count)
    case = cases(name)[0]
    layer = compile(case.graph, batch=case.batch, image=case.image, tune=True)
    chosen = layer.plan(mode, case.batch)
    forms = list(layer.planner.candidates(mode, case.batch))
    place = {"device": layer.device, "dtype": layer.dtype}
    race = tuning._race(
        case.graph, mode, place, tuning._random_inputs(case.graph, case.batch, case.image, place, False)
    )
    actions = [tuning._action(race, form) for form in forms]
    times = in_turns(actions, rounds=9, budget=4.0, least=3)
    best = times.index(min(times))
    taken = forms.index(chosen)
    work = [macs(actions[taken]), macs(actions[best])]
    return Outcome(times[taken] / times[best], work[0] / work[1], chosen.name, forms[best].name)


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python tests/bench/cold_tuning.py", description="Tuning in fresh processes.")
    parser.add_argument("--runs", type=int, default=4, help="processes for each convolution")
    parser.add_argument("--threads", default="1", help="numbers of threads, for example 1,2")
    parser.add_argument("--mode", default="train", help="train, infer, or both with a comma")
    parser.add_argument("--quick", action="store_true", help="a smoke run: one process")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--child", help="used by the script itself")
    asked = parser.parse_args(given)
    if asked.child:
        print(json.dumps(asdict(child(asked.child, asked.mode, int(asked.threads)))))
        return 0
    rows: list[dict[str, Any]] = []
    for threads, mode in product(asked.threads.split(","), asked.mode.split(",")):
        found = []
        for name in CONVOLUTIONS[:1] if asked.quick else CONVOLUTIONS:
            for _ in range(1 if asked.quick else asked.runs):
                one = _run(name, mode, threads)
                found.append(one)
                rows.append({"case": name, "mode": mode, "threads": int(threads), **asdict(one)})
                text = f"time / fastest {one.ratio:.3f}, MACs / fastest {one.macs:.3f}"
                print(f"{name:<18} {text}, chosen {one.chosen}, fastest {one.fastest}", flush=True)
                write_json(asked.json, rows=rows)
        good = sum(one.ratio <= WITHIN for one in found)
        worst = max(one.ratio for one in found)
        what = f"{threads} thread(s), {mode}: {good} of {len(found)} within {WITHIN} of the fastest candidate"
        print(f"{what}; worst {worst:.2f}", flush=True)
    return 0 if all(row["ratio"] <= WITHIN for row in rows) else 1


def _run(name: str, mode: str, threads: str) -> Outcome:
    """The outcome of a fresh process."""
    command = [sys.executable, __file__, "--child", name, "--mode", mode, "--threads", threads]
    environment = {**os.environ, "TNMARS_TUNED": "off", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    sys.exit(main())
