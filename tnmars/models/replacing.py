"""Dense layers of a model become compiled ones with given cores: everything is built first, then put in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tnmars.compiler import compile_quietly as compile
from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph, Json
from tnmars.layer.module import TNModule
from tnmars.models.parametrize import parametrize_
from tnmars.models.sites import Site
from tnmars.models.torch_layers import DenseLayer
from tnmars.models.tying import seen_by


@dataclass(frozen=True, eq=False)
class Replacement:
    """A weight that becomes the cores of a graph, at all places that have it."""

    sites: Sequence[Site]
    graph: Graph
    """As the first place sees it."""
    cores: Mapping[str, Tensor]
    batch: int = 128
    image: int = 32
    origin: Mapping[str, Json] | None = None


def compiled(
    graph: Graph,
    cores: Mapping[str, Tensor],
    layer: DenseLayer,
    *,
    batch: int = 128,
    image: int = 32,
    tune: bool = False,
) -> TNModule:
    """A compiled layer with given cores, and with the bias, device and dtype of a dense one."""
    weight = layer.weight
    with torch.random.fork_rng(devices=[]):  # cores are drawn first
        made = compile(graph, batch=batch, image=image, tune=tune, device=weight.device, dtype=weight.dtype)
    with torch.no_grad():
        for name in graph.cores:
            core = made.cores.get(name)
            core.copy_(cores[name])
            core.requires_grad_(weight.requires_grad)
    if isinstance(layer.bias, nn.Parameter):
        made.bias = layer.bias
    return made


def apply_(model: nn.Module, replacements: Sequence[Replacement]) -> None:
    """Puts the layers of all replacements into a model."""
    built: list[tuple[Replacement, dict[Site, TNModule]]] = []
    for entry in replacements:
        made: dict[Site, TNModule] = {}
        for site in entry.sites:
            if "" in site.names:
                text = "the model is a single layer, which cannot be replaced in itself."
                raise TnmarsError(Problem(text, "Use tnmars.from_dense(layer, ...), which returns the new layer."))
            if not site.is_layer:
                continue
            graph = replace(seen_by(entry.graph, site.layer), origin=entry.origin, name=entry.graph.name)
            layer = compiled(graph, entry.cores, site.layer, batch=entry.batch, image=entry.image)
            made[site] = layer.train(site.module.training)
        built.append((entry, made))
    for entry, made in built:
        layers = list(made.values())
        for other in layers[1:]:
            for name in layers[0].graph.cores:
                other.cores.put(name, layers[0].cores.get(name))
        for site, layer in made.items():
            for name in site.names:
                model.set_submodule(name, layer)
        for site in entry.sites:
            if not site.is_layer:
                graph = replace(entry.graph, origin=entry.origin)
                parametrize_(site.module, site.parameter, graph, cores=entry.cores)
