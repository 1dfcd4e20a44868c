"""Trained gates to a smaller graph: what is kept, the rewrite, and the layer compiled again with what is left.

`prune` gives a new model, simplified; `prune_` cuts in place and lets the optimiser's state follow. Pruning has no
machinery of its own: it is a rewrite of the graph, and `compile` again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from tnmars.choice import Planner, choose
from tnmars.errors import TnmarsError, listing, nearest
from tnmars.follow import Change, cores_after, part_after, replace_in_, vectors_after
from tnmars.graph import Graph, Json
from tnmars.module import TNModule, layers
from tnmars.plan.layout import Weighing
from tnmars.rewrite import Keep, Rewrite, drop_ones, merge, mergeable
from tnmars.rewrite import prune as cut
from tnmars.sharded import from_first_rank, is_sharded, whole

MOST_MERGERS = 64
"""How many mergers of two cores are planned, at most, when a layer is simplified."""


def keep(model: nn.Module) -> dict[str, dict[str, tuple[int, ...]]]:
    """For each layer with gates, by name, the slices of each bond that its selector keeps.

    Under several processes rank 0 decides.
    """
    return {name: layer_keep(layer) for name, layer in layers(model) if layer.masks is not None}


def layer_keep(layer: TNModule) -> dict[str, tuple[int, ...]]:
    """The slices of each bond that the selector of a layer keeps; all while warm-up is on."""
    assert layer.masks is not None
    with torch.no_grad():
        kept = [layer.masks.selector.keep(whole(logits)) | layer.masks.is_warm for logits in layer.logits()]
        decided = from_first_rank(torch.cat(kept).to(torch.uint8))
    parts = torch.split(decided.cpu(), [bond.size for bond in layer.graph.bonds.values()])
    found = (tuple(int(index) for index in part.nonzero().reshape(-1)) for part in parts)
    return dict(zip(layer.graph.bonds, found, strict=True))


def prune(
    model: nn.Module,
    keep: Mapping[str, Keep] | None = None,
    *,
    simplify: bool = True,
    keep_gates: bool = False,
    step: int | None = None,
) -> nn.Module:
    """A new model with the slices that the gates keep, or those given for each layer by name.

    Bonds of size 1 are dropped, and with `simplify` cores are merged where both parameters and planned time fall.
    `keep_gates` leaves the gates of what is kept, to select further; bonds then stay as they are. `step` is noted in
    the pruned graph's origin.
    """
    pruned = copy.deepcopy(model)
    for layer, kept in _wanted(pruned, keep):
        _cut_(layer, kept, step, keep_gates=keep_gates, merges=simplify and not keep_gates)
    return pruned


def prune_(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    keep: Mapping[str, Keep] | None = None,
    *,
    keep_gates: bool = False,
    step: int | None = None,
) -> None:
    """The same in place, without mergers, so that training goes on: the optimiser's state follows, entry by entry."""
    changes: dict[nn.Parameter, Change] = {}
    for layer, kept in _wanted(model, keep):
        changes |= _cut_(layer, kept, step, keep_gates=keep_gates, merges=False)
    if optimizer is not None:
        replace_in_(optimizer, changes)


def _wanted(model: nn.Module, given: Mapping[str, Keep] | None) -> Iterator[tuple[TNModule, Keep]]:
    """The layers to cut, and what to keep of them."""
    found = dict(layers(model))
    if given is None:
        gated = [(layer, layer_keep(layer)) for layer in found.values() if layer.masks is not None]
        if not gated:
            raise TnmarsError("no layer of the model has gates. Nothing was changed.\n  Compile with a selector.")
        return iter(gated)
    for name in given:
        if name not in found:
            known = f"Layers: {listing(list(found))}.{nearest(name, found)}"
            raise TnmarsError(f"keep names layer '{name}', which is no compiled layer. Nothing was changed.\n  {known}")
    return iter([(found[name], kept) for name, kept in given.items()])


def _cut_(
    layer: TNModule, kept: Keep, step: int | None, *, keep_gates: bool, merges: bool
) -> dict[nn.Parameter, Change]:
    """Cuts a layer in place; returns what came in the place of each of its parameters."""
    if any(map(is_sharded, layer.parameters())):
        raise TnmarsError(
            "the layer's parameters are sharded over ranks. Nothing was changed.\n  Gather the model and its optimiser "
            "(torch.distributed.checkpoint.state_dict), cut the whole one, and wrap it anew."
        )
    before = layer.graph
    first = cut(before, kept)
    steps = [first, *([] if keep_gates else [drop_ones(first.graph)])]
    if merges:
        steps += _mergers(steps[-1].graph, layer.planner)
    graph = replace(steps[-1].graph, origin=_origin(layer, step))
    old_cores = {name: layer.cores.get(name) for name in before.cores}
    old_gates = dict(zip(before.bonds, layer.logits(), strict=True)) if layer.masks is not None else {}
    with torch.no_grad():
        values: dict[str, Tensor] = dict(old_cores)
        for rewrite in steps:
            values = cores_after(rewrite, values)
        trained = any(core.requires_grad for core in old_cores.values())
        cores = {name: nn.Parameter(value.clone(), requires_grad=trained) for name, value in values.items()}
        logits = vectors_after(first, old_gates) if keep_gates else {}
        gates = {name: nn.Parameter(value.clone()) for name, value in logits.items()}
    masks = layer.masks
    layer.become_(replace(layer.planner, graph=graph), cores, gates)
    if layer.masks is not None and masks is not None:
        layer.masks.take_(masks, _gates_taken(before, first))
    return {} if merges else _changes(steps, old_cores, cores, old_gates, gates)


def _gates_taken(before: Graph, rewrite: Rewrite) -> Tensor:
    """The places of the gates that are left, among those of all bonds before."""
    counts = [bond.size for bond in before.bonds.values()]
    places = dict(zip(before.bonds, torch.split(torch.arange(sum(counts)), counts), strict=True))
    return torch.cat(list(vectors_after(rewrite, places).values()))


def _changes(
    steps: list[Rewrite],
    old_cores: Mapping[str, nn.Parameter],
    cores: Mapping[str, nn.Parameter],
    old_gates: Mapping[str, nn.Parameter],
    gates: Mapping[str, nn.Parameter],
) -> dict[nn.Parameter, Change]:
    """What came in the place of each parameter: a part of it, or nothing."""
    found: dict[nn.Parameter, Change] = {}
    for name, old in old_cores.items():
        new, follow = _followed(steps, name)
        found[old] = (cores[new] if new is not None else None, follow)
    before = {was: now for now, was in steps[0].bonds}
    taken = dict(steps[0].taken)
    for name, old in old_gates.items():
        now = before.get(name, "")
        index = list(taken.get(now, ()))
        found[old] = (gates.get(now), partial(_entries, index=index))
    for old, (now_parameter, follow) in found.items():
        if now_parameter is not None and old.grad is not None:
            now_parameter.grad = follow(old.grad)
    return found


def _entries(value: Tensor, index: list[int]) -> Tensor:
    return value[index].contiguous()


def _followed(steps: list[Rewrite], name: str) -> tuple[str | None, Callable[[Tensor], Tensor]]:
    """The name of a core after some rewrites without mergers, and what they do to a value of its shape."""
    pieces = []
    current: str | None = name
    for rewrite in steps:
        piece = next((piece for piece in rewrite.pieces if piece.sources[0].name == current), None)
        if piece is None:
            return None, lambda value: value
        pieces.append(piece)
        current = piece.name

    def follow(value: Tensor) -> Tensor:
        for piece in pieces:
            value = part_after(piece, value)
        return value.clone()

    return current, follow


def _mergers(graph: Graph, planner: Planner) -> list[Rewrite]:
    """Mergers of two cores, one after the other, each of which saves parameters and planned time."""
    found: list[Rewrite] = []
    tried = 0
    time = _time(graph, planner)
    pairs = mergeable(graph)
    while pairs and tried < MOST_MERGERS:
        term, first, second, _ = pairs.pop(0)
        rewrite = merge(graph, term, first, second)
        tried += 1
        after = _time(rewrite.graph, planner)
        if after < time:
            found.append(rewrite)
            graph, time, pairs = rewrite.graph, after, mergeable(rewrite.graph)
    return found


def _time(graph: Graph, planner: Planner) -> float:
    if not graph.terms:
        return 0.0
    weighing = Weighing(planner.model)
    return choose(graph, planner.nominal, weighing, planner.image, planner.optimizer)[0].cost


def _origin(layer: TNModule, step: int | None) -> dict[str, Json]:
    """Where a pruned graph comes from: the sizes of its bonds before, and by which rule it was cut."""
    found: dict[str, Json] = {"sizes": {name: bond.size for name, bond in layer.graph.bonds.items()}}
    if layer.selector is not None:
        found["selector"] = layer.selector.settings()
    if step is not None:
        found["step"] = step
    if layer.graph.origin is not None:
        found["before"] = layer.graph.origin
    return found
