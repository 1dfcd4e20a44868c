"""No selection: bonds keep their sizes and have no gates; the penalty is the cores' prior, if there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tnmars.arguments import own_fields
from tnmars.select.base import Selector, check, is_number


@dataclass(frozen=True)
class Fixed(Selector):
    """Ranks as declared: no gates, every slice is kept.

    Use it as the baseline in a comparison of selectors, or to add a prior on the cores to `tnmars.penalty`.

    Args:
        sigma: The standard deviation of the cores' normal prior, above 0. The penalty is then the sum of squared
            entries over `2 * sigma**2`; 10 is the value of the MARS paper, and a smaller one pulls cores to zero more
            strongly. None (the default): no prior, and no penalty.

    Raises:
        TnmarsError: If `sigma` is not a number above 0.

    Example:
        >>> Fixed(sigma=10.0).weight_decay
        0.005
    """

    name: ClassVar[str] = "fixed"
    has_gates: ClassVar[bool] = False

    sigma: float | None = None

    def __post_init__(self) -> None:
        own_fields(self)
        is_right = self.sigma is None or (is_number(self.sigma) and self.sigma > 0.0)
        check(is_right, f"sigma is {self.sigma!r}, but must be a number above 0, or None.")

    @property
    def weight_decay(self) -> float:
        return 0.0 if self.sigma is None else 0.5 / self.sigma**2
