"""What the weights of a model cost, dense and decomposed, in the unit of a budget: parameters, bytes, MACs or time.

MACs and times are those of a layer's own plan, for the batch and the image that the layer met in the data. Times are
of frozen layers, as the cost model of this machine predicts them, or as they are measured with `tune`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tnmars.graph import Graph
from tnmars.layer.forward import dense_layer, example_inputs
from tnmars.layer.module import code
from tnmars.models.curves import Choice
from tnmars.models.data import Batch, call, device_of
from tnmars.models.sites import Site
from tnmars.plan.cost import CostModel
from tnmars.plan.layout import Weighing
from tnmars.program.choice import choose, choose_frozen
from tnmars.program.explain import explain
from tnmars.program.form import Form, measure, total
from tnmars.timing.clock import in_turns, inference

SAMPLES = 12
"""How many points of a curve are planned; between them costs are interpolated."""


@dataclass(frozen=True)
class Cost:
    """What a weight costs."""

    parameters: int
    macs: int
    ms: float

    def of(self, unit: str, item: int) -> float:
        """The cost in a unit; `item` is the size of a number in bytes."""
        own = {"parameters": self.parameters, "bytes": item * self.parameters, "macs": self.macs, "ms": self.ms}
        return float(own[unit])


@dataclass(frozen=True, eq=False)
class Setting:
    """How a layer is used: the rows and the side of the images that it meets."""

    batch: int
    image: int
    model: CostModel
    tune: bool = False
    timed: dict[Graph, float] = field(default_factory=dict)
    """Milliseconds that were measured."""

    def dense(self, site: Site, graph: Graph) -> Cost:
        """The cost of a dense layer; `graph` is any graph of its kind and sizes."""
        form = choose(graph, self.batch, Weighing(self.model), self.image)[0]
        told = explain(graph, form, self.batch, self.model, image=self.image)
        ms = 1e3 * (self._measured_dense(site, graph) if self.tune and site.is_layer else told.dense_seconds)
        return Cost(prod(site.layer.shape), told.dense_macs, ms)

    def decomposed(self, site: Site, graph: Graph) -> Cost:
        """The cost of a layer with the cores of a graph; a weight that is rebuilt costs what a dense one does."""
        parameters = sum(prod(shape) for shape in graph.cores.values())
        if not site.is_layer:
            dense = self.dense(site, graph)
            return replace(dense, parameters=parameters)
        form = choose(graph, self.batch, Weighing(self.model), self.image)[0]
        return Cost(parameters, total(measure(form, batch=self.batch)).macs, self.ms(graph))

    def ms(self, graph: Graph) -> float:
        """Milliseconds of the frozen layer."""
        frozen = choose_frozen(graph, batch=self.batch, model=self.model, limit=inf, image=self.image)[0]
        if not self.tune:
            return 1e3 * frozen.cost
        if graph not in self.timed:
            self.timed[graph] = 1e3 * self._measured(graph, frozen)
        return self.timed[graph]

    def _measured(self, graph: Graph, form: Form) -> float:
        made = code(form)
        with torch.no_grad():
            parts = made.fold(*(torch.randn(graph.cores[name]) for name in made.cores))
        bias = torch.zeros(graph.out_features) if graph.has_bias else None
        inputs = example_inputs(graph, self.batch, self.image)
        return _seconds(lambda *given: made(given, bias, parts), inputs)

    def _measured_dense(self, site: Site, graph: Graph) -> float:
        run = dense_layer(graph)
        assert run is not None
        weight = torch.randn(graph.dense_shape)
        bias = torch.zeros(graph.out_features) if graph.has_bias else None
        return _seconds(lambda *given: run(weight, bias, *given), example_inputs(graph, self.batch, self.image))


def _seconds(run: object, inputs: Sequence[Tensor]) -> float:
    (found,) = in_turns([inference(run, inputs)], rounds=7, budget=0.3)  # type: ignore[arg-type]
    return found


def along(site: Site, path: Sequence[Choice], setting: Setting, unit: str, item: int) -> list[float]:
    """The cost of each choice of a path: exact for parameters and bytes, interpolated for MACs and times."""
    if unit in ("parameters", "bytes"):
        return [float(choice.parameters * (item if unit == "bytes" else 1)) for choice in path]
    if len(path) <= SAMPLES:
        return [setting.decomposed(site, choice.graph).of(unit, item) for choice in path]
    places = sorted({round(at * (len(path) - 1) / (SAMPLES - 1)) for at in range(SAMPLES)})
    costs = [setting.decomposed(site, path[at].graph).of(unit, item) for at in places]
    return [float(value) for value in np.interp(range(len(path)), places, costs)]


def whole_macs(model: nn.Module, batch: Batch) -> int:
    """The multiply-adds of a forward pass of a model, as torch's FLOP counter sees them."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        call(model, batch)
    return int(counter.get_total_flops()) // 2


def whole_ms(model: nn.Module, batch: Batch) -> float:
    """Milliseconds of a forward pass of a model."""

    @torch.no_grad()
    def action() -> object:
        return call(model, batch)

    (found,) = in_turns([action], rounds=5, budget=1.0, device=device_of(model))
    return 1e3 * found
