"""Graphs with hundreds of cores: nothing recurses in their depth, and planning takes seconds."""

from __future__ import annotations

import math
import random
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from oracle import error

import tnmars
from tnmars.errors import TnmarsError
from tnmars.graph import Graph
from tnmars.graph.lint import lint
from tnmars.graph.parts import MAX_CORES
from tnmars.plan import search
from tnmars.plan.cost import CostModel
from tnmars.plan.layout import Weighing
from tnmars.plan.network import Network, layer_network
from tnmars.plan.tree import Pair, Rows, inside_out, leaves_of, members_of
from tnmars.plan.trees import candidates
from tnmars.program.candidates import weight_forms
from tnmars.program.choice import Planner, choose
from tnmars.pruning import mergers

SIZES = {f"i{at}": 2 if at < 6 else 1 for at in range(1000)}


def chain(count: int) -> Graph:
    ends = [[f"r{at - 1}"] * (at > 0) + [f"r{at}"] * (at < count - 1) for at in range(count)]
    cores = " ".join(f"G{at}[{','.join([*ends[at], f'i{at}', *['o'] * (at == 0)])}]" for at in range(count))
    return tnmars.network("linear", cores, inputs=dict(list(SIZES.items())[:count]), outputs={"o": 3}, bonds=2)


def star(count: int) -> Graph:
    cores = "C[r,o] " + " ".join(f"G{at}[i{at},r]" for at in range(count - 1))
    return tnmars.network("linear", cores, inputs=dict(list(SIZES.items())[: count - 1]), outputs={"o": 3}, bonds=2)


def tree(count: int, bonds: int = 2) -> Graph:
    ends = [[f"r{at}"] * (at > 0) + [f"r{to}" for to in (2 * at + 1, 2 * at + 2) if to < count] for at in range(count)]
    cores = " ".join(f"G{at}[{','.join([*ends[at], f'i{at}', *['o'] * (at == 0)])}]" for at in range(count))
    return tnmars.network("linear", cores, inputs=dict(list(SIZES.items())[:count]), outputs={"o": 3}, bonds=bonds)


def cubic(count: int, bonds: int) -> Graph:
    """A random graph with three bonds at each core, which has no good order."""
    order = random.Random(0)
    ends = [at for at in range(count) for _ in range(3)]
    order.shuffle(ends)
    cores: list[list[str]] = [["i0", "o"], *([] for _ in range(count - 1))]
    for at, (one, two) in enumerate(zip(ends[::2], ends[1::2], strict=True)):
        for core in {one, two} if one != two else ():
            cores[core].append(f"r{at}")
    text = " ".join(f"G{at}[{','.join(edges)}]" for at, edges in enumerate(cores))
    return tnmars.network("linear", text, inputs={"i0": 2}, outputs={"o": 3}, bonds=bonds)


def image_chain(count: int) -> Graph:
    ends = [[f"r{at - 1}"] * (at > 0) + [f"r{at}"] * (at < count - 1) for at in range(count)]
    ends[0] += ["i", "o"]
    ends[count // 2] += ["h", "w"]
    cores = " ".join(f"G{at}[{','.join(edges)}]" for at, edges in enumerate(ends))
    return tnmars.network("conv", cores, inputs={"i": 2}, outputs={"o": 3}, kernel={"h": 3, "w": 3}, bonds=2)


@pytest.mark.parametrize("make", [chain, star, tree])
def test_the_search_looks_at_few_labels(make: Callable[[int], Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: the labels and cores that are walked through, per continuation that may be tried."""
    looked = 0

    def counted(found: int) -> Iterator[int]:
        nonlocal looked
        for at in members_of(found):
            looked += 1
            yield at

    graph = make(400)
    network = layer_network(graph, graph.terms, 4, 1).without_ones()
    own = search.Search(network, Weighing(CostModel()))
    monkeypatch.setattr(search, "members_of", counted)
    own.spine(own.singles)
    assert looked < 15 * search.MOST_TRIALS


@pytest.mark.parametrize("make", [chain, star, tree])
def test_the_trees_of_a_thousand_cores_are_found_by_few_prices(
    make: Callable[[int], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = 0
    price = search.Search._price

    def counted(*arguments: Any, **keywords: Any) -> float:
        nonlocal prices
        prices += 1
        return price(*arguments, **keywords)

    graph = make(1000)
    network = layer_network(graph, graph.terms, 4, 1).without_ones()
    monkeypatch.setattr(search.Search, "_price", counted)
    names = set(candidates(network, Weighing(CostModel())))
    assert prices <= search.MOST_TRIALS + len(graph.cores)
    assert {"path", "dense"} <= names and ("push" in names) == (make is not tree)


def test_the_lengths_of_an_image_follow_from_its_taps(monkeypatch: pytest.MonkeyPatch) -> None:
    walked = 0
    kept = Network.kept

    def counted(network: Network, members: frozenset[int]) -> frozenset[str]:
        nonlocal walked
        walked += len(members)
        return kept(network, members)

    graph = image_chain(300)
    monkeypatch.setattr(Network, "kept", counted)
    choose(graph, 4, Weighing(CostModel()), 8)
    assert walked < 100 * len(graph.cores)


def test_orders_whose_time_no_float_holds_are_left_out() -> None:
    """Pushing an input through this tree level by level makes 16^300 numbers."""
    forms = choose(tree(600, bonds=16), 4, Weighing(CostModel()))
    assert forms and all(math.isfinite(form.cost) for form in forms)


@pytest.mark.parametrize("batch", [4, 256])
def test_a_graph_without_an_order_is_refused(batch: int) -> None:
    with pytest.raises(TnmarsError, match=r"every order that was tried takes more than 2\^900 operations"):
        tnmars.compile(cubic(1000, 64), batch=batch, device="meta")


@pytest.mark.parametrize(
    ("graph", "usual"), [(chain(500), 0.5), (star(500), 1.0), (tree(1000), 0.5)], ids=["chain", "star", "tree"]
)
def test_a_graph_of_hundreds_of_cores_is_computed(graph: Graph, usual: float) -> None:
    """Entries around `usual` keep a product of 500 cores from vanishing."""
    layer = tnmars.compile(graph, batch=4, dtype=torch.float64, bias=False)
    for core in layer.cores.parameters():
        core.data.normal_(usual, 0.01)
    x = torch.rand(4, 64, dtype=torch.float64)
    expected = x @ layer.dense().T
    assert expected.abs().min() > 1e-6
    assert error(layer(x), expected) < 1e-10


def test_a_deep_tree_is_compared_without_recursion() -> None:
    def deep(first: int) -> Pair:
        tree = Pair(first, 1)
        for at in range(2, 5000):
            tree = Pair(tree, Rows(at) if at == 7 else at)
        return tree

    assert sys.getrecursionlimit() < 5000
    one, two = deep(0), deep(0)
    assert one == two and hash(one) == hash(two) and {one: 1}[two] == 1
    assert one != deep(6000) and one.has_rows
    assert leaves_of(one) == frozenset(range(5000))
    assert sum(1 for _ in inside_out(one, {})) == 2 * 5000 - 1 + 1


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        (tnmars.families.tt("tensor", free=(1,) * (MAX_CORES + 1), rank=1), "has 1,025 cores, but only 1,024 can be"),
        (
            tnmars.families.tt("tensor", free=(2,) * 901, rank=2),
            r"the dense tensor would have more than 2\^900 entries",
        ),
    ],
    ids=["cores", "entries"],
)
def test_what_is_too_large_is_said_by_check_and_refused_by_compile(graph: Graph, text: str) -> None:
    assert any(re.search(text, problem.text) for problem in lint(graph))
    with pytest.raises(TnmarsError, match=text):
        weight_forms(graph, Weighing(CostModel()))
    with pytest.raises(TnmarsError, match=text):
        tnmars.compile(graph)


@pytest.mark.parametrize("count", [40, 1000])
@pytest.mark.parametrize("make", [chain, star, tree])
def test_a_prune_of_many_cores_plans_few_cores(
    make: Callable[[int], Graph], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: the cores of all graphs that are planned, and the pieces of all rewrites."""
    planned: list[int] = []
    original = mergers.planned_time

    def counted(graph: Graph, planner: Planner) -> float:
        planned.append(len(graph.cores))
        return original(graph, planner)

    monkeypatch.setattr(mergers, "planned_time", counted)
    graph = make(count)
    rewrites = mergers.mergers(graph, Planner(graph, CostModel(), 4))
    assert sum(planned) < 6 * len(graph.cores)
    assert sum(len(rewrite.pieces) for rewrite in rewrites) < 3 * len(graph.cores)
    assert len(rewrites[-1].graph.cores) < max(20, count // 20), "many pairs are merged at a time"


@pytest.mark.parametrize("make", [chain, star, tree])
def test_a_pruned_graph_of_hundreds_of_cores_computes_the_same(make: Callable[[int], Graph]) -> None:
    graph = make(300)
    layer = tnmars.compile(graph, batch=4, dtype=torch.float64, bias=False, selector=tnmars.Mars())
    for core in layer.cores.parameters():
        core.data.normal_(1.0 if make is star else 0.5, 0.01)  # so that no product vanishes
    kept = {"": {"r": (0, 1)} if make is star else {next(iter(graph.bonds)): (1,)}}
    x = torch.rand(4, 64, dtype=torch.float64)
    small, plain = tnmars.prune(layer.eval(), kept), tnmars.prune(layer, kept, simplify=False)
    assert len(small.graph.cores) < 50 < len(plain.graph.cores)
    assert plain(x).abs().min() > 1e-60 and error(small(x), plain(x)) < 1e-10
