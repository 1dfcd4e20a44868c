"""The gates of a layer for a report: how probable each is open, which slices are kept, and where the threshold lies."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tnmars.layer.distributed import whole
from tnmars.layer.module import TNModule
from tnmars.select.base import Selector

FAR = 64.0
"""Logits beyond this are open or shut for sure."""
LEADERS = 64
"""So many open gates stand before those that are probed, so that a rule's smallest number of slices is met."""


@dataclass(frozen=True)
class BondGates:
    """The gates of one bond."""

    probabilities: tuple[float, ...]
    is_kept: tuple[bool, ...]


@torch.no_grad()
def bond_gates(layer: TNModule) -> dict[str, BondGates]:
    """The gates of each bond of a layer, by qualified name; nothing where it has none."""
    if layer.masks is None:
        return {}
    logits = [whole(value).detach() for value in layer.logits()]
    chances = torch.split(layer.masks.probability(logits).cpu(), [value.numel() for value in logits])
    found = {}
    for name, kept, chance in zip(layer.graph.bonds, layer.masks.keep(logits), chances, strict=True):
        found[name] = BondGates(tuple(chance.double().tolist()), tuple(map(bool, kept.tolist())))
    return found


@torch.no_grad()
def threshold(selector: Selector | None) -> float | None:
    """The probability from which on a slice is kept; None where no one number decides.

    A selector says only what it keeps of a vector, so its rule is probed: whether it keeps ever larger logits, and
    from where on.

    >>> from tnmars.select import Mars
    >>> round(threshold(Mars()), 6), round(threshold(Mars(threshold=1.0)), 6)
    (0.5, 0.731059)
    """
    if selector is None or not selector.has_gates:
        return None
    low, high = -FAR, FAR
    for _ in range(7):
        grid = torch.linspace(low, high, 129, dtype=torch.float64)
        kept = _kept(selector, grid)
        flips = [at for at, (one, other) in enumerate(pairwise(kept)) if one != other]
        if len(flips) != 1 or kept[0]:
            return None
        low, high = grid[flips[0]].item(), grid[flips[0] + 1].item()
    return float(selector.probability(torch.tensor([high], dtype=torch.float64)).item())


def _kept(selector: Selector, grid: Tensor) -> list[bool]:
    leaders = torch.full((LEADERS,), 2 * FAR, dtype=grid.dtype)
    return [bool(value) for value in selector.keep(torch.cat([leaders, grid]))[LEADERS:]]
