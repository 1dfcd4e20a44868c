"""What the tests of whole models share: matrices at full rank, and how often a dense weight is made."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import tnmars
from tnmars import TNModule


def matrix(shape: tuple[int, ...], rank: int) -> tnmars.Graph:
    """Two cores for a matrix."""
    return tnmars.families.lowrank("linear", inputs=(shape[1],), outputs=(shape[0],), rank=rank)


def cores_of(weight: Tensor) -> dict[str, Tensor]:
    """The cores of a matrix at full rank."""
    left, values, right = torch.linalg.svd(weight.detach().double(), full_matrices=False)
    return {"A": right.T, "B": (left * values).T}


def whole_(module: nn.Module, *names: str, **settings: object) -> nn.Module:
    """The module with the weights of these names at full rank; by default all its matrices."""
    chosen = names or [name for name, value in module.named_parameters() if value.dim() == 2]
    for name in chosen:
        value = module.get_parameter(name)
        graph = matrix(value.shape, min(value.shape))
        tnmars.parametrize_(module, name, graph, cores=cores_of(value), **settings)
    return module


def pair(make, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, nn.Module]:
    """A module of torch, and the same with its matrices rebuilt from cores."""
    torch.manual_seed(0)
    plain = make().to(dtype)
    return plain, whole_(copy.deepcopy(plain))


def first(answer: object) -> Tensor:
    """The first tensor of an answer."""
    return answer if isinstance(answer, Tensor) else first(answer[0])


class Counted:
    """Counts how often a dense weight is made."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Counted:
        self.patch = pytest.MonkeyPatch()
        own = TNModule.dense

        def dense(layer: TNModule) -> Tensor:
            self.count += 1
            return own(layer)

        self.patch.setattr(TNModule, "dense", dense)
        return self

    def __exit__(self, *_: object) -> None:
        self.patch.undo()
