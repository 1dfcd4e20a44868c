"""The bonds of a layer before and after, with their gates: which slices are kept, and the threshold.

Bonds are matched by term and name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tnmars.draw.traces import homes
from tnmars.graph import Graph, Term
from tnmars.graph.difference import BondChange
from tnmars.graph.lint import has_bounds, useful_size
from tnmars.layer.distributed import whole
from tnmars.layer.module import TNModule
from tnmars.reporting.value import Bond
from tnmars.select.base import Selector

FAR = 64.0
"""Gates with logits beyond this are certainly open or closed."""
LEADERS = 64
"""This many open gates stand before those that are probed, so that a rule's minimum number of slices is met."""


@dataclass(frozen=True)
class BondGates:
    """The gates of one bond."""

    probabilities: tuple[float, ...]
    is_kept: tuple[bool, ...]


@torch.no_grad()
def bond_gates(layer: TNModule) -> dict[str, BondGates]:
    """The gates of each bond of a layer, by qualified name; empty without gates."""
    if layer.masks is None:
        return {}
    logits = [whole(value).detach() for value in layer.logits()]
    chances = torch.split(layer.masks.probability(logits).cpu(), [value.numel() for value in logits])
    gates = {}
    for name, kept, chance in zip(layer.graph.bonds, layer.masks.keep(logits), chances, strict=True):
        gates[name] = BondGates(tuple(chance.double().tolist()), tuple(map(bool, kept.tolist())))
    return gates


@torch.no_grad()
def threshold(selector: Selector | None) -> float | None:
    """The probability above which a slice is kept; None if no single number decides.

    A selector only says what it keeps of a vector, so its rule is probed with rising logits.

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


def bonds(before: TNModule, after: TNModule) -> list[Bond]:
    """The bonds before, then any that are new."""
    left = {term.name: term for term in after.graph.terms}
    gates = bond_gates(before)
    found = [bond for term in before.graph.terms for bond in _old(before.graph, term, left.get(term.name), gates)]
    known = {bond.key for bond in found}
    return [*found, *(bond for bond in _new(after.graph) if bond.key not in known)]


def _old(graph: Graph, term: Term, left: Term | None, gates: Mapping[str, BondGates]) -> Iterator[Bond]:
    """The bonds of a term before, and what is left of them."""
    sizes = {bond.name: bond.size for bond in left.bonds} if left else {}
    places = homes(term, left) if left else {}
    ends = term.ends()
    own = {bond.name: gates.get(graph.bond_name(term, bond.name), BondGates((), ())) for bond in term.bonds}
    is_shut = any(gate.is_kept and not any(gate.is_kept) for gate in own.values())
    for bond in term.bonds:
        if graph.bond_name(term, bond.name) != graph.qualified(term, bond.name):
            continue  # tied cores make it one with another
        gate = own[bond.name]
        at = {places.get(core, "") for core in ends[bond.name]}
        yield Bond(
            change=BondChange(
                graph.bond_name(term, bond.name),
                before=bond.size,
                after=sizes.get(bond.name),
                useful=useful_size(graph, term, bond.name) if has_bounds(graph) else None,
                live=sum(gate.is_kept) if gate.probabilities else None,
            ),
            term=term.name,
            name=bond.name,
            ends=ends[bond.name],
            merged_into=at.pop() if len(at) == 1 and bond.name not in sizes else "",
            probabilities=gate.probabilities,
            is_kept=gate.is_kept,
            is_in_shut_term=is_shut and left is None,
        )


def _new(graph: Graph) -> Iterator[Bond]:
    """The bonds after, as if none had been there before."""
    for term in graph.terms:
        for bond in term.bonds:
            if graph.bond_name(term, bond.name) != graph.qualified(term, bond.name):
                continue
            change = BondChange(graph.bond_name(term, bond.name), before=None, after=bond.size)
            yield Bond(change, term.name, bond.name, term.ends()[bond.name])
