"""`tie_`: one tensor for many layers of a model, whose weights are its slices (T-Net, Kossaifi et al., 2019).

The tensor is a compiled layer of kind `tensor`; its first mode counts the layers. Each layer asks it for a slice
whenever it reads its weight, and only that slice is computed. Cores and gates exist once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from tnmars import families, spec
from tnmars.arguments import check_arguments, shown
from tnmars.compiler import compile_quietly as compile
from tnmars.errors import Problem, ShapeError, TnmarsError, listing, nearest, plural
from tnmars.graph import Graph
from tnmars.layer.code import code
from tnmars.layer.module import TNModule
from tnmars.layer.numbers import squared, wide
from tnmars.models.parametrize import check_given_cores, rebuildable
from tnmars.models.rebuilt import Rebuilt, register_
from tnmars.plan.layout import Weighing
from tnmars.program.candidates import weight_forms
from tnmars.program.form import Form
from tnmars.select.base import Selector

WEIGHT = "weight"
AXES = ("layer", "out", "in", "k1", "k2", "k3")
"""The names of the modes of a family's graph."""


def tie_(
    model: nn.Module,
    layers: str | Sequence[str],
    graph: Graph | str | Path,
    *,
    rank: int | None = None,
    selector: Selector | None = None,
    cores: Mapping[str, Tensor] | None = None,
    init: float | None = None,
) -> TNModule:
    """Lets several layers take their weights from one tensor, in place, and returns the layer that has its cores.

    The weight of the k-th layer is the k-th slice of the tensor along its first axis, of which it takes the first
    outputs, inputs and taps if the layer is smaller than the tensor. The layers compute with these dense weights, so
    this makes a model smaller, not faster. Their own weights are gone: make the optimizer afterwards. Gates, penalty,
    summary and pruning work as for other compiled layers, and count the cores once. A file of `tnmars.save` is loaded
    into a model whose layers are tied in the same way.

    Args:
        model: The model.
        layers: The names of the layers, such as `"conv1"`, or patterns such as `"layer*.conv?"`; slices are in the
            order of the model. Each has a parameter `weight` with the same number of axes.
        graph: A graph of kind `tensor`, or the path of a spec file: one mode for the layers, then one for each axis of
            a weight, at least as large as that of any layer. Or the name of a family, such as `"tucker"`, with a
            `rank`: its modes are called `layer`, `out`, `in`, `k1`, `k2`, ..., and are as large as needed.
        rank: The size of all bonds of a family.
        selector: The rule that learns the ranks, as in `tnmars.compile`.
        cores: The cores to begin with, by name. By default they are drawn at random.
        init: The variance of the weights to begin with; by default the mean square of the present ones.

    Returns:
        The compiled layer whose `dense()` is the tensor.

    Raises:
        ShapeError: If the tensor is too small for a layer, has another number of axes, or a core has another shape.
        TnmarsError: If a pattern matches no layer, or a weight cannot be rebuilt. Nothing was changed then.

    Example:
        >>> import torch, tnmars
        >>> nn = torch.nn
        >>> model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        >>> tensor = tnmars.tie_(model, "*", "cp", rank=3)
        >>> tensor.graph.dense_shape, torch.allclose(model[2].weight, tensor.dense()[1, :4])
        ((2, 8, 8), True)
        >>> sum(core.numel() for core in tensor.cores.parameters()), 3 * (2 + 8 + 8)
        (54, 54)
    """
    check_arguments(tie_, locals())
    patterns = [layers] if isinstance(layers, str) else list(layers)
    if not all(isinstance(pattern, str) for pattern in patterns):
        text = f"layers is {shown(layers)}, but must be a name, or a list of names."
        raise TnmarsError(Problem(text, "Names may have wildcards: 'layer1.*.conv?'."))
    chosen = _chosen(model, patterns)
    values = {name: rebuildable(module, WEIGHT, f"{name}.{WEIGHT}") for name, module in chosen.items()}
    first = next(iter(values.values()))
    for name, value in values.items():
        other = next((key for key, one in values.items() if one is value and key != name), None)
        if other is not None:
            text = f"layers '{name}' and '{other}' have the same weight, but each would have a slice of its own."
            raise TnmarsError(Problem(f"{text} Nothing was changed.", "Name one of them, or untie them first."))
        if value.dim() != first.dim() or (value.dtype, value.device) != (first.dtype, first.device):
            text = f"the weight of layer '{name}' has {value.dim()} axes, {value.dtype}, on {value.device}"
            fix = f"All must have {first.dim()} axes and {first.dtype}, on {first.device}, as the first one has."
            raise ShapeError(Problem(f"{text}. Nothing was changed.", fix))
    declared = _declared(graph, [tuple(value.shape) for value in values.values()], rank)
    _check(declared, values)
    if cores is not None:
        check_given_cores(declared, cores)
    entries = sum(value.numel() for value in values.values())
    present = sum(float(squared(wide(value.detach())).sum()) for value in values.values() if not value.is_meta)
    variance = init if init is not None else present / max(entries, 1)
    layer = compile(declared, init=variance, selector=selector, device=first.device, dtype=first.dtype)
    if not first.is_meta:
        _begin_(layer, cores, [tuple(value.shape) for value in values.values()], variance)
    if not any(value.requires_grad for value in values.values()):
        layer.requires_grad_(False)
    for at, (name, module) in enumerate(chosen.items()):
        register_(module, WEIGHT, layer, Slice(layer, tuple(module._parameters), at, tuple(values[name].shape)))
    return layer


@torch.no_grad()
def _begin_(
    layer: TNModule, cores: Mapping[str, Tensor] | None, shapes: Sequence[tuple[int, ...]], variance: float
) -> None:
    """Gives a layer these cores; or scales the random ones that it has, so that the slices have a mean square.

    A tensor with few numbers along some axes is far from its expected size, and all layers would be off together.
    """
    graph = layer.graph
    if cores is not None:
        for name in graph.cores:
            layer.cores.get(name).copy_(cores[name])
        return
    parts = [_slice(layer, at)[tuple(map(slice, shape))] for at, shape in enumerate(shapes)]
    found = sum(float(squared(wide(part)).sum()) for part in parts) / sum(part.numel() for part in parts)
    if found > 0.0 and graph.is_plain:
        for term in graph.terms:
            share = (variance / found) ** (0.5 / len(term.cores))
            for core in term.cores:
                layer.cores.get(graph.qualified(term, core.name)).mul_(share)


class Slice(Rebuilt):
    """A parameter that is a slice of the tensor of a compiled layer, or the first part of it."""

    def __init__(self, layer: TNModule, order: tuple[str, ...], at: int, shape: tuple[int, ...]):
        super().__init__(layer, order)
        layer.has_slices = True
        self.at, self.shape = at, shape

    def value(self) -> Tensor:
        return slice_at(self.layer, self.at)[tuple(map(slice, self.shape))]

    def extra_repr(self) -> str:
        return f"slice {self.at}, {'x'.join(map(str, self.shape))}"


def slice_at(layer: TNModule, at: int) -> Tensor:
    """One slice of the tensor of a layer along its first axis, as its gates are now; the others are not computed."""
    if layer.cached is not None and not (layer.training and torch.is_grad_enabled()):
        return layer.cached.dense()[at]
    gates = layer.gate_values()
    return layer.dense()[at] if not layer.graph.terms else _slice(layer, at, gates)


def _slice(layer: TNModule, at: int, gates: Mapping[str, Tensor] | None = None) -> Tensor:
    """One slice, with these gates or without any."""
    graph = layer.graph
    made = code(_form(graph, layer), _one(graph) if gates else None)
    first, given = graph.modes[0].name, []
    for name in made.cores:
        value, edges = layer.cores.get(graph.nodes[name]), graph.edges_of(name)
        given.append(value.narrow(edges.index(first), at, 1) if first in edges else value)
    if gates:
        bonds = {graph.qualified(term, bond.name): (term, bond.name) for term in graph.terms for bond in term.bonds}
        given += [gates[graph.bond_name(*bonds[name])] for name in made.gates]
    return made.fold(*given)[0][0]


def _form(graph: Graph, layer: TNModule) -> Form:
    return weight_forms(_one(graph), Weighing(layer.planner.model), layer.planner.optimizer)[0]


@lru_cache(maxsize=128)
def _one(graph: Graph) -> Graph:
    """The graph of one slice: its first mode has one value.

    No core is tied: where one core stands in several places, only the place of the first mode has a slice of it.
    """
    first, *others = graph.modes
    terms = (replace(term, cores=tuple(replace(core, tied="") for core in term.cores)) for term in graph.terms)
    return replace(graph, modes=(replace(first, size=1), *others), terms=tuple(terms))


def _chosen(model: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Module]:
    """The layers that the patterns name, in the order of the model."""
    known = {name: module for name, module in model.named_modules() if WEIGHT in module._parameters}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            hint = f"Layers: {listing(list(known))}.{nearest(pattern, known)}"
            text = f"'{pattern}' matches no layer with a weight. Nothing was changed."
            raise TnmarsError(Problem(text, hint))
    weights = {name: module for name, module in known.items() if any(fnmatchcase(name, p) for p in patterns)}
    if not weights:
        raise TnmarsError("no layer is named. Nothing was changed.")
    return weights


def _declared(graph: Graph | str | Path, shapes: Sequence[tuple[int, ...]], rank: int | None) -> Graph:
    """The graph that is meant; that of a family is as large as the layers need it."""
    if isinstance(graph, Graph) or graph not in families.FAMILIES:
        if rank is not None:
            text = "rank is for a family, but a graph is given. Nothing was changed."
            raise TnmarsError(Problem(text, "Give the bonds of the graph the sizes that you want."))
        return graph if isinstance(graph, Graph) else spec.load(graph)
    if rank is None:
        raise TnmarsError(Problem(f"no rank is given for family '{graph}'. Nothing was changed.", "Give rank=8."))
    sizes = (len(shapes), *map(max, zip(*shapes, strict=True)))
    return families.FAMILIES[str(graph)]("tensor", free=dict(zip(AXES, sizes, strict=False)), rank=rank)


def _check(graph: Graph, values: Mapping[str, Tensor]) -> None:
    """Raises `ShapeError` if the weights are not slices of the tensor, or parts of slices."""
    shape, count = graph.dense_shape, len(values)
    if graph.kind != "tensor" or shape[:1] != (count,):
        text = f"the graph is of kind '{graph.kind}' with modes of sizes {shape}, for {plural(count, 'layer')}."
        fix = f"Give a graph of kind 'tensor' whose first mode has size {count}."
        raise ShapeError(Problem(f"{text} Nothing was changed.", fix))
    for name, value in values.items():
        own = tuple(value.shape)
        if len(own) != len(shape) - 1 or any(small > large for small, large in zip(own, shape[1:], strict=True)):
            text = f"the weight of layer '{name}' has shape {own}, but a slice of the tensor has {shape[1:]}."
            fix = "Give the graph a mode for each axis of a weight, at least as large as in every layer."
            raise ShapeError(Problem(f"{text} Nothing was changed.", fix))
