"""The optimizer of a stage: AdamW, with steps and weight decay relative to the size of each tensor's entries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.models.rates import relative_rate
from tnmars.shrinking.settings import Staircase


def optimizer_for(
    model: nn.Module,
    settings: Staircase,
    cores: Collection[int],
    given: Collection[int] = (),
    share: float = 1.0,
    samples: int | None = None,
) -> WithPrior:
    """A new optimizer for all parameters of a model that require a gradient.

    AdamW multiplies a parameter by `1 - lr * weight_decay` in each step. With a rate of `settings.rate` times the size
    of a core's entries, the weight decay is `settings.decay` over that size. So cores of any size shrink equally, and
    the loss may have any scale. The prior is part of the loss: its gradient is added to that of the cores before each
    step.

    Args:
        model: The model.
        settings: The constants of the path.
        cores: The identities of the parameters that are cores.
        given: The identities of the parameters that have the rate `settings.other_rate`, if there is one.
        share: The share of all rates.
        samples: The number of training samples, for the prior; without it there is none.
    """
    groups: list[dict[str, Any]] = []
    for value in model.parameters():
        if not value.requires_grad:
            continue
        is_core = id(value) in cores
        rate = relative_rate(value, settings.rate, is_core=is_core, vectors=settings.vectors)
        decay = settings.decay * settings.rate / rate if is_core else 0.0
        if settings.other_rate is not None and id(value) in given:
            rate = settings.other_rate
        rate *= share
        groups.append({"params": [value], "lr": rate, "initial_lr": rate, "weight_decay": decay})
    every = [group["params"][0] for group in groups]
    is_fused = all(value.device.type in ("cpu", "cuda") and not value.is_complex() for value in every)
    own = [value for value in model.parameters() if id(value) in cores and value.requires_grad]
    return WithPrior(groups, own, 2.0 * settings.prior / samples if samples else 0.0, is_fused=is_fused)


class WithPrior(torch.optim.AdamW):
    """AdamW that adds the gradient of a normal prior to that of some parameters before each step."""

    def __init__(self, groups: list[dict[str, Any]], cores: Sequence[Tensor], factor: float, *, is_fused: bool):
        super().__init__(groups, fused=is_fused)
        self._cores, self._factor = list(cores), factor

    def become_(self, other: WithPrior) -> None:
        """Takes over the parameters, rates and state of another; for a loop that holds on to one optimizer."""
        self.param_groups, self.state = other.param_groups, other.state
        self._cores, self._factor = other._cores, other._factor

    def step(self, closure: Any = None) -> Any:
        """A step, after the closure if there is one. Gradients that a `GradScaler` has scaled get a scaled prior."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._factor:
            self._add_prior_()
        super().step()
        return loss

    @torch.no_grad()
    def _add_prior_(self) -> None:
        scale = getattr(self, "grad_scale", None)
        factor = self._factor * (1.0 if scale is None else float(scale))
        for core in self._cores:
            if core.grad is not None:
                core.grad.add_(core, alpha=factor)
