"""Cuts: greedy by price against a naive search, budgets met to within one slice, and what may never go."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, graphs

from tnmars import Graph, families
from tnmars.graph.rewrite import prune
from tnmars.shrinking.cuts import Cut, LayerSlices
from tnmars.shrinking.prices import parameters, resized

BLOCK = families.btd("linear", inputs=(4,), outputs=(3,), rank=2, terms=2)


def numbers(graph: Graph, sizes: dict[str, int]) -> int:
    """The entries of all cores once a graph is really cut."""
    after = prune(graph, {bond: range(size) for bond, size in sizes.items()}).graph
    return sum(map(prod, after.cores.values()))


@settings(max_examples=cases(300))
@given(graphs(bonded=True, terms=3), st.data())
def test_numbers_for_other_sizes_are_those_of_the_graph_cut(graph: Graph, data: st.DataObject) -> None:
    sizes = {name: data.draw(st.integers(0, bond.size)) for name, bond in graph.bonds.items()}
    assert parameters(graph, sizes) == numbers(graph, sizes)
    assert sum(map(prod, resized(graph, sizes).cores.values())) == numbers(graph, sizes)


def slices(graph: Graph, saliency: dict[str, list[float]]) -> LayerSlices:
    return LayerSlices(graph, saliency, lambda sizes: parameters(graph, sizes))


@st.composite
def problems(draw: st.DrawFn) -> list[tuple[Graph, dict[str, list[float]]]]:
    """One to three layers with a saliency for each slice, largest first; no two prices are the same."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        graph = draw(graphs(("linear", "tensor"), bonded=True, terms=2))
        value = st.floats(0.01, 1.0, allow_subnormal=False)
        saliency = {
            name: sorted(draw(st.lists(value, min_size=bond.size, max_size=bond.size, unique=True)), reverse=True)
            for name, bond in graph.bonds.items()
        }
        found.append((graph, saliency))
    return found


def naive(problem: list[tuple[Graph, dict[str, list[float]]]], least: int) -> list[dict[str, int]]:
    """The rule word for word: everything is counted again for every candidate."""
    sizes = [{name: bond.size for name, bond in graph.bonds.items()} for graph, _ in problem]

    def total(now: list[dict[str, int]]) -> int:
        return sum(numbers(graph, own) for (graph, _), own in zip(problem, now, strict=True))

    dropped = 0
    while total(sizes) > least:
        offers = []
        for at, (graph, saliency) in enumerate(problem):
            changes = [({bond: size - 1}, saliency[bond][size - 1]) for bond, size in sizes[at].items() if size > 1]
            alive = [term for term in graph.terms if all(sizes[at][graph.qualified(term, b.name)] for b in term.bonds)]
            for term in alive if len(alive) > 1 else ():
                names = [graph.qualified(term, bond.name) for bond in term.bonds]
                if names and all(sizes[at][name] == 1 for name in names):
                    changes.append((dict.fromkeys(names, 0), max(saliency[name][0] for name in names)))
            for change, lost in changes:
                after = [{**own, **change} if place == at else own for place, own in enumerate(sizes)]
                if total(after) < total(sizes):
                    offers.append((lost / (total(sizes) - total(after)), after))
        if not offers:
            break
        after = min(offers, key=lambda offer: offer[0])[1]
        dropped += 1
        if dropped > 1 and total(after) < least:
            break
        sizes = after
    return sizes


@settings(max_examples=cases(200))
@given(problems(), st.floats(0.1, 0.95))
def test_the_cheapest_slices_of_all_layers_are_dropped_first(
    problem: list[tuple[Graph, dict[str, list[float]]]], factor: float
) -> None:
    cut = Cut({str(at): slices(*each) for at, each in enumerate(problem)})
    least = int(factor * cut.weight)
    cut.down_to(least)
    assert list(cut.ranks.values()) == naive(problem, least)


@settings(max_examples=cases(200))
@given(problems(), st.floats(0.1, 0.95))
def test_a_budget_is_met_to_within_one_slice(
    problem: list[tuple[Graph, dict[str, list[float]]]], factor: float
) -> None:
    cut = Cut({str(at): slices(*each) for at, each in enumerate(problem)})
    before, limit = cut.ranks, int(factor * cut.weight)

    def cost(ranks: dict[str, dict[str, int]]) -> int:
        return sum(numbers(graph, own) for (graph, _), own in zip(problem, ranks.values(), strict=True))

    if not cut.until(lambda ranks: cost(ranks) <= limit):
        assert all(size <= 1 for own in cut.ranks.values() for size in own.values())
        return
    after = cut.ranks
    assert cost(after) <= limit
    for name, own in after.items():
        for bond, size in own.items():
            if 0 < size < before[name][bond]:  # one slice more of any bond that was cut would be too much
                assert cost({**after, name: {**own, bond: size + 1}}) > limit


def test_a_term_may_go_but_not_the_last() -> None:
    saliency = {bond: [0.4, 0.3] if bond.startswith("t1") else [0.02, 0.01] for bond in BLOCK.bonds}
    cut = Cut({"": slices(BLOCK, saliency)})
    while cut.drop():
        pass
    gone = {bond for bond, size in cut.ranks[""].items() if size == 0}
    assert gone == {bond for bond in BLOCK.bonds if bond.startswith("t2")}
    assert {size for bond, size in cut.ranks[""].items() if bond not in gone} == {1}


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_drops_can_be_taken_back(steps: int) -> None:
    cut = Cut({"": slices(BLOCK, {bond: [0.4, 0.3] for bond in BLOCK.bonds})})
    before = cut.ranks
    for _ in range(steps):
        assert cut.drop()
    assert cut.ranks != before
    for _ in range(steps):
        cut.undo()
    assert cut.ranks == before
