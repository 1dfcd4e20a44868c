"""The optimizer of a stage: AdamW, with steps and weight decay relative to the size of each tensor's entries."""

from __future__ import annotations

import torch

from tnmars.models.rates import relative_rate
from tnmars.shrinking.model import Shrunk
from tnmars.shrinking.settings import Staircase


def optimizer_for(shrunk: Shrunk, settings: Staircase, share: float = 1.0) -> torch.optim.AdamW:
    """A new optimizer for all parameters of a model that require a gradient, with `share` of all rates.

    AdamW multiplies a parameter by `1 - lr * weight_decay` in each step. With a rate of `settings.rate` times the size
    of a core's entries, the weight decay is `settings.decay` over that size: so cores of any size shrink alike, and the
    loss may be scaled. Coupled decay (that of Adam) acts through the size of the gradient, and so depends on both.
    """
    own, cores = shrunk.own_parameters()
    groups = []
    for value in shrunk.model.parameters():
        if not value.requires_grad:
            continue
        is_core = id(value) in cores
        rate = relative_rate(value, settings.rate, is_core=is_core, vectors=settings.vectors)
        decay = settings.decay * settings.rate / rate if is_core else 0.0
        if settings.other_rate is not None and id(value) not in own:
            rate = settings.other_rate
        rate *= share
        groups.append({"params": [value], "lr": rate, "initial_lr": rate, "weight_decay": decay})
    is_fused = all(group["params"][0].device.type in ("cpu", "cuda") for group in groups)  # type: ignore[index]
    return torch.optim.AdamW(groups, fused=is_fused)
