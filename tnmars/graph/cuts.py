"""Minimum cuts: the narrowest set of edges that separates some cores from other cores and from the open edges.

Given are the cores that each edge joins and its size; the size of a cut is the *product* of the sizes of its
edges. An edge with many ends counts once. Nothing here knows graphs, terms or roles. It is plain Python on purpose:
importing networkx would take longer than all of `tnmars check` may take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log, prod

# Flow runs from a core into an edge, through the edge, and out of it into a core: one step up, modulo 3. A step down
# takes back what flowed before. Only the way through an edge is limited.
_CORE, _IN, _OUT = range(3)
_Node = tuple[int, str]
_Came = dict[_Node, "_Node | None"]
_Received = dict[_Node, dict[_Node, float]]

_LEAST = 1e-9
"""Flow is a sum of logarithms, so rounding errors must not count as capacity. An arc with no more than this left
is full, which bounds the number of augmentations as in Edmonds and Karp (vertices times arcs) for any sizes. Two cuts
are distinguished if they differ by more than about one part in 10^9."""


@dataclass(frozen=True)
class Network:
    """The cores that each edge joins and those edges' sizes; an open edge leads out of the network."""

    ends: Mapping[str, Collection[str]]
    sizes: Mapping[str, int]
    open_edges: frozenset[str]
    touching: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Cut:
    """The edges of a cut, from the sources outward, and the product of their sizes."""

    edges: tuple[str, ...]
    size: int


def network(ends: Mapping[str, Collection[str]], sizes: Mapping[str, int], open_edges: Collection[str] = ()) -> Network:
    """The network of these edges, to be cut any number of times."""
    touching: dict[str, list[str]] = {}
    for edge, cores in ends.items():
        for core in cores:
            touching.setdefault(core, []).append(edge)
    return Network(ends, sizes, frozenset(open_edges), {core: tuple(edges) for core, edges in touching.items()})


def min_cut(net: Network, sources: Collection[str], sinks: Collection[str] = (), without: Collection[str] = ()) -> Cut:
    """The cut with the smallest product of sizes between the cores `sources` and all of `sinks` and the open edges.

    A core in both is a source. The edges `without` are taken as absent. If there are several such cuts, the result is
    the one nearest to the sources. If nothing leads from sources to sinks, the cut is empty and its size is 1.

    >>> chain = network({"i": ["A"], "r": ["A", "B"], "o": ["B"]}, {"i": 8, "r": 3, "o": 2}, ["i", "o"])
    >>> min_cut(chain, ["A"])
    Cut(edges=('i', 'o'), size=16)
    >>> min_cut(chain, ["A"], sinks=["B"], without=["i"])
    Cut(edges=('r',), size=3)
    """
    came = _reached(net, sources, sinks, without, inf)
    assert came is not None, "no flow is over infinity"
    return _cut(net, came)


def narrower(
    net: Network, than: int, sources: Collection[str], sinks: Collection[str] = (), without: Collection[str] = ()
) -> Cut | None:
    """The result of `min_cut` if its size is below `than`, else None; the search stops as soon as that is known."""
    came = _reached(net, sources, sinks, without, log(than) + _LEAST)
    found = None if came is None else _cut(net, came)
    return found if found is not None and found.size < than else None


def _cut(net: Network, came: _Came) -> Cut:
    """The cut around the nodes that no more flow can leave."""
    full = {name for side, name in came if side == _IN and (_OUT, name) not in came}
    edges = tuple(dict.fromkeys(edge for core in _cores(came) for edge in net.touching.get(core, ()) if edge in full))
    return Cut(edges, prod(net.sizes[edge] for edge in edges))


def _cores(came: _Came) -> Iterator[str]:
    return (name for side, name in came if side == _CORE)


def _reached(
    net: Network, sources: Collection[str], sinks: Collection[str], without: Collection[str], enough: float
) -> _Came | None:
    """The nodes that more flow can reach once no more reaches a sink; None if more than `enough` reaches one."""
    received: _Received = {}
    total = 0.0
    while total <= enough:
        came, added = _fill(net, sources, sinks, without, received)
        if not added:
            return came
        total += added
    return None


def _fill(
    net: Network,
    sources: Collection[str],
    sinks: Collection[str],
    without: Collection[str],
    received: _Received,
) -> tuple[_Came, float]:
    """Every node that more flow can reach, with the one before it, and the flow that was pushed to sinks on the way.

    The search continues past each sink that it fills while the path to it has room left: a chain of small modes takes
    one search, not one for each mode. Only a search that adds nothing has seen all nodes.
    """
    came: _Came = {(_CORE, core): None for core in sources}
    queue = deque(came)
    added = 0.0
    while queue:
        node = queue.popleft()
        for after in list(_onward(net, node, without, received)):
            if after in came:
                continue
            side, name = after
            if (side == _OUT and name in net.open_edges) or (side == _CORE and name in sinks):
                path = [*_path(came, node), after]
                added += _push(net, path, received)
                if any(_room(net, *step, received) <= _LEAST for step in pairwise(path[:-1])):
                    return came, added
            else:
                came[after] = node
                queue.append(after)
    return came, added


def _onward(net: Network, node: _Node, without: Collection[str], received: _Received) -> Iterator[_Node]:
    """The nodes to which more flow can go from a node."""
    side, name = node
    if side == _CORE:
        yield from ((_IN, edge) for edge in net.touching.get(name, ()) if edge not in without)
    elif side == _OUT:
        yield from ((_CORE, core) for core in net.ends[name])
    elif _room(net, node, (_OUT, name), received) > _LEAST:
        yield (_OUT, name)
    yield from (sender for sender, amount in received.get(node, {}).items() if amount > _LEAST)


def _room(net: Network, node: _Node, after: _Node, received: _Received) -> float:
    """How much more may flow between two neighboring nodes."""
    if not _is_forward(node, after):
        return received[node][after]
    if node[0] != _IN:
        return inf
    return log(net.sizes[node[1]]) - received.get(after, {}).get(node, 0.0)


def _is_forward(node: _Node, after: _Node) -> bool:
    return (after[0] - node[0]) % 3 == 1


def _path(came: _Came, sink: _Node) -> list[_Node]:
    path = [sink]
    while (before := came[path[-1]]) is not None:
        path.append(before)
    return path[::-1]


def _push(net: Network, path: list[_Node], received: _Received) -> float:
    """The flow added along a path, as much as its narrowest step takes."""
    steps = list(pairwise(path))
    amount = min(_room(net, node, after, received) for node, after in steps)
    for node, after in steps:
        if _is_forward(node, after):
            into = received.setdefault(after, {})
            into[node] = into.get(node, 0.0) + amount
        else:
            received[node][after] -= amount
    return amount
