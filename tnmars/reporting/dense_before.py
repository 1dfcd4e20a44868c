"""A dense model before, compared with compiled layers after: each dense weight counts as a graph of one core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from tnmars.compiler import compile_quietly as compile
from tnmars.dsl import network
from tnmars.graph import Graph
from tnmars.layer.module import TNModule
from tnmars.models.rebuilt import INNER, place_of
from tnmars.reporting.sources import Source


def with_dense(before: Source, after: Source) -> Source:
    """The model before, with a layer of one core for each dense weight that is compiled after."""
    made: dict[str, TNModule] = {}
    weights: dict[int, Tensor] = {}
    for name, layer in after.layers.items():
        weight = before.tensors.get(_weight_name(name))
        if name not in before.layers and weight is not None and tuple(weight.shape) == layer.graph.dense_shape:
            made[name] = _compiled(layer, weight)
            weights[id(weight)] = weight
    if not made:
        return before
    known: Mapping[str, TNModule] = {**made, **before.layers}
    order = [*(name for name in after.layers if name in known), *(name for name in known if name not in after.layers)]
    count = sum(weight.numel() for weight in weights.values())
    held = {name: known[name] for name in order}
    return replace(before, layers=held, cores=before.cores + count, other=before.other - count)


def _weight_name(name: str) -> str:
    """The name of the dense weight that a compiled layer stands for."""
    if f".{INNER}." in f".{name}":
        path, parameter = place_of(name)
    else:
        path, parameter = name, "weight"
    return f"{path}.{parameter}" if path else parameter


def _compiled(after: TNModule, weight: Tensor) -> TNModule:
    made = compile(
        one_core(after.graph),
        batch=after.nominal,
        image=after.planner.image,
        device=weight.device,
        dtype=weight.dtype,
    )
    own = isinstance(weight, nn.Parameter) and after.graph.groups == 1
    shaped = weight.reshape(made.graph.cores["W"])  # groups and outputs are one axis of the weight
    made.cores.put("W", weight if own else nn.Parameter(shaped, requires_grad=False))  # type: ignore[arg-type]
    return made.eval()


def one_core(graph: Graph) -> Graph:
    """The same weight as a single core in torch's layout: the graph of a dense layer.

    >>> from tnmars import families
    >>> print(one_core(families.tt("conv", inputs=(4, 4), outputs=(2, 4), kernel=(3, 3), rank=2)).terms[0])
    W[o1, i1, k1, k2]
    """
    outputs, options = [graph.out_features], dict(graph.options)
    if graph.kind == "embedding":
        return network("embedding", "W[v1,o1]", lookup=[graph.vocab], outputs=outputs, options=options)
    count, kernel = graph.groups, list(graph.kernel_size)
    inputs, outputs = [graph.in_features // count], [graph.out_features // count]
    taps = "".join(f",k{at}" for at in range(1, len(kernel) + 1))
    groups = [count] if count > 1 else []
    core = f"W[{'g1,' if count > 1 else ''}o1,i1{taps}]"
    return network(graph.kind, core, groups=groups, inputs=inputs, outputs=outputs, kernel=kernel, options=options)
