"""What an experiment trains: a model, its loss on some of the data, and how it is judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.graph import counts
from tnmars.layer.module import layers
from tnmars.select import Selector
from tnmars.training.objective import expected, param_groups, penalty
from tnmars.training.schedule import MaskSchedule


class Task(ABC):
    """A model and its data."""

    model: nn.Module
    size: int
    """How many data there are."""
    members: int = 1
    """How many models are trained as one; losses add up, and their mean is told."""

    @abstractmethod
    def data_loss(self, rows: Tensor) -> Tensor:
        """The mean loss over some of the data, by their numbers."""

    @abstractmethod
    def judge(self) -> dict[str, Any]:
        """Figures of the model in `eval()`, where gates are what pruning keeps."""

    def loss(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The loss over some of the data, and the penalty."""
        return self.data_loss(rows), penalty(self.model)

    @property
    def selector(self) -> Selector | None:
        """The selector of the gates, if there are any."""
        return next((layer.selector for _, layer in layers(self.model) if layer.masks is not None), None)

    def groups(self, lr: float) -> list[dict[str, Any]]:
        """The parameter groups of the optimiser."""
        return param_groups(self.model, lr)

    def schedule(self, **settings: Any) -> MaskSchedule:
        """The schedule of the masks."""
        return MaskSchedule(self.model, **settings)

    def told(self) -> dict[str, Any]:
        """What is recorded after each epoch."""
        found: dict[str, Any] = {"ranks": live_ranks(self.model)}
        masks = [layer.masks for _, layer in layers(self.model) if layer.masks is not None]
        if masks:
            found["temperature"] = masks[0].temperature.item()
            with torch.no_grad():
                size = expected(self.model).item()
            whole = counts.total(layer.graph for _, layer in layers(self.model))
            found["expected_parameters"] = size
            if size + whole.other:
                found["expected_compression"] = (whole.dense + whole.other) / (size + whole.other)
        return found


def live_ranks(model: nn.Module) -> dict[str, list[int]]:
    """For each compiled layer, how many slices of each bond are kept now."""
    found = {}
    for name, layer in layers(model):
        if layer.masks is None:
            found[name] = [bond.size for bond in layer.graph.bonds.values()]
        else:
            with torch.no_grad():
                found[name] = [
                    int(kept.sum()) for kept in layer.masks.selector.keep_all(layer.logits(), layer.masks.costs)
                ]
    return found
