"""The acceptance table of `tnmars fit`: planted networks with unknown noise, the same settings for all.

A planted network has cores with standard normal entries; its tensor is scaled to unit variance, and Gaussian noise of
the given standard deviation is added. Each case has a graph with larger ranks to start from. The random tree has 8
cores; each new core is joined to an earlier one, drawn uniformly. A core has one mode, of size 6 on a leaf and 3
elsewhere. Planted ranks are drawn from 2 to 5, but are at most what is useful; the start has 10 on every bond.
Completion sees 30 % of the entries, drawn uniformly, and is judged on the others, against the tensor without noise.

    python tests/scripts/fit_acceptance.py --jobs 2 --out docs/results/fit.json
    python tests/scripts/fit_acceptance.py --only tt,cp --seeds 100-102     # seeds of at least 100 are for tuning
"""

from __future__ import annotations

import argparse
import json
import os
import random as python_random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tnmars
from tnmars import Graph, families
from tnmars.experiments.planted import planted as planted_tensor
from tnmars.experiments.worker import commit

SIDES, CUBE = (8, 8, 8, 8), (16, 16, 16)
PLAIN = {0.01: 10, 0.001: 5, 0.05: 5}
"""How many seeds, by the noise."""


def tree(seed: int, start: int | None = None) -> Graph:
    """A random tree with 8 cores and planted ranks, or with every bond of the size to start from."""
    draw = python_random.Random(seed)
    joints = [(draw.randrange(at), at) for at in range(1, 8)]
    edges: dict[int, list[str]] = {at: [] for at in range(8)}
    for first, second in joints:
        edges[first].append(f"r{second}")
        edges[second].append(f"r{second}")
    modes = {f"n{at}": 6 if len(found) == 1 else 3 for at, found in edges.items()}
    text = " ".join(f"G{at}[n{at},{','.join(found)}]" for at, found in edges.items())
    ranks = {f"r{second}": draw.randint(2, 5) for _, second in joints}
    shrinks = True
    while shrinks:  # a bond wider than the rest of its core is equivalent to a smaller one
        shrinks = False
        for at, found in edges.items():
            for bond in found:
                rest = modes[f"n{at}"] * prod(ranks[other] for other in found if other != bond)
                if ranks[bond] > rest:
                    ranks[bond], shrinks = rest, True
    sizes = ranks if start is None else dict.fromkeys(ranks, start)
    return tnmars.network("tensor", text, free=modes, bonds=sizes)


@dataclass(frozen=True)
class Case:
    """A planted network, where the search starts, when a run is good, and the target number of good runs."""

    planted: Callable[[int], Graph]
    start: Callable[[int], Graph]
    seeds: dict[float, int]
    good: Callable[[dict[str, Any]], bool]
    target: str
    share: float = 1.0


def exact(run: dict[str, Any]) -> bool:
    return bool(run["ranks"] == run["planted"])


def short(run: dict[str, Any]) -> bool:
    return bool(run["parameters"] <= 1.1 * run["planted_parameters"])


def completed(run: dict[str, Any]) -> bool:
    return abs(run["ranks"][0] - 5) <= 1 and run["unseen_over_noise"] <= 2.0


def fixed(graph: Graph) -> Callable[[int], Graph]:
    return lambda seed: graph


CASES = {
    "tt": Case(
        fixed(families.tt("tensor", free=SIDES, ranks=(3, 4, 2))),
        fixed(families.tt("tensor", free=SIDES, ranks=(8, 10, 8))),
        PLAIN,
        exact,
        "9 of 10 at 1 %, 4 of 5 at 0.1 % and 5 %",
    ),
    "tucker": Case(
        fixed(families.tucker("tensor", free=CUBE, ranks=(3, 4, 5))),
        fixed(families.tucker("tensor", free=CUBE, rank=10)),
        PLAIN,
        exact,
        "9 of 10 at 1 %, 4 of 5 at 0.1 % and 5 %",
    ),
    "ring": Case(
        fixed(families.tr("tensor", free=SIDES, ranks=(2, 3, 2, 3))),
        fixed(families.tr("tensor", free=SIDES, rank=6)),
        PLAIN,
        exact,
        "9 of 10 at 1 %, 4 of 5 at 0.1 % and 5 %",
    ),
    "cp": Case(
        fixed(families.cp("tensor", free=CUBE, rank=5)),
        fixed(families.cp("tensor", free=CUBE, rank=12)),
        {0.01: 10},
        exact,
        "8 of 10",
    ),
    "block-term": Case(
        fixed(families.btd("tensor", free=CUBE, ranks=[(2, 2, 2), (3, 2, 2)])),
        fixed(families.btd("tensor", free=CUBE, ranks=[(6, 6, 6), (6, 6, 6)])),
        {0.01: 10},
        short,
        "7 of 10",
    ),
    "tree": Case(tree, lambda seed: tree(seed, 10), {0.01: 10}, exact, "8 of 10"),
    "completion": Case(
        fixed(families.cp("tensor", free=(20, 20, 20), rank=5)),
        fixed(families.cp("tensor", free=(20, 20, 20), rank=12)),
        {0.01: 10},
        completed,
        "8 of 10",
        share=0.3,
    ),
}


def planted(case: Case, noise: float, seed: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """The tensor without noise, the data, and which entries are seen."""
    return planted_tensor(case.planted(seed), seed, noise, case.share)


def run(name: str, noise: float, seed: int, selector: str) -> dict[str, Any]:
    """One run: what was planted, what was found, and the error relative to the noise."""
    torch.set_num_threads(1)
    case = CASES[name]
    clean, data, seen = planted(case, noise, seed)
    rule = tnmars.Annealed() if selector == "annealed" else None
    began = time.perf_counter(), time.process_time()
    found = tnmars.fit(case.start(seed), data, observed=seen, seed=seed, selector=rule)
    took = time.perf_counter() - began[0], time.process_time() - began[1]
    graph = case.planted(seed)
    result = found.layer().detach()
    used = data if seen is None else data[seen]
    left = (result if seen is None else result[seen]) - used
    record: dict[str, Any] = {
        "case": name,
        "noise": noise,
        "seed": seed,
        "planted": [bond.size for bond in graph.bonds.values()],
        "ranks": [found.ranks[bond] for bond in case.start(seed).bonds],
        "planted_parameters": sum(map(prod, graph.cores.values())),
        "parameters": found.parameters,
        "error_over_noise": float(left.square().mean().sqrt()) / noise,
        "seconds": took[0],
        "cpu_seconds": took[1],
    }
    if seen is not None:
        record["unseen_over_noise"] = float((result - clean)[~seen].square().mean().sqrt()) / noise
    record["good"] = case.good(record)
    return record


def requested(only: str, seeds: str) -> Iterator[tuple[str, float, int]]:
    names = only.split(",") if only else list(CASES)
    for name in names:
        for noise, count in CASES[name].seeds.items():
            first, _, last = seeds.partition("-")
            chosen = range(int(first), int(last or first) + 1) if seeds else range(count)
            yield from ((name, noise, seed) for seed in chosen)


def summarized(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each case and noise."""
    rows = []
    for name, noise in dict.fromkeys((record["case"], record["noise"]) for record in records):
        found = [record for record in records if (record["case"], record["noise"]) == (name, noise)]
        row = {
            "case": name,
            "noise": noise,
            "runs": len(found),
            "good": sum(record["good"] for record in found),
            "wanted": CASES[name].target,
            "worst_error_over_noise": max(record["error_over_noise"] for record in found),
            "median_cpu_seconds": statistics.median(record["cpu_seconds"] for record in found),
            "median_seconds": statistics.median(record["seconds"] for record in found),
            "most_cpu_seconds": max(record["cpu_seconds"] for record in found),
        }
        if "unseen_over_noise" in found[0]:
            row["worst_unseen_over_noise"] = max(record["unseen_over_noise"] for record in found)
        rows.append(row)
    return rows


def _other(job: tuple[str, float, int], selector: str) -> dict[str, Any]:
    """A run in a process of its own, with one thread."""
    text = json.dumps([*job, selector])
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--one", text]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=alone)
    if done.returncode:
        raise RuntimeError(f"{job}: {done.stderr}")
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(record), file=sys.stderr, flush=True)
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases, by commas")
    parser.add_argument("--seeds", default="", help="other seeds than those of the table, such as 100-104")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--selector", choices=("elimination", "annealed"), default="elimination")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(run(*json.loads(asked.one))))
        return
    jobs = list(requested(asked.only, asked.seeds))
    with ThreadPoolExecutor(asked.jobs) as pool:
        records = list(pool.map(lambda job: _other(job, asked.selector), jobs))
    rows = summarized(records)
    for row in rows:
        print(json.dumps(row))
    if asked.out is not None:
        text = {
            "selector": asked.selector,
            "commit": commit(),
            "torch": torch.__version__,
            "summary": rows,
            "runs": records,
        }
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
