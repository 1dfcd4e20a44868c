"""The candidates of a search: sizes of bonds that use a budget up, so that no bond can be widened by one within it.

It knows numbers only: no graphs, no scores. A candidate is made from a direction, which is a number for each bond.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, floor, log

from tnmars.searching.costs import Cost, Sizes

NEAR = 1e-9
"""How closely the scale of a direction is found."""


@dataclass(frozen=True, eq=False)
class Space:
    """All sizes of bonds from 1 to `most` that cost at most `limit`.

    Example:
        >>> space = Space(most=(4, 4), cost=lambda sizes: 3 * sizes[0] + 2 * sizes[1], limit=12)
        >>> space.along([1.0, 0.0]), space.along([0.0, 1.0]), sorted(space.every())
        ((3, 1), (1, 4), [(1, 4), (2, 3), (3, 1)])
    """

    most: Sizes
    cost: Cost
    limit: float
    grows: bool = True
    """Whether the cost grows with every size; planned multiply-adds may fall, because a plan changes."""

    @property
    def least(self) -> Sizes:
        """All sizes 1."""
        return (1,) * len(self.most)

    def fits(self, sizes: Sizes) -> bool:
        """Whether sizes are within the limit, up to rounding."""
        return self.cost(sizes) <= self.limit * (1 + 1e-12)

    def is_maximal(self, sizes: Sizes) -> bool:
        """Whether no bond can be widened by one within the limit."""
        return not any(self.fits(_widened(sizes, at)) for at in self._open(sizes))

    def along(self, direction: Sequence[float]) -> Sizes:
        """The candidate whose logarithms lie along a direction, up to a common shift that uses the limit up.

        The logarithms of any candidate, as a direction, give it again. The smallest sizes must be within the limit.
        """
        low, high = -max(direction), max(log(most) - each for most, each in zip(self.most, direction, strict=True))
        if self.fits(self.most):
            return self.most
        while high - low > NEAR:
            middle = 0.5 * (low + high)
            if self.fits(self._at(direction, middle)):
                low = middle
            else:
                high = middle
        return self._filled(self._at(direction, low), direction)

    def _at(self, direction: Sequence[float], shift: float) -> Sizes:
        pairs = zip(self.most, direction, strict=True)
        return tuple(
            most if shift + each >= log(most) else max(1, floor(exp(shift + each) + 0.5)) for most, each in pairs
        )

    def _filled(self, sizes: Sizes, direction: Sequence[float]) -> Sizes:
        """Sizes with every bond widened that fits, in the order in which a larger shift would widen them."""
        while True:
            left = self._open(sizes)
            while left:
                at = min(left, key=lambda at: log(sizes[at] + 0.5) - direction[at])
                wider = _widened(sizes, at)
                if self.fits(wider):
                    sizes = wider
                if sizes is not wider or sizes[at] == self.most[at]:
                    left.remove(at)
            if self.grows or self.is_maximal(sizes):
                return sizes

    def _open(self, sizes: Sizes) -> list[int]:
        return [at for at, (size, most) in enumerate(zip(sizes, self.most, strict=True)) if size < most]

    def every(self, start: Sizes = ()) -> Iterator[Sizes]:
        """All candidates that begin with some sizes, in order; only for costs that grow with every size."""
        if len(start) == len(self.most):
            yield start
            return
        rest = len(self.most) - len(start) - 1
        for size in range(1, self.most[len(start)] + 1):
            first = (*start, size)
            if not self.fits(first + self.least[:rest]):
                return
            full = first + self.most[len(first) :]
            if self.is_maximal(full):  # otherwise none that begins like this is: the others cost less
                yield from self.every(first)


def _widened(sizes: Sizes, at: int) -> Sizes:
    """The sizes, one of them larger by one."""
    return (*sizes[:at], sizes[at] + 1, *sizes[at + 1 :])
