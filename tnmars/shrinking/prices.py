"""What a model costs, for any ranks of its compiled layers: parameters, bytes, multiply-adds and predicted time.

Costs are those of the whole model. Parts that are not compiled cost the same whatever the ranks are.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod

import torch
from torch import nn

from tnmars.graph import Graph
from tnmars.graph.rewrite import drop_ones, prune
from tnmars.layer.distributed import from_first_rank
from tnmars.layer.module import TNModule
from tnmars.models.costs import Cost
from tnmars.models.data import Batch
from tnmars.models.usage import Use, one_pass
from tnmars.plan.layout import Weighing
from tnmars.program.candidates import weight_forms
from tnmars.program.choice import choose, choose_frozen
from tnmars.program.expected import evaluate, mac_terms
from tnmars.program.explain import explain
from tnmars.program.form import Form, estimate, measure, total

Sizes = Mapping[str, int]
"""The size of each bond of a layer; a term with an empty bond is gone."""


class Prices:
    """What the layers of a model cost for any ranks, and what everything else costs.

    `batch` is a batch of inputs: multiply-adds and times are those of one pass over it. Without one they are those of
    the compiled layers alone, for the batch that each is planned for. With `is_timed` the parts that are not compiled
    are timed, unless `rest_ms` gives their milliseconds.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Mapping[str, TNModule],
        batch: Batch | None = None,
        *,
        is_timed: bool = False,
        rest_ms: float | None = None,
    ):
        self.layers = dict(layers)
        self.item = max(layer.dtype.itemsize for layer in self.layers.values())
        self.uses = {name: Use(layer.nominal, layer.planner.image, 1) for name, layer in self.layers.items()}
        macs, ms = 0, 0.0
        if batch is not None:
            seen = one_pass(model, batch, self.layers, is_timed=is_timed and rest_ms is None)
            self.uses = {name: _use(layer, seen.uses[name]) for name, layer in self.layers.items()}
            macs = max(seen.macs - sum(use.macs for use in seen.uses.values()), 0)
            ms = max((seen.ms or 0.0) - sum(use.ms or 0.0 for use in seen.uses.values()), 0.0)
            ms = float(from_first_rank(torch.tensor(ms, dtype=torch.float64)))  # it is measured: ranks must agree
            ms = ms if rest_ms is None else rest_ms
        own = {id(value) for layer in self.layers.values() for value in layer.parameters()}
        others = [value for value in model.parameters() if id(value) not in own]
        self.rest = Cost(sum(value.numel() for value in others), macs, ms)
        self.rest_bytes = sum(value.numel() * value.element_size() for value in others)
        self._known: dict[tuple[str, Graph], Cost] = {}
        self._forms: dict[tuple[str, Graph], Form] = {}

    def layer(self, name: str, graph: Graph) -> Cost:
        """The cost of a layer with another graph, once it is planned again. Its bias counts."""
        if (name, graph) not in self._known:
            macs, ms = self._planned(name, graph)
            calls = self.uses[name].calls
            self._known[name, graph] = Cost(self._numbers(graph), calls * macs, calls * ms)
        return self._known[name, graph]

    def _numbers(self, graph: Graph) -> int:
        return sum(map(prod, graph.cores.values())) + (graph.out_features if graph.has_bias else 0)

    def _planned(self, name: str, graph: Graph) -> tuple[int, float]:
        """Multiply-adds and milliseconds of a call."""
        if not graph.terms:
            return 0, 0.0
        layer, use = self.layers[name], self.uses[name]
        form, planner = self._form(name, graph), layer.planner
        if use.rows == 0:
            return total(measure(form, batch=1)).macs, 1e3 * estimate(form, planner.model)
        frozen = choose_frozen(
            graph, use.rows, planner.model, inf, use.image, planner.optimizer, channels_last=planner.channels_last
        )[0]
        return total(measure(form, batch=use.rows)).macs, 1e3 * frozen.cost

    def _form(self, name: str, graph: Graph) -> Form:
        planner, use = self.layers[name].planner, self.uses[name]
        weighing = Weighing(planner.model, channels_last=planner.channels_last)
        if (name, graph) not in self._forms:
            self._forms[name, graph] = (
                choose(graph, use.rows, weighing, use.image, planner.optimizer)[0]
                if use.rows
                else weight_forms(graph, weighing, planner.optimizer)[0]
            )
        return self._forms[name, graph]

    def whole(self, graphs: Mapping[str, Graph]) -> Cost:
        """The cost of the whole model with these graphs."""
        costs = [self.rest, *(self.layer(name, graph) for name, graph in graphs.items())]
        return Cost(
            sum(cost.parameters for cost in costs), sum(cost.macs for cost in costs), sum(cost.ms for cost in costs)
        )

    def dense(self, graphs: Mapping[str, Graph]) -> Cost:
        """The cost of the whole model if the weights of these graphs were dense."""
        parameters, macs, ms = self.rest.parameters, self.rest.macs, self.rest.ms
        for name, graph in graphs.items():
            parameters += prod(graph.dense_shape) + (graph.out_features if graph.has_bias else 0)
            use = self.uses[name]
            if use.rows and graph.terms:
                form = self._form(name, graph)
                explained = explain(graph, form, use.rows, self.layers[name].planner.model, image=use.image)
                macs += use.calls * explained.dense_macs
                ms += use.calls * 1e3 * explained.dense_seconds
        return Cost(parameters, macs, ms)

    def of(self, cost: Cost, unit: str) -> float:
        """A cost of the whole model in a unit."""
        if unit == "bytes":
            return float(self.item * (cost.parameters - self.rest.parameters) + self.rest_bytes)
        return cost.of(unit, self.item)

    def compiled(self, graphs: Mapping[str, Graph]) -> int:
        """The parameters of the compiled layers, with their biases."""
        return sum(self._numbers(graph) for graph in graphs.values())

    def weight(self, name: str, graph: Graph, sizes: Sizes, unit: str) -> float:
        """What slices compete for: the parameters of a layer, or its multiply-adds as it is planned for `graph`."""
        if unit in ("macs", "ms"):
            terms = mac_terms(graph, self._form(name, graph), max(self.uses[name].rows, 1))
            return float(self.uses[name].calls * evaluate(terms, sizes))
        return float(parameters(graph, sizes) + (graph.out_features if graph.has_bias else 0))


def _use(layer: TNModule, seen: Use) -> Use:
    """How a pass uses a layer; no rows if it only gives its weight."""
    if layer.is_rebuilt or layer.graph.kind == "tensor":
        return Use(0, 1, max(seen.calls, 1))
    return Use(max(seen.rows, 1), max(seen.image, 1), max(seen.calls, 1))


def parameters(graph: Graph, sizes: Sizes) -> int:
    """The numbers that the cores of a graph hold for other sizes of its bonds, without terms that are gone.

    >>> import tnmars
    >>> parameters(tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=4), {"r": 2})
    22
    """
    held: dict[str, int] = {}
    for term in graph.terms:
        own = {bond.name: sizes[graph.bond_name(term, bond.name)] for bond in term.bonds}
        if all(own.values()):
            every = {**graph.sizes(term), **own}
            for core in term.cores:
                held[graph.nodes[graph.qualified(term, core.name)]] = prod(every[edge] for edge in core.edges)
    return sum(held.values())


def resized(graph: Graph, sizes: Sizes) -> Graph:
    """The graph with bonds cut to some sizes, without bonds of size 1."""
    return drop_ones(prune(graph, {bond: tuple(range(size)) for bond, size in sizes.items()}).graph).graph
