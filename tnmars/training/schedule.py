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

from tnmars.arguments import check_arguments, check_state, own, own_seed
from tnmars.errors import TnmarsError
from tnmars.layer.distributed import from_first_rank, is_first_rank, whole
from tnmars.layer.masks import redraw_all_
from tnmars.layer.module import layers
from tnmars.layer.wrapped import unwrapped
from tnmars.training.guards import Guards, Value

UNMOVED = 100
"""The number of steps after warm-up within which a gate should have moved."""


class MaskSchedule:
    """The schedule of all gates of a model: their noise, temperature and warm-up for every step.

    Call `step()` after each step of the optimizer. During warm-up all gates are 1, the penalty has no part for them,
    and no logit moves. After it the temperature falls, and each step draws new noise.

    Args:
        model: The model, wrapped or not. The noise of a layer depends only on the seed, the step and the layer's name
            without wrappers.
        total_steps: The number of training steps. The temperature falls until then, if `decay_steps` is not given.
        decay_steps: The number of steps after warm-up in which the temperature falls from its first to its last value.
        warmup_steps: The number of steps without gates, at least 0; none by default. Use some if the cores should
            settle before slices compete.
        every: The number of steps for which the temperature is held, at least 1. The paper holds it for an epoch:
            then pass the number of steps of an epoch.
        seed: The seed of the noise; drawn from torch's random state by default, the same on all ranks.
        optimizer: The optimizer of the gates. Pass it if there is a warm-up: its state for the gates, which has seen
            only zero gradients, is dropped when warm-up ends. Otherwise Adam's first steps would be several times too
            long.

    Raises:
        TnmarsError: If neither `total_steps` nor `decay_steps` is given, or a number is out of range.

    Example:
        >>> import tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=4)
        >>> layer = tnmars.compile(graph, selector=tnmars.Mars())
        >>> optimizer = torch.optim.Adam(tnmars.param_groups(layer, lr=1e-2), fused=True)
        >>> schedule = tnmars.MaskSchedule(
        ...     layer, total_steps=100, warmup_steps=10, optimizer=optimizer
        ... )
        >>> for _ in range(20):
        ...     loss = layer(torch.randn(8, 6)).square().mean() + tnmars.penalty(layer) / 8
        ...     loss.backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     schedule.step()
        >>> schedule.is_warm, round(schedule.progress, 3)
        (False, 0.111)
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
        check_arguments(MaskSchedule.__init__, locals())
        seed = own_seed(seed)
        if decay_steps is None and total_steps is None:
            raise TnmarsError("the schedule needs a length: give total_steps, or decay_steps for the temperature.")
        _check_lengths(decay_steps, warmup_steps, every)
        if total_steps is not None and warmup_steps >= total_steps:
            raise TnmarsError(f"warmup_steps is {warmup_steps}, but must be less than total_steps, {total_steps}.")
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
        self._since = 0
        self._has_warned = False
        self._guards = Guards(model, is_trained=warmup_steps > 0)
        self._set()

    @property
    def is_warm(self) -> bool:
        """Whether the coming step has no gates."""
        return self.steps < self.warmup_steps

    @property
    def progress(self) -> float:
        """The share of the temperature's decay that is done, from 0 to 1 and beyond."""
        done = max(self.steps - self.warmup_steps, 0)
        return (done // self.every) * self.every / self.decay_steps

    def step(self, loss: Value | None = None, penalty: Value | None = None) -> None:
        """Advances to the next step: new noise for all gates, and the temperature.

        Args:
            loss: The loss of the step without the penalty, optional. With it, a warning says when a bond collapses: it
                comes to its minimum, and the loss is worse than before. That a layer closes within the first 50 steps
                is reported without it too.
            penalty: What was added to the loss, optional. With both, a warning says if it outweighs the loss. Of
                several processes, the first one warns, by its own losses.

        Raises:
            TnmarsError: If logits of gates have become NaN, which is looked for every 50 steps.
        """
        check_arguments(MaskSchedule.step, locals())
        for name, value in (("loss", loss), ("penalty", penalty)):
            if isinstance(value, Tensor) and (value.numel() != 1 or value.is_complex()):
                raise TnmarsError(
                    f"{name} has shape {tuple(value.shape)} and type {value.dtype}, but must be a number."
                )
        if self.is_warm:
            self._guards.warm(loss)
        else:
            self._guards.step(loss, penalty)
        self.steps += 1
        self._set()
        if self.warmup_steps and self.steps == self.warmup_steps:
            self._guards.begin()
            self._forget()
        self._watch()

    def _forget(self) -> None:
        """Drops the optimizer's state for the gates at the end of warm-up."""
        gates = [value for _, layer in layers(self.model) for value in layer.logits()]
        if self.optimizer is not None:
            for value in gates:
                self.optimizer.state.pop(value, None)
        elif gates:
            warnings.warn(
                "warm-up has ended, but an optimizer such as Adam has counted its steps for the gates too, so that "
                "their first steps are several times too long. Pass it: MaskSchedule(..., optimizer=optimizer).",
                UserWarning,
                stacklevel=3,
            )

    def state_dict(self) -> dict[str, Any]:
        """The state of the schedule as plain data, for a checkpoint."""
        keys = ("decay_steps", "warmup_steps", "every", "seed", "steps")
        return {key: getattr(self, key) for key in keys}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state of `state_dict`, with the noise of its step. Raises `TnmarsError` for another one."""
        check_arguments(MaskSchedule.load_state_dict, locals())
        before = self.state_dict()
        check_state(state, before)
        given = {key: own(state[key]) for key in before}
        _check_lengths(given["decay_steps"], given["warmup_steps"], given["every"])
        if given["steps"] < 0:
            raise TnmarsError(f"steps is {given['steps']}, but must be at least 0.")
        for key, value in given.items():
            setattr(self, key, value)
        self._first = None
        self._guards = Guards(self.model, is_trained=self.warmup_steps > 0 or self.steps > 0, is_resumed=self.steps > 0)
        self._set()

    def _set(self) -> None:
        """Sets the buffers of every layer for the coming step. The noise of a layer does not depend on the others."""
        drawn = []
        random, progress = torch.Generator(), self.progress
        for name, layer in layers(self.model):
            masks = layer.masks
            if masks is not None:
                random.manual_seed(self._key(unwrapped(self.model, name)))
                noise = masks.selector.noise(int(masks.drawn), random)
                drawn.append((masks, noise, masks.selector.temperature_at(progress)))
        redraw_all_(drawn, is_warm=self.is_warm)

    def _key(self, name: str) -> int:
        """The seed of the random numbers of a layer in this step."""
        key = (self.seed * 1_000_003 + self.steps) * 2_654_435_761 + crc32(name.encode())
        return key % 2**63

    def _watch(self) -> None:
        """Warns once if there are gates and none has moved since warm-up ended."""
        if self._has_warned or self.is_warm:
            return
        if self._first is None:
            self._first, self._since = self._logits(), self.steps
        elif self.steps == self._since + UNMOVED:
            self._has_warned = True
            is_same = self._first.numel() and torch.equal(self._logits(), self._first)
            if is_same and is_first_rank():
                warnings.warn(
                    f"no gate has moved in {UNMOVED} steps. Is tnmars.penalty(model) part of the loss, and are the "
                    "logits in the optimizer (tnmars.param_groups)?",
                    UserWarning,
                    stacklevel=3,
                )

    def _logits(self) -> Tensor:
        logits = [whole(value.detach()).reshape(-1) for _, layer in layers(self.model) for value in layer.logits()]
        return torch.cat(logits).clone() if logits else torch.zeros(0)


def _check_lengths(decay_steps: float | None, warmup_steps: int, every: int) -> None:
    """Raises `TnmarsError` for numbers of steps that no schedule has."""
    if warmup_steps < 0:
        raise TnmarsError(f"warmup_steps is {warmup_steps}, but must be at least 0.")
    if every < 1:
        raise TnmarsError(f"every is {every}, but must be at least 1.")
    if decay_steps is not None and not (isfinite(decay_steps) and decay_steps > 0):
        raise TnmarsError(f"decay_steps is {decay_steps}, but must be a number above 0.")


def _shared_seed() -> int:
    """A seed from torch's random state; under several processes, rank 0's."""
    return int(from_first_rank(torch.randint(2**31, ())))
