"""`fit`: ranks for a given tensor, from the tensor to the pruned layer; see `search` for how ranks are found."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from tnmars import spec
from tnmars.compiler import compile
from tnmars.errors import GraphError, Problem, TnmarsError
from tnmars.fitting.doubts import rank_doubts
from tnmars.fitting.elimination import Fit
from tnmars.fitting.network import Network
from tnmars.fitting.refine import Data
from tnmars.fitting.rows import values_at
from tnmars.fitting.search import finished, pruned_only, search
from tnmars.fitting.stage import Shown, gated
from tnmars.fitting.stage import trained as train_gates
from tnmars.fitting.target import Target, as_tensor, target
from tnmars.fitting.value import Fitted, FitWarning, Point
from tnmars.graph import Edge, Graph, Json
from tnmars.graph.kinds import Role
from tnmars.graph.rewrite import drop_ones
from tnmars.layer.module import TNModule
from tnmars.pruning.follow import cores_after
from tnmars.select import Annealed, Selector

STEPS = 4000
ELIMINATION: dict[str, Json] = {"name": "elimination"}

WIDE = ("float64", "float96", "float128")
"""Types of numpy that become a layer of float64."""

Watcher = Callable[[Point], None]


def fit(
    graph: Graph | str | Path,
    given: object,
    *,
    observed: object = None,
    held_out: object = None,
    selector: Selector | None = None,
    seed: int = 0,
    steps: int = STEPS,
    dtype: torch.dtype | None = None,
    watch: Watcher | None = None,
    shown: Shown | None = None,
) -> Fitted:
    """The network of a graph that describes a tensor in the fewest words: ranks are those of the graph, or smaller.

    The tensor has one axis per mode, in the graph's order; or it is a weight in torch's layout, as `layer.dense()` has
    it, and is taken for that where it could be both. Entries that are NaN, or that the mask `observed` leaves out, or
    that `held_out` names, are not fitted; masks have the shape of the tensor. Ranks of the graph are where the search
    starts, so they should be larger than what is expected, twice as large or more. By default they are found by
    backward elimination (BIC); with `tnmars.Annealed()` gates are trained first, for `steps` steps, and with any other
    selector its rule alone decides. `watch` is called with every network on the way, `shown` while gates are trained.
    Raises `TnmarsError`; warns (`FitWarning`) of ranks that the data hardly settle, and of values that they do not
    settle at all.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = _fitted(graph, given, observed, held_out, selector, seed, steps, dtype, watch, shown)
    for doubt in found.doubts:
        warnings.warn(doubt, FitWarning, stacklevel=2)
    return found


def _fitted(
    graph: Graph | str | Path,
    given: object,
    observed: object,
    held_out: object,
    selector: Selector | None,
    seed: int,
    steps: int,
    dtype: torch.dtype | None,
    watch: Watcher | None,
    shown: Shown | None,
) -> Fitted:
    began = time.perf_counter()
    before = graph if isinstance(graph, Graph) else spec.load(graph)
    plain = _plain(before)
    wanted = target(before, as_tensor(given, "the target"), _mask(observed, "observed"), _mask(held_out, "held_out"))
    random = torch.Generator().manual_seed(seed)
    trace: list[Point] = []

    def told(found: Fit) -> None:
        trace.append(_point(found))
        if watch is not None:
            watch(trace[-1])

    layers: list[TNModule] = []

    def trained(start: Graph, data: Data, rule: Selector | None = None) -> Network:
        with torch.enable_grad():
            layers.append(train_gates(start, data, rule or Annealed(samples=data.count), steps, seed, shown))
        return gated(start, layers[-1])

    data, near = wanted.data, None
    if selector is not None and not plain.bonds:
        text = "the graph has no bonds, so there are no gates to train."
        raise GraphError(Problem(text, "Leave the selector out: the cores are fitted all the same."))
    if selector is not None and not selector.has_gates:
        text = f"selector '{selector.name}' has no gates to train, but must have gates here."
        raise TnmarsError(Problem(text, "Leave the selector out: ranks are then found by backward elimination."))
    settings = ELIMINATION
    if selector is None:
        found, near = search(plain, data, random, trained, told)
    else:
        rule = selector.for_samples(data.count)
        settings = rule.settings()
        gates = trained(plain, data, rule)
        found = finished(gates, plain, data, random, told) if rule.needs_elimination else pruned_only(gates, data)
    told(found)
    doubts = wanted.doubts
    if selector is None or selector.needs_elimination:
        doubts += tuple(rank_doubts(plain, found, near, data))
    layer = _layer(before, found.network, wanted.scale, settings, dtype or _dtype(given))
    ranks = dict.fromkeys(before.bonds, 0) | found.network.sizes
    unseen = _unseen_error(found.network, wanted)
    seconds = time.perf_counter() - began
    with_gates = layers[-1] if layers and selector is not None else None
    error = found.error**0.5
    return Fitted(layer, before, ranks, error, unseen, data.count, trace, settings, seconds, with_gates, doubts)


def _mask(given: object, what: str) -> Tensor | None:
    return None if given is None else as_tensor(given, f"the mask '{what}'")


def _dtype(given: object) -> torch.dtype:
    kind = getattr(given, "dtype", None)
    return torch.float64 if kind == torch.float64 or str(kind) in WIDE else torch.float32


def _point(found: Fit) -> Point:
    return Point(found.network.parameters, found.network.sizes, found.error**0.5, found.bic)


def _plain(graph: Graph) -> Graph:
    """The graph as that of a plain tensor, one axis per mode."""
    if not graph.terms:
        raise GraphError("the graph has no terms, so there is nothing to fit.")
    if graph.padding:
        text = "the graph has padding, and a tensor to be fitted has none."
        raise GraphError(Problem(text, "Leave out 'features' or 'vocab', and pad the tensor itself."))
    modes = tuple(Edge(mode.name, mode.size, Role.FREE) for mode in graph.modes)
    return Graph("tensor", modes, graph.terms, graph.shared, name=graph.name)


def _unseen_error(network: Network, wanted: Target) -> float | None:
    if wanted.unseen is None or wanted.unseen_index is None:
        return None
    missing = values_at(network.graph, network.cores, wanted.unseen_index) - wanted.unseen
    return float(missing.square().mean().sqrt())


def _layer(before: Graph, network: Network, scale: float, settings: Mapping[str, Json], dtype: torch.dtype) -> TNModule:
    """The pruned layer: bonds of size 1 dropped, the scale of the data put back, spread over the cores of each term."""
    rewrite = drop_ones(network.graph)
    cores = cores_after(rewrite, network.cores)
    sizes: dict[str, Json] = {name: bond.size for name, bond in before.bonds.items()}
    origin: dict[str, Json] = {"sizes": sizes, "selector": dict(settings)}
    if before.origin is not None:
        origin["before"] = before.origin
    graph = replace(before.with_terms(rewrite.graph.terms), origin=origin)
    layer = compile(graph, dtype=dtype)
    for term in graph.terms:
        share = scale ** (1 / len(term.cores))
        for core in term.cores:
            name = graph.qualified(term, core.name)
            layer.cores.get(name).copy_((cores[name] * share).to(dtype))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
