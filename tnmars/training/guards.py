"""What goes wrong with gates, said when it happens: each problem once, with the setting to change.

Everything here reads; nothing is changed. A penalty that outweighs the loss and a collapse are seen only if the loss
is given.
"""

from __future__ import annotations

import warnings
from math import inf

import torch
from torch import Tensor, nn

from tnmars.layer.distributed import whole
from tnmars.layer.masks import diverged, is_finite
from tnmars.layer.module import layers

WINDOW = 100
"""The number of steps over which losses are averaged, and after which gates are looked at."""
WORSE = 0.1
"""A mean loss is worse than the best if it is higher by more than this share."""
FALLBACK = "tnmars.shrink needs none of these settings."

Value = Tensor | float


class Guards:
    """Watches the training of the gates of a model."""

    def __init__(self, model: nn.Module):
        self.model = model
        self._warned: set[str] = set()
        self._steps = 0
        self._losses: list[float] = []
        self._penalties: list[float] = []
        self._best = inf
        self._kept: dict[tuple[str, str], int] = {}
        """How many slices each bond kept when the loss was best."""

    def step(self, loss: Value | None, penalty: Value | None) -> None:
        """Looks at a step. Raises `TnmarsError` if a logit is NaN or infinite, which is looked for now and then."""
        self._steps += 1
        if loss is not None:
            self._losses.append(_number(loss))
            if penalty is not None:
                self._penalties.append(_number(penalty))
        if self._steps % WINDOW == 0:
            check_logits(self.model)
            self._look()
            self._losses, self._penalties = [], []

    def _look(self) -> None:
        if not self._losses:
            return
        loss = sum(self._losses) / len(self._losses)
        if self._penalties and len(self._penalties) == len(self._losses):
            self._compare(loss, sum(self._penalties) / len(self._penalties))
        kept = _kept(self.model)
        if loss > self._best + WORSE * abs(self._best):
            self._collapse(loss, kept)
        if loss < self._best:
            self._best, self._kept = loss, {name: count for name, (count, _, _) in kept.items()}

    def _compare(self, loss: float, penalty: float) -> None:
        if penalty > abs(loss):
            self._warn(
                "penalty",
                f"the penalty of the gates, {penalty:.3g}, outweighs the loss, {loss:.3g}: gates will close whatever "
                "the data say. Divide it by the number of training samples: loss + tnmars.penalty(model) / len(data). "
                f"{FALLBACK}",
            )

    def _collapse(self, loss: float, kept: dict[tuple[str, str], tuple[int, int, int]]) -> None:
        """Warns of a bond that has come to its minimum since the loss was best."""
        for (layer, bond), (count, size, least) in kept.items():
            if count <= least < self._kept.get((layer, bond), 0):
                self._warn(
                    "collapse",
                    f"bond '{bond}' of layer '{layer}' is down to {count} of {size} slices, and the loss has risen "
                    f"from {self._best:.3g} to {loss:.3g}. To keep more, {self._advice(layer)}, or lower the rate of "
                    f"the gates: tnmars.param_groups(..., mask_lr=...). {FALLBACK}",
                )
                return

    def _advice(self, name: str) -> str:
        selector = dict(layers(self.model))[name].selector
        return "" if selector is None else selector.keeps_more

    def _warn(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(text, UserWarning, stacklevel=5)


def check_logits(model: nn.Module) -> None:
    """Raises `TnmarsError` if a gate of a model has a logit that is NaN or infinite: nothing can be decided by it."""
    for name, layer in layers(model):
        for bond, logits in zip(layer.graph.bonds, layer.logits(), strict=False):
            if not is_finite(logits):
                raise diverged(f"bond '{bond}' of layer '{name}'")


@torch.no_grad()
def _kept(model: nn.Module) -> dict[tuple[str, str], tuple[int, int, int]]:
    """For each bond with gates how many slices are kept now, how many there are, and how many are kept at least."""
    found: dict[tuple[str, str], tuple[int, int, int]] = {}
    for name, layer in layers(model):
        if layer.masks is None:
            continue
        kept = layer.masks.keep([whole(logits) for logits in layer.logits()])
        least = max(int(getattr(layer.masks.selector, "min_keep", 1)), 1)
        for (bond, size), slices in zip(layer.masks.sizes.items(), kept, strict=True):
            found[name, bond] = (int(slices.sum()), size, least)
    return found


def _number(value: Value) -> float:
    return float(value.detach()) if isinstance(value, Tensor) else float(value)
