"""A network at some entries of its tensor: their values, and their derivatives by every core."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tnmars.decomposing.tensors import Labels, contract, labels
from tnmars.graph import Graph

ROW = "#row"


def values_at(graph: Graph, cores: Mapping[str, Tensor], index: Tensor) -> Tensor:
    """The entries at the rows of `index`, which has one column per mode."""
    total = next(iter(cores.values())).new_zeros(len(index))
    for term in labels(graph):
        taken = [_taken(graph, axes, cores[name], index) for name, axes in term.items()]
        total = total + contract([axes for axes, _ in taken], (ROW,), [value for _, value in taken])
    return total


def jacobian_at(graph: Graph, cores: Mapping[str, Tensor], index: Tensor) -> Tensor:
    """The derivative of each of these entries by every entry of every core, cores in the graph's order."""
    parts = []
    for term in labels(graph):
        taken = {name: _taken(graph, axes, cores[name], index) for name, axes in term.items()}
        for name, axes in term.items():
            others = [taken[other] for other in term if other != name]
            parts.append(_derivative(graph, axes, cores[name], index, others))
    return torch.cat(parts, 1)


def _derivative(graph: Graph, axes: Labels, core: Tensor, index: Tensor, others: list[tuple[Labels, Tensor]]) -> Tensor:
    modes = [mode.name for mode in graph.modes]
    bonds = tuple(label for label in axes if label not in modes)
    own = [label for label in axes if label in modes]
    sizes = dict(zip(axes, core.shape, strict=True))
    present = {label for each, _ in others for label in each}
    operands = [*others, ((ROW,), core.new_ones(len(index)))]
    operands += [((label,), core.new_ones(sizes[label])) for label in bonds if label not in present]
    around = contract([each for each, _ in operands], (ROW, *bonds), [value for _, value in operands])
    flat = torch.zeros(len(index), dtype=torch.long)
    for mode in own:
        flat = flat * sizes[mode] + index[:, modes.index(mode)]
    inner = around.reshape(len(index), -1)
    rest = core.numel() // inner.shape[1]
    full = core.new_zeros(len(index), rest, inner.shape[1])
    full[torch.arange(len(index)), flat] = inner
    shaped = full.reshape(len(index), *(sizes[mode] for mode in own), *(sizes[label] for label in bonds))
    order = [*own, *bonds]
    return shaped.permute(0, *(1 + order.index(label) for label in axes)).reshape(len(index), -1)


def _taken(graph: Graph, axes: Labels, core: Tensor, index: Tensor) -> tuple[Labels, Tensor]:
    """A core at the rows' indices of its modes, with the rows as first axis; unchanged if it has no mode."""
    modes = [mode.name for mode in graph.modes]
    own = [label for label in axes if label in modes]
    if not own:
        return axes, core
    bonds = [label for label in axes if label not in modes]
    front = core.permute([axes.index(label) for label in (*own, *bonds)])
    return (ROW, *bonds), front[tuple(index[:, modes.index(mode)] for mode in own)]
