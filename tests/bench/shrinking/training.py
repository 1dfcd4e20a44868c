"""The training of the controls: annealed stages with the rates of `tnmars.shrink`, but without cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import tnmars
from tnmars.layer.module import layers
from tnmars.models.rates import annealed
from tnmars.shrinking.batches import Stream, count, reseed
from tnmars.shrinking.optimizer import optimizer_for

if TYPE_CHECKING:
    from bench.shrinking.tasks import Task

LOGITS = 1e-2
"""The learning rate of gates, as in the paper."""


def optimizer(model: nn.Module, settings: tnmars.Staircase, samples: int) -> torch.optim.AdamW:
    """A new optimizer as in a stage of `tnmars.Stages`. Gates have the paper's rate."""
    every = [layer for _, layer in layers(model)]
    logits = {id(value) for layer in every for value in layer.logits()}
    cores = {id(value) for layer in every for value in layer.cores.parameters()}
    made = optimizer_for(model, settings, cores, samples=None if logits else samples)  # gates have a prior of their own
    for group in made.param_groups:
        if id(group["params"][0]) in logits:
            group["lr"] = group["initial_lr"] = LOGITS
    return made


def stages(
    model: nn.Module,
    given: Task,
    lengths: Sequence[int],
    seed: int,
    settings: tnmars.Staircase,
    *,
    extra: Callable[[], Tensor] | None = None,
    after: Callable[[], None] | None = None,
) -> Iterator[int]:
    """Trains a model in annealed stages; yields the steps so far after each, the model in evaluation mode.

    `extra` is added to the loss of each step, and `after` is called after it.
    """
    stream, samples, done = Stream(given.train, seed), count(given.train), 0
    for number, length in enumerate(lengths):
        reseed(seed, "stage", number)
        model.train()
        adam = optimizer(model, settings, samples)
        for step, ((inputs, _), target) in enumerate(stream.take(length)):
            for group in adam.param_groups:
                group["lr"] = group["initial_lr"] * annealed(step + 1, length, settings.ramp)
            loss = given.loss(model(*inputs), target)
            (loss if extra is None else loss + extra()).backward()
            adam.step()
            adam.zero_grad()
            if after is not None:
                after()
        done += length
        model.eval()
        yield done
