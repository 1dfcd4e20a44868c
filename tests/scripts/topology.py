"""Plants a chain or a ring, starts `tnmars.shrink` from the complete graph, and counts how often just that is left.

python tests/scripts/topology.py [SEEDS]: for each planted network, with the prior of the cores and without it.
"""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import mse_loss

import tnmars
from tnmars import families

PLANTED = {
    "a chain of 3 cores": ((5, 6, 7), {(0, 1): 2, (1, 2): 3}),
    "a chain of 4 cores": ((4, 5, 5, 4), {(0, 1): 2, (1, 2): 3, (2, 3): 2}),
    "a ring of 4 cores": ((5, 5, 5, 5), {(0, 1): 2, (1, 2): 2, (2, 3): 2, (0, 3): 2}),
}
DROP = 0.003
"""How much of the squared norm may be lost."""


def planted(sizes: tuple[int, ...], bonds: dict[tuple[int, int], int]) -> tnmars.Graph:
    """A network of one core for each mode, with bonds between some pairs of them."""
    names = {pair: f"r{pair[0]}{pair[1]}" for pair in bonds}
    cores = [
        f"G{at}[{','.join([f'f{at}', *(name for pair, name in names.items() if at in pair)])}]"
        for at in range(len(sizes))
    ]
    free = {f"f{at}": size for at, size in enumerate(sizes)}
    return tnmars.network(
        "tensor", " ".join(cores), free=free, bonds={names[pair]: size for pair, size in bonds.items()}
    )


def found(sizes: tuple[int, ...], target: torch.Tensor, settings: tnmars.Staircase) -> dict[tuple[int, int], int]:
    """The bonds that are left, as pairs of places, with their sizes."""
    graph = families.complete("tensor", free=sizes, rank=4)
    whole = target.square().mean().item()
    curve = tnmars.shrink(
        tnmars.compile(graph),
        train=[(target,)] * 4,
        loss=mse_loss,
        evaluate=lambda model: -mse_loss(model(), target) / whole,
        max_drop=DROP,
        settings=settings,
    )
    (term,) = graph.terms
    places = {core.name: at for at, core in enumerate(term.cores)}
    ends = {bond.name: tuple(sorted(places[core] for core in term.ends()[bond.name])) for bond in term.bonds}
    return {ends[bond]: rank for bond, rank in curve.chosen.ranks[""].items() if rank > 1}  # type: ignore[misc]


def main() -> None:
    torch.set_num_threads(1)
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
    for name, (sizes, bonds) in PLANTED.items():
        for prior in (tnmars.Staircase().prior, 0.0):
            count = 0
            for seed in seeds:
                torch.manual_seed(seed)
                target = tnmars.compile(planted(sizes, bonds))().detach()
                count += found(sizes, target, tnmars.Staircase(first=150, prior=prior)) == bonds
            print(f"{name}, prior {prior:g}: {count} of {len(seeds)}", flush=True)


if __name__ == "__main__":
    main()
