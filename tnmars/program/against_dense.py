"""The time of a layer relative to torch's own, as the cost model estimates it.

Plans are chosen by the time of their steps. To compare a plan with torch's layer, what surrounds the steps counts too:
the call of the layer, and the gradients of its parameters, of which torch's layer has only two. If the input needs no
gradient, as that of the first layer of a model, both leave out one product of the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tnmars.graph import Graph
from tnmars.plan import prices
from tnmars.plan.cost import CostModel
from tnmars.program.base import Instruction, Site
from tnmars.program.dense_call import dense_at
from tnmars.program.form import Form, estimate, seconds_of


@dataclass(frozen=True)
class Comparison:
    """Estimated seconds of a layer and of torch's own."""

    seconds: float
    dense_seconds: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.dense_seconds


@lru_cache(maxsize=1024)
def against_dense(
    graph: Graph,
    form: Form,
    batch: int,
    model: CostModel,
    *,
    grad: bool = False,
    input_grad: bool = False,
    image: int = 32,
    folded: bool = False,
) -> Comparison | None:
    """A form for a batch compared with torch's own layer; None if torch has none, or nothing is left of the graph.

    Args:
        graph: The graph of the layer.
        form: How it is computed.
        batch: The number of rows, images or tokens.
        model: The constants of the machine.
        grad: Whether a training step is meant, rather than inference.
        input_grad: Whether the input gets a gradient too, as that of an inner layer does.
        image: The side of an image.
        folded: Whether the layer is frozen: what depends on the cores alone is done already.
    """
    if not graph.rules.layout or not graph.terms:
        return None
    ours = model.layer_call + estimate(form, model, grad=grad, folded=folded, batch=batch)
    dense = _dense(graph, batch, model, grad, input_grad, image)
    if grad:
        ours += model.step_call + model.parameter_call * (len(form.program.cores) + graph.has_bias)
        dense += model.step_call + model.parameter_call * (1 + graph.has_bias)
        if not input_grad:
            ours -= form.pieces(batch) * _spared(form, model)
    return Comparison(ours, dense)


def _spared(form: Form, model: CostModel) -> float:
    """The part of a backward pass that gives the input its gradient."""
    plain: set[str] = set()
    spared = 0.0
    for instruction, site in form.sites():
        reads = [name in plain for name in instruction.reads]
        if (instruction.is_leaf and instruction.needs_input) or (reads and all(reads)):
            plain.add(instruction.out)
            spared += _backward(instruction, site, model)
        elif any(reads) or (not instruction.reads and not instruction.is_leaf):  # the call of torch's own layer
            spared += 0.5 * _backward(instruction, site, model)
    return spared


def _backward(instruction: Instruction, site: Site, model: CostModel) -> float:
    return seconds_of(instruction, site, model, True) - seconds_of(instruction, site, model, False)


def _dense(graph: Graph, batch: int, model: CostModel, grad: bool, input_grad: bool, image: int) -> float:
    """The time of torch's own layer."""
    if graph.is_lookup:
        table = prod(graph.dense_shape)
        looked_up = prices.gather(model, batch * graph.out_features, grad=grad)
        return looked_up + model.elementwise(table, table) if grad else looked_up  # the gradient is a whole table
    call, site = dense_at(graph, batch, image)
    spared = 0.5 * _backward(call, site, model) if grad and not input_grad else 0.0
    return seconds_of(call, site, model, grad) - spared
