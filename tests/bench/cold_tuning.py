"""`python tests/bench/cold_tuning.py`: fresh processes whose first work is `compile(conv, tune=True)`.

In each process the chosen form is then timed against all candidates. A run fails if it takes more than 1.1 times as
long as the fastest. Nothing is read from the cache of earlier tuning.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

WITHIN = 1.1
CONVOLUTIONS = ("Tucker-2 r32 128", "CP r64 128", "TT r32 128", "ring r8 128", "Tucker-2 r16 64")


def child(name: str, mode: str, count: int) -> str:
    """Tunes one convolution, then times all of its candidates; the ratio and the names as a line."""
    import torch
    from bench.convs import cases

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
    times = in_turns([tuning._action(race, form) for form in forms], rounds=9, budget=4.0, least=3)
    ratio = times[forms.index(chosen)] / min(times)
    return f"{ratio:.3f} chosen {chosen.name}, fastest {forms[times.index(min(times))].name}"


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python tests/bench/cold_tuning.py", description="Tuning in fresh processes.")
    parser.add_argument("--runs", type=int, default=4, help="processes for each convolution")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--mode", default="train", choices=("train", "infer"))
    parser.add_argument("--child", help="used by the script itself")
    asked = parser.parse_args(given)
    if asked.child:
        print(child(asked.child, asked.mode, asked.threads))
        return 0
    ratios = []
    for name in CONVOLUTIONS:
        for _ in range(asked.runs):
            command = [sys.executable, __file__, "--child", name, "--mode", asked.mode, "--threads", str(asked.threads)]
            environment = {**os.environ, "TNMARS_TUNED": "off", "PYTHONPATH": str(HERE.parents[1])}
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            ratios.append(float(done.stdout.split()[0]))
            print(f"{name:<18} {done.stdout.strip()}", flush=True)
    good = sum(ratio <= WITHIN for ratio in ratios)
    print(f"{good} of {len(ratios)} within {WITHIN} of the fastest candidate; worst {max(ratios):.2f}")
    return 0 if good == len(ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
