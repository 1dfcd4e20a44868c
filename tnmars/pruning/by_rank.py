"""Cuts without gates: the canonical form of a layer, then its heaviest slices, up to given ranks or a share of norm."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import torch
from torch import Tensor, nn

from tnmars.decomposing.canonical import Canonical, canonical
from tnmars.decomposing.ranks import given_sizes
from tnmars.decomposing.rewritten import cores_after
from tnmars.decomposing.sweep import is_forest
from tnmars.decomposing.tensors import dense
from tnmars.errors import TnmarsError, listing, nearest
from tnmars.graph import Graph
from tnmars.graph.rewrite import Keep, prune
from tnmars.layer.cores import check_parameters
from tnmars.layer.distributed import is_sharded
from tnmars.layer.module import TNModule, layers
from tnmars.layer.numbers import squared

Ranks = int | Mapping[str, "int | Mapping[str, int]"]
"""The size of every bond of every layer, or by the name of a layer that of all its bonds, or a table of them."""
Forms = dict[str, Canonical]
"""The canonical form of each layer to cut, by name."""

TURNS = 12
"""How often a cut is made smaller if it keeps less of the norm than asked for; trees need one."""


def compiled_layers(model: nn.Module) -> dict[str, TNModule]:
    """Every compiled layer by every name that it has."""
    named = model.named_modules(remove_duplicate=False)
    return {name: module for name, module in named if isinstance(module, TNModule)}


def by_rank(model: nn.Module, ranks: Ranks | None, energy: float | None) -> tuple[dict[str, Keep], Forms]:
    """What to keep of each layer, and its canonical form, which the slices refer to. Nothing is changed.

    Raises `TnmarsError` for layers with gates or shared cores, and for names or numbers that make no sense.
    """
    kept: dict[str, Keep] = {}
    forms: Forms = {}
    for name, layer in targets(model, ranks).items():
        _check(model, name, layer)
        cores = {core: layer.cores.get(core) for core in layer.graph.cores}
        forms[name] = canonical(layer.graph, cores)
        if energy is not None:
            sizes = _sizes_keeping(layer.graph, forms[name], _share(energy))
        else:
            sizes = _sizes(layer.graph, name, ranks)
        kept[name] = {bond: tuple(range(min(size, layer.graph.bonds[bond].size))) for bond, size in sizes.items()}
    return kept, forms


@torch.no_grad()
def take_(model: Mapping[str, TNModule], forms: Forms) -> None:
    """Gives layers the cores of their canonical forms; what they compute stays the same."""
    for name, form in forms.items():
        for core, value in form.cores.items():
            model[name].cores.get(core).copy_(value)


def targets(model: nn.Module, ranks: Ranks | None) -> dict[str, TNModule]:
    """The layers to cut: those that are named, or all."""
    known = compiled_layers(model)
    if isinstance(ranks, Mapping):
        for name in ranks:
            if name not in known:
                hint = f"Layers: {listing(list(known))}.{nearest(name, known)}"
                raise TnmarsError(
                    f"ranks names '{name}', which is not a compiled layer. Nothing was changed.\n  {hint}"
                )
        return {name: known[name] for name in ranks}
    found = dict(layers(model))
    if not found:
        raise TnmarsError("the model has no compiled layer to cut. Nothing was changed.")
    return found


def _check(model: nn.Module, name: str, layer: TNModule) -> None:
    if layer.masks is not None:
        raise TnmarsError(
            f"layer '{name}' has gates, and they decide what is cut. Nothing was changed.\n  Prune it by its gates "
            "first, prune(model), or name the layers without gates: ranks={'name': 4}."
        )
    check_cores(model, name, layer)


def check_cores(model: nn.Module, name: str, layer: TNModule) -> None:
    """Raises `TnmarsError` if a canonical form of a layer would change something else, or has not all of its cores."""
    if any(map(is_sharded, layer.parameters())):
        raise TnmarsError(
            f"the parameters of layer '{name}' are sharded over ranks. Nothing was changed.\n  Gather the model, cut "
            "it, and wrap it again."
        )
    check_parameters(layer, name)
    own = {id(layer.cores.get(core)): core for core in layer.graph.cores}
    if len(own) < len(layer.graph.cores):
        raise TnmarsError(f"layer '{name}' has one parameter as two cores. Nothing was changed.\n  Untie them first.")
    for place, module in model.named_modules():
        if module is layer or module is layer.cores or any(module is inner for inner in layer.modules()):
            continue
        for key, value in module._parameters.items():
            if value is not None and id(value) in own:
                other = f"{place}.{key}" if place else key
                raise TnmarsError(
                    f"core '{own[id(value)]}' of layer '{name}' is '{other}' of the model too, which a canonical form "
                    "of the layer would change. Nothing was changed.\n  Untie them first, or cut with keep=..."
                )


def _sizes(graph: Graph, name: str, ranks: Ranks | None) -> dict[str, int]:
    asked = ranks[name] if isinstance(ranks, Mapping) else ranks
    try:
        return given_sizes(graph, asked)
    except TnmarsError as error:
        raise TnmarsError(f"layer '{name}': {error} Nothing was changed.") from None


def _share(energy: float) -> float:
    is_number = isinstance(energy, (int, float)) and not isinstance(energy, bool)
    if not is_number or not isfinite(energy) or not 0.0 <= energy <= 1.0:
        raise TnmarsError(f"energy is {energy!r}, but must be a number from 0 to 1. Nothing was changed.")
    return float(energy)


def _sizes_keeping(graph: Graph, form: Canonical, energy: float) -> dict[str, int]:
    """The smallest sizes that keep a share of the squared norm; what may be lost is shared out over the bonds."""
    allowed = (1.0 - energy) / max(len(graph.bonds), 1)
    sizes = _within(form, allowed)
    if is_forest(graph) or not graph.bonds:
        return sizes
    whole = dense(graph, form.cores)
    for _ in range(TURNS):
        after = prune(graph, {bond: tuple(range(size)) for bond, size in sizes.items()})
        lost = dense(after.graph, cores_after(after, form.cores)) - whole
        if float(squared(lost).sum()) <= (1.0 - energy) * float(squared(whole).sum()):
            return sizes
        allowed *= 0.5
        sizes = _within(form, allowed)
    return {name: bond.size for name, bond in graph.bonds.items()}


def _within(form: Canonical, allowed: float) -> dict[str, int]:
    return {bond: _count(weights.square(), allowed) for bond, weights in form.weights.items()}


def _count(squares: Tensor, allowed: float) -> int:
    tails = squares.flip(0).cumsum(0).flip(0)
    return max(int((tails > allowed * float(squares.sum())).sum()), 1)
