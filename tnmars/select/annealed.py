"""Gates that approximate data without tuning: a likelihood that goes from flat to sharp, and a description length.

With a sharp likelihood from the start no gate ever closes, because the signal is spread over all slices; with a flat
one all of them do. So the variance of the noise starts large and falls (it is not the true one, and need not be). A
slice costs half the logarithm of the number of data for each parameter that it holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tnmars.arguments import own_fields
from tnmars.select import distributions as gates
from tnmars.select.base import Selector, check, check_count, check_flags, check_numbers, check_pair, check_price


@dataclass(frozen=True)
class Annealed(Selector):
    """Annealed gates, a rule for `tnmars.fit`: an error term that sharpens, against a description length (BIC).

    `tnmars.fit(graph, tensor, selector=tnmars.Annealed())` needs no tuning: the defaults are meant for data of unit
    variance, to which `fit` scales the tensor. Gates are trained first, then backward elimination refines the ranks.

    Args:
        samples: The number of data, at least 2: the description length charges `0.5 * log(samples)` nats per
            parameter. `tnmars.fit` sets it to the number of fitted entries, so it rarely needs a value.
        variance: The first and the last variance of the noise, for data of unit variance; it falls by a constant
            factor. Start higher if no gate closes; end near the variance of the actual noise, or below it.
        temperature: The temperature of the hard concrete gates, above 0; it stays constant. With a high one samples
            are rarely exactly 0 or 1.
        limits: Logits are clamped to this interval around 0 after each step, so that a closed gate opens now and then
            and can recover.
        min_keep: The number of slices of each bond that are kept in any case, those with the largest logits. With 0,
            an empty bond removes its term.
        price: Only `"bic"`.
        sample_in_eval: Whether gates are sampled in `eval()` too, instead of being exactly what `prune` keeps.

    Raises:
        TnmarsError: If a setting has the wrong type or is out of range.

    Example:
        >>> round(Annealed().variance_at(0.5), 6)
        0.005477
    """

    name: ClassVar[str] = "annealed"
    keeps_more: ClassVar[str] = "lower the first variance of Annealed"
    needs_elimination: ClassVar[bool] = True

    samples: int = 1000
    variance: tuple[float, float] = (0.3, 1e-4)
    temperature: float = 2 / 3
    limits: tuple[float, float] = (-2.0, 4.0)
    min_keep: int = 1
    price: str = "bic"
    sample_in_eval: bool = False

    def __post_init__(self) -> None:
        own_fields(self)
        first, last = check_pair(self, "variance", "two numbers: the first and the last")
        low, high = check_pair(self, "limits", "two numbers: the lowest and the highest logit")
        check_count(self, "samples", least=2)
        check_numbers(self, "temperature", above=0.0)
        check_count(self, "min_keep")
        check_price(self, ("bic",))
        check_flags(self, "sample_in_eval")
        check(first >= last > 0.0, f"variance is {self.variance}, but must be above 0 and must not rise.")
        check(low < 0.0 < high, f"limits is {self.limits}, but must be an interval around 0.")

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

    def charge_all(self, costs: Tensor, probability: Tensor, counts: Tensor) -> Tensor:
        return self.charge(costs, probability)

    def temperature_at(self, progress: float) -> float:
        return self.temperature

    def sharpness_at(self, progress: float) -> float:
        return 0.5 / self.variance_at(progress)

    def for_samples(self, count: int) -> Annealed:
        return replace(self, samples=count)

    def variance_at(self, progress: float) -> float:
        """The variance of the noise at a share of the run, from 0 to 1."""
        first, last = self.variance
        return first * float((last / first) ** min(max(progress, 0.0), 1.0))
