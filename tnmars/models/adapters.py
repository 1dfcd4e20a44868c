"""Adapters: frozen layers plus a tensor network each, trained alone and then merged into the layers' weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from tnmars import families
from tnmars.arguments import check_arguments, own
from tnmars.compiler import compile_quietly as compile
from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph, Role
from tnmars.layer.module import Shell, TNModule
from tnmars.models.back import eval_weight
from tnmars.models.rules import Candidate, Rules, candidates, matched
from tnmars.models.sites import Site, sites
from tnmars.models.torch_layers import describe, is_transposed
from tnmars.select.base import Selector


class Adapted(nn.Module):
    """A frozen layer plus a tensor network: the output is `base(x) + scale * delta(x)`.

    Attributes:
        base: The frozen layer.
        delta: The compiled layer that is trained.
        scale: What its output is multiplied by.
    """

    def __init__(self, base: nn.Module, delta: TNModule, scale: float):
        super().__init__()
        self.base, self.delta, self.scale = base, delta, scale

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        kept, added = self.base(*inputs, **named), self.delta(*inputs, **named)
        found: Tensor = kept + self.scale * added
        return found

    @property
    def weight(self) -> Tensor:
        """The weight of the sum, in the layout of the frozen layer, for code that looks for it."""
        dense = self.delta.dense()
        base: Any = self.base
        found: Tensor = base.weight + self.scale * (dense.T if is_transposed(base) else dense)
        return found

    def extra_repr(self) -> str:
        return f"scale={self.scale:g}"


def adapter_(
    model: nn.Module,
    rules: Rules | None = None,
    *,
    rank: int | None = None,
    scale: float = 1.0,
    selector: Selector | None = None,
    **options: Any,
) -> nn.Module:
    """The model given, frozen, with an adapter on each layer that the rules name: a tensor network that is trained.

    Adapters begin at zero, so the model computes what it did before. An optimizer takes the parameters that require a
    gradient. `merge_adapters_` adds the adapters to the weights when training has ended.

    Args:
        model: A trained model, which is changed. All of its own parameters are frozen.
        rules: Which layers have an adapter, and which one: patterns of names to a family, a graph or a spec file, as in
            `plan_compression`. By default all layers that can be decomposed, with a family that suits each.
        rank: The size of every bond of a family.
        scale: What the output of an adapter is multiplied by.
        selector: The rule that learns the ranks of the adapters, such as `tnmars.Mars()`; see `tnmars.prune_`.
        **options: What families take, such as `ways`, the number of modes that inputs and outputs are split into.

    Returns:
        The model given.

    Raises:
        PatternError: A pattern matches no layer.
        TnmarsError: No rank is given for a family, or a graph does not fit a layer. Nothing was changed then.

    Example:
        >>> import torch, tnmars
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
        >>> tnmars.print_trainable_parameters(tnmars.adapter_(model, rank=2))
        trainable params: 256 || all params: 4,416 || trainable%: 5.7971
    """
    check_arguments(adapter_, locals())
    rank, scale = own((rank, scale))
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not isfinite(scale) or scale == 0:
        raise TnmarsError(f"scale is {scale!r}, but must be a number other than 0.")
    known, refused = sites(model)
    known = {name: site for name, site in known.items() if site.is_layer}
    chosen = matched(rules, {name: site.names for name, site in known.items()}, refused)
    made: dict[str, Adapted] = {}
    for name, (_, target) in chosen.items():
        site = known[name]
        if "" in site.names:
            raise TnmarsError(Problem("the model is a single layer.", "Put it into an nn.Sequential first."))
        if target is None:
            continue
        bent = [
            key for key, value in site.layer.options.items() if key == "max_norm" or (key, value) == ("mode", "max")
        ]
        if bent:
            text = (
                f"layer '{name}' has the option {bent[0]}, with which the sum of two tables is not the sum of outputs."
            )
            raise TnmarsError(Problem(text, f"Leave it out of the rules: {{{name!r}: None}}. Nothing was changed."))
        graph = _graph(candidates(target, site.layer, name)[0], site, rank, options)
        made[name] = Adapted(site.module, _delta(graph, site, selector), float(scale)).train(site.module.training)
    if not made:
        raise TnmarsError("no layer of the model can have an adapter. Nothing was changed.")
    return put_adapters_(model, {place: adapted for name, adapted in made.items() for place in known[name].names})


def put_adapters_(model: nn.Module, made: Mapping[str, Adapted]) -> nn.Module:
    """The model given with adapters by name; everything else is frozen."""
    for value in model.parameters():
        value.requires_grad_(False)
    for name, adapted in made.items():
        model.set_submodule(name, adapted)
    return model


def _graph(candidate: Candidate, site: Site, rank: int | None, options: dict[str, Any]) -> Graph:
    """The graph of an adapter: without a bias, everything else as the layer has it."""
    layer = site.layer
    own = {key: value for key, value in layer.options.items() if key != "bias"}
    own |= {"bias": False} if "bias" in layer.options else {}
    if candidate.has_ranks:
        graph = candidate.graph
        fields = (graph.kind, graph.modes, graph.terms, graph.shared, graph.features, graph.kernel_size)
        return Graph(*fields, options=tuple(own.items()), name=graph.name)
    if rank is None:
        text = f"no rank is given for family '{candidate.label}'."
        raise TnmarsError(
            Problem(text, "Give rank=8, or a graph or a spec file, which have ranks. Nothing was changed.")
        )
    given = {**families.GIVEN.get(candidate.label, {}), **options, "kernel": layer.kernel, "groups": layer.groups}
    return families.of_layer(candidate.label, layer.kind, layer.inside, layer.outside, rank=rank, options=own, **given)


def _delta(graph: Graph, site: Site, selector: Selector | None) -> TNModule:
    """A compiled layer whose weight is zero: in every term one core is, with outputs if there are any.

    It stands in one place: of a core that is there twice and zero, all gradients are zero.
    """
    weight = site.layer.weight
    places = Counter(graph.nodes.values())
    begins: list[str] = []
    outside = {mode.name for mode in graph.of_role(Role.OUT)}
    for term in graph.terms:
        names = {core: graph.nodes[graph.qualified(term, core.name)] for core in reversed(term.cores)}
        single = {core: name for core, name in names.items() if places[name] == 1}
        if not single:
            text = f"term '{term.name}' of the adapter has no core that stands in one place only. Nothing was changed."
            raise TnmarsError(Problem(text, "An adapter begins with such a core at zero: add one that is not tied."))
        begins.append(single[max(single, key=lambda core: bool(outside & set(core.edges)))])
    made = compile(graph, selector=selector, device=weight.device, dtype=weight.dtype)
    with torch.no_grad():
        for name in begins:
            made.cores.get(name).zero_()
    return made


def merge_adapters_(model: nn.Module) -> nn.Module:
    """The model given, whose adapters are added to the weights of their layers, which take their places again.

    Parameters stay frozen. An adapter with gates is merged as it computes in `eval()`. A weight that other layers have
    too, such as a tied embedding, gets a copy of its own in this layer: the others compute as before.

    Args:
        model: A model that `adapter_` changed.

    Returns:
        The model given; if it is an adapter itself, the layer in its place.

    Raises:
        TnmarsError: The model has no adapter, or one that has no weight any more. Nothing was changed then.

    Example:
        >>> import torch, tnmars
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8))
        >>> tnmars.merge_adapters_(tnmars.adapter_(model, rank=2))
        Sequential(
          (0): Linear(in_features=8, out_features=8, bias=True)
        )
    """
    check_arguments(merge_adapters_, locals())
    found = {name: part for name, part in model.named_modules(remove_duplicate=False) if isinstance(part, Adapted)}
    if not found:
        raise TnmarsError("the model has no adapter: adapter_ puts them in.")
    problems = [problem for name, adapted in found.items() for problem in _mergeable(name, adapted)]
    if problems:
        raise TnmarsError([*problems, Problem("Nothing was changed.")])
    holders = Counter(id(value) for part in model.modules() for value in part._parameters.values())
    done: dict[nn.Module, nn.Module] = {}
    with torch.no_grad():
        for adapted in dict.fromkeys(found.values()):
            done[adapted] = _merged(adapted, holders, done)
    for name, adapted in found.items():
        if not name:
            return done[adapted]
        if name in dict(model.named_modules(remove_duplicate=False)):  # an adapter in an adapter is merged with it
            model.set_submodule(name, done[adapted])
    return model


def _mergeable(name: str, adapted: Adapted) -> Iterator[Problem]:
    """What prevents merging an adapter: its parts may have been converted since."""
    called = f"layer '{name}'" if name else "the layer"
    delta: nn.Module = adapted.delta
    if not isinstance(delta, TNModule) and describe(delta) is None:
        text = f"the adapter of {called} is a {type(delta).__name__} now, which has no weight to add."
        yield Problem(text, "Merge before as_torch_ and freeze.")
    if not isinstance(adapted.base, Adapted) and isinstance(adapted.base, Shell):
        text = f"{called} was compiled after it had an adapter, and an adapter is added to a dense weight."
        yield Problem(text, "Use tnmars.to_dense_ first.")


def _merged(adapted: Adapted, holders: Counter[int], done: dict[nn.Module, nn.Module]) -> nn.Module:
    """The layer of an adapter with the adapter added to its weight; of an adapter on an adapter, with both."""
    if adapted in done:
        return done[adapted]
    delta: Any = adapted.delta  # which to_dense_ may have made torch's own
    dense = eval_weight(delta) if isinstance(delta, TNModule) else delta.weight
    base: Any = adapted.base
    if isinstance(base, Adapted):
        done[base] = _merged(base, holders, done)
        base = done[base]
    if holders[id(base.weight)] > 1:
        base.weight = nn.Parameter(base.weight.clone(), requires_grad=base.weight.requires_grad)
    base.weight += adapted.scale * (dense.T if is_transposed(base) else dense)
    found: nn.Module = base
    return found


def print_trainable_parameters(model: nn.Module) -> None:
    """Prints how many parameters of a model are trained, in the words of PEFT.

    Args:
        model: Any model.

    Example:
        >>> import torch, tnmars
        >>> tnmars.print_trainable_parameters(torch.nn.Linear(3, 3))
        trainable params: 12 || all params: 12 || trainable%: 100.0000
    """
    check_arguments(print_trainable_parameters, locals())
    every = sum(value.numel() for value in model.parameters())
    trained = sum(value.numel() for value in model.parameters() if value.requires_grad)
    share = 100 * trained / every if every else 0.0
    print(f"trainable params: {trained:,} || all params: {every:,} || trainable%: {share:.4f}")
