"""The squared singular values of one bond of a tree: of the weight between the modes on its two sides, in a metric."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from tnmars.decomposing.factors import Weighting
from tnmars.decomposing.slices import axes_of, inner, parted
from tnmars.decomposing.sweep import both_sides
from tnmars.graph import Graph, Term


def below(graph: Graph, term: Term) -> dict[str, tuple[str, ...]]:
    """For each bond of a forest the modes on one of its sides, in the graph's order, without modes on both."""
    term = inner(graph, term)
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
    """The squared singular values of a tensor with one axis per mode, between some modes and the others.

    Over slices along modes that all cores share, they are added up: their bonds have the same size.
    """
    sizes: Mapping[str, int] = {mode.name: mode.size for mode in graph.modes}
    axes = axes_of(graph)
    spectra = [
        _spectrum(part, axes, sizes, inside, own) for part, own in parted(graph, values, metric or Weighting(()))
    ]
    return torch.stack(spectra).sum(0)


def _spectrum(
    values: Tensor, axes: list[str], sizes: Mapping[str, int], inside: tuple[str, ...], metric: Weighting
) -> Tensor:
    others = tuple(name for name in axes if name not in inside)
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
        gram = metric.scale * (tensor.reshape(rows, -1) @ weighed.reshape(rows, -1).mH)
    found: Tensor = torch.linalg.eigvalsh(0.5 * (gram + gram.mH))
    return found.flip(0).clamp(min=0.0)[:most]
