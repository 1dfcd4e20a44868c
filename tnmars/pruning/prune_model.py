"""Trained gates to a smaller graph: what is kept, the rewrite, and the layer compiled again with what is left.

`prune` returns a new, simplified model; `prune_` cuts in place, and the optimizer's state follows. Pruning has no
machinery of its own: it is a rewrite of the graph, then `compile` again.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tnmars.arguments import check_arguments, own
from tnmars.decomposing.rewritten import cores_after
from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph, Json
from tnmars.graph.rewrite import Keep, Rewrite, drop_ones
from tnmars.graph.rewrite import prune as cut
from tnmars.layer.cores import check_parameters
from tnmars.layer.distributed import is_sharded
from tnmars.layer.memory import memory_to
from tnmars.layer.module import TNModule
from tnmars.pruning.by_rank import Ranks, compiled_layers, take_
from tnmars.pruning.folding import fold_factors, folded
from tnmars.pruning.follow import Change, check_state, followed, replace_in_, vectors_after
from tnmars.pruning.keeping import decided as decided
from tnmars.pruning.keeping import keep as keep
from tnmars.pruning.keeping import layer_keep as layer_keep
from tnmars.pruning.keeping import to_keep
from tnmars.pruning.mergers import mergers
from tnmars.pruning.rounding import joined, rounded_up


def prune(
    model: nn.Module,
    keep: Mapping[str, Keep] | None = None,
    *,
    ranks: Ranks | None = None,
    energy: float | None = None,
    round_to: int | str | None = None,
    simplify: bool = True,
    keep_gates: bool = False,
    step: int | None = None,
) -> nn.Module:
    """A new, smaller model with the slices that the selectors keep, or those given.

    Cores are sliced, bonds of size 1 are dropped, and everything is planned again. The model given is left alone. The
    new one computes what the model computes in `eval()`: if kept gates are not 1 there (see `tnmars.GaussianGates`),
    each is multiplied into the smallest core that carries its bond.

    Args:
        model: A model with compiled layers.
        keep: The slices to keep: for the name of each layer to cut, the indices of each bond. By default what the
            selector of each layer keeps; see `tnmars.keep`. In either case kept slices have the
            values of their gates.
        ranks: For layers without gates, the sizes to cut bonds to: one number for all bonds of all layers, or for the
            name of each layer to cut a number or a table of bonds. The slices with the largest weights in the canonical
            form stay; see `tnmars.canonical`.
        energy: For layers without gates, the share of the squared norm of each weight to keep, from 0 to 1.
        round_to: A number such as 8: sizes of bonds are rounded up to its multiples, at most to what they were, because
            a rank of 23 can be slower than one of 24. Or `"time"`: up to a multiple of 4, 8 or 16, where that makes the
            predicted time shorter. Bonds that are cut to 1 are dropped as before. Of a layer with gates, the slices
            that are added are 0 in one of their cores, so that the model still computes the same.
        simplify: Whether neighboring cores are merged where that saves both parameters and planned time. Turn it off
            to keep the names of all cores. In a graph with more than 64 cores many pairs are merged at a time.
        keep_gates: Whether the gates of what is kept stay, to select further. Bonds of size 1 and all cores then stay
            as well.
        step: The number of the training step, noted in the pruned graphs' `origin`; optional.

    Returns:
        The pruned copy. Under several processes all of them must call it, and rank 0 decides what is kept.

    Raises:
        TnmarsError: If no selector chooses slices and nothing else is given, if `keep` or `ranks` names a layer, bond
            or slice that is not there, if a layer to cut by `ranks` or `energy` has gates or shares a core, if
            parameters are sharded, or if a core that several layers share would be cut in one way here and in another
            there.

    Example:
        >>> import tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=3)
        >>> layer = tnmars.compile(graph, selector=tnmars.Mars())
        >>> small = tnmars.prune(layer, keep={"": {"r": (0, 2)}})
        >>> small.graph.bonds["r"].size, layer.graph.bonds["r"].size
        (2, 3)
    """
    check_arguments(prune, locals(), but=("round_to",))
    step, energy = own((step, energy))
    _check_rounding(round_to, keep_gates, (keep, ranks, energy))
    with memory_to("prune a copy of the model", "Cut the model itself: tnmars.prune_."):
        chosen, forms = to_keep(model, keep, ranks, energy)
        pruned = copy.deepcopy(model)
        merges = simplify and not keep_gates
        compiled = compiled_layers(pruned)
        more = rounded_up(compiled, chosen, round_to, forms)
        cuts = [
            LayerCut(compiled[name], name, kept, step, keep_gates, merges, more[name]) for name, kept in chosen.items()
        ]
        take_(compiled, forms)
        apply(cuts, outside(pruned, cuts))
    return pruned


def prune_(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    keep: Mapping[str, Keep] | None = None,
    *,
    ranks: Ranks | None = None,
    energy: float | None = None,
    round_to: int | str | None = None,
    keep_gates: bool = False,
    step: int | None = None,
) -> None:
    """Prunes in place, so that training continues: the optimizer's state follows, entry by entry.

    Everything is checked before anything is changed. Cores are not merged, and a core of which nothing was cut or
    scaled stays the same parameter. Where a kept gate of value g is multiplied into a slice of a core (see
    `tnmars.prune`), gradients with respect to that slice are 1/g of what they were. So its gradient, momentum and
    Adam's first moment are divided by g, and second moments by g squared.

    Args:
        model: A model with compiled layers. Under DDP pass the model inside, `model.module`, and wrap it again.
        optimizer: The optimizer of the model; its parameter groups and its state are cut too. Without it, make a new
            optimizer after the cut.
        keep: The slices to keep, as in `tnmars.prune`.
        ranks, energy: As in `tnmars.prune`, without an optimizer: the canonical form changes all cores.
        round_to: As in `tnmars.prune`.
        keep_gates: Whether the gates of what is kept stay, to select further.
        step: The number of the training step, noted in the pruned graphs' `origin`; optional.

    Raises:
        TnmarsError: As `tnmars.prune`; also if the model is wrapped by DDP, or if the optimizer keeps a state that
            cannot be cut or scaled (Adafactor's, for example). Nothing was changed then.

    Example:
        >>> import torch, tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=3)
        >>> layer = tnmars.compile(graph, selector=tnmars.Mars())
        >>> optimizer = torch.optim.Adam(tnmars.param_groups(layer, lr=1e-2))
        >>> tnmars.prune_(layer, optimizer, keep={"": {"r": (0, 2)}}, keep_gates=True)
        >>> layer.logits()[0].shape
        torch.Size([2])
    """
    check_arguments(prune_, locals(), but=("round_to",))
    step, energy = own((step, energy))
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise TnmarsError(
            "the model is wrapped by DistributedDataParallel, which would not see the new parameters. Nothing was "
            "changed.\n  Cut the model inside, prune_(model.module, ...), and wrap it again."
        )
    _check_rounding(round_to, keep_gates, (keep, ranks, energy))
    chosen, forms = to_keep(model, keep, ranks, energy)
    if forms and optimizer is not None:
        text = (
            "ranks and energy change every core of a layer, so the optimizer's state would be meaningless. Nothing was"
        )
        raise TnmarsError(f"{text} changed.\n  Cut without it, prune_(model, ranks=...), and make a new optimizer.")
    compiled = compiled_layers(model)
    more = rounded_up(compiled, chosen, round_to, forms)
    cuts = [LayerCut(compiled[name], name, kept, step, keep_gates, False, more[name]) for name, kept in chosen.items()]
    if optimizer is not None:
        scaled = {entry.layer.cores.get(name) for entry in cuts for name in entry.factors}
        check_state(optimizer, {value for entry in cuts for value in entry.layer.parameters()}, scaled)
    take_(compiled, forms)
    changes = apply(cuts, outside(model, cuts))
    if optimizer is not None:
        replace_in_(optimizer, changes)


def _check_rounding(round_to: int | str | None, keep_gates: bool, given: Sequence[object]) -> None:
    """Refuses to round up slices that the user chose while gates stay: the gates of those added may be open."""
    if round_to is not None and keep_gates and any(value is not None for value in given):
        text = "round_to with keep_gates adds slices whose gates may be open, so the model would not compute the same."
        raise TnmarsError(Problem(f"{text} Nothing was changed.", "Leave keep_gates out, or let the gates decide."))


class LayerCut:
    """What becomes of one layer: computed and checked when it is built, done by `apply`."""

    def __init__(
        self,
        layer: TNModule,
        name: str,
        kept: Keep,
        step: int | None,
        keep_gates: bool,
        merges: bool,
        more: Keep | None = None,
    ):
        if any(map(is_sharded, layer.parameters())):
            raise TnmarsError(
                f"the parameters of layer '{name}' are sharded over ranks. Nothing was changed.\n  Gather the model "
                "and its optimizer (torch.distributed.checkpoint.state_dict), cut it, and wrap it again."
            )
        check_parameters(layer, name)
        self.layer, self.name = layer, name
        kept = joined(kept, more or {})
        self.first = cut(layer.graph, kept)
        self.steps = [self.first, *([] if keep_gates else [drop_ones(self.first.graph)])]
        if merges:
            self.steps += mergers(self.steps[-1].graph, layer.planner)
        self.graph = replace(self.steps[-1].graph, origin=_origin(layer, self.steps[-1].graph, step))
        self.keep_gates = keep_gates
        self.sources = _sources(self.steps, self.graph)
        self.followed = followed(self.steps, layer.graph)
        self.factors = {} if keep_gates else fold_factors(layer, kept, more or {})

    def apply(self, made: dict[nn.Parameter, nn.Parameter]) -> dict[nn.Parameter, Change]:
        """Cuts the layer; returns what replaced each of its parameters. Tied cores stay tied."""
        layer, before = self.layer, self.layer.graph
        old_cores = {name: layer.cores.get(name) for name in before.cores}
        old_gates = dict(zip(before.bonds, layer.logits(), strict=True)) if layer.masks is not None else {}
        with torch.no_grad():
            values: dict[str, Tensor] = folded(old_cores, self.factors)
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
        return _changes(self, old_cores, cores, old_gates, gates)

    def changes(self, name: str) -> bool:
        """Whether a core does not stay what it is."""
        return name in self.factors or self.followed[name].changes(self.layer.graph.cores[name])

    def _core(
        self, name: str, value: Tensor, old: Mapping[str, nn.Parameter], made: dict[nn.Parameter, nn.Parameter]
    ) -> nn.Parameter:
        """The core of that name: the same parameter that another layer has, if they shared one before.

        A core of which nothing was cut or scaled stays the parameter that it is.
        """
        sources = [old[source] for source in self.sources[name]]
        if len(sources) == 1 and not self.changes(self.sources[name][0]):
            return made.setdefault(sources[0], sources[0])
        new = nn.Parameter(value.clone(), requires_grad=any(source.requires_grad for source in sources))
        return new if len(sources) > 1 else made.setdefault(sources[0], new)


def outside(model: nn.Module, cuts: Sequence[LayerCut]) -> dict[nn.Parameter, str]:
    """The names of the parameters of a model that belong to none of the layers to cut."""
    inside = {module for entry in cuts for module in entry.layer.modules()}
    others = [(name, module) for name, module in model.named_modules() if module not in inside]
    return {
        value: f"{name}.{key}" if name else key
        for name, module in others
        for key, value in module._parameters.items()
        if value is not None
    }


def apply(cuts: Sequence[LayerCut], others: Mapping[nn.Parameter, str]) -> dict[nn.Parameter, Change]:
    """Makes all cuts and returns what replaced each parameter.

    Raises `TnmarsError` first if a core is shared with another layer that is cut differently, or with one of `others`.
    """
    shared: dict[nn.Parameter, tuple[LayerCut, str]] = {}
    for entry in cuts:
        for name, fate in entry.followed.items():
            core = entry.layer.cores.get(name)
            if fate.is_merged:
                continue
            if core in others and entry.changes(name):
                raise TnmarsError(
                    f"core '{name}' of layer '{entry.name}' is '{others[core]}' of the model too, which would not be "
                    "cut. Nothing was changed.\n  Cut both with the same slices (keep=...), or untie them first."
                )
            other, its_name = shared.setdefault(core, (entry, name))
            what = f"core '{name}' of layer '{entry.name}' is core '{its_name}' of layer '{other.name}' too, but they"
            if other.followed[its_name].cut != fate.cut:
                raise TnmarsError(
                    f"{what} would be cut differently. Nothing was changed.\n  Give both the same slices with keep=..."
                )
            if not _is_same(entry.factors.get(name), other.factors.get(its_name)):
                fix = "Untie them first, or use a selector whose kept gates are 1, such as GaussianGates(fold=False)."
                raise TnmarsError(f"{what} have gates of different values. Nothing was changed.\n  {fix}")
    made: dict[nn.Parameter, nn.Parameter] = {}
    changes: dict[nn.Parameter, Change] = {}
    for entry in cuts:
        changes |= entry.apply(made)
    return {old: change for old, change in changes.items() if old not in others}


def _sources(steps: Sequence[Rewrite], graph: Graph) -> dict[str, tuple[str, ...]]:
    """For each core of the graph after some rewrites, the original cores that it is made of."""
    names: dict[str, tuple[str, ...]] = {name: (name,) for name in graph.cores}
    for rewrite in reversed(steps):
        pieces = {piece.name: piece for piece in rewrite.pieces}
        names = {
            name: tuple(source.name for current in parts for source in pieces[current].sources)
            for name, parts in names.items()
        }
    return names


def _gates_taken(before: Graph, rewrite: Rewrite) -> Tensor:
    """The indices of the gates that are left, among those of all bonds before."""
    counts = [bond.size for bond in before.bonds.values()]
    places = dict(zip(before.bonds, torch.split(torch.arange(sum(counts)), counts), strict=True))
    return torch.cat(list(vectors_after(rewrite, places).values()))


def _is_same(first: Tensor | None, second: Tensor | None) -> bool:
    return torch.equal(first, second) if first is not None and second is not None else first is second


def _changes(
    entry: LayerCut,
    old_cores: Mapping[str, nn.Parameter],
    cores: Mapping[str, nn.Parameter],
    old_gates: Mapping[str, nn.Parameter],
    gates: Mapping[str, nn.Parameter],
) -> dict[nn.Parameter, Change]:
    """What replaced each parameter that did not stay: a part of it, or nothing."""
    changes: dict[nn.Parameter, Change] = {}
    for name, old in old_cores.items():
        fate = entry.followed[name]
        new = None if fate.name is None else cores[fate.name]
        if new is not old:
            changes[old] = Change(new, fate.after, entry.factors.get(name))
    before = {was: now for now, was in entry.first.bonds}
    taken = dict(entry.first.taken)
    for name, old in old_gates.items():
        now = before.get(name, "")
        changes[old] = Change(gates.get(now), partial(_entries, index=list(taken.get(now, ()))))
    for old, change in changes.items():
        if change.new is not None and old.grad is not None:
            change.new.grad = change.gradient(old.grad)
    return changes


def _entries(value: Tensor, index: list[int]) -> Tensor:
    return value[index].contiguous()


def _origin(layer: TNModule, after: Graph, step: int | None) -> Mapping[str, Json] | None:
    """The origin of a pruned graph: the sizes of its bonds before the first cut and before this one, and the rule.

    A further cut that changes nothing leaves it as it is.
    """
    before = layer.graph
    if before == after and before.origin is not None:
        return before.origin
    earlier = before.origin or {}
    origin: dict[str, Json] = {"sizes": {name: bond.size for name, bond in before.bonds.items()}}
    if layer.selector is not None:
        origin["selector"] = layer.selector.settings()
    if step is not None:
        origin["step"] = step
    if "sizes" in earlier:
        origin["first"] = earlier.get("first", earlier["sizes"])
    count = earlier.get("cuts", 0)
    origin["cuts"] = (count if isinstance(count, int) else 0) + 1
    return origin
