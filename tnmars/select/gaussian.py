"""Stochastic Gaussian gates: a learned mean with fixed noise, clipped to [0, 1]; the closest published rival of MARS.

"Feature Selection using Stochastic Gates", ICML 2020, on the slices of bonds. One gate of each bond is always open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tnmars.arguments import own_fields
from tnmars.select import distributions as gates
from tnmars.select.base import PRICES, Selector, check, check_count, check_flags, check_numbers, check_price


@dataclass(frozen=True)
class GaussianGates(Selector):
    """Stochastic Gaussian gates: the penalty is the probability that gates are open, times `strength`.

    A slice is kept if its learned mean is above 0. The first slice of each bond is always kept. Kept gates stay at
    their means, clipped to [0, 1], and a cut multiplies them into the cores: gates rarely end at exactly 1, so rounding
    them up would change the layer.

    Args:
        strength: The penalty of an open slice of average price, in nats; at least 0. A larger value gives smaller
            ranks. Divide `tnmars.penalty` by the number of data, as for `Mars`. With the default 1.0 an open slice
            costs less than with `Mars(pi=1e-2)`, where it is 4.6. With `price="bic"` it is a factor of the description
            length, and 1.0 is the value to use.
        start_at: The initial mean of every gate. At 0.5 (the default, and the paper's) a gate starts half open; a
            larger value keeps slices for longer. With `price="bic"` it decides the ranks more than anything else.
        deviation: The standard deviation of the noise, above 0; 0.5 is the paper's value. With little noise a closed
            gate rarely opens again.
        sigma: The standard deviation of the cores' normal prior, above 0. Smaller values pull cores to zero more
            strongly.
        price: What a slice costs. `"uniform"` (the default): all slices the same. `"parameters"` or `"macs"`: in
            proportion to the parameters or multiply-adds that it holds; choose the one that you want to reduce.
            `"bic"`: description length, half the logarithm of `samples` for each parameter.
        sample_in_eval: Whether gates are sampled in `eval()` too, instead of being exactly what `prune` keeps.
        samples: The number of data. Only `price="bic"` uses it, and needs at least 2.
        fold: Whether kept gates have their clipped means in `eval()` and after a cut (the default), or 1. Files from
            before this setting existed have gates of 1.

    Raises:
        TnmarsError: If a setting has the wrong type or is out of range.

    Example:
        >>> GaussianGates().keep(torch.tensor([-1.0, -1.0, 0.3])).tolist()
        [True, False, True]
        >>> GaussianGates().rounded(torch.tensor([-1.0, -1.0, 0.25])).tolist()
        [1.0, 0.0, 0.25]
    """

    name: ClassVar[str] = "gaussian"
    keeps_more: ClassVar[str] = "lower strength or raise start_at of GaussianGates"
    opens_first: ClassVar[bool] = True
    in_older_files: ClassVar[Mapping[str, object]] = {"fold": False}

    strength: float = 1.0
    start_at: float = 0.5
    deviation: float = 0.5
    sigma: float = 10.0
    price: str = "uniform"
    sample_in_eval: bool = False
    samples: int = 0
    fold: bool = True

    def __post_init__(self) -> None:
        own_fields(self)
        check_numbers(self, "start_at")
        check_numbers(self, "strength", least=0.0)
        check_numbers(self, "deviation", "sigma", above=0.0)
        check_count(self, "samples")
        check_price(self, PRICES)
        check_flags(self, "sample_in_eval", "fold")
        needs = "price 'bic' needs the number of data, for example GaussianGates(price='bic', samples=60000)."
        check(self.price != "bic" or self.samples > 1, needs)

    def start(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.full((count,), self.start_at)

    def noise(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.randn(count, generator=generator)

    def sample(self, logits: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
        return gates.clipped_normal(logits, noise, self.deviation)

    def probability(self, logits: Tensor) -> Tensor:
        return gates.clipped_normal_open(logits, self.deviation)

    def keep(self, logits: Tensor) -> Tensor:
        """The first slice, and those whose median sample is above 0."""
        return (logits > 0.0) | _is_first(logits)

    def rounded(self, logits: Tensor) -> Tensor:
        """The clipped means; 1 for the first slice, as while training."""
        ones = torch.ones_like(logits)
        return torch.where(_is_first(logits), ones, logits.clamp(0.0, 1.0)) if self.fold else ones

    def charge(self, cost: Tensor, probability: Tensor) -> Tensor:
        nats = 0.5 * math.log(self.samples) if self.price == "bic" else 1.0
        return cost * (self.strength * nats)

    def charge_all(self, costs: Tensor, probability: Tensor, counts: Tensor) -> Tensor:
        return self.charge(costs, probability)

    @property
    def weight_decay(self) -> float:
        return 0.5 / self.sigma**2


def _is_first(logits: Tensor) -> Tensor:
    return torch.arange(logits.shape[-1], device=logits.device) == 0
