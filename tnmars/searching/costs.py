"""What graphs cost for any sizes of their bonds, in the unit of a budget: parameters, bytes or multiply-adds.

Only weights count, not biases. Multiply-adds are those of each layer as `tnmars.compile` plans it for a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from math import prod

import torch

from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph
from tnmars.graph.rewrite import prune
from tnmars.layer.numbers import dtype_name
from tnmars.models.budget import Budget
from tnmars.plan.cost import CostModel, machine_model
from tnmars.plan.layout import Weighing
from tnmars.program.candidates import weight_forms
from tnmars.program.choice import choose
from tnmars.program.expected import parameter_terms
from tnmars.program.explain import explain
from tnmars.program.form import measure, total

Graphs = Mapping[str, Graph]
"""Graphs by name; a single graph has an empty name."""
Sizes = tuple[int, ...]
"""The size of each bond of all graphs, in their order."""
Cost = Callable[[Sizes], float]

UNITS = ("parameters", "bytes", "macs")


def named(graphs: Graphs, sizes: Sizes) -> dict[str, dict[str, int]]:
    """For each graph the sizes of its bonds by name.

    >>> from tnmars import families
    >>> named({"": families.tt("tensor", free=(3, 4, 5), rank=4)}, (2, 3))
    {'': {'r1': 2, 'r2': 3}}
    """
    each = iter(sizes)
    return {name: {bond: next(each) for bond in graph.bonds} for name, graph in graphs.items()}


def resized(graph: Graph, ranks: Mapping[str, int]) -> Graph:
    """The graph with smaller bonds. Bonds of size 1 stay.

    >>> from tnmars import families
    >>> resized(families.tt("tensor", free=(3, 4, 5), rank=4), {"r1": 1, "r2": 3}).cores
    mappingproxy({'G1': (3, 1), 'G2': (1, 4, 3), 'G3': (3, 5)})
    """
    return prune(graph, {bond: tuple(range(size)) for bond, size in ranks.items()}).graph


def cost_of(graphs: Graphs, unit: str, batch: int, image: int) -> Cost:
    """The cost of all graphs together, as a function of the sizes of their bonds.

    >>> from tnmars import families
    >>> cost_of({"": families.tt("tensor", free=(3, 4, 5), rank=4)}, "parameters", 1, 1)((2, 3))
    45
    """
    if unit == "macs":
        return _macs_of(graphs, batch, image)
    item = _item() if unit == "bytes" else 1
    bonds = [(name, bond) for name, graph in graphs.items() for bond in graph.bonds]
    place = {each: at for at, each in enumerate(bonds)}
    terms = [
        (item * factor, [place[name, bond] for bond in own])
        for name, graph in graphs.items()
        for factor, own in parameter_terms(graph)
    ]
    return lambda sizes: sum(factor * prod(sizes[at] for at in places) for factor, places in terms)


def dense_cost(graphs: Graphs, unit: str, batch: int, image: int) -> int:
    """What the dense weights cost, in a unit. Padding does not count."""
    if unit != "macs":
        numbers = sum(prod(graph.dense_shape) for graph in graphs.values())
        return numbers * (_item() if unit == "bytes" else 1)
    return sum(_dense_macs(graph, batch, image) for graph in graphs.values())


def limit_of(budget: Budget, graphs: Graphs, batch: int, image: int) -> float:
    """The largest cost that a budget allows. Raises `TnmarsError` for units that ranks are not searched in."""
    if budget.unit not in UNITS:
        text = f"the budget of {budget} is a time, but ranks are searched by parameters, bytes or macs."
        raise TnmarsError(Problem(text, "Give a size such as '4x', 250000, '1.5 MB' or '2x macs'. Nothing was scored."))
    dense = dense_cost(graphs, budget.unit, batch, image)
    if budget.is_ratio and not dense:
        text = f"the budget of {budget} has no meaning: dense, the weight has no {budget.unit}. Nothing was scored."
        raise TnmarsError(Problem(text, f"Give a ratio of parameters: '{budget.amount:g}x'."))
    return budget.limit(dense)


def _machine(graph: Graph) -> CostModel:
    """The cost model of this machine for the numbers that the layer of a graph will have."""
    dtype = torch.get_default_dtype()
    if graph.conjugated:
        dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
    return machine_model().for_numbers(dtype_name(dtype))


def _item() -> int:
    """The bytes of a number."""
    return torch.get_default_dtype().itemsize


def _macs_of(graphs: Graphs, batch: int, image: int) -> Cost:
    """The multiply-adds of all graphs, as a function of sizes. A graph is planned once for each of its own sizes."""

    @cache
    def one(name: str, own: Sizes) -> int:
        graph = graphs[name]
        weighing = Weighing(_machine(graph))
        return _macs(resized(graph, dict(zip(graph.bonds, own, strict=True))), weighing, batch, image)

    return lambda sizes: sum(one(name, tuple(ranks.values())) for name, ranks in named(graphs, sizes).items())


def _macs(graph: Graph, weighing: Weighing, batch: int, image: int) -> int:
    """The multiply-adds of a graph; a plain tensor has those that make the weight."""
    if graph.kind == "tensor":
        return total(measure(weight_forms(graph, weighing)[0], batch=1)).macs
    return total(measure(choose(graph, batch, weighing, image)[0], batch=batch)).macs


def _dense_macs(graph: Graph, batch: int, image: int) -> int:
    if graph.kind == "tensor":
        return 0
    model = _machine(graph)
    form = choose(graph, batch, Weighing(model), image)[0]
    return explain(graph, form, batch, model, image=image).dense_macs
