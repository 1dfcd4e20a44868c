"""Learning rates that need no tuning: relative to the size of a tensor's entries, with a ramp and a cosine to 0."""

from __future__ import annotations

from math import cos, pi

from torch import Tensor

from tnmars.layer.numbers import squared, wide

VECTORS = 0.1
"""What counts as the size of a vector's entries, such as a bias, which often begin at 0."""


def relative_rate(value: Tensor, rate: float, *, is_core: bool = False, vectors: float = VECTORS) -> float:
    """The highest rate of a parameter: `rate` times the root mean square of its entries.

    A vector that is not a core counts as if its entries had the size `vectors`; so does a tensor of zeros.

    >>> import torch
    >>> pair = torch.full((2, 3), 2.0), torch.full((4,), 2.0)
    >>> [relative_rate(value, 0.5) for value in pair], relative_rate(pair[1], 0.5, is_core=True)
    ([1.0, 0.05], 1.0)
    """
    is_relative = is_core or value.dim() > 1
    size = float(squared(wide(value.detach())).mean().sqrt()) if is_relative and value.numel() else 0.0
    return rate * (size or vectors)


def annealed(step: int, total: int, ramp: int) -> float:
    """The share of the highest rate at a step, counted from 1: a ramp of at most a fifth of all steps, then a cosine.

    >>> [round(annealed(step, 10, 20), 2) for step in (1, 2, 6, 10)]
    [0.5, 1.0, 0.5, 0.0]
    """
    ramp = min(ramp, max(1, total // 5))
    if step <= ramp:
        return step / ramp
    return 0.5 * (1 + cos(pi * (step - ramp) / max(total - ramp, 1)))
