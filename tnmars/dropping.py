"""Slices dropped for good, while training, once their gates have been shut for long; the optimiser's state follows."""

from __future__ import annotations

import torch
from torch import nn

from tnmars.errors import TnmarsError
from tnmars.gates import largest
from tnmars.module import TNModule, layers
from tnmars.pruning import prune_


class ShutSlices:
    """Counts for how long each gate of a model has been shut, and drops the slices whose time is up.

    `step()` is called after each step of the optimiser, before that of the schedule; it looks every `every` steps
    whether there is something to drop, for instance once an epoch. The largest gate of each bond stays. What is left
    goes on as if nothing had been dropped: it keeps its noise, its gates and its state in the optimiser.
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
    """The slices to keep of each bond that has some to drop."""
    assert layer.masks is not None
    counts = torch.split(layer.masks.shut_for, list(layer.masks.sizes.values()))
    found = {}
    for bond, logits, shut_for in zip(layer.graph.bonds, layer.logits(), counts, strict=True):
        live = (shut_for < patience) | largest(logits.detach(), float("inf"), 1)
        if not bool(live.all()):
            found[bond] = tuple(int(index) for index in live.nonzero().reshape(-1))
    return found
