"""A term as plain vertices and lines, and its topology: path, ring, star, comb, tree, grid or none of these.

Vertices are numbers: the cores in their order, then one dot for each hyperedge. Nothing here knows positions, sizes or
roles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tnmars.graph.parts import Term

Near = Sequence[Sequence[int]]
"""For each vertex its neighbors, each once, in ascending order."""


@dataclass(frozen=True)
class Web:
    """The vertices of a term and the lines between them, as `(bond, vertex, vertex)`."""

    cores: tuple[str, ...]
    dots: tuple[str, ...]
    lines: tuple[tuple[str, int, int], ...]
    near: tuple[tuple[int, ...], ...]


def web(term: Term) -> Web:
    """The vertices and lines of a term; a bond with three or more ends is a dot joined to each of them.

    So is a trace, which is joined to its core twice.
    """
    cores = tuple(core.name for core in term.cores)
    number = {name: at for at, name in enumerate(cores)}
    ends = term.ends()
    dots = tuple(bond.name for bond in term.bonds if len(ends[bond.name]) > 2 or len(set(ends[bond.name])) == 1)
    dot_number = {name: len(cores) + at for at, name in enumerate(dots)}
    lines = []
    for bond in term.bonds:
        joined = [number[core] for core in ends[bond.name]]
        if bond.name in dot_number:
            lines += [(bond.name, dot_number[bond.name], end) for end in joined]
        else:
            lines.append((bond.name, joined[0], joined[1]))
    near: list[set[int]] = [set() for _ in range(len(cores) + len(dots))]
    for _, one, other in lines:
        near[one].add(other)
        near[other].add(one)
    return Web(cores, dots, tuple(lines), tuple(tuple(sorted(others)) for others in near))


def distances(near: Near, start: int) -> dict[int, int]:
    """The number of steps from `start` to every vertex of its part, nearest first."""
    found = {start: 0}
    queue = [start]
    for vertex in queue:
        for other in near[vertex]:
            if other not in found:
                found[other] = found[vertex] + 1
                queue.append(other)
    return found


def parts(near: Near) -> list[list[int]]:
    """The connected parts, in the order of their first vertices; each in ascending order."""
    seen: set[int] = set()
    found = []
    for vertex in range(len(near)):
        if vertex not in seen:
            part = sorted(distances(near, vertex))
            seen.update(part)
            found.append(part)
    return found


def is_tree(near: Near, part: Sequence[int]) -> bool:
    return sum(len(near[vertex]) for vertex in part) == 2 * (len(part) - 1)


def walk(near: Near, start: int) -> list[int]:
    """The vertices met when walking from `start` without turning back, the lowest number first."""
    found, seen, vertex = [start], {start}, start
    while ahead := [other for other in near[vertex] if other not in seen]:
        vertex = ahead[0]
        seen.add(vertex)
        found.append(vertex)
    return found


def path_order(near: Near, part: Sequence[int]) -> list[int] | None:
    """The vertices along a path, from the end that is listed first; None if the part is not a path."""
    if not is_tree(near, part) or any(len(near[vertex]) > 2 for vertex in part):
        return None
    return walk(near, next(vertex for vertex in part if len(near[vertex]) < 2))


def ring_order(near: Near, part: Sequence[int]) -> list[int] | None:
    """The vertices around a single cycle, from the one listed first; None if the part is not a cycle."""
    if len(part) < 3 or any(len(near[vertex]) != 2 for vertex in part):
        return None
    return walk(near, part[0])


def star_hub(near: Near, part: Sequence[int]) -> int | None:
    """The vertex that joins all others, at least three, which have no other lines; None if there is none."""
    if len(part) < 4 or not is_tree(near, part):
        return None
    return next((vertex for vertex in part if len(near[vertex]) == len(part) - 1), None)


def comb_spine(near: Near, part: Sequence[int]) -> list[int] | None:
    """The spine of a tree that is a path with at most one leaf hanging from each vertex; None for any other part."""
    if not is_tree(near, part):
        return None
    spine = [vertex for vertex in part if len(near[vertex]) > 1]
    inner = {vertex: [other for other in near[vertex] if len(near[other]) > 1] for vertex in spine}
    if len(spine) < 2 or any(len(beside) > 2 or len(near[at]) - len(beside) > 1 for at, beside in inner.items()):
        return None
    start = next(vertex for vertex in spine if len(inner[vertex]) < 2)
    return walk([inner.get(vertex, ()) for vertex in range(len(near))], start)


def tree_roots(near: Near, part: Sequence[int]) -> list[int]:
    """The one or two vertices in the middle of the longest path of a tree."""
    far = list(distances(near, part[0]))[-1]
    steps = distances(near, far)
    vertex = list(steps)[-1]
    long = [vertex]
    while vertex != far:
        vertex = next(other for other in near[vertex] if steps[other] < steps[vertex])
        long.append(vertex)
    half = len(long) // 2
    return sorted(long[half - 1 : half + 1]) if len(long) % 2 == 0 else [long[half]]


def grid_places(near: Near, part: Sequence[int]) -> dict[int, tuple[int, int]] | None:
    """Column and row of each vertex of a rectangular grid of at least 2 x 3; None if the part is not such a grid.

    In a grid of `w` columns the steps from the corners of the first row are `x + y` and `w - 1 - x + y`.
    """
    corners = [vertex for vertex in part if len(near[vertex]) == 2]
    if len(corners) != 4 or any(not 2 <= len(near[vertex]) <= 4 for vertex in part):
        return None
    first = distances(near, corners[0])
    best: dict[int, tuple[int, int]] | None = None
    for corner in corners[1:]:
        other, last = distances(near, corner), first[corner]
        places = {v: ((first[v] - other[v] + last) // 2, (first[v] + other[v] - last) // 2) for v in part}
        rows = 1 + max(y for _, y in places.values())
        lines = sum(len(near[vertex]) for vertex in part) // 2
        if len(set(places.values())) < len(part) or (last + 1) * rows != len(part):
            continue
        if lines != (last + 1) * (rows - 1) + last * rows or not all(
            abs(places[v][0] - places[o][0]) + abs(places[v][1] - places[o][1]) == 1 for v in part for o in near[v]
        ):
            continue
        if best is None or last + 1 > len(part) // (last + 1):
            best = places
    return best
