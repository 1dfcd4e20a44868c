"""Gate distributions over one vector of logits: samples for given noise, probabilities, and the noise itself.

Everything is a pure function of tensors and does not use a graph, layer or random state. The noise is an argument, so
that a forward pass draws nothing. Noise of plus infinity opens a gate whatever its logit, without a gradient: that is
how warm-up works.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

GAMMA, ZETA = -0.1, 1.1
"""The interval that a relaxed sample is stretched to before it is clipped to [0, 1]: the one of the MARS code."""


def logistic_noise(uniform: Tensor) -> Tensor:
    """The noise of a binary concrete sample, logit(u), from uniform numbers."""
    tiny = torch.finfo(uniform.dtype).tiny
    rounding = torch.finfo(uniform.dtype).eps
    return torch.logit(uniform.clamp(tiny, 1.0 - rounding))


def hard_concrete(logits: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
    """A relaxed sample: sigmoid((logit + noise) / temperature), stretched and clipped; many are exactly 0 or 1.

    >>> hard_concrete(torch.tensor([0.0, -9.0, 9.0]), torch.zeros(3), torch.tensor(0.1)).tolist()
    [0.5, 0.0, 1.0]
    """
    relaxed = torch.sigmoid((logits + noise) / temperature)
    return torch.clamp(relaxed * (ZETA - GAMMA) + GAMMA, 0.0, 1.0)


def hard_concrete_open(logits: Tensor, temperature: Tensor) -> Tensor:
    """The probability that a hard concrete sample is not exactly 0."""
    return torch.sigmoid(logits - temperature * math.log(-GAMMA / ZETA))


def clipped_normal(means: Tensor, noise: Tensor, deviation: float) -> Tensor:
    """A stochastic Gaussian gate: a normal sample clipped to [0, 1]."""
    return torch.clamp(means + deviation * noise, 0.0, 1.0)


def clipped_normal_open(means: Tensor, deviation: float) -> Tensor:
    """The probability that a stochastic Gaussian gate is not exactly 0."""
    return 0.5 * (1.0 + torch.erf(means / (deviation * math.sqrt(2.0))))


def straight_through(relaxed: Tensor) -> Tensor:
    """0 or 1 in the forward pass, the relaxed sample's gradient in the backward pass."""
    return (relaxed > 0.5).to(relaxed.dtype) + (relaxed - relaxed.detach())


def largest(scores: Tensor, threshold: float, least: int) -> Tensor:
    """Which entries of one bond are above the threshold, or among the `least` largest.

    >>> largest(torch.tensor([-3.0, -1.0, 2.0]), 0.0, 2).tolist()
    [False, True, True]
    """
    above = scores > threshold
    least = min(least, scores.shape[-1])
    if least == 0:
        return above
    places = torch.argsort(scores, dim=-1, descending=True, stable=True)[..., :least]
    return above.scatter(-1, places, 1)  # not True, which torch.jit.trace cannot record
