"""Ranks that fit the machine: sizes of bonds rounded up, because a rank of 23 can be slower than one of 24."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph
from tnmars.graph.parts import is_int
from tnmars.graph.rewrite import Keep, drop_ones, prune
from tnmars.layer.kept import balanced, slice_norms
from tnmars.layer.module import TNModule
from tnmars.pruning.mergers import MOST_CORES, planned_time

TIME = "time"
MULTIPLES = (4, 8, 16)
"""The multiples that are tried if the predicted time decides."""
SHORTER = 0.98
"""A larger size is taken if it takes at most this share of the predicted time."""


def rounded_up(
    layers: Mapping[str, TNModule],
    chosen: Mapping[str, Keep],
    round_to: int | str | None,
    sorted_layers: Collection[str],
) -> dict[str, Keep]:
    """The slices to keep in addition to those chosen, by layer and bond. Raises `TnmarsError` for a wrong `round_to`.

    Those with the largest norms are added, as many as the rounded size needs. `sorted_layers` will get a canonical form
    first, whose slices are in that order.
    """
    if round_to is not None and round_to != TIME and not is_int(round_to, 1):
        fix = f"Give a number such as 8, or '{TIME}' for the sizes with the shortest predicted time."
        raise TnmarsError(Problem(f"round_to is {round_to!r}. Nothing was changed.", fix))
    if round_to is None:
        return {name: {} for name in chosen}
    return {
        name: _added(layers[name], kept, round_to, is_sorted=name in sorted_layers) for name, kept in chosen.items()
    }


def joined(kept: Keep, more: Keep) -> Keep:
    """The slices of both."""
    return {**kept, **{bond: tuple(sorted({*kept[bond], *indices})) for bond, indices in more.items()}}


def _added(layer: TNModule, kept: Keep, round_to: int | str, *, is_sorted: bool) -> Keep:
    full = {name: bond.size for name, bond in layer.graph.bonds.items()}
    sizes = {bond: len(set(indices)) for bond, indices in kept.items() if bond in full}  # others are refused later
    if isinstance(round_to, int):
        wanted = {bond: _up(size, round_to, full[bond]) for bond, size in sizes.items()}
    else:
        wanted = _quickest(layer, sizes, full)
    added = {bond: wanted[bond] - size for bond, size in sizes.items() if wanted[bond] > size}
    if is_sorted:
        return {bond: tuple(range(sizes[bond], wanted[bond])) for bond in added}
    norms = {bond: balanced([part.detach().double() for part in parts]) for bond, parts in slice_norms(layer).items()}
    return {bond: _heaviest(norms[bond], kept[bond], count) for bond, count in added.items()}


def _up(size: int, multiple: int, most: int) -> int:
    """A size rounded up, but not above what it was; a bond of size 1 is dropped, and an empty one empties its term."""
    return size if size < 2 else min(-(-size // multiple) * multiple, most)


def _heaviest(norms: Tensor, kept: Sequence[int], count: int) -> tuple[int, ...]:
    ranked = [at for at in torch.argsort(norms, descending=True).tolist() if at not in kept]
    return tuple(sorted(ranked[:count]))


def _quickest(layer: TNModule, sizes: Mapping[str, int], full: Mapping[str, int]) -> dict[str, int]:
    """Sizes with a shorter predicted time, bond by bond; in a large graph several neighboring bonds at a time."""
    planner = replace(layer.planner, decide=None)
    best = dict(sizes)
    seconds = planned_time(_cut(layer.graph, best), planner)
    bonds = list(sizes)
    count = max(1, len(bonds) * len(layer.graph.cores) // MOST_CORES)
    for group in (bonds[at : at + count] for at in range(0, len(bonds), count)):
        for trial in _larger({bond: best[bond] for bond in group}, full):
            took = planned_time(_cut(layer.graph, best | trial), planner)
            if took <= SHORTER * seconds:
                best, seconds = best | trial, took
    return best


def _larger(sizes: Mapping[str, int], most: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Some sizes, rounded up in each way that changes one of them; each result once."""
    seen = [dict(sizes)]
    for multiple in MULTIPLES:
        rounded = {bond: _up(size, multiple, most[bond]) for bond, size in sizes.items()}
        if rounded not in seen:
            seen.append(rounded)
            yield rounded


def _cut(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    return drop_ones(prune(graph, {name: tuple(range(size)) for name, size in sizes.items()}).graph).graph
