"""The optimizer of a stage: AdamW, with steps and weight decay relative to the size of each tensor's entries."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
) -> torch.optim.AdamW:
    """A new optimizer for all parameters of a model that require a gradient.

    AdamW multiplies a parameter by `1 - lr * weight_decay` in each step. With a rate of `settings.rate` times the size
    of a core's entries, the weight decay is `settings.decay` over that size. So cores of any size shrink equally, and
    the loss may have any scale. The prior is part of the loss: its gradient is added to that of the cores before each
    step, whoever calls `step`.

    Args:
        model: The model.
        settings: The constants of the path.
        cores: The identities of the parameters that are cores.
        given: The identities of the parameters that have the rate `settings.other_rate`, if there is one.
        share: The share of all rates.
        samples: The number of training samples, for the prior; without it there is none.
    """
    groups = []
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
    is_fused = all(group["params"][0].device.type in ("cpu", "cuda") for group in groups)  # type: ignore[index]
    made = torch.optim.AdamW(groups, fused=is_fused)
    if samples and settings.prior:
        own = [value for value in model.parameters() if id(value) in cores and value.requires_grad]
        made.register_step_pre_hook(lambda *_: _add_prior_(own, 2.0 * settings.prior / samples))
    return made


@torch.no_grad()
def _add_prior_(cores: Sequence[Tensor], factor: float) -> None:
    """Adds the gradient of the prior to that of the cores."""
    for core in cores:
        if core.grad is not None:
            core.grad.add_(core, alpha=factor)
