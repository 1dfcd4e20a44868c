"""Ranks of noisy matrices without a target: the analytic solution of variational Bayesian matrix factorization.

Nakajima, Sugiyama, Babacan and Tomioka, "Global analytic solution of fully-observed variational Bayesian matrix
factorization", JMLR 14 (2013). The noise is estimated from the singular values; those above a threshold are signal.
"""

from __future__ import annotations

from math import ceil, sqrt

import torch
from torch import Tensor

GRID, TURNS = 120, 40
"""Points at which the free energy is computed, and steps of golden section around the best."""


def evbmf_rank(squares: Tensor, rows: int, columns: int) -> int:
    """The number of singular values that are signal, from all squared singular values, largest first.

    >>> noise = torch.randn(60, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> evbmf_rank(torch.linalg.svdvals(noise).square(), 60, 40)
    0
    """
    small, large = min(rows, columns), max(rows, columns)
    squares = squares[:small].double()
    if small == 0 or float(squares.sum()) == 0.0:
        return 0
    ratio = small / large
    edge = 2.5129 * sqrt(ratio)
    limit = (1 + edge) * (1 + ratio / edge)
    noise = _noise(squares, small, large, limit)
    return int((squares > large * noise * limit).sum())


def _noise(squares: Tensor, small: int, large: int, limit: float) -> float:
    """The variance of the noise that minimizes the free energy (eq. 24 and theorem 2 of the paper)."""
    top = float(squares.sum()) / (small * large)
    first = min(max(ceil(small / (1 + small / large)) - 1, 0), len(squares) - 1)
    low = max(float(squares[first]) / (large * limit), float(squares[first:].mean()) / large)
    low = max(low, 1e-14 * top)
    if low >= top:
        return top
    points = torch.logspace(torch.log10(torch.tensor(low)).item(), torch.log10(torch.tensor(top)).item(), GRID)
    points = points.double().clamp(low, top)
    energies = [_energy(float(point), squares, small, large, limit) for point in points]
    at = min(range(GRID), key=energies.__getitem__)
    left, right = float(points[max(at - 1, 0)]), float(points[min(at + 1, GRID - 1)])
    golden = (sqrt(5) - 1) / 2
    for _ in range(TURNS):
        one, two = right - golden * (right - left), left + golden * (right - left)
        if _energy(one, squares, small, large, limit) < _energy(two, squares, small, large, limit):
            right = two
        else:
            left = one
    return 0.5 * (left + right)


def _energy(noise: float, squares: Tensor, small: int, large: int, limit: float) -> float:
    """The free energy for a variance of the noise, up to a constant."""
    ratio = small / large
    scaled = squares.clamp(min=1e-300) / (large * noise)
    signal, rest = scaled[scaled > limit], scaled[scaled <= limit]
    shifted = signal - (1 + ratio)
    tau = 0.5 * (shifted + (shifted.square() - 4 * ratio).clamp(min=0.0).sqrt())
    value = (rest - rest.log()).sum() + (signal - tau).sum() + ((tau + 1) / signal).log().sum()
    value = value + ratio * (tau / ratio + 1).log().sum()
    return float(value) + (small - len(squares)) * float(torch.log(torch.tensor(noise)))
