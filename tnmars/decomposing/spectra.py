"""The squared singular values of every bond of a weight, in a metric: what cutting a bond would lose."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from tnmars.decomposing.factors import Weighting
from tnmars.decomposing.layout import by_modes, checked
from tnmars.decomposing.metric import Metric, weighting
from tnmars.decomposing.sweep import both_sides, is_forest
from tnmars.graph import Graph, Term


def spectra(weight: Tensor, graph: Graph, metric: Metric | None = None) -> dict[str, Tensor]:
    """The squared singular values of every bond of a tree, in the metric, all of them and largest first.

    Cutting a bond to k slices loses the sum of the others: exactly if the metric splits at the bond, else by its
    partial traces. The sizes of the bonds are ignored, so there are as many values as a bond has useful slices.

    Args:
        weight: The dense weight in torch's layout.
        graph: A graph without cycles or hyperedges. For any other graph the values are the squared weights of the
            slices in the canonical form of a decomposition of the graph's own sizes.
        metric: What errors matter; by default every entry counts alike.

    Returns:
        For each bond its squared singular values.
    """
    weight = checked(graph, weight)
    values, weighed = by_modes(graph, weight), weighting(graph, weight, metric)
    if not is_forest(graph):
        from tnmars.decomposing.canonical import canonical
        from tnmars.decomposing.decompose import decompose

        found = decompose(weight, graph, metric=metric)
        weights = canonical(found.graph, found.cores).weights
        return {name: value.square() for name, value in weights.items()}
    (term,) = graph.terms
    sides = below(graph, term)
    return {graph.qualified(term, bond.name): spectrum(graph, values, sides[bond.name], weighed) for bond in term.bonds}


def below(graph: Graph, term: Term) -> dict[str, tuple[str, ...]]:
    """For each bond of a forest the modes on one of its sides, in the graph's order."""
    modes = [mode.name for mode in graph.modes]
    ends = term.ends()
    edges = {core.name: core.edges for core in term.cores}
    found = {}
    for bond in term.bonds:
        seen, waiting = {ends[bond.name][0]}, [ends[bond.name][0]]
        while waiting:
            joined = [edge for edge in edges[waiting.pop()] if edge not in modes and edge != bond.name]
            fresh = {core for edge in joined for core in ends[edge]} - seen
            seen |= fresh
            waiting += fresh
        held = {edge for core in seen for edge in edges[core]}
        found[bond.name] = tuple(mode for mode in modes if mode in held)
    return found


def spectrum(graph: Graph, values: Tensor, inside: tuple[str, ...], metric: Weighting | None) -> Tensor:
    """The squared singular values of a tensor with one axis per mode, between some modes and the others."""
    axes = [mode.name for mode in graph.modes]
    sizes: Mapping[str, int] = {mode.name: mode.size for mode in graph.modes}
    others = tuple(name for name in axes if name not in inside)
    metric = metric or Weighting(())
    first, second = sorted((inside, others), key=lambda side: prod(sizes[name] for name in side))
    most = prod(sizes[name] for name in first)
    if not metric.has_responses(first) and metric.has_responses(second):
        first, second = second, first
    order = [*first, *second]
    rows = prod(sizes[name] for name in first)
    ours, theirs = metric.sides(first, sizes)
    roots = [factor.roots()[0] for factor in ours]
    if metric.has_responses(first):
        gram = both_sides(metric.response_gram(first, sizes), roots, first, sizes)
    else:
        tensor = values.permute([axes.index(name) for name in order])
        for root in roots:
            tensor = root.applied(tensor, order)
        weighed = tensor
        for factor in theirs:
            weighed = factor.applied(weighed, order)
        gram = metric.scale * (tensor.reshape(rows, -1) @ weighed.reshape(rows, -1).T)
    return torch.linalg.eigvalsh(0.5 * (gram + gram.T)).flip(0).clamp(min=0.0)[:most]
