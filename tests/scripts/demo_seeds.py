"""How often the demo recovers its planted ranks: `python tests/scripts/demo_seeds.py --out docs/results/demo.json`."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from tnmars.experiments.demo import Planted, planted, recovered
from tnmars.experiments.jobs import seeds
from tnmars.experiments.worker import commit
from tnmars.files import write_text
from tnmars.fitting.room import parameters


def run(case: Planted, seed: int) -> dict[str, Any]:
    """One run as plain data."""
    began = time.process_time()
    result = recovered(case, seed)
    return {
        "case": case.name,
        "seed": seed,
        "came_back": result.came_back,
        "ranks": list(result.fitted.ranks.values()),
        "parameters": result.fitted.parameters,
        "planted_parameters": parameters(case.hidden),
        "error": result.fitted.error,
        "noise": result.noise,
        "cpu_seconds": time.process_time() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0-9")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    runs = []
    for case in planted():
        own = []
        for seed in seeds(asked.seeds):
            own.append(run(case, seed))
            print(json.dumps(own[-1]), flush=True)
        print(f"{case.name}: {sum(one['came_back'] for one in own)} of {len(own)} came back", flush=True)
        runs += own
    if asked.out is not None:
        write_text(
            asked.out, json.dumps({"commit": commit(), "torch": torch.__version__, "runs": runs}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
