"""No selection: the bonds keep their sizes, no gate is there, and the penalty is the cores' prior, if any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tnmars.select.base import Selector, check


@dataclass(frozen=True)
class Fixed(Selector):
    """Ranks as they are declared."""

    name: ClassVar[str] = "fixed"
    has_gates: ClassVar[bool] = False

    sigma: float | None = None
    """The standard deviation of the cores' prior; none where it is not given."""

    def __post_init__(self) -> None:
        check(self.sigma is None or self.sigma > 0.0, f"sigma is {self.sigma}; it is a standard deviation above 0.")

    def start(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.zeros(count)

    def noise(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.zeros(count)

    def sample(self, logits: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
        return torch.ones_like(logits)

    def probability(self, logits: Tensor) -> Tensor:
        return torch.ones_like(logits)

    def keep(self, logits: Tensor) -> Tensor:
        return torch.ones_like(logits, dtype=torch.bool)

    def charge(self, cost: Tensor, probability: Tensor) -> Tensor:
        return cost * 0.0

    @property
    def weight_decay(self) -> float:
        return 0.0 if self.sigma is None else 0.5 / self.sigma**2
