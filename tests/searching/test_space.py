"""Candidates of a search against all sizes of bonds: within the budget, as wide as it allows, and all of them."""

from __future__ import annotations

import itertools
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, graphs

from tnmars import Graph, families
from tnmars.searching import costs
from tnmars.searching.costs import cost_of, dense_cost, named, resized
from tnmars.searching.proposals import METHODS, Proposals
from tnmars.searching.space import Space


def entries(graph: Graph, ranks: dict[str, int]) -> int:
    """The entries of all cores, counted on arrays with no help of ours."""
    found = 0
    for term in graph.terms:
        sizes = {mode.name: mode.size for mode in graph.modes}
        sizes |= {
            bond.name: ranks[bond.name if len(graph.terms) == 1 else f"{term.name}.{bond.name}"] for bond in term.bonds
        }
        found += sum(int(np.prod([sizes[edge] for edge in core.edges], dtype=np.int64)) for core in term.cores)
    return found


def space_of(graph: Graph, share: float) -> Space:
    """All sizes of a graph's bonds within a limit between that of all ranks 1 and its own size."""
    most = tuple(bond.size for bond in graph.bonds.values())
    cost = cost_of({"": graph}, "parameters", 1, 1)
    least, whole = cost((1,) * len(most)), cost(most)
    return Space(most, cost, least + share * (whole - least))


def maximal(graph: Graph, limit: float) -> set[tuple[int, ...]]:
    """All candidates, by trying every size of every bond."""
    names = list(graph.bonds)
    every = set(itertools.product(*(range(1, bond.size + 1) for bond in graph.bonds.values())))
    within = {sizes for sizes in every if entries(graph, dict(zip(names, sizes, strict=True))) <= limit}

    def wider(sizes: tuple[int, ...]) -> set[tuple[int, ...]]:
        return {tuple(size + (at == one) for one, size in enumerate(sizes)) for at in range(len(sizes))}

    return {sizes for sizes in within if not wider(sizes) & within}


SMALL = graphs(bonded=True, max_cores=4, terms=2)


@settings(max_examples=cases(600))
@given(SMALL, st.floats(0.0, 1.0), st.data())
def test_a_candidate_is_within_the_limit_and_as_wide_as_it_allows(
    graph: Graph, share: float, data: st.DataObject
) -> None:
    space = space_of(graph, share)
    direction = [data.draw(st.floats(-3.0, 3.0)) for _ in space.most]
    sizes = space.along(direction)
    ranks = named({"": graph}, sizes)[""]
    assert all(1 <= size <= bond.size for size, bond in zip(sizes, graph.bonds.values(), strict=True))
    assert entries(graph, ranks) <= space.limit * (1 + 1e-12)
    for bond, size in ranks.items():
        if size < graph.bonds[bond].size:
            assert entries(graph, {**ranks, bond: size + 1}) > space.limit
    small = resized(graph, ranks)
    assert {name: bond.size for name, bond in small.bonds.items()} == ranks
    assert sum(int(np.prod(shape, dtype=np.int64)) for shape in small.cores.values()) == entries(graph, ranks)


@settings(max_examples=cases(300))
@given(SMALL, st.floats(0.0, 1.0))
def test_every_candidate_is_listed_once_and_can_be_drawn(graph: Graph, share: float) -> None:
    space = space_of(graph, share)
    if np.prod(space.most) > 5000:
        return
    every = list(space.every())
    assert len(every) == len(set(every)) and set(every) == maximal(graph, space.limit * (1 + 1e-12))
    for sizes in every[:20]:
        assert space.along([log(size) for size in sizes]) == sizes
        assert space.along([log(size) - 7.5 for size in sizes]) == sizes


@settings(max_examples=cases(100))
@given(SMALL, st.floats(0.0, 1.0), st.sampled_from(METHODS), st.integers(0, 5))
def test_a_search_proposes_every_candidate_once(graph: Graph, share: float, method: str, seed: int) -> None:
    space = space_of(graph, share)
    every = maximal(graph, space.limit * (1 + 1e-12)) if np.prod(space.most) <= 500 else set()
    if not 0 < len(every) <= 60:
        return
    proposals, past = Proposals(space, method, seed), []
    while (sizes := proposals.next(past)) is not None:
        past.append((sizes, float(len(past) % 7) if len(past) % 3 else float("nan")))
    assert len(past) == len(every) and {sizes for sizes, _ in past} == every


def test_random_candidates_are_spread_in_logarithms() -> None:
    """A control: uniform sizes that are cut off at the budget would be large in one bond and small in all others."""
    graph = families.tt("linear", inputs=(4, 4, 4, 4), outputs=(4, 4, 4, 4), rank=16)
    cost = cost_of({"": graph}, "parameters", 1, 1)
    space = Space((16, 16, 16), cost, 1500)
    proposals, past = Proposals(space, "random", 0), []
    for _ in range(100):
        past.append((proposals.next(past), 0.0))
    sizes = np.array([each for each, _ in past])
    assert len({tuple(each) for each in sizes}) == 100
    shares = [(sizes <= 4).mean(0), (sizes >= 10).mean(0)]
    assert all(0.15 < share < 0.75 for each in shares for share in each)
    assert min(cost(tuple(each)) for each in sizes.tolist()) > 0.85 * 1500


def test_several_graphs_share_a_cost() -> None:
    first, second = (
        families.lowrank("linear", inputs=(6,), outputs=(5,), rank=4),
        families.tt("tensor", free=(3, 4, 5), rank=3),
    )
    both = {"a": first, "b": second}
    assert named(both, (2, 3, 1)) == {"a": {"r": 2}, "b": {"r1": 3, "r2": 1}}
    assert cost_of(both, "parameters", 1, 1)((2, 3, 1)) == 2 * 11 + 9 + 12 + 5
    assert cost_of(both, "bytes", 1, 1)((2, 3, 1)) == 4 * (2 * 11 + 9 + 12 + 5)
    assert dense_cost(both, "parameters", 1, 1) == 30 + 60
    assert dense_cost({"a": first}, "macs", 7, 1) == 7 * 30
    large = families.lowrank("linear", inputs=(256,), outputs=(128,), rank=8)
    assert cost_of({"a": large}, "macs", 512, 1)((2,)) == 512 * 2 * (256 + 128)


def test_layers_that_do_not_change_are_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, real = [], costs.choose

    def choose(graph: Graph, *more: object) -> object:
        planned.append(graph)
        return real(graph, *more)

    monkeypatch.setattr(costs, "choose", choose)
    graphs = {name: families.lowrank("linear", inputs=(256,), outputs=(128,), rank=8) for name in "abc"}
    cost = cost_of(graphs, "macs", 512, 1)
    for sizes in itertools.product((2, 3, 5), repeat=3):
        assert cost(sizes) == 512 * sum(sizes) * (256 + 128)
    assert len(planned) == 9


def test_a_cost_that_falls_still_gives_maximal_sizes() -> None:
    """Planned multiply-adds may fall where a bond gets wider: here by a lot, once the second bond has size 3."""
    space = Space((4, 4), lambda sizes: 10 * sizes[0] + 5 * sizes[1] - 12 * (sizes[1] >= 3), 30, grows=False)
    for direction in ([1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [2.0, 0.1]):
        sizes = space.along(direction)
        assert space.fits(sizes) and space.is_maximal(sizes)


@pytest.mark.parametrize("method", METHODS)
def test_proposals_depend_on_the_seed_and_the_past_alone(method: str) -> None:
    space = space_of(families.complete("tensor", free=(4, 4, 4, 4), rank=6), 0.1)
    past = []
    whole = Proposals(space, method, 5)
    for at in range(25):
        past.append((whole.next(past), -float(at % 4)))
    for at in (0, 3, 10, 24):
        assert Proposals(space, method, 5).next(past[:at]) == past[at][0]
    assert Proposals(space, method, 6).next([]) != past[0][0]
