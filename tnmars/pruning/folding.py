"""Gates at a cut: the values that kept gates have in `eval()`, as factors of the cores that carry their bonds.

Each gate goes into the same core as in the forward pass, the smallest one that carries its bond, and into no other.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph
from tnmars.graph.rewrite import Keep
from tnmars.layer.distributed import whole
from tnmars.layer.module import TNModule
from tnmars.layer.numbers import real_dtype
from tnmars.program.gating import homes

CLOSED = 1e-16
"""A gate below this counts as closed: what an optimizer noted about its slice cannot be scaled and is set to 0."""


@torch.no_grad()
def fold_factors(layer: TNModule, kept: Keep, shut: Keep) -> dict[str, Tensor]:
    """What a cut multiplies cores by, with an axis of size 1 for every mode; cores that stay the same are left out.

    The factor of a slice that is dropped is 1, that of one that is kept although it is shut is 0.
    """
    if layer.masks is None:
        return {}
    graph = layer.graph
    rounded = layer.masks.rounded([whole(logits) for logits in layer.logits()])
    gates: dict[str, Tensor] = {}
    for (name, edge), values in zip(graph.bonds.items(), rounded, strict=True):
        is_dropped = torch.ones(edge.size, dtype=torch.bool, device=values.device)
        is_dropped[list(kept.get(name, range(edge.size)))] = False
        gates[name] = values.to(real_dtype(layer.dtype)).masked_fill(is_dropped, 1.0)
        gates[name][list(shut.get(name, ()))] = 0.0
    factors: dict[str, Tensor] = {}
    for (core, axis), (bond, power) in _places(graph).items():
        if not bool((gates[bond] == 1.0).all()):
            if power == 0.0 and not bool(((gates[bond] == 0.0) | (gates[bond] == 1.0)).all()):
                text = f"bonds that tied cores make one with '{bond}' have different numbers of ends, so their gates"
                fix = "Use a selector whose kept gates are 1, such as GaussianGates(fold=False), or keep_gates=True."
                raise TnmarsError(Problem(f"{text} cannot be multiplied into the cores. Nothing was changed.", fix))
            along = [-1 if at == axis else 1 for at in range(len(graph.cores[core]))]
            factor = (gates[bond] if power in (0.0, 1.0) else gates[bond].pow(power)).reshape(along)
            factors[core] = factors[core] * factor if core in factors else factor
    return factors


def _places(graph: Graph) -> dict[tuple[str, int], tuple[str, float]]:
    """The axes of cores that a cut multiplies by gates: core and axis, with the gate's bond and its power.

    A core in several places is multiplied in all of them. So in a graph with tied cores all ends of a bond take a root
    of its gate. The power is 0 if that cannot be, because bonds with one gate have different numbers of ends:
    only gates of 0 and 1, whose roots are themselves, can be multiplied then.
    """
    if len(graph.nodes) == len(graph.cores):
        return {
            (core, graph.edges_of(core).index(name.rpartition(".")[2])): (bond, 1.0)
            for core, held in homes(graph).items()
            for name, bond in held
        }
    ends: dict[str, set[int]] = {}
    for term in graph.terms:
        for bond in term.bonds:
            ends.setdefault(graph.bond_name(term, bond.name), set()).add(len(term.ends()[bond.name]))
    return {
        (core, axis): (bond, 1.0 / min(ends[bond]) if len(ends[bond]) == 1 else 0.0)
        for core in graph.cores
        for axis, bond in enumerate(graph.bonds_of(core))
        if bond
    }


def folded(cores: Mapping[str, Tensor], factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Cores times their factors."""
    return {name: core * factors[name] if name in factors else core for name, core in cores.items()}


def unfolded(value: Tensor, factor: Tensor | None, power: int) -> Tensor:
    """A value of a core's shape over a power of the core's factor; 0 where the factor is.

    >>> unfolded(torch.tensor([[8.0, 3.0]]), torch.tensor([[0.5, 0.0]]), 2).tolist()
    [[32.0, 0.0]]
    """
    if factor is None:
        return value
    is_open = factor > CLOSED
    safe = torch.where(is_open, factor, torch.ones_like(factor))
    for _ in range(power):
        value = value / safe
    return torch.where(is_open, value, torch.zeros_like(value))
