"""Backward elimination: slices are removed one at a time, as long as the description gets shorter (BIC)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log

import torch

from tnmars.decomposing.growing import grown
from tnmars.decomposing.refine import FLOOR, Data, mean_square, refined
from tnmars.decomposing.tensors import Decomposition
from tnmars.fitting.removal import removals, without_terms

STEPS, GAIN = 30, 1e-3
"""The steps of a refit that decides about a slice, and the share of the error below which it stops."""
MORE = 60
"""The steps of a refit after the decision."""
FEW, BEST = 6, 3
"""All candidates are refitted for the first number of steps; the second is how many of the best continue."""
CHOICES = 3
"""How many ways to remove a slice of a bond are tried."""

Record = Callable[["Fit"], None]


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted decomposition, its mean squared error, and the length of the description."""

    decomposition: Decomposition
    error: float
    bic: float


def weighed(decomposition: Decomposition, error: float, data: Data) -> Fit:
    """A fit with its BIC: N log(error) + P log(N) for N entries and P parameters."""
    return Fit(decomposition, error, data.count * log(max(error, FLOOR)) + decomposition.parameters * log(data.count))


def fitted(decomposition: Decomposition, data: Data, steps: int = MORE, gain: float = 1e-4) -> Fit:
    return weighed(*refined(decomposition, data, steps, gain=gain), data)


def eliminated(start: Fit, data: Data, record: Record | None = None) -> Fit:
    """The fit from which no slice can be removed without a longer description."""
    best = start
    while True:
        after = _cheaply(best, data)
        if after is None:
            best = fitted(best.decomposition, data)
            after = _shorter(best, data)
        if after is not None and record is not None:
            record(after)
        if after is None or after.bic >= best.bic:
            return best
        best = after


def _cheaply(start: Fit, data: Data) -> Fit | None:
    """One slice less on each bond where that shortens the description without a refit; `None` if it never does."""
    best = start
    for name in start.decomposition.graph.bonds:
        if best.decomposition.graph.bonds[name].size > 1:
            (less,) = removals(best.decomposition, name, 1)
            tried = weighed(less, mean_square(less, data), data)
            best = tried if tried.bic < best.bic else best
    return best if best is not start else None


def _shorter(best: Fit, data: Data) -> Fit | None:
    """The shortest description with one slice or one term less, after a refit; `None` if nothing can be removed."""
    tried = [fitted(decomposition, data, FEW, GAIN) for decomposition in _candidates(best.decomposition)]
    if not tried:
        return None
    tried.sort(key=lambda fit: fit.bic)
    shortest = min((fitted(fit.decomposition, data, STEPS, GAIN) for fit in tried[:BEST]), key=lambda fit: fit.bic)
    return fitted(shortest.decomposition, data)


def _candidates(decomposition: Decomposition) -> Iterator[Decomposition]:
    for name, bond in decomposition.graph.bonds.items():
        if bond.size > 1:
            yield from removals(decomposition, name, CHOICES)
    yield from without_terms(decomposition)


def regrown(fit: Fit, data: Data, most: dict[str, int], room: int, random: torch.Generator) -> Fit:
    """The fit with one more slice on the bond where that shortens the description most; unchanged if none does.

    No bond grows beyond its size in `most`, and the decomposition has at most `room` parameters.
    """
    graph = fit.decomposition.graph
    best = fit
    for name, bond in graph.bonds.items():
        if bond.size >= most[fit.decomposition.names[name]]:
            continue
        wider = grown(fit.decomposition, {name: bond.size + 1}, random)
        if wider.parameters <= room:
            tried = fitted(wider, data, MORE // 2)
            best = tried if tried.bic < best.bic else best
    return best
