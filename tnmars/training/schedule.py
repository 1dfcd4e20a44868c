"""The schedule of masks: warm-up, temperature, and the noise of each step, for all layers of a model at once.

It is used like a learning-rate scheduler: call `schedule.step()` after each step of the optimizer. The noise of a
layer depends only on the seed, the step and the layer's name in the unwrapped model. So it is the same on every rank,
after a resume, and under any of torch's wrappers (DDP, FSDP, `torch.compile`, activation checkpoints).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from math import isfinite
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from tnmars.errors import TnmarsError
from tnmars.layer.distributed import from_first_rank, whole
from tnmars.layer.module import layers

UNMOVED = 100
"""After how many steps beyond warm-up a gate should have moved."""


WRAPPERS = (DataParallel, DistributedDataParallel, AveragedModel)
"""Wrappers that hold a model as `module`; a module of the user's own may have that name too."""
WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""The names that torch's other wrappers hold a model under."""


class MaskSchedule:
    """Sets the gates' noise, temperature and warm-up for every step.

    Warm-up lasts `warmup_steps`: no gates, no gate term. The temperature falls over `decay_steps` after it, by default
    until `total_steps`; it is held for `every` steps at a time (the steps of an epoch, for the schedule of the paper).
    Give the optimiser where there is a warm-up: what it has counted for the gates by then, all of it zeros, is
    forgotten when warm-up ends; else Adam's first steps would be several times too long.
    """

    def __init__(
        self,
        model: nn.Module,
        total_steps: int | None = None,
        *,
        decay_steps: float | None = None,
        warmup_steps: int = 0,
        every: int = 1,
        seed: int | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ):
        if decay_steps is None and total_steps is None:
            raise TnmarsError("the schedule needs its length: give total_steps, or decay_steps for the temperature.")
        if warmup_steps < 0 or every < 1:
            raise TnmarsError("warmup_steps is at least 0 and every at least 1.")
        if total_steps is not None and not 0 <= warmup_steps < total_steps:
            raise TnmarsError(f"warm-up of {warmup_steps} steps leaves none of {total_steps} for the gates.")
        if decay_steps is not None and not (isfinite(decay_steps) and decay_steps > 0):
            raise TnmarsError(f"decay_steps is {decay_steps}; it is a number of steps above 0.")
        if decay_steps is None:
            assert total_steps is not None
            decay_steps = max(total_steps - warmup_steps, 1)
        self.model = model
        self.decay_steps = float(decay_steps)
        self.warmup_steps = warmup_steps
        self.every = every
        self.seed = _shared_seed() if seed is None else seed
        self.optimizer = optimizer
        self.steps = 0
        self._first: Tensor | None = None
        self._has_warned = False
        self._set()

    @property
    def is_warm(self) -> bool:
        """Whether the coming step has no gates."""
        return self.steps < self.warmup_steps

    @property
    def progress(self) -> float:
        """How much of the temperature's decay is done, from 0."""
        done = max(self.steps - self.warmup_steps, 0)
        return (done // self.every) * self.every / self.decay_steps

    def step(self) -> None:
        """Goes on to the next step: new noise for all gates."""
        self.steps += 1
        self._set()
        if self.warmup_steps and self.steps == self.warmup_steps:
            self._forget()
        self._watch()

    def _forget(self) -> None:
        """At the end of warm-up, takes the gates out of the optimiser's memory."""
        gates = [value for _, layer in layers(self.model) for value in layer.logits()]
        if self.optimizer is not None:
            for value in gates:
                self.optimizer.state.pop(value, None)
        elif gates:
            warnings.warn(
                "warm-up has ended, and an optimiser such as Adam has counted its steps for the gates too, so that "
                "their first steps are several times too long: give it to MaskSchedule(optimizer=...).",
                UserWarning,
                stacklevel=3,
            )

    def state_dict(self) -> dict[str, Any]:
        keys = ("decay_steps", "warmup_steps", "every", "seed", "steps")
        return {key: getattr(self, key) for key in keys}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for key in self.state_dict():
            setattr(self, key, state[key])
        self._first = None
        self._set()

    def _set(self) -> None:
        """Sets the buffers of every layer for the coming step; the noise of one does not depend on the others."""
        for name, layer in layers(self.model):
            if layer.masks is not None:
                noise = layer.masks.selector.noise(int(layer.masks.drawn), self._random(unwrapped(self.model, name)))
                temperature = layer.masks.selector.temperature_at(self.progress)
                layer.masks.redraw_(noise, temperature, is_warm=self.is_warm)

    def _random(self, name: str) -> torch.Generator:
        """The random numbers of a layer in this step."""
        key = (self.seed * 1_000_003 + self.steps) * 2_654_435_761 + crc32(name.encode())
        return torch.Generator().manual_seed(key % 2**63)

    def _watch(self) -> None:
        """Warns once if gates are there, warm-up is over, and none has moved."""
        if self._has_warned or self.is_warm or self.steps > self.warmup_steps + UNMOVED:
            return
        if self._first is None:
            self._first = self._logits()
        elif self.steps == self.warmup_steps + UNMOVED:
            self._has_warned = True
            if self._first.numel() and torch.equal(self._logits(), self._first):
                warnings.warn(
                    f"no gate has moved in {UNMOVED} steps: is tnmars.penalty(model) part of the loss, and are the "
                    "logits in the optimiser (tnmars.param_groups)?",
                    UserWarning,
                    stacklevel=3,
                )

    def _logits(self) -> Tensor:
        found = [whole(value.detach()).reshape(-1) for _, layer in layers(self.model) for value in layer.logits()]
        return torch.cat(found).clone() if found else torch.zeros(0)


def unwrapped(model: nn.Module, name: str) -> str:
    """The name that a module of a model would have if neither the model nor a part of it were wrapped.

    >>> unwrapped(DataParallel(nn.Sequential(nn.ReLU())), "module.0")
    '0'
    """
    kept: list[str] = []
    owner: nn.Module | None = model
    for part in name.split(".") if name else []:
        assert owner is not None
        if part not in WRAPPED and not (part == "module" and isinstance(owner, WRAPPERS)):
            kept.append(part)
        owner = owner._modules[part]
    return ".".join(kept)


def _shared_seed() -> int:
    """A seed from torch's own random state; under several processes, that of rank 0."""
    return int(from_first_rank(torch.randint(2**31, ())))
