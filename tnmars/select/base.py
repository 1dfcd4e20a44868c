"""The interface of a selector: the rule that trains gates and says which slices of a bond to keep.

A selector is a frozen value with settings. It works on vectors: of logits (the learned numbers of gates, one per slice
of a bond), of noise and of costs. It sees no graph and no layer; what slices cost is passed in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from math import isfinite
from typing import Any, ClassVar

import torch
from torch import Tensor

from tnmars.errors import TnmarsError
from tnmars.graph import Json

PRICES = ("uniform", "parameters", "macs", "bic")


class Selector(ABC):
    """What every selector has. A new rule is a frozen dataclass in a file of its own, listed in `tnmars.select`."""

    name: ClassVar[str]
    has_gates: ClassVar[bool] = True
    opens_first: ClassVar[bool] = False
    """Whether the first gate of each bond is always open: its noise is then infinite, and its probability is 1."""
    price: str = "uniform"
    """What a slice costs: one of `PRICES`."""
    sample_in_eval: bool = False
    """Whether gates are drawn in `eval()` too, rather than cut as `prune` would."""

    @abstractmethod
    def start(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """The first logits of `count` gates."""

    @abstractmethod
    def noise(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """The random numbers that one sample of `count` gates takes."""

    @abstractmethod
    def sample(self, logits: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
        """Gates in [0, 1] for given noise, entry by entry, differentiable in the logits."""

    def is_open(self, logits: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
        """Which gates of a sample are not exactly 0, or have a gradient although they are: a slice that takes part."""
        return self.sample_open(logits, noise, temperature)[1]

    def sample_open(self, logits: Tensor, noise: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """The gates of a sample, and which of them are open. Override it where a gate of 0 may have a gradient."""
        gates = self.sample(logits, noise, temperature)
        return gates, gates.detach() != 0.0

    @abstractmethod
    def probability(self, logits: Tensor) -> Tensor:
        """How probable it is that each gate is open: what the penalty charges for."""

    @abstractmethod
    def keep(self, logits: Tensor) -> Tensor:
        """Which slices of one bond are kept."""

    @abstractmethod
    def charge(self, cost: Tensor, probability: Tensor) -> Tensor:
        """The penalty in nats for a layer whose open gates are expected to cost `cost` slices of average price."""

    @property
    @abstractmethod
    def weight_decay(self) -> float:
        """The factor of the sum of the cores' squared entries in the penalty: half the precision of their prior."""

    def temperature_at(self, progress: float) -> float:
        """The temperature at a share of the decay, from 0 to 1 and beyond."""
        return 1.0

    def settings(self) -> dict[str, Json]:
        """The settings as plain data, for specs and checkpoints."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"name": self.name, **{key: _plain(value) for key, value in values.items()}}


def _plain(value: Any) -> Json:
    return list(value) if isinstance(value, tuple) else value


def check(known: bool, text: str) -> None:
    """Raises where a setting makes no sense."""
    if not known:
        raise TnmarsError(text)


def check_numbers(selector: Selector, *names: str) -> None:
    """Raises where one of these settings is not a finite number."""
    for name in names:
        value = getattr(selector, name)
        known = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
        check(known, f"{name} is {value!r}; it is a number.")


def check_count(selector: Selector, name: str) -> None:
    """Raises where a setting is not a whole number from 0 on."""
    value = getattr(selector, name)
    known = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    check(known, f"{name} is {value!r}; it is a whole number from 0 on.")
