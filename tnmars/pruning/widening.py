"""The way back: bonds that are made wider, without a change of what the model computes. Optimizer state follows.

The new slices of a bond are small and random at all of its ends but one, where they are 0. So the weight stays exactly
as it is, and the first step of training already moves them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tnmars.arguments import check_arguments, own, own_seed
from tnmars.decomposing.ranks import given_sizes
from tnmars.decomposing.rewritten import cores_after
from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph
from tnmars.graph.parts import is_int
from tnmars.graph.rewrite import NEW, Rewrite, widen
from tnmars.layer.memory import check_room, memory_to
from tnmars.layer.module import TNModule
from tnmars.layer.numbers import squared, wide, wide_dtype
from tnmars.pruning.by_rank import Ranks, check_cores, targets
from tnmars.pruning.follow import Change, check_state, followed, replace_in_

STARTS = ("random", "gradient")


@torch.no_grad()
def widen_(
    model: nn.Module,
    ranks: Ranks,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    start: str = "random",
    scale: float = 0.1,
    seed: int | None = None,
) -> None:
    """Makes bonds wider, in place. The model computes the same as before, and can use the new slices in training.

    At one end of each bond the new slices are 0, at all others they are small. A cut to the slices that were there
    before, such as `tnmars.prune_(model, keep=...)`, is the inverse.

    Args:
        model: A model with compiled layers without gates. Under DDP pass the model inside, and wrap it again.
        ranks: The sizes to widen to: one number for all bonds of all layers, or for the name of each layer a number or
            a table of bonds. With one number, bonds that are wider already stay as they are.
        optimizer: The optimizer of the model; its parameter groups follow, and its state is padded with zeros.
        start: `"random"`, normal numbers; or `"gradient"`, the leading directions of the gradient that the cores have
            now (`.grad`, from a backward pass just before), along which the loss falls faster. Where training has come
            to rest these gradients are near 0 and their directions mean little; then `"random"` is as good.
        scale: The size of the new entries, relative to the root mean square of their core's.
        seed: The seed of the random numbers; by default torch's random state.

    Raises:
        TnmarsError: If a layer has gates or shares a core, if a name or size does not fit, if no layer has a bond, if a
            gradient is asked for but not there, or if the optimizer keeps a state that cannot follow. Nothing was
            changed then.

    Example:
        >>> import torch, tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=2)
        >>> layer, x = tnmars.compile(graph), torch.randn(3, 6)
        >>> before = layer(x)
        >>> tnmars.widen_(layer, 4)
        >>> layer.graph.bonds["r"].size, torch.allclose(layer(x), before)
        (4, True)
    """
    check_arguments(widen_, locals())
    ranks, scale = own((ranks, scale))
    seed = own_seed(seed)
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        text = "the model is wrapped by DistributedDataParallel, which would not see the new parameters."
        raise TnmarsError(Problem(f"{text} Nothing was changed.", "Widen the model inside, and wrap it again."))
    if start not in STARTS:
        raise TnmarsError(f"start is {start!r}, but must be 'random' or 'gradient'. Nothing was changed.")
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not isfinite(scale) or scale <= 0:
        raise TnmarsError(f"scale is {scale!r}, but must be a number above 0. Nothing was changed.")
    random = None if seed is None else torch.Generator().manual_seed(seed)
    wider = [_Wider(model, name, layer, ranks, start) for name, layer in targets(model, ranks).items()]
    if isinstance(ranks, int) and not any(entry.layer.graph.bonds for entry in wider):
        text = "no layer of the model has a bond that could be widened. Nothing was changed."
        raise TnmarsError(Problem(text, GONE))
    if optimizer is not None:
        check_state(optimizer, {value for entry in wider for value in entry.layer.cores.parameters()})
    changes: dict[nn.Parameter, Change] = {}
    with memory_to("widen the model. Nothing was changed", "Give smaller sizes."):
        made = [entry.made(start, scale, random) for entry in wider]
    for entry, (cores, changed) in zip(wider, made, strict=True):
        entry.apply(cores)
        changes |= changed
    if optimizer is not None:
        replace_in_(optimizer, changes)


GONE = "Bonds of size 1 vanish when a model is cut: compile a graph that has them."


class _Wider:
    """What becomes of one layer: checked when it is built, done by `apply`."""

    def __init__(self, model: nn.Module, name: str, layer: TNModule, ranks: Ranks, start: str):
        if layer.masks is not None:
            text = f"layer '{name}' has gates, which new slices would need too. Nothing was changed."
            raise TnmarsError(Problem(text, "Prune it by its gates first, prune(model), or widen other layers."))
        check_cores(model, name, layer)
        if start == "gradient" and any(layer.cores.get(core).grad is None for core in layer.graph.cores):
            text = f"a core of layer '{name}' has no gradient. Nothing was changed."
            raise TnmarsError(Problem(text, "Call backward() on a loss first, or give start='random'."))
        if isinstance(ranks, Mapping) and is_int(ranks[name]) and not layer.graph.bonds:
            raise TnmarsError(Problem(f"layer '{name}' has no bond that could be widened. Nothing was changed.", GONE))
        self.layer = layer
        self.rewrite = _rewrite(layer.graph, name, ranks[name] if isinstance(ranks, Mapping) else ranks)

    def made(
        self, start: str, scale: float, random: torch.Generator | None
    ) -> tuple[dict[str, nn.Parameter], dict[nn.Parameter, Change]]:
        """The wider cores, and what replaces each of those before. A core that stays as it is stays the parameter."""
        layer = self.layer
        old = {name: layer.cores.get(name) for name in layer.graph.cores}
        values = cores_after(self.rewrite, old)
        _fill_(self.rewrite, values, {name: _size(core) * scale for name, core in old.items()}, random)
        if start == "gradient":
            gradients = {name: core.grad for name, core in old.items() if core.grad is not None}
            _align_(self.rewrite, values, cores_after(self.rewrite, gradients))
        cores: dict[str, nn.Parameter] = {}
        changes: dict[nn.Parameter, Change] = {}
        fates = followed([self.rewrite], layer.graph)
        for name, core in old.items():
            is_same = values[name].shape == core.shape
            new = core if is_same else nn.Parameter(values[name].clone(), requires_grad=core.requires_grad)
            follow = fates[name].after
            if not is_same and core.grad is not None:
                new.grad = follow(core.grad)
            cores[name] = new
            if not is_same:
                changes[core] = Change(new, follow)
        return cores, changes

    def apply(self, cores: Mapping[str, nn.Parameter]) -> None:
        """Widens the layer."""
        self.layer.become_(replace(self.layer.planner, graph=self.rewrite.graph), cores, {})


def _rewrite(graph: Graph, name: str, asked: object) -> Rewrite:
    try:
        sizes = given_sizes(graph, asked)
        if isinstance(asked, int):
            sizes = {bond: max(size, graph.bonds[bond].size) for bond, size in sizes.items()}
        _check_room(graph, sizes)
        found = widen(graph, sizes)
        for bond, every in _ends(found).items():
            if any(len(set(own)) == 1 for own in every):
                text = f"bond '{bond}' joins an axis of a core to itself, so slices that start at 0 would not train."
                raise TnmarsError(Problem(text, "Compile the graph with the size that you want."))
    except TnmarsError as error:
        raise TnmarsError(f"layer '{name}': {error}\n  Nothing was changed.") from None
    return replace(found, graph=found.graph.with_origin(graph.origin))


def _check_room(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Raises `TnmarsError` if there is no memory for the wider cores, before lists of their slices fill it."""
    shapes = [
        [max(size, sizes.get(bond or "", 0)) for bond, size in zip(graph.bonds_of(core), shape, strict=True)]
        for core, shape in graph.cores.items()
    ]
    check_room(shapes, None, f"the {len(shapes):,} wider cores", "Give smaller sizes.")


def _size(core: Tensor) -> float:
    """The root mean square of the entries of a core; 1 for a core of zeros."""
    return float(squared(wide(core)).mean().sqrt()) or 1.0


def _new(rewrite: Rewrite) -> dict[str, list[int]]:
    """The new slices of each bond that is wider."""
    found = {bond: [at for at, was in enumerate(taken) if was == NEW] for bond, taken in rewrite.taken}
    return {bond: places for bond, places in found.items() if places}


def _ends(rewrite: Rewrite) -> dict[str, list[list[tuple[str, int]]]]:
    """For each bond that is wider its cores and axes; those of all bonds that tied cores make one with it."""
    wide, graph = _new(rewrite), rewrite.graph
    found: dict[str, list[list[tuple[str, int]]]] = {bond: [] for bond in wide}
    for term in graph.terms:
        for bond in term.bonds:
            name = graph.bond_name(term, bond.name)
            if name in wide:
                axes = ((core, at) for core in term.cores for at, edge in enumerate(core.edges) if edge == bond.name)
                found[name].append([(graph.nodes[graph.qualified(term, core.name)], at) for core, at in axes])
    return found


def _zeros(ends: list[list[tuple[str, int]]]) -> list[tuple[str, int]]:
    """The cores and axes where new slices are 0, so that every bond has one: its last, unless it has one already.

    >>> _zeros([[("A", 1), ("G", 0)], [("G", 2), ("G", 0)], [("G", 2), ("B", 0)]])
    [('G', 0), ('B', 0)]
    """
    found: list[tuple[str, int]] = []
    for end in ends:
        if not set(end) & set(found):
            found.append(end[-1])
    return found


def _fill_(
    rewrite: Rewrite, values: dict[str, Tensor], sizes: Mapping[str, float], random: torch.Generator | None
) -> None:
    """Random numbers in all new slices, then zeros at one end of each bond."""
    new, ends = _new(rewrite), _ends(rewrite)
    for bond, every in ends.items():
        places = dict.fromkeys(place for own in every for place in own)
        zeros = _zeros(every)
        for core, axis in (place for place in places if place not in zeros):
            value = values[core]
            index = torch.tensor(new[bond], device=value.device)
            shape = [len(index) if at == axis else size for at, size in enumerate(value.shape)]
            drawn = torch.randn(shape, generator=random, dtype=wide_dtype(value.dtype)) * sizes[core]
            value.index_copy_(axis, index, drawn.to(value))
    for bond, every in ends.items():
        for core, axis in _zeros(every):
            values[core].index_fill_(axis, torch.tensor(new[bond], device=values[core].device), 0.0)


def _align_(rewrite: Rewrite, values: dict[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
    """Turns the new slices of bonds with two ends along the leading directions of the gradient, at their old size."""
    new, ends = _new(rewrite), _ends(rewrite)
    for bond, every in ends.items():
        places = every[0]
        if len(every) > 1 or len(dict(places)) != 2:
            continue
        core, axis = places[0]
        matrix = gradients[core].movedim(axis, -1)
        left, found, _ = torch.linalg.svd(wide(matrix.reshape(-1, matrix.shape[-1])).cpu(), full_matrices=False)
        for at, place in enumerate(new[bond][: int((found > 1e-12 * found[0]).sum())]):
            slice_ = values[core].select(axis, place)
            along = left[:, at].reshape(slice_.shape).to(slice_)
            slice_.copy_(along * slice_.norm())
