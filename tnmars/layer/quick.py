"""The fast path through a layer's `forward`: an ordinary input goes to the emitted code after one check.

Checks, lookups of attributes and the choice of a plan take longer than the arithmetic of a small layer. All other
inputs take the general path, which computes the same for ordinary ones.
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
from tnmars.layer.memory import is_short, no_output
from tnmars.layer.torch_state import is_eager

BATCHES = 32
"""The number of batch sizes whose code is remembered, with and without gradients."""

Fits = Callable[[Tensor], Tensor | None]


def fitting(graph: Graph) -> Fits | None:
    """From an input to what the emitted code takes, or None if its shape does not fit; see `LayerKind.fitting`."""
    make = kind_of(graph).fitting
    return None if make is None else make(graph)


def ordinary(x: Tensor, fits: Fits | None, dtype: torch.dtype) -> Tensor | None:
    """What the emitted code takes for an ordinary input: a plain tensor of the layer's dtype, whose shape fits.

    None for any other input, and while torch traces or chooses dtypes.
    """
    if fits is None or type(x) is not Tensor or x.dtype is not dtype or not is_eager():
        return None
    return fits(x)


def shaped(output: Tensor, x: Tensor, rows: Tensor) -> Tensor:
    """The output for an input whose rows were computed: with the leading axes of the input."""
    return output if rows is x else output.reshape(*x.shape[:-1], output.shape[-1])


@dataclass(frozen=True, eq=False)
class Ready:
    """Code, and where the parameters are that it takes: the dictionaries of modules, and the names in them."""

    code: Code
    cores: Cores
    places: tuple[tuple[dict[str, Any], str], ...]

    @classmethod
    def of(cls, code: Code, cores: Cores) -> Ready:
        return cls(code, cores, tuple(map(cores.place, code.cores)))

    def run(self, rows: Tensor, own: dict[str, Any]) -> Tensor | None:
        """The output, with the bias among a layer's own parameters. None if torch has parametrized one of them."""
        try:
            given, bias = [held[name] for held, name in self.places], own["bias"]
        except KeyError:
            return None
        try:
            return self.code((rows,), bias, self.code.fold(*given))
        except RuntimeError as error:
            if not is_short(error):
                raise
            raise no_output(error, (rows,)) from error


class Recent(dict[tuple[int, bool], Ready]):
    """The code that was used for recent batch sizes, with and without gradients."""

    def remember(self, key: tuple[int, bool], ready: Ready) -> Ready:
        if len(self) >= 2 * BATCHES:
            self.clear()
        self[key] = ready
        return ready
