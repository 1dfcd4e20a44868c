"""What an experiment trains: a model, its loss on part of the data, and how the model is judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.graph import counts
from tnmars.layer.kept import is_selecting, kept_slices
from tnmars.layer.module import layers
from tnmars.select import Selector
from tnmars.training.objective import expected, param_groups, penalty
from tnmars.training.schedule import MaskSchedule


class Task(ABC):
    """A model and its data."""

    model: nn.Module
    size: int
    """The number of samples."""
    members: int = 1
    """How many models are trained as one; their losses add up, and the mean is recorded."""

    @abstractmethod
    def data_loss(self, rows: Tensor) -> Tensor:
        """The mean loss over the samples with the indices `rows`."""

    @abstractmethod
    def judge(self) -> dict[str, Any]:
        """Figures of the model in `eval()`, where gates are open exactly for what pruning keeps."""

    def order(self, random: torch.Generator, batch: int) -> Tensor:
        """The order of the samples in an epoch. It may depend on nothing but the random numbers and the batch."""
        return torch.randperm(self.size, generator=random)

    def loss(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The loss over the samples with the indices `rows`, and the penalty."""
        return self.data_loss(rows), penalty(self.model)

    @property
    def selector(self) -> Selector | None:
        """The selector of the gates, or `None` without gates."""
        return next((layer.selector for _, layer in layers(self.model) if layer.masks is not None), None)

    def groups(self, lr: float) -> list[dict[str, Any]]:
        """The parameter groups of the optimizer."""
        return param_groups(self.model, lr)

    def schedule(self, **settings: Any) -> MaskSchedule:
        """The schedule of the masks."""
        return MaskSchedule(self.model, **settings)

    def record(self) -> dict[str, Any]:
        """The figures that are recorded after each epoch."""
        figures: dict[str, Any] = {"ranks": live_ranks(self.model)}
        masks = [layer.masks for _, layer in layers(self.model) if layer.masks is not None]
        if masks:
            figures["temperature"] = masks[0].temperature.item()
            with torch.no_grad():
                size = expected(self.model).item()
            total = counts.total(layer.graph for _, layer in layers(self.model))
            figures["expected_parameters"] = size
            if size + total.other:
                figures["expected_compression"] = (total.dense + total.other) / (size + total.other)
        return figures


def live_ranks(model: nn.Module) -> dict[str, list[int]]:
    """For each compiled layer, how many slices of each bond would be kept now."""
    ranks = {}
    for name, layer in layers(model):
        if is_selecting(layer):
            with torch.no_grad():
                ranks[name] = [int(slices.sum()) for slices in kept_slices(layer)]
        else:
            ranks[name] = [bond.size for bond in layer.graph.bonds.values()]
    return ranks


def chooses(model: nn.Module) -> bool:
    """Whether a layer of the model has a selector that decides which slices are kept."""
    return any(is_selecting(layer) for _, layer in layers(model))
