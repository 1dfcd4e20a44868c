"""A graph with numbers: cores as plain float64 tensors, the value of the whole, and what it becomes when it is cut.

Everything here works on the modes as axes, in the graph's order, whatever the kind of the layer. Contractions are
planned once for each set of sizes and kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import opt_einsum
import torch
from torch import Tensor

from tnmars.graph import Graph
from tnmars.graph.rewrite import Keep, prune
from tnmars.layer.init import deviations
from tnmars.pruning.follow import cores_after

Labels = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Network:
    """A graph, its cores by qualified name, and for each bond the name that it had in the graph it all began with."""

    graph: Graph
    cores: Mapping[str, Tensor]
    names: Mapping[str, str]

    @property
    def parameters(self) -> int:
        return sum(core.numel() for core in self.cores.values())

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each bond that is left, by its first name."""
        return {self.names[name]: bond.size for name, bond in self.graph.bonds.items()}

    def cut(self, keep: Keep) -> Network:
        """With only the kept slices; a term of which a bond keeps none is removed."""
        rewrite = prune(self.graph, keep)
        names = {now: self.names[was] for now, was in rewrite.bonds}
        return Network(rewrite.graph, cores_after(rewrite, self.cores), names)

    def with_cores(self, cores: Mapping[str, Tensor]) -> Network:
        return replace(self, cores=dict(cores))


def random_network(graph: Graph, random: torch.Generator, names: Mapping[str, str] | None = None) -> Network:
    """A network of unit variance, its cores normal."""
    scale = deviations(graph, 1.0)
    cores = {
        name: torch.randn(shape, generator=random, dtype=torch.float64) * scale[name]
        for name, shape in graph.cores.items()
    }
    return Network(graph, cores, names or {name: name for name in graph.bonds})


def labels(graph: Graph) -> list[dict[str, Labels]]:
    """For each term, the labels of its cores by qualified name: modes by name, bonds by qualified name after a `:`."""
    found = []
    for term in graph.terms:
        bonds = {bond.name: f":{graph.qualified(term, bond.name)}" for bond in term.bonds}
        found.append(
            {
                graph.qualified(term, core.name): tuple(bonds.get(edge, edge) for edge in core.edges)
                for core in term.cores
            }
        )
    return found


def dense(graph: Graph, cores: Mapping[str, Tensor]) -> Tensor:
    """The whole tensor, one axis per mode."""
    modes = tuple(mode.name for mode in graph.modes)
    total: Tensor | None = None
    for term in labels(graph):
        value = contract([term[name] for name in term], modes, [cores[name] for name in term])
        total = value if total is None else total + value
    if total is None:
        return torch.zeros([mode.size for mode in graph.modes], dtype=torch.float64)
    return total


def contract(inputs: Sequence[Labels], output: Labels, values: Sequence[Tensor]) -> Tensor:
    """The product of tensors, summed over the labels that the output does not have."""
    shapes = tuple(tuple(value.shape) for value in values)
    run = _planned(tuple(inputs), tuple(output), shapes)
    found: Tensor = run(*values, backend="torch")
    return found


@lru_cache(maxsize=8192)
def _planned(inputs: tuple[Labels, ...], output: Labels, shapes: tuple[tuple[int, ...], ...]) -> Any:
    letters = {label: opt_einsum.get_symbol(at) for at, label in enumerate(dict.fromkeys(sum((*inputs, output), ())))}
    equation = ",".join("".join(letters[label] for label in each) for each in inputs)
    equation += "->" + "".join(letters[label] for label in output)
    rough = tuple(tuple(2 ** (size - 1).bit_length() for size in shape) for shape in shapes)
    return opt_einsum.contract_expression(equation, *shapes, optimize=_path(equation, rough))


@lru_cache(maxsize=8192)
def _path(equation: str, shapes: tuple[tuple[int, ...], ...]) -> Any:
    """An order of contraction, for sizes rounded to powers of 2: the search takes longer than most contractions."""
    return opt_einsum.contract_path(equation, *shapes, shapes=True, optimize="auto")[0]
