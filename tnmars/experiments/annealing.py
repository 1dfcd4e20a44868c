"""The training of `tnmars.shrink` without cuts: rates relative to the size of each tensor, annealed over one run."""

from __future__ import annotations

import torch
from torch import nn

from tnmars.layer.module import layers
from tnmars.models.rates import annealed
from tnmars.shrinking.optimizer import optimizer_for
from tnmars.shrinking.settings import Staircase

LOGITS = 1e-2
"""The learning rate of gates, as in the paper."""


def optimizer(model: nn.Module, settings: Staircase, samples: int | None = None) -> torch.optim.AdamW:
    """A new optimizer as in a stage of `tnmars.Stages`. Gates have the paper's rate, and a prior of their own."""
    every = [layer for _, layer in layers(model)]
    logits = {id(value) for layer in every for value in layer.logits()}
    cores = {id(value) for layer in every for value in layer.cores.parameters()}
    made = optimizer_for(model, settings, cores, samples=None if logits else samples)
    for group in made.param_groups:
        if id(group["params"][0]) in logits:
            group["lr"] = group["initial_lr"] = LOGITS
    return made


def set_rates_(made: torch.optim.Optimizer, step: int, total: int, settings: Staircase) -> None:
    """Sets the rates of a step, counted from 0."""
    for group in made.param_groups:
        group["lr"] = group["initial_lr"] * annealed(step + 1, total, settings.ramp)
