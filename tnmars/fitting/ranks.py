"""`fit`: from a tensor to a pruned layer with the ranks it needs; `search` describes how ranks are found."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from tnmars import spec
from tnmars.arguments import check_arguments, own, own_seed
from tnmars.compiler import compile_quietly as compile
from tnmars.decomposing.ranks import Aim, Ranks
from tnmars.decomposing.refine import Data
from tnmars.decomposing.rewritten import cores_after
from tnmars.decomposing.rows import values_at
from tnmars.decomposing.tensors import Decomposition, check_plain
from tnmars.errors import GraphError, Problem, TnmarsError
from tnmars.fitting.elimination import Fit
from tnmars.fitting.search import finished, pruned_only, search
from tnmars.fitting.stage import Shown, gated, trained
from tnmars.fitting.target import Target, as_tensor, target
from tnmars.fitting.targeted import by_target, left_over
from tnmars.fitting.value import Fitted, FitWarning, Point, rank_doubts
from tnmars.graph import Edge, Graph, Json
from tnmars.graph.kinds import Role
from tnmars.graph.rewrite import drop_ones, unconjugated
from tnmars.layer.memory import memory_to
from tnmars.layer.module import TNModule
from tnmars.layer.numbers import squared
from tnmars.select import Annealed, Selector

STEPS = 4000
ELIMINATION: dict[str, Json] = {"name": "elimination"}

WIDE = ("float64", "float96", "float128")
"""The numpy types that give a layer of float64."""

Watcher = Callable[[Point], None]


def fit(
    graph: Graph | str | Path,
    given: object,
    *,
    observed: object = None,
    held_out: object = None,
    selector: Selector | None = None,
    ranks: Ranks | None = None,
    error: float | None = None,
    energy: float | None = None,
    parameters: int | None = None,
    seed: int = 0,
    steps: int = STEPS,
    dtype: torch.dtype | None = None,
    watch: Watcher | None = None,
    shown: Shown | None = None,
) -> Fitted:
    """The network of a graph with the shortest description of a tensor: ranks are the graph's, or smaller.

    With one of `ranks`, `error`, `energy` and `parameters` nothing is searched: the tensor is decomposed with the ranks
    that follow, as by `tnmars.decompose`. All entries must be known then.

    Args:
        graph: A graph, or the path of a spec file. Its ranks are where the search starts, so make them larger than
            you expect, twice as large or more.
        given: The tensor to fit: a torch tensor, a numpy array or nested lists. Entries that are NaN are unknown.
        observed: A mask, 1 where an entry may be fitted and 0 where not; by default every known entry may.
        held_out: A mask, 1 where an entry must not be fitted. Known entries that are not fitted give `Fitted.unseen`,
            the error on unseen data.
        selector: The rule that selects the ranks. By default slices are removed one at a time while the description
            gets shorter (BIC). With `tnmars.Annealed()` gates are trained first. Any other selector decides alone; it
            must have gates.
        ranks: The sizes of the bonds: one for all, one for each by name or in order, or `"evbmf"`.
        error: The largest relative error.
        energy: The share of the squared norm to keep, from 0 to 1.
        parameters: The maximum number of parameters.
        seed: The seed of all random numbers. The global random state of torch is not changed.
        steps: How many steps the gates are trained, if they are.
        dtype: The type of the layer's parameters; by default that of the tensor if it is float64 or complex, and
            float32 otherwise.
        watch: Called with every network that the search tries; it has `parameters`, `ranks`, `error` and `bic`.
        shown: Called every 100 steps of training gates, with a record, the step and the number of steps.

    Shape:
        given: One axis per mode, in the graph's order. Or a weight in torch's layout, as `layer.dense()` returns it,
            such as `[out, in]`; a tensor that could be both (a square one) is read as a weight.
        observed, held_out: The shape of `given`.

    Returns:
        The pruned layer with its error, its size and the networks tried.

    Raises:
        ShapeError: The tensor or a mask does not have the right shape.
        GraphError: The graph has no terms, or has padding, or has no bonds though a selector is given.
        TnmarsError: The entries are not finite numbers, or all the same, or no entry is left to fit, or the
            selector has no gates, or a target for the ranks is out of reach.

    Issues a `FitWarning` if the data hardly determine the ranks, if the network explains little of the tensor, or if
    some values are undetermined.

    Example:
        >>> import torch, tnmars
        >>> _ = torch.manual_seed(0)
        >>> target = torch.randn(12, 2) @ torch.randn(2, 15) + 0.01 * torch.randn(12, 15)
        >>> graph = tnmars.families.lowrank("tensor", free=(12, 15), rank=5)
        >>> fitted = tnmars.fit(graph, target)
        >>> print(fitted.ranks, tuple(fitted.layer().shape))
        {'r': 2} (12, 15)
    """
    check_arguments(fit, locals())
    ranks, error, energy, parameters, steps = own((ranks, error, energy, parameters, steps), arrays=True)
    seed = own_seed(seed)
    before = graph if isinstance(graph, Graph) else spec.load(graph)
    check_plain(before, "a fit")
    aim = Aim(ranks, error, energy, parameters)
    type_ = dtype or _dtype(given)
    if _dtype(given).is_complex and not type_.is_complex:
        text = f"dtype is {type_}, but the tensor has complex numbers."
        raise TnmarsError(Problem(text, "Give torch.complex64 or torch.complex128, or leave dtype out."))
    request = Request(before, given, observed, held_out, selector, aim, seed, steps, type_, watch, shown)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), memory_to("fit the tensor", "Give smaller ranks."):
        torch.manual_seed(seed)
        fitted = _fitted(request)
    for doubt in fitted.doubts:
        warnings.warn(doubt, FitWarning, stacklevel=2)
    return fitted


@dataclass(frozen=True, eq=False)
class Request:
    """How a tensor is to be fitted; the fields are arguments of `fit`."""

    before: Graph
    given: object
    observed: object
    held_out: object
    selector: Selector | None
    aim: Aim
    seed: int
    steps: int
    dtype: torch.dtype
    watch: Watcher | None
    shown: Shown | None
    trace: list[Point] = field(default_factory=list)
    """The networks tried so far."""

    def target(self) -> Target:
        """The entries to fit."""
        masks = (_mask(self.observed, "observed"), _mask(self.held_out, "held_out"))
        return target(self.before, as_tensor(self.given, "the target", is_complex=True), *masks)

    def record(self, fit: Fit) -> None:
        """Adds a network to the trace, and shows it to the watcher."""
        self.trace.append(Point(fit.decomposition.parameters, fit.decomposition.sizes, fit.error**0.5, fit.bic))
        if self.watch is not None:
            self.watch(self.trace[-1])

    def train(self, graph: Graph, data: Data, selector: Selector) -> TNModule:
        """A layer whose gates are trained."""
        with torch.enable_grad():
            return trained(graph, data, selector, self.steps, self.seed, self.shown)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The network found, with the settings of the rule that found it."""

    fit: Fit
    settings: Mapping[str, Json]
    doubts: tuple[str, ...] = ()
    gated: TNModule | None = None


def _fitted(request: Request) -> Fitted:
    began = time.perf_counter()
    before, graph = request.before, _plain(request.before)
    aim = request.target()
    if request.selector is not None and not graph.bonds:
        text = "the graph has no bonds, so there are no gates to train."
        raise GraphError(Problem(text, "Leave the selector out; the cores are fitted anyway."))
    if request.selector is not None and not request.selector.has_gates:
        text = f"selector '{request.selector.name}' has no gates to train, but must have gates here."
        raise TnmarsError(Problem(text, "Leave the selector out; ranks are then found by backward elimination."))
    if request.selector is not None and not request.aim.is_empty:
        text = f"selector '{request.selector.name}' and {request.aim.name} are both given, and both decide the ranks."
        raise TnmarsError(Problem(text, "Leave one of them out."))
    random = torch.Generator().manual_seed(request.seed)
    if not request.aim.is_empty:
        fit = by_target(graph, aim.data, request.aim, request.seed)
        outcome = Outcome(fit, {"name": "decompose", "target": request.aim.name})
    elif request.selector is None:
        outcome = _eliminated(request, graph, aim.data, random)
    else:
        outcome = _selected(request, request.selector, graph, aim.data, random)
    request.record(outcome.fit)
    decomposition = outcome.fit.decomposition
    return Fitted(
        layer=_layer(before, decomposition, aim.scale, outcome.settings, request.dtype),
        before=before,
        ranks=dict.fromkeys(before.bonds, 0) | decomposition.sizes,
        error=outcome.fit.error**0.5,
        unseen=_unseen_error(decomposition, aim),
        entries=aim.data.count,
        trace=request.trace,
        selector=outcome.settings,
        seconds=time.perf_counter() - began,
        gated=outcome.gated,
        doubts=aim.doubts + outcome.doubts,
    )


def _eliminated(request: Request, graph: Graph, data: Data, random: torch.Generator) -> Outcome:
    """Ranks by elimination; gates are trained only for a start with very many parameters."""

    def start(limited: Graph, data: Data) -> Decomposition:
        return gated(limited, request.train(limited, data, Annealed(samples=data.count)))

    fit, near = search(graph, data, random, start, request.record)
    return Outcome(fit, ELIMINATION, (*rank_doubts(graph, fit, near, data), *left_over(fit, data)))


def _selected(request: Request, selector: Selector, graph: Graph, data: Data, random: torch.Generator) -> Outcome:
    """Ranks by trained gates, refined by elimination if the selector needs it."""
    rule = selector.for_samples(data.count)
    layer = request.train(graph, data, rule)
    start = gated(graph, layer)
    if not rule.needs_elimination:
        return Outcome(pruned_only(start, data), rule.settings(), gated=layer)
    fit = finished(start, graph, data, random, request.record)
    return Outcome(fit, rule.settings(), tuple(rank_doubts(graph, fit, None, data)), layer)


def _mask(given: object, what: str) -> Tensor | None:
    return None if given is None else as_tensor(given, f"the mask '{what}'")


def _dtype(given: object) -> torch.dtype:
    kind = getattr(given, "dtype", None)
    if str(kind).removeprefix("torch.") in ("complex64", "complex128"):
        return torch.complex128 if "128" in str(kind) else torch.complex64
    return torch.float64 if kind == torch.float64 or str(kind) in WIDE else torch.float32


def _plain(graph: Graph) -> Graph:
    """The graph as that of a plain tensor, one axis per mode."""
    if not graph.terms:
        raise GraphError("the graph has no terms, so there is nothing to fit.")
    if graph.padding:
        text = "the graph has padding, but a tensor to fit must have none."
        raise GraphError(Problem(text, "Leave out 'features' or 'vocab', and pad the tensor itself."))
    modes = tuple(Edge(mode.name, mode.size, Role.FREE) for mode in graph.modes)
    return unconjugated(Graph("tensor", modes, graph.terms, graph.shared, name=graph.name))


def _unseen_error(decomposition: Decomposition, aim: Target) -> float | None:
    if aim.unseen is None or aim.unseen_index is None:
        return None
    difference = values_at(decomposition.graph, decomposition.cores, aim.unseen_index) - aim.unseen
    return float(squared(difference).mean().sqrt())


def _layer(
    before: Graph, decomposition: Decomposition, scale: float, settings: Mapping[str, Json], dtype: torch.dtype
) -> TNModule:
    """The pruned layer: bonds of size 1 are dropped, and the data's scale is spread over the cores of each term."""
    rewrite = drop_ones(decomposition.graph)
    cores = cores_after(rewrite, decomposition.cores)
    sizes: dict[str, Json] = {name: bond.size for name, bond in before.bonds.items()}
    origin: dict[str, Json] = {"sizes": sizes, "selector": dict(settings)}
    if before.origin is not None:
        origin["before"] = before.origin
    used = {(term.name, core.name): core for term in before.terms for core in term.cores}
    terms = [
        replace(term, cores=tuple(replace(core, conj=used[term.name, core.name].conj) for core in term.cores))
        for term in rewrite.graph.terms
    ]
    graph = replace(before.with_terms(terms), origin=origin)
    layer = compile(graph, dtype=dtype)
    for term in graph.terms:
        share = scale ** (1 / len(term.cores))
        for core in term.cores:
            name = graph.qualified(term, core.name)
            value = cores[name].conj() if core.conj else cores[name]
            layer.cores.get(name).copy_((value * share).to(dtype))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
