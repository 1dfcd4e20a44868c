"""How bonds look in a report: as wide as their rank, what was cut of them behind, those that are gone as traces.

Nothing is known here of how a graph was pruned: the sizes before and the bonds that are gone are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot

from tnmars.draw.labels import Pixel, Stroke

Place = tuple[str, str]
"""The names of a term and of a bond in it."""
THIN, WIDE, GROWTH = 1.6, 12.0, 0.9
"""The widths of lines, in pixels: of a bond of size 1, at most, and how much each further slice adds at most."""
SCALE = 1.3
"""How much larger a drawing is in a page, where there is room."""
LIFT = 4
"""How much farther from their lines labels stand than from thin ones."""


@dataclass(frozen=True)
class Look:
    """Sizes to compare with. With a look, a drawing has no title and no style sheet of its own: a page gives them."""

    widest: int
    """The size that is drawn widest."""
    was: Mapping[Place, int] = field(default_factory=dict)
    """The sizes of bonds before."""
    gone: frozenset[Place] = frozenset()
    """Bonds that are drawn only to show that they are gone."""
    gone_terms: frozenset[str] = frozenset()
    """The same for whole terms."""

    def width(self, size: int) -> float:
        """The width of a line, in proportion to the size."""
        slice_wide = min(GROWTH, (WIDE - THIN) / max(self.widest - 1, 1))
        return round(THIN + slice_wide * (size - 1), 1)

    def bond(self, place: Place, size: int, ends: Sequence[str], path: str, dot: str, tip: str) -> str:
        """The element of a bond: what was there behind what is, and a wider line to point at."""
        term, name = place
        was, gone = self.was.get(place, size), place in self.gone
        kind = "gone" if gone else "cut" if was > size else "whole"
        back = f'<path class="was" stroke-width="{self.width(was)}" d="{path}"/>' if kind != "whole" else ""
        return (
            f'<g class="{kind}" data-key="{term}.{name}" data-bond="{name}" data-size="{size}" data-was="{was}" '
            f'data-ends="{" ".join(ends)}" tabindex="0" role="img" aria-label="{tip}"><title>{tip}</title>'
            f'<path class="hit" d="{path}"/>{back}<path class="bond" stroke-width="{self.width(size)}" '
            f'd="{path}"/>{dot}</g>'
        )

    def away(self, label: Pixel, strokes: Sequence[Stroke]) -> Pixel:
        """How far a label is moved, away from its line, which is wider than where it was placed."""
        if len(strokes) != 1:
            return 0, 0  # of a hyperedge, whose label stands at its dot
        points = strokes[0].points()
        x, y = points[len(points) // 2] if len(points) > 2 else [sum(ends) / 2 for ends in zip(*points, strict=True)]
        right, down = label[0] - x, label[1] - y
        length = hypot(right, down) or 1.0
        return round(LIFT * right / length), round(LIFT * down / length)

    def tip(self, place: Place, size: int, ends: Sequence[str]) -> str:
        """What is told of a bond when it is pointed at."""
        was = self.was.get(place, size)
        sizes = f"rank {was:,}" if was == size else f"rank {was:,} to {size:,}"
        gone = ", gone" if place in self.gone else ""
        return f"bond {place[1]}, {sizes}{gone}: {', '.join(ends)}"
