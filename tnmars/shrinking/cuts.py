"""Which slices to cut: those of least saliency per parameter (or multiply-add) that they save, over all layers at once.

Sizes go in, smaller sizes come out. A bond keeps at least one slice. A term of a sum whose bonds all have size 1 may go
as a whole, unless it is the last of its layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tnmars.graph import Graph
from tnmars.shrinking.prices import Sizes

Ranks = dict[str, dict[str, int]]
"""For each layer the sizes of its bonds."""


@dataclass(eq=False)
class LayerSlices:
    """The slices of a layer, from which some are dropped."""

    graph: Graph
    saliency: Mapping[str, Sequence[float]]
    """For each bond the saliencies of its slices, largest first."""
    weight: Callable[[Sizes], float]
    """What slices compete for, for given sizes."""
    sizes: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = {name: bond.size for name, bond in self.graph.bonds.items()}

    def offers(self) -> list[Offer]:
        """What could be dropped next."""
        now = self.weight(self.sizes)
        found: list[Offer] = []
        for bond, size in self.sizes.items():
            if size > 1:
                self._offer({bond: size - 1}, self.saliency[bond][size - 1], now, found)
        for bonds in self._spare_terms():
            lost = max(self.saliency[bond][0] for bond in bonds)
            self._offer(dict.fromkeys(bonds, 0), lost, now, found)
        return found

    def _offer(self, change: dict[str, int], lost: float, now: float, found: list[Offer]) -> None:
        saved = now - self.weight({**self.sizes, **change})
        if saved > 0:
            found.append(Offer(lost / saved, change, {bond: self.sizes[bond] for bond in change}))

    def _spare_terms(self) -> list[list[str]]:
        """The bonds of terms that may go: all have size 1, and another term is left."""
        own = [[self.graph.bond_name(term, bond.name) for bond in term.bonds] for term in self.graph.terms]
        left = [bonds for bonds in own if all(self.sizes[bond] for bond in bonds)]
        if len(left) < 2:
            return []
        return [bonds for bonds in left if bonds and all(self.sizes[bond] == 1 for bond in bonds)]


@dataclass(frozen=True)
class Offer:
    """Something that could be dropped: bonds with their sizes after and before, and its price."""

    price: float
    """The saliency that is lost, for each unit that is saved."""
    after: Mapping[str, int]
    before: Mapping[str, int]


@dataclass(frozen=True)
class Dropped:
    layer: str
    offer: Offer


class Cut:
    """Slices dropped one after the other, the cheapest first."""

    def __init__(self, layers: Mapping[str, LayerSlices]):
        self.layers = dict(layers)
        self.dropped: list[Dropped] = []
        self._best = {name: _best(layer) for name, layer in self.layers.items()}

    @property
    def ranks(self) -> Ranks:
        return {name: dict(layer.sizes) for name, layer in self.layers.items()}

    @property
    def weight(self) -> float:
        """What slices compete for, of all layers."""
        return sum(layer.weight(layer.sizes) for layer in self.layers.values())

    def drop(self) -> bool:
        """Drops the next slice; whether there was one."""
        ready = [(offer.price, name) for name, offer in self._best.items() if offer is not None]
        if not ready:
            return False
        _, name = min(ready, key=lambda entry: entry[0])
        offer = self._best[name]
        assert offer is not None
        self.dropped.append(Dropped(name, offer))
        self._set(name, offer.after)
        return True

    def undo(self) -> None:
        """Takes the last drop back."""
        last = self.dropped.pop()
        self._set(last.layer, last.offer.before)

    def _set(self, name: str, sizes: Mapping[str, int]) -> None:
        self.layers[name].sizes.update(sizes)
        self._best[name] = _best(self.layers[name])

    def down_to(self, least: float) -> None:
        """Drops as many slices as leave this weight or more, but at least one."""
        while self.weight > least and self.drop():
            if len(self.dropped) > 1 and self.weight < least:
                self.undo()
                return

    def until(self, fits: Callable[[Ranks], bool]) -> bool:
        """Drops slices until the ranks fit, then takes back what still fits; whether they fit."""
        while not fits(self.ranks):
            if not self.drop():
                return False
        for entry in sorted(self.dropped, key=lambda entry: -entry.offer.price):
            own = self.layers[entry.layer].sizes
            before = dict(own)
            is_term = not any(entry.offer.after.values())
            if is_term != (not all(own[bond] for bond in entry.offer.after)):
                continue  # a slice of a term that is gone, or a term that is back already
            own.update({bond: own[bond] + 1 for bond in entry.offer.after})
            if not fits(self.ranks):
                own.update(before)
        return True


def _best(layer: LayerSlices) -> Offer | None:
    return min(layer.offers(), key=lambda offer: offer.price, default=None)
