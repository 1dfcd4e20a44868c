"""Slices that are dropped during training, once their gates have been shut long enough."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from tnmars.arguments import check_arguments, check_state
from tnmars.errors import TnmarsError
from tnmars.layer.module import TNModule, layers
from tnmars.pruning.prune_model import decided, prune_
from tnmars.select.distributions import largest


class ShutSlices:
    """Drops slices for good, during training, once their gates have been shut for `patience` steps.

    Call `step()` between the backward pass and the optimizer's step. What the selector would keep now is never
    dropped, nor is the largest gate of a bond. The rest trains as if nothing had happened: it keeps its noise, its
    gates and its state in the optimizer. Steps become cheaper, and the numbers stay the same.

    Args:
        model: A model with compiled layers that have gates. A model under DDP or FSDP2 cannot be cut in this way: cut
            it between epochs with `tnmars.prune_`, and wrap it again.
        patience: The number of consecutive steps, at least 1, in which a gate's sample must be 0 before its slice is
            dropped. By chance, a gate that opens with probability p is shut that long with probability
            (1 - p)**patience.
        optimizer: The optimizer of the model, whose state is cut too.
        every: Slices are dropped at every such step only, at least 1; for example the number of steps of an epoch.
            Each drop plans the layer again, which takes some milliseconds.

    Raises:
        TnmarsError: If `patience` or `every` is less than 1; in `step()`, as `tnmars.prune_`.

    Example:
        >>> import tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=4)
        >>> layer = tnmars.compile(graph, selector=tnmars.Mars(alpha=-9.0))
        >>> schedule = tnmars.MaskSchedule(layer, total_steps=100, seed=0)
        >>> optimizer = torch.optim.Adam(tnmars.param_groups(layer, lr=1e-2))
        >>> shut = ShutSlices(layer, patience=3, optimizer=optimizer)
        >>> dropped = 0
        >>> for _ in range(3):
        ...     loss = layer(torch.randn(8, 6)).square().mean() + tnmars.penalty(layer) / 8
        ...     loss.backward()
        ...     dropped += shut.step()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     schedule.step()
        >>> dropped, layer.graph.bonds["r"].size
        (3, 1)
    """

    def __init__(
        self, model: nn.Module, patience: int, optimizer: torch.optim.Optimizer | None = None, *, every: int = 1
    ):
        check_arguments(ShutSlices.__init__, locals())
        for name, value in (("patience", patience), ("every", every)):
            if value < 1:
                raise TnmarsError(f"{name} is {value}, but must be at least 1.")
        self.model = model
        self.patience = patience
        self.optimizer = optimizer
        self.every = every
        self.steps = 0

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint needs besides the counts of shut steps, which are buffers of the model."""
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continues from a state of `state_dict`."""
        check_arguments(ShutSlices.load_state_dict, locals())
        check_state(state, self.state_dict())
        self.steps = int(state["steps"])

    def step(self) -> int:
        """Counts shut gates and drops slices that are due; returns the number of dropped slices."""
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
    """The slices to keep of each bond; empty if nothing is to be dropped."""
    assert layer.masks is not None
    counts = torch.split(layer.masks.shut_for, list(layer.masks.sizes.values()))
    live = []
    logits = [value.detach() for value in layer.logits()]
    for values, kept, shut_for in zip(logits, layer.masks.keep(logits), counts, strict=True):
        live.append((shut_for < patience) | kept | largest(values, float("inf"), 1))
    if bool(torch.cat(live).all()):
        return {}
    return decided(layer, torch.cat(live))
