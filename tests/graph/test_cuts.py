"""Minimum cuts against networkx and against every possible cut."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import combinations
from math import inf, isclose, log, prod

import networkx as nx
from hypothesis import given, settings
from machine import slowness
from strategies import CutTask, cases, cut_tasks

from tnmars.graph.cuts import Cut, min_cut, narrower, network


def found(task: CutTask) -> Cut:
    return min_cut(network(task.ends, task.sizes, task.open_edges), task.sources, task.sinks, task.without)


def separates(task: CutTask, edges: set[str]) -> bool:
    """Whether no way is left from a source to a sink or through an open edge once the edges are gone."""
    reached, before = set(task.sources), set()
    left = {edge: set(cores) for edge, cores in task.ends.items() if edge not in edges and edge not in task.without}
    while reached != before:
        before = set(reached)
        for cores in left.values():
            if cores & reached:
                reached |= cores
    return not reached & set(task.sinks) and not any(left[edge] & reached for edge in task.open_edges if edge in left)


def oracle(task: CutTask) -> float:
    """The logarithm of the smallest cut, by networkx's maximum flow."""
    net = nx.DiGraph()
    net.add_nodes_from(("source", "sink"))
    net.add_edges_from((("source", ("core", core)) for core in task.sources), capacity=inf)
    net.add_edges_from(((("core", core), "sink") for core in task.sinks), capacity=inf)
    for edge, cores in task.ends.items():
        if edge in task.without:
            continue
        net.add_edge(("in", edge), ("out", edge), capacity=log(task.sizes[edge]))
        for core in cores:
            net.add_edge(("core", core), ("in", edge), capacity=inf)
            net.add_edge(("out", edge), ("core", core), capacity=inf)
        if edge in task.open_edges:
            net.add_edge(("out", edge), "sink", capacity=inf)
    return nx.minimum_cut_value(net, "source", "sink")


@settings(max_examples=cases(6000))
@given(cut_tasks(max_cores=10, max_edges=20))
def test_agrees_with_networkx(task: CutTask) -> None:
    cut = found(task)
    assert isclose(log(cut.size), oracle(task), abs_tol=1e-6)
    assert cut.size == prod(task.sizes[edge] for edge in cut.edges)
    assert separates(task, set(cut.edges))


@settings(max_examples=cases(300))
@given(cut_tasks(max_cores=5, max_edges=7))
def test_is_the_smallest_of_all_cuts(task: CutTask) -> None:
    every = (set(edges) for count in range(len(task.ends) + 1) for edges in combinations(task.ends, count))
    best = min(prod(task.sizes[edge] for edge in edges) for edges in every if separates(task, edges))
    assert found(task).size == best


@settings(max_examples=cases(300))
@given(cut_tasks())
def test_narrower_is_the_minimum_cut_below_a_limit(task: CutTask) -> None:
    cut = found(task)
    net = network(task.ends, task.sizes, task.open_edges)
    for than in {1, 2, cut.size - 1, cut.size, cut.size + 1, 2 * cut.size} - {0}:
        expected = cut if cut.size < than else None
        assert narrower(net, than, task.sources, task.sinks, task.without) == expected


def test_a_hyperedge_is_cut_once() -> None:
    net = network({"h": ["A", "B", "C"]}, {"h": 5})
    assert min_cut(net, ["A"], ["B", "C"]) == Cut(("h",), 5)


def test_a_hyperedge_may_be_cut_behind() -> None:
    net = network({"h": ["A", "B", "C"], "i": ["B"], "j": ["C"]}, {"h": 7, "i": 2, "j": 3}, ["i", "j"])
    assert min_cut(net, ["A"]) == Cut(("i", "j"), 6)


def test_a_shared_open_edge_counts_once() -> None:
    net = network({"m": ["A", "B"], "r": ["A", "B"], "i": ["B"]}, {"m": 3, "r": 2, "i": 9}, ["m", "i"])
    assert min_cut(net, ["A"]) == Cut(("m", "r"), 6)


def test_nothing_to_cut_is_a_cut_of_size_1() -> None:
    assert min_cut(network({"r": ["A", "B"]}, {"r": 4}), ["A"]) == Cut((), 1)
    assert min_cut(network({}, {}), ["A"], ["B"]) == Cut((), 1)


def test_a_core_in_both_is_a_source() -> None:
    net = network({"r": ["A", "B"], "s": ["B", "C"]}, {"r": 4, "s": 3})
    assert min_cut(net, ["A"], ["A", "C"]) == Cut(("s",), 3)


def test_flow_is_taken_back_where_that_helps() -> None:
    """The shortest way, a-u-v, blocks both others unless its part u is undone."""
    ends = {"a": "SA", "u": "AB", "v": "BT", "p": "SP", "q": "PQ", "w": "QB", "x": "AX", "y": "XY", "z": "YT"}
    cut = min_cut(network(ends, dict.fromkeys(ends, 2)), ["S"], ["T"])
    assert cut == Cut(("a", "p"), 4)


def test_close_sizes_end_and_large_ones_stay_exact() -> None:
    """Logarithms that nearly cancel leave crumbs of flow: the search ends, and the product is that of whole numbers."""
    primes = [p for p in range(2**31 - 3000, 2**31 - 1) if all(p % q for q in range(2, 2000))]
    ends, sizes = {}, {}
    for at, prime in enumerate(primes[:40]):
        ends |= {f"a{at}": ["S", f"M{at % 7}"], f"b{at}": [f"M{(at + 1) % 7}", "T"]}
        sizes |= {f"a{at}": prime, f"b{at}": prime - 1}
    for at in range(7):
        ends[f"c{at}"] = [f"M{at}", f"M{(at + 2) % 7}"]
        sizes[f"c{at}"] = 2**31 - 1
    cut = min_cut(network(ends, sizes), ["S"], ["T"])
    assert cut.size == prod(sizes[edge] for edge in cut.edges)
    assert log(cut.size) <= sum(log(size) for edge, size in sizes.items() if edge[0] == "b") + 1e-6


def test_200_bonds_are_quick() -> None:
    """A 10 x 10 grid with open edges on its rim only."""
    ends: dict[str, list[str]] = {}
    for row in range(10):
        for column in range(10):
            here = f"G{row}_{column}"
            if row < 9:
                ends[f"d{row}_{column}"] = [here, f"G{row + 1}_{column}"]
            if column < 9:
                ends[f"r{row}_{column}"] = [here, f"G{row}_{column + 1}"]
            if row in (0, 9) or column in (0, 9):
                ends[f"i{row}_{column}"] = [here]
    net = network(ends, {edge: 2 + len(edge) % 3 for edge in ends}, [edge for edge in ends if edge[0] == "i"])
    start = time.process_time()
    assert min_cut(net, ["G4_4"]).size > 1
    assert time.process_time() - start < 0.5 * slowness()


def test_needs_no_networkx_and_no_numpy() -> None:
    modules = "import sys, tnmars.graph.cuts, tnmars.graph.lint"
    code = f"{modules}; print(sorted({{'networkx', 'numpy', 'torch'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
