"""The schedule of masks: warm-up, temperature, and the noise of each step, for all layers of a model at once.

It is used like a learning-rate scheduler, `schedule.step()` after each step of the optimiser. The noise of a step
depends on the seed and the number of the step alone, so it is the same on every rank and after a resume.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.errors import TnmarsError
from tnmars.masks import Masks
from tnmars.module import layers
from tnmars.sharded import from_first_rank, whole

PATIENCE = 100
"""After how many steps beyond warm-up a gate should have moved."""


class MaskSchedule:
    """Sets the gates' noise, temperature and warm-up for every step.

    Warm-up lasts `warmup_steps`: no gates, no gate term. The temperature falls over `decay_steps` after it, by default
    until `total_steps`; it is held for `every` steps at a time (the steps of an epoch, for the schedule of the paper).
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
    ):
        if decay_steps is None and total_steps is None:
            raise TnmarsError("the schedule needs its length: give total_steps, or decay_steps for the temperature.")
        if warmup_steps < 0 or every < 1:
            raise TnmarsError("warmup_steps is at least 0 and every at least 1.")
        if decay_steps is None:
            assert total_steps is not None
            decay_steps = max(total_steps - warmup_steps, 1)
        self.model = model
        self.decay_steps = float(decay_steps)
        self.warmup_steps = warmup_steps
        self.every = every
        self.seed = _shared_seed() if seed is None else seed
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
        self._watch()

    def state_dict(self) -> dict[str, Any]:
        keys = ("decay_steps", "warmup_steps", "every", "seed", "steps")
        return {key: getattr(self, key) for key in keys}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for key in self.state_dict():
            setattr(self, key, state[key])
        self._first = None
        self._set()

    def _masks(self) -> list[Masks]:
        return [layer.masks for _, layer in layers(self.model) if layer.masks is not None]

    def _set(self) -> None:
        """Sets the buffers of every layer for the coming step."""
        random = torch.Generator().manual_seed((self.seed * 1_000_003 + self.steps) % 2**63)
        for masks in self._masks():
            noise = masks.selector.noise(int(masks.drawn), random)
            masks.redraw_(noise, masks.selector.temperature_at(self.progress), is_warm=self.is_warm)

    def _watch(self) -> None:
        """Warns once if gates are there, warm-up is over, and none has moved."""
        if self._has_warned or self.is_warm or self.steps > self.warmup_steps + PATIENCE:
            return
        logits = [whole(value.detach()).reshape(-1) for _, layer in layers(self.model) for value in layer.logits()]
        if not logits:
            return
        if self._first is None:
            self._first = torch.cat(logits).clone()
        elif self.steps == self.warmup_steps + PATIENCE:
            self._has_warned = True
            if torch.equal(torch.cat(logits), self._first):
                warnings.warn(
                    f"no gate has moved in {PATIENCE} steps: is tnmars.penalty(model) part of the loss, and are the "
                    "logits in the optimiser (tnmars.param_groups)?",
                    UserWarning,
                    stacklevel=3,
                )


def _shared_seed() -> int:
    """A seed from torch's own random state; under several processes, that of rank 0."""
    return int(from_first_rank(torch.randint(2**31, ())))
