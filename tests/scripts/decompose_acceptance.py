"""The acceptance figures of `tnmars.decompose`: planted networks, speed, planted ranks, and canonical forms.

OMP_NUM_THREADS=1 python tests/scripts/decompose_acceptance.py
OMP_NUM_THREADS=1 python tests/scripts/decompose_acceptance.py --only cp,ring --seeds 10
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from statistics import median

import torch
from torch import Tensor

import tnmars
from tnmars import Graph, families
from tnmars.decomposing.evbmf import evbmf_rank
from tnmars.decomposing.tensors import dense, random_decomposition

PLANTED: dict[str, Graph] = {
    "cp": families.cp("tensor", free=(20, 20, 20), rank=5),
    "ring": families.tr("tensor", free=(7,) * 5, ranks=(2, 3, 4, 5, 5)),
    "tt": families.tt("tensor", free=(7,) * 5, ranks=(2, 3, 6, 5)),
    "terms": families.btd("tensor", free=(12, 12, 12), ranks=[(2, 3, 2), (3, 2, 2)]),
}
"""The networks that are planted, and found again with their own ranks."""
GOOD, MOST_SECONDS = 1e-4, 20.0


def planted(graph: Graph, seed: int) -> Tensor:
    """A tensor of a graph with normally distributed cores."""
    return dense(graph, random_decomposition(graph, torch.Generator().manual_seed(seed)).cores)


def found_again(name: str, seeds: int) -> str:
    """How often a planted network is found again, and how long it takes."""
    errors, seconds = [], []
    for seed in range(seeds):
        weight = planted(PLANTED[name], 1000 + seed)
        began = time.perf_counter()
        errors.append(tnmars.decompose(weight, PLANTED[name], seed=seed).error)
        seconds.append(time.perf_counter() - began)
    good = sum(error <= GOOD for error in errors)
    return f"{good} of {seeds} within {GOOD:g}, worst {max(errors):.1e}, at most {max(seconds):.2f} s"


def speed(repeats: int = 7) -> str:
    """The time of a low-rank decomposition of 2048x256, against that of `torch.linalg.svd`."""
    weight = torch.randn(2048, 256, generator=torch.Generator().manual_seed(0))
    graph = families.lowrank("linear", inputs=(256,), outputs=(2048,), rank=32)
    ways: dict[str, Callable[[], object]] = {
        "svd": lambda: torch.linalg.svd(weight, full_matrices=False),
        "decompose": lambda: tnmars.decompose(weight, graph),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - began)
    ratio = median(times["decompose"]) / median(times["svd"])
    return f"{ratio:.2f}x the time of torch.linalg.svd ({1e3 * median(times['decompose']):.1f} ms)"


def noisy(count: int = 100) -> str:
    """How often EVBMF finds the rank of a matrix with noise."""
    good = 0
    for seed in range(count):
        random = torch.Generator().manual_seed(seed)
        rows, columns = (int(torch.randint(40, 160, (), generator=random)) for _ in range(2))
        rank = int(torch.randint(1, 11, (), generator=random))
        first, second = torch.randn(rows, rank, generator=random), torch.randn(rank, columns, generator=random)
        signal = first @ second / rank**0.5
        given = (signal + 0.3 * torch.randn(rows, columns, generator=random)).double()
        good += evbmf_rank(torch.linalg.svdvals(given).square(), rows, columns) == rank
    return f"{good} of {count} planted ranks"


def lines(only: list[str], seeds: int) -> Iterator[tuple[str, str]]:
    for name in PLANTED:
        if name in only:
            yield name, found_again(name, seeds)
    if "speed" in only:
        yield "low-rank 2048x256", speed()
    if "evbmf" in only:
        yield "evbmf", noisy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join((*PLANTED, "speed", "evbmf")))
    parser.add_argument("--seeds", type=int, default=10)
    asked = parser.parse_args()
    for name, text in lines(asked.only.split(","), asked.seeds):
        print(f"{name}: {text}", flush=True)


if __name__ == "__main__":
    main()
