"""Positions for one connected part by its topology, and where the open legs of each vertex should go.

The unit is the distance between two neighboring cores; x grows to the right and y downwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import cos, pi, sin

from tnmars.draw.stress import Point, circle, spread
from tnmars.draw.web import Near, comb_spine, grid_places, is_tree, path_order, ring_order, star_hub, tree_roots

UP, DOWN = (0.0, -1.0), (0.0, 1.0)


@dataclass(frozen=True)
class Arranged:
    """Positions of vertices, and for some the direction of their legs.

    Where `by_role` is set, legs go up or down by the role of their mode. A vertex without a direction takes the room
    that its lines leave, outwards if it can.
    """

    points: dict[int, Point]
    legs: dict[int, Point] = field(default_factory=dict)
    by_role: bool = False


def arrange(near: Near, part: Sequence[int]) -> Arranged:
    """The positions of the vertices of one part; its topology decides the shape."""
    if (order := path_order(near, part)) is not None:
        return Arranged({vertex: (float(at), 0.0) for at, vertex in enumerate(order)}, by_role=True)
    if (order := ring_order(near, part)) is not None:
        return Arranged(dict(zip(order, circle(len(order)), strict=True)))
    if (hub := star_hub(near, part)) is not None:
        return Arranged(_star(hub, [vertex for vertex in part if vertex != hub]))
    if (order := comb_spine(near, part)) is not None:
        return _comb(near, order)
    if is_tree(near, part):
        return _tree(near, part)
    if (places := grid_places(near, part)) is not None:
        return Arranged({vertex: (float(x), float(y)) for vertex, (x, y) in places.items()})
    number = {vertex: at for at, vertex in enumerate(part)}
    points = spread([[number[other] for other in near[vertex]] for vertex in part])
    return Arranged(dict(zip(part, points, strict=True)))


def _star(hub: int, leaves: Sequence[int]) -> dict[int, Point]:
    count = len(leaves)
    radius = max(1.0, 0.5 / sin(pi / count))
    points = {hub: (0.0, 0.0)}
    for at, leaf in enumerate(leaves):
        angle = -pi / 2 + 2 * pi * at / count
        points[leaf] = (round(radius * cos(angle), 9), round(radius * sin(angle), 9))
    return points


def _comb(near: Near, spine: Sequence[int]) -> Arranged:
    points: dict[int, Point] = {}
    legs: dict[int, Point] = {}
    for at, vertex in enumerate(spine):
        points[vertex], legs[vertex] = (float(at), 0.0), UP
        for leaf in near[vertex]:
            if len(near[leaf]) == 1:
                points[leaf], legs[leaf] = (float(at), 1.0), DOWN
    return Arranged(points, legs)


def _tree(near: Near, part: Sequence[int]) -> Arranged:
    """Layers below the middle of the tree; every leaf has a column of its own, and parents stand above the middle."""
    roots = tree_roots(near, part)
    depth = dict.fromkeys(roots, 0)
    above: dict[int, int] = {root: other for root in roots for other in roots if other != root}
    order, stack = [], roots[::-1]
    while stack:
        vertex = stack.pop()
        order.append(vertex)
        for other in reversed(near[vertex]):
            if other != above.get(vertex):
                above[other], depth[other] = vertex, depth[vertex] + 1
                stack.append(other)
    column = -1.0
    x: dict[int, float] = {}
    parent = None
    for vertex in order:
        if len(near[vertex]) == 1:
            # A wider gap between the leaves of different parents shows what belongs together.
            column += 1.0 if parent in (None, above[vertex]) else 1.2
            x[vertex], parent = column, above[vertex]
    for vertex in reversed(order):
        if vertex not in x:
            below = [x[other] for other in near[vertex] if depth[other] > depth[vertex]]
            x[vertex] = (min(below) + max(below)) / 2
    points = {vertex: (round(x[vertex], 6), float(depth[vertex])) for vertex in order}
    legs = {vertex: DOWN for vertex in order if len(near[vertex]) == 1}
    return Arranged(points, legs | dict.fromkeys(roots, UP))
