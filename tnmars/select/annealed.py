"""Gates for approximating data without tuning: a likelihood that goes from flat to sharp, and the description length.

With a sharp likelihood from the start no gate ever closes, for the signal is spread over all slices; with a flat one
all do. So the variance of the noise is taken to be large at first, and falls (it is not the true one, and need not be).
A slice costs half the logarithm of the number of data for each parameter that it holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tnmars.select import distributions as gates
from tnmars.select.base import Selector, check


@dataclass(frozen=True)
class Annealed(Selector):
    """The settings of annealed gates; `tnmars.fit` knows what else belongs to the rule.

    >>> round(Annealed().variance_at(0.5), 6)
    0.005477
    """

    name: ClassVar[str] = "annealed"

    samples: int = 1000
    """How many data there are; `tnmars.fit` sets it."""
    variance: tuple[float, float] = (0.3, 1e-4)
    """The first and the last variance of the noise, for data of unit variance; it falls by a constant factor."""
    temperature: float = 2 / 3
    limits: tuple[float, float] = (-2.0, 4.0)
    """Logits are held between these, so that a closed gate opens now and then, and can come back."""
    min_keep: int = 1
    price: str = "bic"
    sample_in_eval: bool = False

    def __post_init__(self) -> None:
        first, last = self.variance
        low, high = self.limits
        check(self.samples > 1, f"samples is {self.samples}; it is the number of data, 2 or more.")
        check(first >= last > 0.0, f"variance is {self.variance}; it falls from the first to the last, above 0.")
        check(self.temperature > 0.0, f"temperature is {self.temperature}; it is above 0.")
        check(low < 0.0 < high, f"limits are {self.limits}; they are below and above 0.")
        check(self.min_keep >= 0, f"min_keep is {self.min_keep}; it is at least 0.")
        check(self.price == "bic", f"price is '{self.price}'; annealed gates have 'bic'.")
        object.__setattr__(self, "variance", (float(first), float(last)))
        object.__setattr__(self, "limits", (float(low), float(high)))

    def start(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.zeros(count)

    def noise(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        return gates.logistic_noise(torch.rand(count, generator=generator))

    def sample(self, logits: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
        return gates.hard_concrete(logits, noise, temperature)

    def probability(self, logits: Tensor) -> Tensor:
        return gates.hard_concrete_open(logits, torch.as_tensor(self.temperature))

    def keep(self, logits: Tensor) -> Tensor:
        return gates.largest(logits, 0.0, self.min_keep)

    def charge(self, cost: Tensor, probability: Tensor) -> Tensor:
        return cost * (0.5 * math.log(self.samples))

    @property
    def weight_decay(self) -> float:
        return 0.0

    def temperature_at(self, progress: float) -> float:
        return self.temperature

    def variance_at(self, progress: float) -> float:
        """The variance of the noise at a share of the run."""
        first, last = self.variance
        return first * float((last / first) ** min(max(progress, 0.0), 1.0))
