"""How wide bonds are drawn, and how a bond that was cut looks: its old width behind it, removed bonds as traces.

Nothing here knows how a graph was pruned: the sizes before and the removed bonds are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tnmars.graph import Graph, Term
from tnmars.graph.difference import first_sizes

Place = tuple[str, str]
"""The names of a term and of a bond in it."""
THIN, WIDE, GROWTH = 1.6, 12.0, 0.9
"""Line widths in pixels: of a bond of size 1, the maximum, and the most that each further slice adds."""


@dataclass(frozen=True)
class Look:
    """The scale of line widths, and the sizes to compare with.

    Attributes:
        widest: The size that is drawn with the widest line. Pictures with the same value can be compared.
        was: The sizes of bonds before.
        gone: Bonds that are drawn only to show that they were removed.
        gone_terms: Terms that are drawn only to show that they were removed.
    """

    widest: int
    was: Mapping[Place, int] = field(default_factory=dict)
    gone: frozenset[Place] = frozenset()
    gone_terms: frozenset[str] = frozenset()

    def width(self, size: int) -> float:
        """The width of a line: it grows linearly with the size of the bond."""
        slice_wide = min(GROWTH, (WIDE - THIN) / max(self.widest - 1, 1))
        return round(THIN + slice_wide * (size - 1), 1)

    def before(self, place: Place, size: int) -> int:
        """The size of a bond before; the size now if nothing else is known."""
        return self.was.get(place, size)

    def widths(self, term: Term) -> dict[str, float]:
        """The room that each bond of a term takes: the wider of the lines before and now."""
        now = {bond.name: bond.size for bond in term.bonds}
        return {name: self.width(max(size, self.before((term.name, name), size))) for name, size in now.items()}

    def fate(self, place: Place, size: int) -> str:
        """What became of a bond: `gone`, `cut` or `whole`."""
        return "gone" if place in self.gone else "cut" if self.before(place, size) > size else "whole"


def own_look(graph: Graph) -> Look:
    """The scale of a graph drawn alone. A pruned graph is drawn on the scale of the ranks it was pruned from."""
    now = [bond.size for term in graph.terms for bond in term.bonds]
    return Look(max([1, *now, *first_sizes(graph).values()]))
