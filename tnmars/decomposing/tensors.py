"""A graph with values for its cores: the tensor it stands for, and what it becomes when bonds are cut.

Everything here works on the modes as axes, in the graph's order, whatever the layer's kind. The compiler is not used:
fitting computes with the most digits and changes the sizes at every step, while a compiled layer pays off when one
program runs many times. Contraction orders are found by opt_einsum and cached by size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import opt_einsum
import torch
from torch import Tensor

from tnmars.decomposing.rewritten import cores_after
from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph
from tnmars.graph.rewrite import Keep, prune
from tnmars.layer.init import deviations
from tnmars.layer.open_slices import resized

Labels = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Decomposition:
    """A graph, its cores by qualified name, and each bond's name in the graph that the fit started from."""

    graph: Graph
    cores: Mapping[str, Tensor]
    names: Mapping[str, str]

    @property
    def parameters(self) -> int:
        return sum(core.numel() for core in self.cores.values())

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the remaining bonds, by their names in the first graph."""
        return {self.names[name]: bond.size for name, bond in self.graph.bonds.items()}

    def cut(self, keep: Keep) -> Decomposition:
        """The decomposition with only the kept slices. A term is removed when one of its bonds keeps no slice."""
        rewrite = prune(self.graph, keep)
        names = {now: self.names[was] for now, was in rewrite.bonds}
        return Decomposition(rewrite.graph, cores_after(rewrite, self.cores), names)

    def with_cores(self, cores: Mapping[str, Tensor]) -> Decomposition:
        return replace(self, cores=dict(cores))


def random_decomposition(
    graph: Graph,
    random: torch.Generator,
    names: Mapping[str, str] | None = None,
    dtype: torch.dtype = torch.float64,
) -> Decomposition:
    """A decomposition with normally distributed cores, whose tensor has unit variance."""
    scale = deviations(graph, 1.0)
    cores = {
        name: torch.randn(shape, generator=random, dtype=dtype) * scale[name] for name, shape in graph.cores.items()
    }
    return Decomposition(graph, cores, names or {name: name for name in graph.bonds})


def check_plain(graph: Graph, what: str) -> None:
    """Raises `TnmarsError` if a graph has tied cores or traces, for what needs a tensor of its own for every core."""
    if not graph.is_plain:
        has = "tied cores" if len(graph.nodes) > len(graph.cores) else "a trace"
        text = f"the graph has {has}, and {what} needs a tensor of its own, without a trace, for every core."
        raise TnmarsError(Problem(text, "Train the cores by gradients instead: compile the graph and optimize it."))


def with_sizes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph with other sizes of some bonds."""
    return resized(graph, {**{name: bond.size for name, bond in graph.bonds.items()}, **sizes})


def labels(graph: Graph) -> list[dict[str, Labels]]:
    """For each term, the labels of its cores: a mode is its name, a bond is its qualified name after a `:`."""
    terms = []
    for term in graph.terms:
        bonds = {bond.name: f":{graph.qualified(term, bond.name)}" for bond in term.bonds}
        terms.append(
            {
                graph.qualified(term, core.name): tuple(bonds.get(edge, edge) for edge in core.edges)
                for core in term.cores
            }
        )
    return terms


def dense(graph: Graph, cores: Mapping[str, Tensor]) -> Tensor:
    """The full tensor, one axis per mode."""
    modes = tuple(mode.name for mode in graph.modes)
    total: Tensor | None = None
    for term in labels(graph):
        used = [cores[name].conj() if name in graph.conjugated else cores[name] for name in term]
        value = contract([term[name] for name in term], modes, used)
        total = value if total is None else total + value
    if total is None:
        return torch.zeros([mode.size for mode in graph.modes], dtype=torch.float64)
    return total


def conjugates(cores: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """The cores, those with these names conjugate."""
    return {name: core.conj().resolve_conj() if name in names else core for name, core in cores.items()}


def inner(first: Tensor, second: Tensor) -> float:
    """The real part of the inner product of two tensors."""
    return float((first.conj() * second).real.sum())


def balanced(graph: Graph, cores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The cores with equal root mean squares within each term; the weight is the same."""
    after = dict(cores)
    for term in graph.terms:
        names = [graph.qualified(term, core.name) for core in term.cores]
        norms = [float(cores[name].norm()) / cores[name].numel() ** 0.5 for name in names]
        common = prod(norms) ** (1 / len(norms)) if min(norms) > 0.0 else 0.0
        for name, norm in zip(names, norms, strict=True):
            after[name] = cores[name] * (common / norm if common else 1.0)
    return after


def contract(inputs: Sequence[Labels], output: Labels, values: Sequence[Tensor]) -> Tensor:
    """The product of tensors, summed over the labels that the output does not have."""
    shapes = tuple(tuple(value.shape) for value in values)
    result: Tensor = _expression(tuple(inputs), tuple(output), shapes)(*values, backend="torch")
    return result


@lru_cache(maxsize=8192)
def _expression(inputs: tuple[Labels, ...], output: Labels, shapes: tuple[tuple[int, ...], ...]) -> Any:
    letters = {label: opt_einsum.get_symbol(at) for at, label in enumerate(dict.fromkeys(sum((*inputs, output), ())))}
    equation = ",".join("".join(letters[label] for label in each) for each in inputs)
    equation += "->" + "".join(letters[label] for label in output)
    rough = tuple(tuple(2 ** (size - 1).bit_length() for size in shape) for shape in shapes)
    return opt_einsum.contract_expression(equation, *shapes, optimize=_path(equation, rough))


@lru_cache(maxsize=8192)
def _path(equation: str, shapes: tuple[tuple[int, ...], ...]) -> Any:
    """A contraction order for sizes rounded up to powers of 2; finding it takes longer than most contractions."""
    return opt_einsum.contract_path(equation, *shapes, shapes=True, optimize="auto")[0]
