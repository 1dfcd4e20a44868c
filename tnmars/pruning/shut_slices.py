"""Slices dropped for good, while training, once their gates have been shut for long; the optimiser's state follows."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from tnmars.errors import TnmarsError
from tnmars.layer.module import TNModule, layers
from tnmars.pruning.prune_model import decided, prune_
from tnmars.select.distributions import largest


class ShutSlices:
    """Counts for how long each gate of a model has been shut, and drops the slices whose time is up.

    `step()` is called between the backward pass and the optimiser's step; it looks every `every` steps whether there
    is something to drop, for instance once an epoch. What the selector would keep stays, and the largest gate of each
    bond. What is left goes on as if nothing had been dropped: it keeps its noise, its gates and its state in the
    optimiser. A model under DDP or FSDP2 cannot be cut so: cut it between epochs, and wrap it anew.
    """

    def __init__(
        self, model: nn.Module, patience: int, optimizer: torch.optim.Optimizer | None = None, *, every: int = 1
    ):
        if patience < 1 or every < 1:
            raise TnmarsError("patience and every are at least 1 step.")
        self.model = model
        self.patience = patience
        self.optimizer = optimizer
        self.every = every
        self.steps = 0

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint needs, beside the counts of the gates, which are buffers of the model."""
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.steps = int(state["steps"])

    def step(self) -> int:
        """Counts, and drops what has been shut for long; returns how many slices were dropped."""
        self.steps += 1
        gated = [(name, layer) for name, layer in layers(self.model) if layer.masks is not None]
        for _, layer in gated:
            if layer.masks is not None:
                layer.masks.count_shut_(layer.logits())
        if self.steps % self.every:
            return 0
        keep = {name: _live(layer, self.patience) for name, layer in gated}
        keep = {name: kept for name, kept in keep.items() if kept}
        dropped = 0
        for name, layer in gated:
            for bond, indices in keep.get(name, {}).items():
                dropped += layer.graph.bonds[bond].size - len(indices)
        if keep:
            prune_(self.model, self.optimizer, keep, keep_gates=True)
        return dropped


def _live(layer: TNModule, patience: int) -> dict[str, tuple[int, ...]]:
    """The slices to keep of each bond; none named where nothing is to be dropped."""
    assert layer.masks is not None
    counts = torch.split(layer.masks.shut_for, list(layer.masks.sizes.values()))
    live = []
    logits = [value.detach() for value in layer.logits()]
    for values, kept, shut_for in zip(logits, layer.masks.keep(logits), counts, strict=True):
        live.append((shut_for < patience) | kept | largest(values, float("inf"), 1))
    if bool(torch.cat(live).all()):
        return {}
    return decided(layer, torch.cat(live))
