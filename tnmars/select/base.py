"""The interface of a selector: the rule that trains gates and decides which slices of a bond to keep.

A selector is a frozen value with settings. It works on vectors with one entry per slice of a bond: logits (the learned
numbers behind the gates) and noise, or norms. It does not see graphs or layers; what a slice costs is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import isfinite
from typing import Any, ClassVar

import torch
from torch import Tensor

from tnmars.errors import TnmarsError
from tnmars.graph import Json

PRICES = ("uniform", "parameters", "macs", "bic")


class Selector:
    """Base of every rank selector: a rule for gates, written as a frozen dataclass of settings.

    A new rule overrides what it changes. Without any override no gate is trained or closed, every slice is kept, and
    the penalty is 0. A rule with gates defines at least `sample`, `probability`, `charge` and `keep` (or `keep_all`,
    if it decides over all bonds of a layer together). A rule without gates sets `has_gates` to False and needs none of
    them; with `judges_norms` it decides by the norms of slices instead, as `Ard` does. Put the class in a file of its
    own and list it in `tnmars/select/__init__.py`; then `save`, checkpoints and `tnmars fit --selector NAME` know it
    too. `tests/select/test_conformance.py` holds what every rule must satisfy.

    Attributes:
        name: The rule's name in saved files and on the command line. Every rule has its own.
        has_gates: Whether layers have gates and logits at all.
        judges_norms: Whether a rule without gates decides by the norms of slices. It then defines `prior` and
            `keep_norms`.
        opens_first: Whether the first gate of each bond is always open. Its noise is then infinite and its probability
            of being open is 1.
        needs_elimination: Whether `tnmars.fit` refines what the gates keep by backward elimination. Otherwise the
            gates alone decide.
        keeps_more: What to change so that more slices are kept, for warnings.
        price: What a slice costs. `"uniform"`: every slice 1. `"parameters"` and `"macs"`: in proportion to what it
            holds, scaled so that an average slice costs 1. `"bic"`: the parameters that it holds.
        sample_in_eval: Whether gates are sampled in `eval()` too. By default they are then exactly what `prune` keeps.
        limits: The interval that `tnmars.fit` clamps logits to after each step; None for no limits.
        in_older_files: The values of settings that files from before these settings existed do not have.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Plain(Selector):
        ...     name = "plain"
        ...     strength: float = 1.0
        ...     def sample(self, logits, noise, temperature):
        ...         return torch.sigmoid(logits + noise)
        ...     def probability(self, logits):
        ...         return torch.sigmoid(logits)
        ...     def charge(self, cost, probability):
        ...         return self.strength * cost
        ...     def keep(self, logits):
        ...         return logits > 0
        >>> Plain(strength=2.0).settings()
        {'name': 'plain', 'strength': 2.0}
    """

    name: ClassVar[str]
    has_gates: ClassVar[bool] = True
    judges_norms: ClassVar[bool] = False
    opens_first: ClassVar[bool] = False
    needs_elimination: ClassVar[bool] = False
    keeps_more: ClassVar[str] = "change the settings of the selector"
    price: str = "uniform"
    sample_in_eval: bool = False
    limits: tuple[float, float] | None = None
    in_older_files: ClassVar[Mapping[str, object]] = {}

    def start(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """The initial logits of `count` gates; zeros by default."""
        return torch.zeros(count)

    def noise(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """The random numbers that one sample of `count` gates takes; zeros by default."""
        return torch.zeros(count)

    def sample(self, logits: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
        """Gates in [0, 1] for given noise, entry by entry, differentiable in the logits.

        Noise of plus infinity must give a gate of exactly 1, whose gradient is zero: that is how warm-up works.
        """
        raise NotImplementedError(f"{type(self).__name__} has gates, so it must define sample().")

    def is_open(self, logits: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
        """Which slices take part in a sample: their gates are not exactly 0, or have a gradient nevertheless."""
        return self.sample_open(logits, noise, temperature)[1]

    def sample_open(self, logits: Tensor, noise: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """The gates of a sample, and which of them are open. Override it if a gate of 0 may have a gradient."""
        gates = self.sample(logits, noise, temperature)
        return gates, gates.detach() != 0.0

    def probability(self, logits: Tensor) -> Tensor:
        """The probability that each gate is open, which the penalty charges for; 1 by default."""
        return torch.ones_like(logits)

    def keep(self, logits: Tensor) -> Tensor:
        """Which slices of one bond are kept, as a vector of booleans; all of them by default."""
        return torch.ones_like(logits, dtype=torch.bool)

    def keep_all(self, logits: Sequence[Tensor], costs: Sequence[float]) -> list[Tensor]:
        """Which slices of each bond of a layer are kept; by default `keep` decides bond by bond.

        Override it for a rule that weighs bonds against each other, such as one budget for a whole layer.

        Args:
            logits: The logits of each bond, in the graph's order.
            costs: What one slice of each bond costs while all other slices are there, in the unit of `price`: 1 for
                `"uniform"`, multiply-adds for `"macs"`, otherwise parameters.

        Returns:
            A vector of booleans for each bond.
        """
        return [self.keep(one) for one in logits]

    def rounded(self, logits: Tensor) -> Tensor:
        """The gates that `eval()` uses for the kept slices of one bond, above 0 and at most 1; 1 by default.

        A cut multiplies them into the cores, so that the pruned layer computes the same. The values of slices that are
        not kept matter only if `prune(keep=...)` asks for these slices.
        """
        return torch.ones_like(logits)

    @property
    def rounds_to_one(self) -> bool:
        """Whether kept gates are 1 in `eval()` whatever their logits, as far as `rounded` shows for logits up to 8."""
        return bool((self.rounded(torch.linspace(-8.0, 8.0, 257)) == 1.0).all())

    def charge(self, cost: Tensor, probability: Tensor) -> Tensor:
        """The penalty of a layer in nats, a scalar; 0 by default.

        Args:
            cost: The expected cost of the open slices, in slices of average price (for `"bic"`, in parameters).
            probability: The probability that each gate is open, all bonds in one vector.
        """
        return cost * 0.0

    def charge_all(self, costs: Tensor, probability: Tensor, counts: Tensor) -> Tensor:
        """The penalties of several layers; by default `charge` is called for one after the other.

        Override it together with `charge` where that can be done at once: it is called in every step.

        Args:
            costs: The cost of each layer.
            probability: The probability that each gate is open, those of all layers in one vector.
            counts: The number of gates of each layer.

        Returns:
            A vector with the penalty of each layer.
        """
        parts = torch.split(probability, counts.tolist())
        return torch.stack([self.charge(*each) for each in zip(costs, parts, strict=True)])

    def prior(self, norms: Tensor, entries: Tensor) -> Tensor:
        """The penalty of a layer in nats for the norms of its slices, a scalar, differentiable in them; 0 by default.

        Args:
            norms: The squared norm of each slice, over all cores that carry its bond; all bonds in one vector.
            entries: The number of entries of each slice, over the same cores.
        """
        return norms.sum() * 0.0

    def keep_norms(self, norms: Tensor) -> Tensor:
        """Which slices of one bond are kept, as a vector of booleans; all of them by default.

        Args:
            norms: The squared norm of each slice over all cores that carry the bond, after scaling the slices so that
                they have equal norms in all of these cores. Rescaling a core multiplies all norms by the same number,
                so compare them only with each other.
        """
        return torch.ones_like(norms, dtype=torch.bool)

    @property
    def weight_decay(self) -> float:
        """The factor of the cores' squared entries in the penalty, half their prior's precision; 0 by default."""
        return 0.0

    def temperature_at(self, progress: float) -> float:
        """The temperature at a share of the decay, from 0 to 1 and beyond."""
        return 1.0

    def sharpness_at(self, progress: float) -> float:
        """The factor of the mean squared error in `tnmars.fit` at a share of the run, from 0 to 1."""
        return 1.0

    def for_samples(self, count: int) -> Selector:
        """The same rule for `count` data; itself by default. `tnmars.fit` calls it with the number of entries."""
        return self

    def settings(self) -> dict[str, Json]:
        """The settings as plain data, for specs and checkpoints."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"name": self.name, **{key: _plain(value) for key, value in values.items()}}


def _plain(value: Any) -> Json:
    return list(value) if isinstance(value, tuple) else value


def is_number(value: object) -> bool:
    """Whether a value is a finite number, and not a boolean. Torch takes no integer of more than 64 bits."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, float) and isfinite(value)


def check(is_right: bool, text: str) -> None:
    """Raises `TnmarsError` with this text if a setting is wrong."""
    if not is_right:
        raise TnmarsError(text)


def check_numbers(selector: Selector, *names: str, above: float | None = None, least: float | None = None) -> None:
    """Raises `TnmarsError` if one of these settings is not a finite number within its bound."""
    limit = f" above {above:g}" if above is not None else f", at least {least:g}" if least is not None else ""
    for name in names:
        value = getattr(selector, name)
        is_right = is_number(value) and (above is None or value > above) and (least is None or value >= least)
        check(is_right, f"{name} is {value!r}, but must be a number{limit}.")


def check_count(selector: Selector, name: str, least: int = 0) -> None:
    """Raises `TnmarsError` if a setting is not a whole number, or too small."""
    value = getattr(selector, name)
    is_right = isinstance(value, int) and not isinstance(value, bool) and value >= least
    check(is_right, f"{name} is {value!r}, but must be a whole number, at least {least}.")


def check_flags(selector: Selector, *names: str) -> None:
    """Raises `TnmarsError` if one of these settings is not a boolean."""
    for name in names:
        value = getattr(selector, name)
        check(isinstance(value, bool), f"{name} is {value!r}, but must be True or False.")


def check_price(selector: Selector, prices: Sequence[str]) -> None:
    """Raises `TnmarsError` if the price is not one of those that the selector knows."""
    is_right = isinstance(selector.price, str) and selector.price in prices
    known = f"one of {', '.join(prices)}" if len(prices) > 1 else f"'{prices[0]}'"
    check(is_right, f"price is {selector.price!r}, but must be {known}.")


def check_pair(selector: Selector, name: str, meaning: str) -> tuple[float, float]:
    """The two numbers of a setting, stored as floats. Raises `TnmarsError` if it is something else."""
    value = getattr(selector, name)
    is_right = isinstance(value, (tuple, list)) and len(value) == 2 and all(map(is_number, value))
    check(is_right, f"{name} is {value!r}, but must be {meaning}.")
    pair = (float(value[0]), float(value[1]))
    object.__setattr__(selector, name, pair)
    return pair
