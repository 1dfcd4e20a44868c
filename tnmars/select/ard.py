"""Automatic relevance determination: no gates, but a prior that pulls whole slices of a bond to zero together.

The entries of a slice, in all cores that carry its bond, have a normal prior with one precision, and the precision has
a Gamma prior. "Bayesian Sparse Tucker Models" (2015) and "Bayesian Tensorized Neural Networks with Automatic Rank
Selection" (2021) have such priors for their graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tnmars.arguments import own_fields
from tnmars.select import distributions as gates
from tnmars.select.base import Selector, check, check_count, check_numbers


@dataclass(frozen=True)
class Ard(Selector):
    """Automatic relevance determination: a prior that pulls whole slices of a bond to zero, without gates.

    There are no gates to train, and no schedule. Add `tnmars.penalty(model) / number_of_data` to the mean loss. It is
    the negative logarithm of the prior with the precisions integrated out: for a slice of `n` entries with squared
    norm `s`, both over all cores that carry the bond, `(shape + n / 2) * log(1 + s / (2 * rate))`. An entry that
    belongs to slices of several bonds counts for each of them. Large slices are pulled weakly, small ones to zero.

    Scaling one core up and its neighbor down does not change the layer, but it does change `s`. The penalty is least
    where the cores of a bond have slices of equal norm, so training balances them. The cut does not wait for that: it
    compares the slices of a bond by the product of their norms in all cores that carry it. So it does not depend on the
    scale of any core. `eval()` computes with all slices: small ones are removed by `tnmars.prune`, which changes the
    layer a little.

    The ranks fall slowly, because a slice must shrink while the others take over what it holds: train several times
    longer than with gates, and let the learning rate fall at the end.

    A pruned layer keeps this selector, because there are no gates that the cut removes: `tnmars.penalty` goes on with
    the slices that are left, and the layer can be cut again. To train it without the penalty, do not add it to the
    loss.

    Args:
        shape: The shape of the precisions' Gamma prior, at least 0. The default says next to nothing.
        rate: Its rate, above 0: slices whose squared norm is well below it are not pulled any further. Lower it only
            together with the learning rate.
        threshold: A slice is kept if its squared norm is above this share of the largest of its bond, from 0 to below
            1. Norms are compared as if the cores of the bond were balanced.
        min_keep: The number of slices of each bond that are kept in any case, the largest ones. With 0, a bond whose
            slices are all exactly zero removes its term.

    Raises:
        TnmarsError: If a setting has the wrong type or is out of range.

    Example:
        >>> Ard().keep_norms(torch.tensor([4.0, 1e-9, 2.0])).tolist()
        [True, False, True]
    """

    name: ClassVar[str] = "ard"
    has_gates: ClassVar[bool] = False
    judges_norms: ClassVar[bool] = True
    keeps_more: ClassVar[str] = "lower threshold of Ard"

    shape: float = 1e-6
    rate: float = 1e-6
    threshold: float = 1e-2
    min_keep: int = 1

    def __post_init__(self) -> None:
        own_fields(self)
        check_numbers(self, "shape", "threshold", least=0.0)
        check_numbers(self, "rate", above=0.0)
        check_count(self, "min_keep")
        check(self.threshold < 1.0, f"threshold is {self.threshold}, but must be a number below 1.")

    def prior(self, norms: Tensor, entries: Tensor) -> Tensor:
        return ((self.shape + 0.5 * entries) * torch.log1p(norms / (2.0 * self.rate))).sum()

    def keep_norms(self, norms: Tensor) -> Tensor:
        largest = norms.max()
        shares = torch.where(largest > 0.0, norms / largest, torch.zeros_like(norms))
        return gates.largest(shares, self.threshold, self.min_keep)
