"""A weight in torch's layout, such as [out, in], as a tensor with one axis per mode of a graph."""

from __future__ import annotations

from torch import Tensor

from tnmars.graph import Graph
from tnmars.graph.kinds import Role


def is_weight(graph: Graph, shape: tuple[int, ...]) -> bool:
    """Whether a shape is that of the whole weight in torch's layout, where the graph's kind has one."""
    return bool(graph.rules.layout) and shape == graph.dense_shape


def by_modes(graph: Graph, given: Tensor) -> Tensor:
    """The tensor with one axis per mode, in the graph's order: the inverse of what `layer.dense()` does to it.

    A tensor of torch's shape is taken to be in torch's layout, also where its axes could be modes as they are.
    """
    if not is_weight(graph, tuple(given.shape)):
        return given
    order: list[int] = []
    for role in graph.rules.layout:
        held = (Role.IN, Role.PATCH) if role is Role.IN else (role,)
        order += [at for at, mode in enumerate(graph.modes) if mode.role in held]
    split = given.reshape([graph.modes[at].size for at in order])
    return split.permute([order.index(at) for at in range(len(order))])
