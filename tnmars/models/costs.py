"""What the weights of a model cost, dense and decomposed, in the unit of a budget: parameters, bytes, MACs or time.

MACs and times are those of one pass of the model over a batch of the data, in all calls of all layers that have the
weight. Times are of frozen layers, as the cost model of this machine predicts them, or measured with `tune`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, prod

import numpy as np
import torch
from torch import Tensor

from tnmars.graph import Graph
from tnmars.layer.forward import code_inputs, dense_layer, example_inputs
from tnmars.layer.module import code
from tnmars.layer.numbers import computing
from tnmars.models.curves import Choice
from tnmars.models.sites import Site
from tnmars.models.tying import seen_by
from tnmars.models.usage import Use
from tnmars.plan.cost import CostModel
from tnmars.plan.layout import Weighing
from tnmars.program.choice import choose, choose_frozen
from tnmars.program.explain import Explained, explain
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
    """The places of a weight, and how a pass of the model uses each of them."""

    sites: Sequence[Site]
    uses: Sequence[Use]
    model: CostModel
    tune: bool = False
    timed: dict[tuple[Graph | None, int], float] = field(default_factory=dict)
    """Milliseconds of a call that were measured, by graph and place; without a graph those of the dense layer."""

    @property
    def batch(self) -> int:
        return max(use.rows for use in self.uses)

    @property
    def dtype(self) -> torch.dtype:
        return computing(self.sites[0].layer.weight.dtype)

    @property
    def image(self) -> int:
        return max(use.image for use in self.uses)

    def dense(self, graph: Graph) -> Cost:
        """The cost of the dense weight; `graph` is any graph of the kind and the sizes of the first place.

        A weight that is rebuilt takes part in the same operations afterwards: only its parameters count.
        """
        macs, ms = 0, 0.0
        for site, use in self._layers:
            macs += use.macs
            explained = self._planned(seen_by(graph, site.layer), use)[1]
            ms += 1e3 * _times(use, explained) * explained.dense_seconds if use.ms is None else use.ms
        return Cost(prod(self.sites[0].layer.shape), macs, ms)

    def decomposed(self, graph: Graph) -> Cost:
        """The cost of the weight as the cores of a graph."""
        macs, ms = 0.0, 0.0
        for at, (site, use) in enumerate(self._layers):
            seen = seen_by(graph, site.layer)
            form, explained = self._planned(seen, use)
            macs += _times(use, explained) * total(measure(form, batch=use.rows)).macs
            ms += _times(use, explained) * self._ms(seen, use, at) + self._extra(seen, use, explained, at)
        return Cost(sum(prod(shape) for shape in graph.cores.values()), round(macs), ms)

    @property
    def _layers(self) -> list[tuple[Site, Use]]:
        return [(site, use) for site, use in zip(self.sites, self.uses, strict=True) if site.is_layer]

    def _planned(self, graph: Graph, use: Use) -> tuple[Form, Explained]:
        form = choose(graph, use.rows, Weighing(self.model), use.image)[0]
        return form, explain(graph, form, use.rows, self.model, image=use.image)

    def _ms(self, graph: Graph, use: Use, at: int) -> float:
        """Milliseconds of a call of the frozen layer."""
        frozen = choose_frozen(graph, batch=use.rows, model=self.model, limit=inf, image=use.image)[0]
        if not self.tune:
            return 1e3 * frozen.cost
        if (graph, at) not in self.timed:
            self.timed[graph, at] = 1e3 * _measured(graph, frozen, use, self.dtype)
        return self.timed[graph, at]

    def _extra(self, graph: Graph, use: Use, explained: Explained, at: int) -> float:
        """Milliseconds that a layer takes within the model beyond those of its operations alone.

        These are calls of modules, and tensors that are not in the cache: inputs and outputs, which are the same for
        dense and decomposed layers, and weights, which are not.
        """
        if use.ms is None:
            return 0.0
        alone = 1e3 * explained.dense_seconds
        if self.tune:
            if (None, at) not in self.timed:
                self.timed[None, at] = 1e3 * _measured_dense(graph, use, self.dtype)
            alone = self.timed[None, at]
        moved = [
            use.numbers + use.calls * size for size in (sum(map(prod, graph.cores.values())), prod(graph.dense_shape))
        ]
        return max(0.0, use.ms - _times(use, explained) * alone) * moved[0] / max(1, moved[1])


def _times(use: Use, explained: Explained) -> float:
    """How many calls with the rows and the square image that were planned all calls in a pass are worth."""
    return use.macs / explained.dense_macs if use.macs and explained.dense_macs else float(use.calls)


def _measured(graph: Graph, form: Form, use: Use, dtype: torch.dtype) -> float:
    made = code(form)
    with torch.no_grad():
        parts = made.fold(*(torch.randn(graph.cores[graph.nodes[name]], dtype=dtype) for name in made.cores))
    bias = torch.zeros(graph.out_features, dtype=dtype) if graph.has_bias else None
    return _seconds(lambda *given: made(given, bias, parts), code_inputs(graph, use.rows, use.image, dtype))


def _measured_dense(graph: Graph, use: Use, dtype: torch.dtype) -> float:
    run = dense_layer(graph)
    assert run is not None
    weight = torch.randn(graph.dense_shape, dtype=dtype)
    bias = torch.zeros(graph.out_features, dtype=dtype) if graph.has_bias else None
    return _seconds(lambda *given: run(weight, bias, *given), example_inputs(graph, use.rows, use.image, dtype))


def _seconds(run: object, inputs: Sequence[Tensor]) -> float:
    (found,) = in_turns([inference(run, inputs)], rounds=7, budget=0.3)  # type: ignore[arg-type]
    return found


def along(path: Sequence[Choice], setting: Setting, unit: str, item: int) -> list[float]:
    """The cost of each choice of a path: exact for parameters and bytes, interpolated for MACs and times."""
    if unit in ("parameters", "bytes"):
        return [float(choice.parameters * (item if unit == "bytes" else 1)) for choice in path]
    if len(path) <= SAMPLES:
        return [setting.decomposed(choice.graph).of(unit, item) for choice in path]
    places = sorted({round(at * (len(path) - 1) / (SAMPLES - 1)) for at in range(SAMPLES)})
    costs = [setting.decomposed(path[at].graph).of(unit, item) for at in places]
    return [float(value) for value in np.interp(range(len(path)), places, costs)]
