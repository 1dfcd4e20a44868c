"""Rewrites of large graphs: work that grows with the graph, not with its square."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

import pytest

from tnmars import GraphError, families
from tnmars.graph import Graph
from tnmars.graph.difference import difference
from tnmars.graph.rewrite import drop_ones, merge, mergeable, prune, widen


def train(sites: int, rank: int = 2) -> Graph:
    """A tensor train, every second bond of size 1."""
    ranks = [1 if at % 2 else rank for at in range(sites - 1)]
    return families.tt("tensor", free=(2,) * sites, ranks=ranks)


def work(function: Callable[[], object]) -> int:
    """The number of bytecodes that Python runs for a function: no clock, so the same on any machine."""
    count = 0

    def step(frame: FrameType, event: str, argument: object) -> Callable[..., object]:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


PASSES: dict[str, Callable[[Graph], object]] = {
    "drop_ones": drop_ones,
    "prune": lambda graph: prune(graph, {bond: [0] for bond in graph.bonds}),
    "widen": lambda graph: widen(graph, dict.fromkeys(graph.bonds, 3)),
    "merge": lambda graph: merge(graph, "main", "G1", "G2"),
    "mergeable": mergeable,
    "difference": lambda graph: difference(graph, train(3)),
    "look up every bond": lambda graph: [graph.bonds[name] for name in graph.bonds],
    "look up every core": lambda graph: [
        (graph.cores[name], graph.edges_of(name), graph.bonds_of(name)) for name in graph.cores
    ],
    "shape of every core": lambda graph: [graph.shape(graph.terms[0], core) for core in graph.terms[0].cores],
}


@pytest.mark.parametrize("name", PASSES)
def test_twice_the_bonds_take_about_twice_the_work(name: str) -> None:
    small, large = (work(partial(PASSES[name], train(sites))) for sites in (101, 201))
    assert small > 1000, "the counter sees the work"
    assert large < 2.5 * small


def test_an_edge_with_many_ends_has_few_neighbors() -> None:
    small, large = (work(partial(mergeable, families.cp("tensor", free=(2,) * sites, rank=3))) for sites in (101, 201))
    assert large < 2.5 * small


def test_the_counter_sees_quadratic_work() -> None:
    def quadratic(sites: int) -> None:
        names = list(range(sites))
        {a: b for a in names for b in names}

    assert work(lambda: quadratic(200)) > 3.5 * work(lambda: quadratic(100))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"r": 3}, "sizes names bond 'r', which the graph does not have"),
        ({"r1": 1}, "the size of bond 'r1' is 1, but must be a whole number of at least 2"),
        ({"r1": 2.5}, r"the size of bond 'r1' is 2\.5"),
        ({"r1": True}, "the size of bond 'r1' is True"),
    ],
)
def test_sizes_that_are_not_wider_are_refused(sizes: dict[str, int], words: str) -> None:
    with pytest.raises(GraphError, match=words):
        widen(train(3), sizes)
