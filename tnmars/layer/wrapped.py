"""Models inside torch's wrappers: DDP, FSDP, `torch.compile`, activation checkpoints, averaged models."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

WRAPPERS = (DataParallel, DistributedDataParallel, AveragedModel)
"""Wrappers that hold a model as `module`; a module of the user's own may have that name too."""
WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""The names that torch's other wrappers hold a model under."""


def unwrapped(model: nn.Module, name: str) -> str:
    """The name that a module of a model would have if neither the model nor a part of it were wrapped.

    >>> unwrapped(DataParallel(nn.Sequential(nn.ReLU())), "module.0")
    '0'
    """
    kept: list[str] = []
    owner: nn.Module | None = model
    for part in name.split(".") if name else []:
        assert owner is not None
        if not _is_wrapper(owner, part):
            kept.append(part)
        owner = owner._modules[part]
    return ".".join(kept)


def innermost(model: nn.Module) -> nn.Module:
    """The model inside all wrappers, in whatever order they were put around it.

    >>> innermost(DataParallel(DataParallel(nn.ReLU())))
    ReLU()
    """
    inner = [part for name, part in model._modules.items() if part is not None and _is_wrapper(model, name)]
    return innermost(inner[0]) if inner else model


def _is_wrapper(owner: nn.Module, part: str) -> bool:
    """Whether a module only wraps the module that it has under this name."""
    return part in WRAPPED or (part == "module" and isinstance(owner, WRAPPERS))
