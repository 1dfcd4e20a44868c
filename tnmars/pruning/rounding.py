"""Ranks that fit the machine: sizes of bonds rounded up, because a rank of 23 can be slower than one of 24."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

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

Place = tuple[str, str]
"""The names of a layer, and of a bond of it."""


def rounded_up(
    layers: Mapping[str, TNModule],
    chosen: Mapping[str, Keep],
    round_to: int | str | None,
    sorted_layers: Collection[str],
) -> dict[str, Keep]:
    """The slices to keep in addition to those chosen, by layer and bond. Raises `TnmarsError` for a wrong `round_to`
    and wrong slices.

    Those with the largest norms are added, as many as the rounded size needs. Layers that share a core get the same
    ones at its bonds. `sorted_layers` will get a canonical form first, whose slices are in that order.
    """
    if round_to is not None and round_to != TIME and not is_int(round_to, 1):
        fix = f"Give a number such as 8, or '{TIME}' for the sizes with the shortest predicted time."
        raise TnmarsError(Problem(f"round_to is {round_to!r}. Nothing was changed.", fix))
    if round_to is None:
        return {name: {} for name in chosen}
    for name, slices in chosen.items():
        prune(layers[name].graph, slices)  # raises what a cut without rounding raises
    full = {(name, bond): edge.size for name in chosen for bond, edge in layers[name].graph.bonds.items()}
    sizes = {(name, bond): len(indices) for name, kept in chosen.items() for bond, indices in kept.items()}
    together = _united(layers, chosen, sizes)
    if isinstance(round_to, int):
        wanted = {place: _up(size, round_to, full[place]) for place, size in sizes.items()}
    else:
        wanted = _quickest(layers, sizes, full, together)
    more: dict[str, dict[str, tuple[int, ...]]] = {name: {} for name in chosen}
    for places in together:
        name, bond = places[0]
        size, larger = sizes[name, bond], wanted[name, bond]
        if larger > size:
            kept = chosen[name][bond]
            added = range(size, larger) if name in sorted_layers else _heaviest(layers, places, kept, larger - size)
            for name, bond in places:
                more[name][bond] = tuple(added)
    return {**more}


def joined(kept: Keep, more: Keep) -> Keep:
    """The slices of both."""
    return {**kept, **{bond: tuple(sorted({*kept[bond], *indices})) for bond, indices in more.items()}}


def _united(layers: Mapping[str, TNModule], chosen: Mapping[str, Keep], places: Collection[Place]) -> list[list[Place]]:
    """The bonds in groups of those that get the same slices, because a core that layers share has them on one axis.

    Bonds of which different slices are kept stay apart: such a cut is refused, unless the core is merged into others.
    """
    groups = {place: [place] for place in places}
    axes: dict[tuple[Tensor, int], Place] = {}
    for name in dict.fromkeys(name for name, _ in places):
        graph = layers[name].graph
        for core in graph.cores:
            for axis, bond in enumerate(graph.bonds_of(core)):
                if (name, bond) in groups:
                    one = groups[axes.setdefault((layers[name].cores.get(core), axis), (name, bond))]
                    two = groups[name, bond]
                    if one is not two and set(chosen[one[0][0]][one[0][1]]) == set(chosen[name][bond]):
                        one += two
                        groups |= dict.fromkeys(two, one)
    return list({id(group): group for group in groups.values()}.values())


def _up(size: int, multiple: int, most: int) -> int:
    """A size rounded up, but not above what it was; a bond of size 1 is dropped, and an empty one empties its term."""
    return size if size < 2 else min(-(-size // multiple) * multiple, most)


def _heaviest(
    layers: Mapping[str, TNModule], places: Sequence[Place], kept: Sequence[int], count: int
) -> tuple[int, ...]:
    """The slices of bonds with the largest norms, summed over the layers, apart from those that are kept anyway."""
    norms = sum(
        (balanced([part.detach().double().cpu() for part in slice_norms(layers[name])[bond]]) for name, bond in places),
        torch.zeros(()),
    )
    ranked = [at for at in torch.argsort(norms, descending=True).tolist() if at not in kept]
    return tuple(sorted(ranked[:count]))


def _quickest(
    layers: Mapping[str, TNModule],
    sizes: Mapping[Place, int],
    full: Mapping[Place, int],
    together: Sequence[Sequence[Place]],
) -> dict[Place, int]:
    """Sizes with a shorter predicted time, bond by bond; in a large graph several neighboring bonds at a time.

    Bonds in one group have one size, for all of their layers.
    """
    best = dict(sizes)

    def seconds(name: str, trial: Mapping[Place, int]) -> float:
        own = {bond: size for (layer, bond), size in trial.items() if layer == name}
        return planned_time(_cut(layers[name].graph, own), replace(layers[name].planner, decide=None))

    now = {name: seconds(name, best) for name, _ in sizes}
    for places in _batches(layers, together):
        for larger in _larger({place: best[place] for place in places}, full):
            trial = best | larger
            took = {name: seconds(name, trial) for name in dict.fromkeys(name for name, _ in places)}
            if sum(took.values()) <= SHORTER * sum(now[name] for name in took):
                best = trial
                now |= took
    return best


def _batches(layers: Mapping[str, TNModule], together: Sequence[Sequence[Place]]) -> Iterator[list[Place]]:
    """The bonds that are tried at a time: one group, or several neighboring ones of a layer with many cores."""
    for name, groups in groupby(together, key=lambda places: places[0][0]):
        listed = list(groups)
        count = max(1, len(listed) * len(layers[name].graph.cores) // MOST_CORES)
        for at in range(0, len(listed), count):
            yield [place for group in listed[at : at + count] for place in group]


def _larger(sizes: Mapping[Place, int], most: Mapping[Place, int]) -> Iterator[dict[Place, int]]:
    """Some sizes, rounded up in each way that changes one of them; each result once."""
    seen = [dict(sizes)]
    for multiple in MULTIPLES:
        rounded = {place: _up(size, multiple, most[place]) for place, size in sizes.items()}
        if rounded not in seen:
            seen.append(rounded)
            yield rounded


def _cut(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    return drop_ones(prune(graph, {name: tuple(range(size)) for name, size in sizes.items()}).graph).graph
