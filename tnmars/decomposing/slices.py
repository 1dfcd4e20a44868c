"""Graphs whose cores all share some modes: for each value of these modes the weight is a tensor of its own.

Given such a graph, its values and its metric, they are taken apart into one tensor and one metric for each value. What
is done with the slices is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod

import torch
from torch import Tensor

from tnmars.decomposing.factors import Factor, Weighting
from tnmars.graph import Graph, Term


def is_sliced(graph: Graph) -> bool:
    """Whether the graph has one term, and every mode that sits on several cores sits on all of them."""
    return len(graph.terms) == 1 and all(set(graph.shared) <= set(core.edges) for core in graph.terms[0].cores)


def inner(graph: Graph, term: Term) -> Term:
    """The term of one slice: its cores without the modes that they share."""
    shared = set(graph.shared)
    cores = (replace(core, edges=tuple(edge for edge in core.edges if edge not in shared)) for core in term.cores)
    return replace(term, cores=tuple(cores)) if shared else term


def axes_of(graph: Graph) -> list[str]:
    """The modes of a slice, in the graph's order."""
    return [mode.name for mode in graph.modes if mode.name not in graph.shared]


def parted(graph: Graph, values: Tensor, metric: Weighting) -> list[tuple[Tensor, Weighting]]:
    """For each value of the shared modes, in their order, the slice of a tensor with one axis per mode, and its metric.

    What the metric says about two slices together is left out.
    """
    if not graph.shared:
        return [(values, metric)]
    names = [mode.name for mode in graph.modes]
    sizes = {mode.name: mode.size for mode in graph.modes}
    order = [*graph.shared, *axes_of(graph)]
    moved = values.permute([names.index(name) for name in order])
    found = []
    for places in product(*(range(sizes[name]) for name in graph.shared)):
        found.append((moved[places], _part(metric, dict(zip(graph.shared, places, strict=True)), sizes)))
    return found


def joined(graph: Graph, parts: Sequence[Tensor]) -> Tensor:
    """The tensor whose slices these are, its shared modes first."""
    sizes = {mode.name: mode.size for mode in graph.modes}
    return torch.stack(list(parts)).reshape([sizes[name] for name in graph.shared] + list(parts[0].shape))


def is_apart(graph: Graph, metric: Weighting) -> bool:
    """Whether a metric says nothing about two slices together."""
    sizes = {mode.name: mode.size for mode in graph.modes}
    shared = set(graph.shared)
    for factor in (*metric.factors, *([metric.responses] if metric.responses else [])):
        if factor.matrix.dim() == 2 and shared & set(factor.axes):
            shape = [sizes[name] for name in factor.axes]
            grids = torch.meshgrid(*map(torch.arange, shape), indexing="ij")
            own = torch.stack(
                [grid.reshape(-1) for grid, name in zip(grids, factor.axes, strict=True) if name in shared]
            )
            is_same = (own[:, :, None] == own[:, None, :]).all(0)
            if bool((factor.matrix[~is_same] != 0).any()):
                return False
    return True


def _part(metric: Weighting, at: Mapping[str, int], sizes: Mapping[str, int]) -> Weighting:
    """The metric of one slice."""
    factors, scale = [], metric.scale
    for factor in metric.factors:
        part = _block(factor, at, sizes)
        if part.axes:
            factors.append(part)
        else:
            scale *= float(part.matrix)
    responses = None if metric.responses is None else _block(metric.responses, at, sizes)
    return Weighting(tuple(factors), scale, responses if responses is not None and responses.axes else None)


def _block(factor: Factor, at: Mapping[str, int], sizes: Mapping[str, int]) -> Factor:
    """The block of a factor on the diagonal that belongs to some indices."""
    places = tuple(at.get(name, slice(None)) for name in factor.axes)
    if places == (slice(None),) * len(places):
        return factor
    shape = [sizes[name] for name in factor.axes]
    left = tuple(name for name in factor.axes if name not in at)
    side = prod(sizes[name] for name in left)
    if factor.matrix.dim() == 1:
        return Factor(left, factor.matrix.reshape(shape)[places].reshape([side] if left else []))
    return Factor(left, factor.matrix.reshape(shape * 2)[places * 2].reshape([side, side] if left else []))
