"""MARS: independent Bernoulli masks with a sparse prior, relaxed to hard concrete gates.

"Masked Automatic Ranks Selection in Tensor Decompositions", AISTATS 2023, exactly as the paper and its code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tnmars.select import distributions as gates
from tnmars.select.base import PRICES, Selector, check, check_count, check_numbers


@dataclass(frozen=True)
class Mars(Selector):
    """The settings of MARS.

    >>> Mars(pi=0.1, alpha=-1.5).temperature_at(0.5)
    0.03162277660168379
    """

    name: ClassVar[str] = "mars"

    pi: float = 1e-2
    """The prior probability of an open gate."""
    alpha: float = 0.0
    """The mean of the first logits."""
    temperature: tuple[float, float] = (0.1, 0.01)
    """The first and the last (tau in eq. 7); it falls by a constant factor. One number is both."""
    sigma: float = 10.0
    """The standard deviation of the cores' prior."""
    spread: float = 1e-2
    """The standard deviation of the first logits."""
    price: str = "uniform"
    """What a slice costs: all alike (the paper); relative to an average slice by the parameters or MACs that it holds;
    or by description length, half the logarithm of `samples` for each parameter."""
    samples: int = 0
    """How many data there are; the price `bic` needs it."""
    threshold: float = 0.0
    """A slice is kept where its logit is above this."""
    min_keep: int = 1
    """At least so many slices of each bond are kept, those with the largest logits; 0 removes terms."""
    straight_through: bool = False
    """Whether samples are rounded to 0 or 1, with the gradient of the relaxed ones."""
    sample_in_eval: bool = False

    def __post_init__(self) -> None:
        given: object = self.temperature
        if isinstance(given, (int, float)):
            object.__setattr__(self, "temperature", (given, given))
        check_numbers(self, "pi", "alpha", "sigma", "spread", "threshold")
        check_count(self, "samples")
        check_count(self, "min_keep")
        pair = isinstance(self.temperature, (tuple, list)) and len(self.temperature) == 2
        check(pair, f"temperature is {self.temperature!r}; it is a number, or the first and the last.")
        first, last = self.temperature
        check(self.spread >= 0.0, f"spread is {self.spread}; it is a standard deviation from 0 on.")
        check(0.0 < self.pi < 1.0, f"pi is {self.pi}; it is a probability between 0 and 1.")
        check(first >= last > 0.0, f"temperature is {self.temperature}; it falls from the first to the last, above 0.")
        check(self.sigma > 0.0, f"sigma is {self.sigma}; it is a standard deviation above 0.")
        check(self.price in PRICES, f"price '{self.price}' is not known; prices: {', '.join(PRICES)}.")
        needs = "price 'bic' needs to know how many data there are, for example Mars(price='bic', samples=60000)."
        check(self.price != "bic" or self.samples > 1, needs)
        object.__setattr__(self, "temperature", (float(first), float(last)))

    def start(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        return self.alpha + self.spread * torch.randn(count, generator=generator)

    def noise(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        return gates.logistic_noise(torch.rand(count, generator=generator))

    def sample(self, logits: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
        relaxed = gates.hard_concrete(logits, noise, temperature)
        return gates.straight_through(relaxed) if self.straight_through else relaxed

    def sample_open(self, logits: Tensor, noise: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Open by the relaxed sample: a gate that is rounded to 0 still has its gradient."""
        relaxed = gates.hard_concrete(logits, noise, temperature)
        return gates.straight_through(relaxed) if self.straight_through else relaxed, relaxed.detach() != 0.0

    def probability(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(logits)

    def keep(self, logits: Tensor) -> Tensor:
        return gates.largest(logits, self.threshold, self.min_keep)

    def charge(self, cost: Tensor, probability: Tensor) -> Tensor:
        """-sum(phi log pi + (1 - phi) log(1 - pi)) where every slice costs 1: the paper's prior."""
        if self.price == "bic":
            return cost * (0.5 * math.log(self.samples))
        return cost * math.log((1.0 - self.pi) / self.pi) - probability.numel() * math.log(1.0 - self.pi)

    @property
    def weight_decay(self) -> float:
        return 0.5 / self.sigma**2

    def temperature_at(self, progress: float) -> float:
        first, last = self.temperature
        return max(last, first * float((last / first) ** max(progress, 0.0)))
