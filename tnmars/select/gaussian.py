"""Stochastic Gaussian gates: a learned mean with fixed noise, cut to [0, 1]; the nearest published rival of MARS.

"Feature Selection using Stochastic Gates", ICML 2020, on the slices of bonds. One gate of each bond is always open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tnmars.select import distributions as gates
from tnmars.select.base import PRICES, Selector, check, check_numbers


@dataclass(frozen=True)
class GaussianGates(Selector):
    """The settings of stochastic Gaussian gates; the penalty is the probability of being open, times `strength`."""

    name: ClassVar[str] = "gaussian"
    opens_first: ClassVar[bool] = True

    strength: float = 1.0
    """Nats that an open slice of average price costs."""
    start_at: float = 0.5
    """The first mean of every gate."""
    deviation: float = 0.5
    """The standard deviation of the noise."""
    sigma: float = 10.0
    """The standard deviation of the cores' prior."""
    price: str = "uniform"
    sample_in_eval: bool = False

    def __post_init__(self) -> None:
        prices = [price for price in PRICES if price != "bic"]
        check_numbers(self, "strength", "start_at", "deviation", "sigma")
        check(self.strength >= 0.0, f"strength is {self.strength}; it is at least 0.")
        check(self.deviation > 0.0, f"deviation is {self.deviation}; it is a standard deviation above 0.")
        check(self.sigma > 0.0, f"sigma is {self.sigma}; it is a standard deviation above 0.")
        check(self.price in prices, f"price '{self.price}' is not known; prices: {', '.join(prices)}.")

    def start(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.full((count,), self.start_at)

    def noise(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.randn(count, generator=generator)

    def sample(self, logits: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
        return gates.clipped_normal(logits, noise, self.deviation)

    def probability(self, logits: Tensor) -> Tensor:
        return gates.clipped_normal_open(logits, self.deviation)

    def keep(self, logits: Tensor) -> Tensor:
        """The first, and those whose median sample is above 0."""
        return (logits > 0.0) | (torch.arange(logits.shape[-1], device=logits.device) == 0)

    def charge(self, cost: Tensor, probability: Tensor) -> Tensor:
        return cost * self.strength

    @property
    def weight_decay(self) -> float:
        return 0.5 / self.sigma**2
