"""The gates of a layer multiplied into its cores, as values: what the `Scale` instructions of a program do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tnmars.graph import Graph
from tnmars.program.gating import homes


@dataclass(frozen=True)
class Scaled:
    """A core and the gates that scale it: for each its number, and the shape to spread it over the core."""

    core: str
    gates: tuple[tuple[int, tuple[int, ...]], ...]


@lru_cache(maxsize=512)
def scalings(graph: Graph) -> tuple[Scaled, ...]:
    """The cores of a graph that are scaled."""
    number = {name: at for at, name in enumerate(graph.bonds)}
    found = []
    for core, bonds in homes(graph).items():
        edges = graph.edges_of(core)
        gates = []
        for edge, bond in bonds:
            shape = tuple(-1 if axis == edge else 1 for axis in edges)
            gates.append((number[bond], shape))
        found.append(Scaled(core, tuple(gates)))
    return tuple(found)


def is_plain() -> bool:
    """Whether torch runs as it is: not traced, not under functorch, without forward-mode derivatives."""
    return not (
        torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    )


def scaled(entries: Sequence[Scaled], gates: Mapping[str, Tensor], cores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The cores with given gates multiplied in, in operations of torch alone."""
    parts = list(gates.values())
    return {**cores, **{entry.core: _scaled(cores[entry.core], entry, parts) for entry in entries}}


def _scaled(value: Tensor, entry: Scaled, parts: Sequence[Tensor]) -> Tensor:
    """A value of a core's shape times the core's gates, which are multiplied with each other first."""
    factor: Tensor | None = None
    for gate, shape in entry.gates:
        spread = parts[gate].reshape(shape)
        factor = spread if factor is None else factor * spread
    return value if factor is None else value * factor
