"""Trained gates to a smaller graph: what is kept, the rewrite, and the layer compiled again with what is left.

`prune` gives a new model, simplified; `prune_` cuts in place and lets the optimiser's state follow. Pruning has no
machinery of its own: it is a rewrite of the graph, and `compile` again.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tnmars.errors import TnmarsError, listing, nearest
from tnmars.graph import Graph, Json
from tnmars.graph.rewrite import Keep, Piece, Rewrite, drop_ones, merge, mergeable
from tnmars.graph.rewrite import prune as cut
from tnmars.layer.distributed import from_first_rank, is_sharded, whole
from tnmars.layer.module import TNModule, layers
from tnmars.plan.layout import Weighing
from tnmars.program.choice import Planner, choose
from tnmars.pruning.follow import Change, check_state, cores_after, part_after, replace_in_, vectors_after

MOST_MERGERS = 64
"""How many mergers of two cores are planned, at most, when a layer is simplified."""


def keep(model: nn.Module) -> dict[str, dict[str, tuple[int, ...]]]:
    """For each layer with gates, by name, the slices of each bond that its selector keeps.

    Under several processes rank 0 decides, and all of them call it.
    """
    return {name: layer_keep(layer) for name, layer in layers(model) if layer.masks is not None}


def layer_keep(layer: TNModule) -> dict[str, tuple[int, ...]]:
    """The slices of each bond that the selector of a layer keeps; all while warm-up is on."""
    assert layer.masks is not None
    with torch.no_grad():
        return decided(layer, torch.cat(layer.masks.keep([whole(logits) for logits in layer.logits()])))


def decided(layer: TNModule, kept: Tensor) -> dict[str, tuple[int, ...]]:
    """What rank 0 keeps, from a vector over the slices of all bonds."""
    shared = from_first_rank(kept.to(torch.uint8)).cpu()
    parts = torch.split(shared, [bond.size for bond in layer.graph.bonds.values()])
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
    the pruned graph's origin. Under several processes all of them call it.
    """
    wanted = _wanted(model, keep)
    pruned = copy.deepcopy(model)
    found = _by_name(pruned)
    _apply(
        [Cut(found[name], name, kept, step, keep_gates, simplify and not keep_gates) for name, kept in wanted.items()]
    )
    return pruned


def prune_(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    keep: Mapping[str, Keep] | None = None,
    *,
    keep_gates: bool = False,
    step: int | None = None,
) -> None:
    """The same in place, without mergers, so that training goes on: the optimiser's state follows, entry by entry.

    All is checked before anything is changed.
    """
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise TnmarsError(
            "the model is wrapped by DistributedDataParallel, which would not see the new parameters. Nothing was "
            "changed.\n  Cut the model inside, prune_(model.module, ...), and wrap it anew."
        )
    found = _by_name(model)
    cuts = [Cut(found[name], name, kept, step, keep_gates, False) for name, kept in _wanted(model, keep).items()]
    if optimizer is not None:
        check_state(optimizer, {value for entry in cuts for value in entry.layer.parameters()})
    changes = _apply(cuts)
    if optimizer is not None:
        replace_in_(optimizer, changes)


def _by_name(model: nn.Module) -> dict[str, TNModule]:
    """Every compiled layer by every name that it has."""
    named = model.named_modules(remove_duplicate=False)
    return {name: module for name, module in named if isinstance(module, TNModule)}


def _wanted(model: nn.Module, given: Mapping[str, Keep] | None) -> dict[str, Keep]:
    """The layers to cut, and what to keep of them."""
    if given is None:
        gated = {name: layer for name, layer in layers(model) if layer.masks is not None}
        if not gated:
            raise TnmarsError("no layer of the model has gates. Nothing was changed.\n  Compile with a selector.")
        if all(bool(layer.masks.is_warm) for layer in gated.values() if layer.masks is not None):
            text = "warm-up is on, so every slice is kept: the gates have not been trained."
            warnings.warn(text, UserWarning, stacklevel=3)
        return {name: layer_keep(layer) for name, layer in gated.items()}
    found = _by_name(model)
    for name in given:
        if name not in found:
            known = f"Layers: {listing(list(found))}.{nearest(name, found)}"
            raise TnmarsError(f"keep names layer '{name}', which is no compiled layer. Nothing was changed.\n  {known}")
    return dict(given)


class Cut:
    """What becomes of one layer: worked out and checked when built, done by `apply`."""

    def __init__(self, layer: TNModule, name: str, kept: Keep, step: int | None, keep_gates: bool, merges: bool):
        if any(map(is_sharded, layer.parameters())):
            raise TnmarsError(
                f"the parameters of layer '{name}' are sharded over ranks. Nothing was changed.\n  Gather the model "
                "and its optimiser (torch.distributed.checkpoint.state_dict), cut the whole one, and wrap it anew."
            )
        self.layer, self.name = layer, name
        self.first = cut(layer.graph, kept)
        self.steps = [self.first, *([] if keep_gates else [drop_ones(self.first.graph)])]
        if merges:
            self.steps += _mergers(self.steps[-1].graph, layer.planner)
        self.graph = replace(self.steps[-1].graph, origin=_origin(layer, self.steps[-1].graph, step))
        self.keep_gates = keep_gates
        self.sources = {name: _sources(self.steps, name) for name in self.graph.cores}

    def old(self, name: str) -> nn.Parameter:
        return self.layer.cores.get(name)

    def apply(self, made: dict[nn.Parameter, nn.Parameter]) -> dict[nn.Parameter, Change]:
        """Cuts the layer; returns what came in the place of each of its parameters. Tied cores stay tied."""
        layer, before = self.layer, self.layer.graph
        old_cores = {name: layer.cores.get(name) for name in before.cores}
        old_gates = dict(zip(before.bonds, layer.logits(), strict=True)) if layer.masks is not None else {}
        with torch.no_grad():
            values: dict[str, Tensor] = dict(old_cores)
            for rewrite in self.steps:
                values = cores_after(rewrite, values)
        cores = {name: self._core(name, values[name], old_cores, made) for name in self.graph.cores}
        gates: dict[str, nn.Parameter] = {}
        if self.keep_gates and old_gates:
            was = dict(self.first.bonds)
            for name, value in vectors_after(self.first, old_gates).items():
                gates[name] = nn.Parameter(value.detach().clone(), requires_grad=old_gates[was[name]].requires_grad)
        masks = layer.masks
        layer.become_(replace(layer.planner, graph=self.graph), cores, gates)
        if layer.masks is not None and masks is not None:
            layer.masks.take_(masks, _gates_taken(before, self.first))
        return _changes(self.steps, self.first, old_cores, cores, old_gates, gates)

    def _core(
        self, name: str, value: Tensor, old: Mapping[str, nn.Parameter], made: dict[nn.Parameter, nn.Parameter]
    ) -> nn.Parameter:
        """The core of that name, with its value; the same that another layer has, where they shared it before."""
        sources = [old[source] for source in self.sources[name]]
        new = nn.Parameter(value.clone(), requires_grad=any(source.requires_grad for source in sources))
        return new if len(sources) > 1 else made.setdefault(sources[0], new)


def _apply(cuts: list[Cut]) -> dict[nn.Parameter, Change]:
    """Does all cuts, once it is sure that cores which layers share are cut alike."""
    shared: dict[int, tuple[str, str, object]] = {}
    for entry in cuts:
        for name in entry.layer.graph.cores:
            how = _followed(entry.steps, name)[2]
            if how is None:
                continue
            other, core, before = shared.setdefault(id(entry.old(name)), (entry.name, name, how))
            if before != how:
                raise TnmarsError(
                    f"core '{name}' of layer '{entry.name}' is core '{core}' of layer '{other}' too, but they would be "
                    "cut differently. Nothing was changed.\n  Give both the same slices with keep=..."
                )
    made: dict[nn.Parameter, nn.Parameter] = {}
    changes: dict[nn.Parameter, Change] = {}
    for entry in cuts:
        changes |= entry.apply(made)
    return changes


def _sources(steps: list[Rewrite], name: str) -> tuple[str, ...]:
    """The cores at the beginning that a core at the end is made of."""
    names: tuple[str, ...] = (name,)
    for rewrite in reversed(steps):
        pieces = {piece.name: piece for piece in rewrite.pieces}
        names = tuple(source.name for current in names for source in pieces[current].sources)
    return names


def _gates_taken(before: Graph, rewrite: Rewrite) -> Tensor:
    """The places of the gates that are left, among those of all bonds before."""
    counts = [bond.size for bond in before.bonds.values()]
    places = dict(zip(before.bonds, torch.split(torch.arange(sum(counts)), counts), strict=True))
    return torch.cat(list(vectors_after(rewrite, places).values()))


def _changes(
    steps: list[Rewrite],
    first: Rewrite,
    old_cores: Mapping[str, nn.Parameter],
    cores: Mapping[str, nn.Parameter],
    old_gates: Mapping[str, nn.Parameter],
    gates: Mapping[str, nn.Parameter],
) -> dict[nn.Parameter, Change]:
    """What came in the place of each parameter: a part of it, or nothing."""
    found: dict[nn.Parameter, Change] = {}
    for name, old in old_cores.items():
        new, follow, _ = _followed(steps, name)
        found[old] = (cores[new] if new is not None else None, follow)
    before = {was: now for now, was in first.bonds}
    taken = dict(first.taken)
    for name, old in old_gates.items():
        now = before.get(name, "")
        found[old] = (gates.get(now), partial(_entries, index=list(taken.get(now, ()))))
    for old, (value, follow) in found.items():
        if value is not None and old.grad is not None:
            value.grad = follow(old.grad)
    return found


def _entries(value: Tensor, index: list[int]) -> Tensor:
    return value[index].contiguous()


def _followed(steps: list[Rewrite], name: str) -> tuple[str | None, Callable[[Tensor], Tensor], object]:
    """The name of a core after some rewrites, what they do to a value of its shape, and that as a value to compare.

    A core that is merged with another has no part of its own left.
    """
    pieces: list[Piece] = []
    current: str | None = name
    for rewrite in steps:
        piece = next((p for p in rewrite.pieces if any(source.name == current for source in p.sources)), None)
        if piece is None or not piece.is_part:
            return None, lambda value: value, None if piece is not None else ()
        pieces.append(piece)
        current = piece.name

    def follow(value: Tensor) -> Tensor:
        for piece in pieces:
            value = part_after(piece, value)
        return value.clone()

    how = tuple((piece.sources[0].taken, len(piece.edges)) for piece in pieces)
    return current, follow, how


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


def _origin(layer: TNModule, after: Graph, step: int | None) -> Mapping[str, Json] | None:
    """Where a pruned graph comes from: the sizes of its bonds before the first cut and before this one, and the rule.

    A further cut that changes nothing leaves no trace.
    """
    before = layer.graph
    if before == after and before.origin is not None:
        return before.origin
    sizes: dict[str, Json] = {name: bond.size for name, bond in before.bonds.items()}
    earlier = before.origin or {}
    found: dict[str, Json] = {"sizes": sizes}
    if layer.selector is not None:
        found["selector"] = layer.selector.settings()
    if step is not None:
        found["step"] = step
    if "sizes" in earlier:
        found["first"] = earlier.get("first", earlier["sizes"])
    count = earlier.get("cuts", 0)
    found["cuts"] = (count if isinstance(count, int) else 0) + 1
    return found
