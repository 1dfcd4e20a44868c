"""MARS: independent Bernoulli masks with a sparse prior, relaxed to hard concrete gates.

"Masked Automatic Ranks Selection in Tensor Decompositions", AISTATS 2023, exactly as the paper and its code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tnmars.arguments import own_fields
from tnmars.select import distributions as gates
from tnmars.select.base import (
    PRICES,
    Selector,
    check,
    check_count,
    check_flags,
    check_numbers,
    check_pair,
    check_price,
    is_number,
)


@dataclass(frozen=True)
class Mars(Selector):
    """The MARS rule: Bernoulli masks with a sparse prior on the slices of every bond, relaxed to hard concrete gates.

    Add `tnmars.penalty(model) / number_of_data` to the mean loss and step a `tnmars.MaskSchedule`. A slice is kept if
    its logit ends above `threshold`. By default all gates start open, so that nothing is cut before it was trained. The
    paper starts with most gates closed: `Mars.closed()`. If the ranks come out too large, lower `alpha` or `pi`; if
    accuracy suffers, raise them. Where you want no setting at all, use `tnmars.shrink`.

    Args:
        pi: The prior probability of an open gate, strictly between 0 and 1. An open slice costs `log((1 - pi) / pi)`
            nats: 2.2 at 0.1, 4.6 at 0.01 (the default), 9.2 at 1e-4. With much data this is small against the
            likelihood, so `alpha` has more influence on the ranks.
        alpha: The mean of the initial logits. It decides how many slices are open at the start: nearly all at 3 (the
            default), half of them at 0, some 15 % at -1.75. Well below 0, the ranks grow while training; above 0, they
            shrink. The paper uses -1.5 to -1.75 on MNIST.
        temperature: The first and the last temperature of the gates (tau in eq. 7), above 0; one number means both. It
            falls by a constant factor over `MaskSchedule(decay_steps=...)`. High temperatures give smooth gradients,
            low ones gates near 0 or 1. The paper's values are the default.
        sigma: The standard deviation of the cores' normal prior, above 0: the penalty holds the sum of squared entries
            over `2 * sigma**2`. Use a smaller value for stronger weight decay; a large one, such as 1e6, turns it off.
        spread: The standard deviation of the initial logits, at least 0. It breaks the symmetry between slices; the
            default rarely needs a change.
        price: What a slice costs. `"uniform"` (the default): all slices the same, as in the paper. `"parameters"` or
            `"macs"`: in proportion to the parameters or multiply-adds that it holds, if that is what you want to
            reduce. `"bic"`: description length, half the logarithm of `samples` for each parameter; `pi` is then
            unused.
        samples: The number of data. Only `price="bic"` uses it, and needs at least 2.
        threshold: A slice is kept if its logit is above this. At 0 (the default) it is kept if it is more probably
            open than not.
        min_keep: The number of slices of each bond that are kept in any case, those with the largest logits; at least
            0. With 0, an empty bond removes its term, and a layer without terms is its bias.
        straight_through: Whether samples are rounded to 0 or 1 in the forward pass, with the gradient of the relaxed
            ones. Off by default, as in the paper.
        sample_in_eval: Whether gates are sampled in `eval()` too, instead of being exactly what `prune` keeps; for
            ensembles of samples.

    Raises:
        TnmarsError: If a setting has the wrong type or is out of range.

    Example:
        >>> selector = Mars(pi=0.1, alpha=-1.5)
        >>> round(selector.temperature_at(0.5), 6)
        0.031623
        >>> selector.keep(torch.tensor([-2.0, 0.1, 3.0])).tolist()
        [False, True, True]
    """

    name: ClassVar[str] = "mars"
    keeps_more: ClassVar[str] = "raise alpha or pi of Mars"

    pi: float = 1e-2
    alpha: float = 3.0
    temperature: tuple[float, float] = (0.1, 0.01)
    sigma: float = 10.0
    spread: float = 1e-2
    price: str = "uniform"
    samples: int = 0
    threshold: float = 0.0
    min_keep: int = 1
    straight_through: bool = False
    sample_in_eval: bool = False

    def __post_init__(self) -> None:
        own_fields(self)
        given: object = self.temperature
        if is_number(given):
            object.__setattr__(self, "temperature", (given, given))
        check_numbers(self, "pi", "alpha", "threshold")
        check_numbers(self, "sigma", above=0.0)
        check_numbers(self, "spread", least=0.0)
        check_count(self, "samples")
        check_count(self, "min_keep")
        check_price(self, PRICES)
        check_flags(self, "straight_through", "sample_in_eval")
        first, last = check_pair(self, "temperature", "a number, or two numbers: the first and the last")
        check(0.0 < self.pi < 1.0, f"pi is {self.pi}, but must be strictly between 0 and 1.")
        check(first >= last > 0.0, f"temperature is {self.temperature}, but must be above 0 and must not rise.")
        needs = "price 'bic' needs the number of data, for example Mars(price='bic', samples=60000)."
        check(self.price != "bic" or self.samples > 1, needs)

    @classmethod
    def closed(cls, pi: float = 1e-2, alpha: float = -1.75, **settings: Any) -> Mars:
        """The paper's start: most gates are closed at first, and the ranks grow. On a new task `alpha` needs tuning.

        >>> Mars.closed(pi=0.1, alpha=-1.5) == Mars(pi=0.1, alpha=-1.5)
        True
        """
        return cls(pi=pi, alpha=alpha, **settings)

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
        """-sum(phi log pi + (1 - phi) log(1 - pi)) if every slice costs 1: the paper's prior."""
        if self.price == "bic":
            return cost * (0.5 * math.log(self.samples))
        return cost * math.log((1.0 - self.pi) / self.pi) - probability.numel() * math.log(1.0 - self.pi)

    def charge_all(self, costs: Tensor, probability: Tensor, counts: Tensor) -> Tensor:
        if self.price == "bic":
            return costs * (0.5 * math.log(self.samples))
        return costs * math.log((1.0 - self.pi) / self.pi) - counts.to(costs.dtype) * math.log(1.0 - self.pi)

    @property
    def weight_decay(self) -> float:
        return 0.5 / self.sigma**2

    def temperature_at(self, progress: float) -> float:
        first, last = self.temperature
        return max(last, first * float((last / first) ** max(progress, 0.0)))
