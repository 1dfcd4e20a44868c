"""The short way through a layer's `forward`: an ordinary input goes to the emitted code after one check.

Checks, lookups of attributes and the choice of a plan take longer than the arithmetic of a small layer. All other
inputs take the general way, which computes the same for ordinary ones too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tnmars.graph import Graph
from tnmars.layer.code import Code
from tnmars.layer.cores import Cores
from tnmars.layer.kinds import kind_of

BATCHES = 32
"""The number of batch sizes whose code is remembered, with and without gradients."""

Fits = Callable[[Tensor], bool]


def fitting(graph: Graph) -> Fits | None:
    """The test of a kind for shapes that its emitted code takes as they are; None if it has no such shapes."""
    make = kind_of(graph).fitting
    return None if make is None else make(graph)


def is_ordinary(x: Tensor, fits: Fits | None, dtype: torch.dtype) -> bool:
    """Whether an input needs no preparation: a plain tensor of the layer's dtype, with a shape that fits."""
    return (
        fits is not None
        and type(x) is Tensor
        and not torch.compiler.is_compiling()
        and x.dtype is dtype
        and fits(x)
        and not torch.is_autocast_enabled(x.device.type)
    )


@dataclass(frozen=True, eq=False)
class Ready:
    """Code, and where the parameters are that it takes: the dictionaries of modules, and the names in them."""

    code: Code
    cores: Cores
    places: tuple[tuple[dict[str, Any], str], ...]

    @classmethod
    def of(cls, code: Code, cores: Cores) -> Ready:
        return cls(code, cores, tuple(map(cores.place, code.cores)))

    def run(self, inputs: tuple[Tensor, ...], own: dict[str, Any]) -> Tensor | None:
        """The output, with the bias among a layer's own parameters. None if torch has parametrized one of them."""
        try:
            given, bias = [held[name] for held, name in self.places], own["bias"]
        except KeyError:
            return None
        return self.code(inputs, bias, self.code.fold(*given))


class Recent(dict[tuple[int, bool], Ready]):
    """What is ready for some batches, with and without gradients."""

    def remember(self, key: tuple[int, bool], ready: Ready) -> Ready:
        if len(self) >= 2 * BATCHES:
            self.clear()
        self[key] = ready
        return ready
