"""The fast path through a layer's `forward`: an ordinary input goes to the emitted code after one check.

Checks, lookups of attributes and the choice of a plan take longer than the arithmetic of a small layer. So what they
give is remembered by the shape of the input. All other inputs take the general path, which computes the same for
ordinary ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.graph import Graph
from tnmars.layer.code import Code
from tnmars.layer.cores import Cores
from tnmars.layer.kinds import kind_of
from tnmars.layer.masks import Masks
from tnmars.layer.memory import is_short, no_output
from tnmars.layer.numbers import real_dtype
from tnmars.layer.torch_state import is_eager

SHAPES = 64
"""The number of shapes whose code is remembered; those with and without gradients count as two."""

Fits = Callable[[Tensor], Tensor | None]
Places = tuple[tuple[dict[str, Any], str], ...]
"""Where parameters are: the dictionaries of modules, and the names in them."""


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


def shaped(output: Tensor, x: Tensor) -> Tensor:
    """The output for an input whose rows were computed: with the leading axes of the input."""
    return output.reshape(*x.shape[:-1], output.shape[-1])


@dataclass(frozen=True, eq=False, slots=True)
class Gating:
    """The gates of a layer: what samples them, where their logits are, and which of them some code takes."""

    masks: Masks
    holder: Cores
    places: Places
    taken: tuple[int, ...]

    @classmethod
    def of(cls, code: Code, masks: Masks, gates: Cores, bonds: Sequence[str]) -> Gating:
        return cls(masks, gates, tuple(map(gates.place, bonds)), tuple(map(bonds.index, code.gates)))

    def fits(self, modules: dict[str, Any]) -> bool:
        """Whether a layer with these modules has the same gates, and samples them."""
        return modules["masks"] is self.masks and modules["gates"] is self.holder and self.masks.is_drawn


@dataclass(frozen=True, eq=False, slots=True)
class Ready:
    """Code for inputs of one shape, and where the parameters are that it takes."""

    code: Code
    is_whole: bool
    """Whether the code runs once and its output stays: no batch is cut, no layout restored, no step planned."""
    dtype: torch.dtype
    real: torch.dtype
    """The type of the gates: that of the parts of a complex number."""
    cores: Cores
    places: Places
    own: dict[str, Any]
    """The layer's own parameters, the bias among them."""
    is_flat: bool
    """Whether the code takes the input as it is, rather than its rows."""
    gating: Gating | None = None

    @classmethod
    def of(cls, code: Code, x: Tensor, rows: Tensor, layer: nn.Module, gating: Gating | None) -> Ready:
        """The code of a layer for inputs such as `x`, of which it takes the rows."""
        cores = layer._modules["cores"]
        assert isinstance(cores, Cores)
        is_cut = bool(code.chunk) and rows.shape[0] > code.chunk
        is_whole = not is_cut and code.ready is None and code.layout is None and code.planned is None
        places = tuple(map(cores.place, code.cores))
        return cls(code, is_whole, x.dtype, real_dtype(x.dtype), cores, places, layer._parameters, rows is x, gating)

    def fits(self, layer: nn.Module) -> bool:
        """Whether a layer still has the cores, and takes all slices of its bonds."""
        return self.cores is layer._modules["cores"] and not layer.__dict__["open_only"]

    def __call__(self, x: Tensor) -> Tensor | None:
        """The output. None if torch has parametrized one of the parameters."""
        gating = self.gating
        try:
            given, bias = [held[name] for held, name in self.places], self.own["bias"]
            logits = [] if gating is None else [held[name] for held, name in gating.places]
        except KeyError:
            return None
        if gating is not None:
            gates = gating.masks(logits)
            given += [gates[at].to(self.real) for at in gating.taken]
        rows = x if self.is_flat else x.reshape(-1, x.shape[-1])
        code = self.code
        try:
            if not self.is_whole:
                output = code.compute((rows,), bias, given)
            else:
                parts = code.fold(*given)
                output = code.run(rows, *parts) if bias is None else code.run(rows, bias, *parts)
        except RuntimeError as error:
            if not is_short(error):
                raise
            raise no_output(error, (x,)) from error
        return output if self.is_flat else shaped(output, x)


class Recent(dict[tuple[torch.Size, bool], Ready]):
    """The code that was used for recent shapes of inputs, with and without gradients."""

    def remember(self, key: tuple[torch.Size, bool], ready: Ready) -> Ready:
        if len(self) >= SHAPES:
            self.clear()
        self[key] = ready
        return ready
