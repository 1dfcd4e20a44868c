"""Weights that several layers share: decomposed once, so that they stay shared.

Layers of one kind share all cores. A table and a linear layer that share one matrix, as the embedding and the output
layer of a language model do, share the cores of one graph, read with the roles of inputs and outputs exchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tnmars.graph import Edge, Graph
from tnmars.graph.kinds import Role
from tnmars.models.rules import Candidate
from tnmars.models.sites import Site
from tnmars.models.torch_layers import DenseLayer


@dataclass(eq=False)
class Group:
    """The places that share one weight; the first one decides how it is decomposed."""

    sites: list[Site]
    candidates: list[Candidate] = field(default_factory=list)
    reason: str = ""
    """Why it stays dense, if it has no candidates."""
    rule: str = ""

    @property
    def first(self) -> Site:
        return self.sites[0]

    @property
    def name(self) -> str:
        return self.first.name


def grouped(found: Iterable[Site]) -> list[Group]:
    """The places of a model by the weight that they share."""
    groups: dict[int, Group] = {}
    for site in found:
        groups.setdefault(id(site.layer.weight), Group([])).sites.append(site)
    for group in groups.values():  # a table decides over the layer that shares its rows
        group.sites.sort(key=lambda site: site.layer.kind != "embedding")
    return list(groups.values())


def problem(sites: Sequence[Site]) -> str:
    """Why places that share a weight cannot be decomposed together; empty if they can."""
    first = sites[0]
    for site in sites[1:]:
        if not (site.is_layer and first.is_layer):
            return f"its weight is shared with '{site.name}', which uses it directly"
        if site.layer.kind != first.layer.kind and {site.layer.kind, first.layer.kind} != {"linear", "embedding"}:
            return f"its weight is shared with '{site.name}', a layer of another kind"
        if site.layer.kernel and site.layer.kernel != first.layer.kernel:
            return f"its weight is shared with '{site.name}', which has another kernel"
    return ""


def seen_by(graph: Graph, layer: DenseLayer) -> Graph:
    """The graph of a shared weight as another layer that has it sees it: the same cores, its own options."""
    options = tuple(layer.options.items())
    if graph.kind == layer.kind:
        return Graph(
            graph.kind, graph.modes, graph.terms, graph.shared, graph.features, graph.kernel_size, options=options
        )
    roles = (
        {Role.LOOKUP: Role.OUT, Role.OUT: Role.IN}
        if graph.kind == "embedding"
        else {Role.OUT: Role.LOOKUP, Role.IN: Role.OUT}
    )
    modes = tuple(Edge(mode.name, mode.size, roles[mode.role]) for mode in graph.modes)
    features = tuple((roles[role], size) for role, size in graph.features)
    return Graph(layer.kind, modes, graph.terms, graph.shared, features, options=options)
