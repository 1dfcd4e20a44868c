"""How often the demo's planted ranks come back: `python tests/scripts/demo_seeds.py --seeds 0-9`."""

from __future__ import annotations

import argparse

import torch

from tnmars.experiments.demo import planted, recovered
from tnmars.experiments.jobs import seeds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0-9")
    numbers = seeds(parser.parse_args().seeds)
    torch.set_num_threads(1)
    for case in planted():
        good = 0
        for seed in numbers:
            result = recovered(case, seed)
            good += result.came_back
            ranks = "-".join(map(str, result.found.ranks.values()))
            told = f"{result.found.parameters} parameters, error {result.found.error:.4f}, noise {result.noise:.4f}"
            print(f"{case.name} seed {seed}: ranks {ranks}, {told}: {result.came_back}", flush=True)
        print(f"{case.name}: {good} of {len(numbers)} came back", flush=True)


if __name__ == "__main__":
    main()
