"""The naive truth: one float64 einsum over everything, unplanned and unpruned."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import torch
import torch.nn.functional as F

from tnmars.graph import Graph, Role


def tensor(graph: Graph, cores: Mapping[str, np.ndarray], masks: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
    """The whole weight with one axis per mode, padding included; each bond's mask multiplied in once."""
    total = np.zeros([mode.size for mode in graph.modes])
    for term in graph.terms:
        labels = {edge: at for at, edge in enumerate([*(m.name for m in graph.modes), *(b.name for b in term.bonds)])}
        operands: list[object] = []
        for core in term.cores:
            operands += [
                np.asarray(cores[graph.qualified(term, core.name)], np.float64),
                [labels[e] for e in core.edges],
            ]
        for bond in term.bonds:
            key = graph.qualified(term, bond.name)
            if masks is not None and key in masks:
                operands += [np.asarray(masks[key], np.float64), [labels[bond.name]]]
        total += np.einsum(*operands, [labels[mode.name] for mode in graph.modes], optimize=False)
    return total


def dense(graph: Graph, whole: torch.Tensor) -> torch.Tensor:
    """The weight in torch's layout, padding cut off, from the whole one."""
    if not graph.rules.layout:
        return whole
    names = [mode.name for mode in graph.modes]
    groups = []
    for role in graph.rules.layout:
        wanted = (Role.IN, Role.PATCH) if role is Role.IN else (role,)
        groups.append([names.index(mode.name) for mode in graph.modes if mode.role in wanted])
    sizes = [prod(graph.modes[at].size for at in group) for group in groups]
    flat = whole.permute([at for group in groups for at in group]).reshape(sizes)
    for axis, group in enumerate(groups):
        role = graph.modes[group[0]].role if group else None
        if role in graph.padding:
            flat = flat.narrow(axis, 0, graph.padding[role][1])
    return flat.reshape(graph.dense_shape)


def layer(graph: Graph, weight: torch.Tensor, bias: torch.Tensor | None, *inputs: torch.Tensor) -> torch.Tensor:
    """What torch's own layer gives with the dense weight; for a map, one einsum."""
    options = dict(graph.options)
    if graph.kind == "linear":
        return F.linear(inputs[0], weight, bias)
    if graph.kind == "conv":
        function = (F.conv1d, F.conv2d, F.conv3d)[len(graph.kernel_size) - 1]
        return function(inputs[0], weight, bias, **{key: value for key, value in options.items() if key != "bias"})
    if graph.kind == "embedding":
        return weight[inputs[0]]
    if graph.kind == "tensor":
        return weight if not inputs else weight[tuple(inputs[0].unbind(-1))]
    return _map(graph, weight, inputs)


def _map(graph: Graph, weight: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    size = {mode.name: mode.size for mode in graph.modes}
    letters: dict[str, int] = {}
    operands: list[object] = [weight, [letters.setdefault(mode.name, len(letters)) for mode in graph.modes]]
    for operand, value in zip(graph.inputs, inputs, strict=True):
        shape = []
        for axis, length in zip(operand.axes, value.shape, strict=True):
            shape += [size[name] for name in axis] if len(axis) > 1 else [length]
        names = [name for axis in operand.axes for name in axis]
        operands += [value.reshape(shape), [letters.setdefault(name, len(letters)) for name in names]]
    output = [letters[name] for axis in graph.output for name in axis]
    found = torch.einsum(*operands, output)
    shape, at = [], 0
    for axis in graph.output:
        shape.append(prod(found.shape[at : at + len(axis)]))
        at += len(axis)
    return found.reshape(shape)
