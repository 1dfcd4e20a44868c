"""The linter: useful sizes against numerical ranks, and each warning by example."""

from __future__ import annotations

import subprocess
import sys
from math import prod

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from strategies import cases, graphs, wide_bonds

from tnmars.errors import GraphError, Problem
from tnmars.graph import Core, Edge, Graph, Role, Term
from tnmars.graph import lint as linter
from tnmars.graph.lint import lint, useful_size
from tnmars.graph.topology import common, is_tree

# --- useful sizes are ranks ------------------------------------------------------------------------------------------


def opened(graph: Graph, term: Term, bond: str, end: str, cores: dict[str, np.ndarray]) -> np.ndarray:
    """The term with one end of a bond left open: a stack of matrices [bond at all other ends, (that end, modes)].

    There is one for each value of the modes that all ends share.
    """
    labels = {edge: at for at, edge in enumerate(graph.sizes(term))}
    operands: list[object] = []
    for core in term.cores:
        at_end = core.name == end
        operands += [
            cores[core.name],
            [len(labels) if at_end and edge == bond else labels[edge] for edge in core.edges],
        ]
    stacked = common(term, bond)
    modes = [labels[mode.name] for mode in graph.modes if mode.name not in stacked]
    kept = [labels[name] for name in stacked]
    full = np.einsum(*operands, [*kept, labels[bond], len(labels), *modes], optimize="greedy")
    return full.reshape(prod(full.shape[: len(kept)]), full.shape[len(kept)], -1)


def rank(matrix: np.ndarray) -> int:
    values = np.linalg.svd(matrix, compute_uv=False)
    return int((values > values[0] * 1e-10).sum()) if values[0] else 0


def rank_across(graph: Graph, term: Term, bond: str, rng: np.random.Generator) -> int:
    """The rank across a bond of a term with random cores.

    Where the slices seen from all ends but one span only so many dimensions, as many slices do: the others are
    combinations of them, and the end that was left out takes up the coefficients. For a bond with two ends this is
    the rank at either end. For each value of a mode that all ends share the combinations may be others.
    """
    cores = {core.name: rng.standard_normal(graph.shape(term, core)) for core in term.cores}
    ranks = [list(map(rank, opened(graph, term, bond, end, cores))) for end in term.ends()[bond]]
    return max(map(min, zip(*ranks, strict=True)))


@settings(max_examples=cases(300))
@given(wide_bonds(), st.integers(0, 2**32))
def test_rank_across_a_bond_is_at_most_its_useful_size(drawn: tuple[Graph, str], seed: int) -> None:
    graph, bond = drawn
    (term,) = graph.terms
    found, useful = rank_across(graph, term, bond, np.random.default_rng(seed)), useful_size(graph, term, bond)
    event(f"{len(term.ends()[bond])} ends, {'equal' if found == useful else 'less'}")
    assert found <= useful


@settings(max_examples=cases(300))
@given(wide_bonds(trees_only=True), st.integers(0, 2**32))
def test_rank_across_a_bond_is_its_useful_size_on_trees(drawn: tuple[Graph, str], seed: int) -> None:
    """Also where bonds have many ends, modes are shared, and the trees are several."""
    graph, bond = drawn
    (term,) = graph.terms
    found, useful = rank_across(graph, term, bond, np.random.default_rng(seed)), useful_size(graph, term, bond)
    event(f"{len(term.ends()[bond])} ends, {'one tree' if is_tree(term) else 'several'}")
    assert found == min(useful, graph.sizes(term)[bond])


@settings(max_examples=cases(300))
@given(graphs(least_terms=0))
def test_warns_of_exactly_the_bonds_that_are_too_wide(graph: Graph) -> None:
    wide = {
        (term.bonds, term.cores, bond.name)
        for term in graph.terms
        for bond in term.bonds
        if bond.size > useful_size(graph, term, bond.name)
    }
    terms = {term.name: term for term in graph.terms}
    paths = [problem.path for problem in lint(graph) if "can use at most" in problem.text]
    told = [(terms[name].bonds, terms[name].cores, bond) for _, name, _, bond in paths]
    assert len(told) == len(set(told)), "copies are reported once"
    assert set(told) == wide


# --- useful sizes by example -----------------------------------------------------------------------------------------


def tensor(cores: str, bonds: dict[str, int], **modes: int) -> Graph:
    """A plain tensor of one term, written as `A:i,r B:r,j`."""
    return Graph("tensor", free(**modes), (summand("main", cores, bonds),))


def free(**modes: int) -> tuple[Edge, ...]:
    return tuple(Edge(name, size, Role.FREE) for name, size in modes.items())


def summand(name: str, cores: str, bonds: dict[str, int]) -> Term:
    listed = [core.split(":") for core in cores.split()]
    return Term(
        name,
        tuple(Edge(bond, size) for bond, size in bonds.items()),
        tuple(Core(core, tuple(filter(None, edges.split(",")))) for core, edges in listed),
    )


def useful(graph: Graph, bond: str) -> int:
    return useful_size(graph, graph.terms[0], bond)


def test_useful_size_of_a_chain_is_the_smaller_side() -> None:
    graph = tensor("A:i,r B:r,j,s C:s,k", {"r": 9, "s": 9}, i=4, j=3, k=5)
    assert (useful(graph, "r"), useful(graph, "s")) == (4, 5)


def test_useful_size_counts_other_bonds_as_they_are() -> None:
    graph = tensor("A:i,r B:r,j,s C:s,k", {"r": 9, "s": 2}, i=40, j=3, k=5)
    assert useful(graph, "r") == 6


def test_useful_size_in_a_ring_counts_the_other_way_round() -> None:
    ring = tensor("A:i,r,t B:j,r,s C:k,s,t", {"r": 99, "s": 2, "t": 3}, i=4, j=5, k=6)
    assert useful(ring, "r") == 10, "at B: j=5 and s=2"


def test_useful_size_of_parallel_bonds_counts_the_other_one() -> None:
    assert useful(tensor("A:i,r,s B:r,s,j", {"r": 99, "s": 3}, i=2, j=7), "r") == 6


def test_useful_size_does_not_look_behind_the_other_end() -> None:
    """What A and B tell each other over s counts, though little of it reaches a mode behind B."""
    assert useful(tensor("A:i,r,s B:r,s,j", {"r": 99, "s": 3}, i=2, j=1), "r") == 3


def test_useful_size_of_a_hyperedge_is_the_product_without_the_largest() -> None:
    cp = tensor("A:i,r B:j,r C:k,r D:l,r", {"r": 999}, i=2, j=3, k=5, l=4)
    assert useful(cp, "r") == 24


def test_useful_size_of_a_bond_that_leads_nowhere_is_1() -> None:
    assert useful(tensor("A:i,r B:r", {"r": 3}, i=4), "r") == 1
    assert useful(tensor("A:i B:r C:r", {"r": 3}, i=4), "r") == 1


def test_a_mode_that_all_ends_share_adds_nothing_to_the_useful_size() -> None:
    """For each value of b, the weight is a product of a matrix of 5 rows and one of 3 columns."""
    graph = monarch(4)
    assert useful(graph, "r") == 3
    (found,) = (problem for problem in lint(graph) if "can use at most" in problem.text)
    assert found.hint.splitlines()[0] == (
        "Core 'B' reaches the modes and the other end only through o=3. "
        "Its slices for each value of b are apart from one another."
    )


def test_a_mode_that_some_ends_share_counts() -> None:
    modes = (Edge("b", 2, Role.IN), Edge("i", 5, Role.IN), Edge("o", 30, Role.OUT))
    term = summand("main", "A:b,i,r B:r,s C:b,s,o", {"r": 4, "s": 40})
    assert useful(Graph("linear", modes, (term,), shared=("b",)), "r") == 10


def test_useful_size_of_an_unknown_bond() -> None:
    graph = tensor("A:i,r1 B:r1,j", {"r1": 2}, i=4, j=4)
    with pytest.raises(GraphError, match=r"term 'main' has no bond 'r2'\.\n  Bonds: r1\. Did you mean 'r1'\?"):
        useful_size(graph, graph.terms[0], "r2")


def monarch(size: int) -> Graph:
    """Two cores of which each value of a shared mode selects a slice."""
    modes = (Edge("b", 2, Role.IN), Edge("i", 5, Role.IN), Edge("o", 3, Role.OUT))
    return Graph("linear", modes, (summand("main", "A:b,i,r B:b,r,o", {"r": size}),), shared=("b",))


# --- warnings --------------------------------------------------------------------------------------------------------


def test_clean_graphs_give_no_warning() -> None:
    assert lint(tensor("A:i,r B:r,j,s C:s,k", {"r": 4, "s": 5}, i=10, j=10, k=10)) == ()
    assert lint(tensor("A:i,j", {}, i=10, j=10)) == ()
    assert lint(tensor("A:i,r B:j,r C:k,r", {"r": 9}, i=10, j=10, k=10)) == ()
    assert lint(monarch(1)) == ()
    assert lint(Graph("tensor", free(i=8, j=8), tuple(summand(t, "A:i,r B:r,j", {"r": 2}) for t in "ab"))) == ()


def test_warns_of_a_wide_bond() -> None:
    graph = tensor("G1:i1,r1 G2:r1,i2,i3", {"r1": 20}, i1=10, i2=30, i3=30)
    assert lint(graph) == (
        Problem(
            "the cores have 18,200 parameters, more than the 9,000 of the dense weight.",
            "Use smaller bonds, or fewer of them; masks may still find smaller ones in training.",
        ),
        Problem(
            "bond 'r1' has size 20, but can use at most 10.",
            "Core 'G1' reaches the modes and the other end only through i1=10.\n"
            "Set its size to 10 or less: more adds parameters, but no weight that it could not give already.",
            ("terms", "main", "bonds", "r1"),
        ),
    )


def test_says_why_a_bond_can_use_no_more() -> None:
    hints = {
        "Its ends can pass on: A 2, B 3, C 10 or more. It uses the product of all but the largest.": tensor(
            "A:i,r B:j,r C:k,r", {"r": 10}, i=2, j=3, k=500
        ),
        "Core 'B' has no other way to a mode or to the other end.": tensor("A:i,r B:r", {"r": 3}, i=40),
        "Core 'B' reaches the modes and the other end only through s=2, j=5.": tensor(
            "A:i,r,t B:j,r,s C:k,s,t", {"r": 11, "s": 2, "t": 3}, i=4, j=5, k=600
        ),
    }
    for hint, graph in hints.items():
        (found,) = (problem for problem in lint(graph) if "can use at most" in problem.text)
        assert found.hint.splitlines()[0] == hint


def test_warns_of_more_parameters_than_the_dense_weight_has() -> None:
    dense = Graph("linear", (Edge("i", 4, Role.IN), Edge("o", 4, Role.OUT)), (summand("main", "A:i,o", {}),))
    assert lint(dense) == ()
    padded = Graph("linear", dense.modes, dense.terms, features=((Role.OUT, 3),))
    assert [problem.text for problem in lint(padded)] == [
        "the cores have 16 parameters, more than the 12 of the dense weight."
    ]


def test_warns_of_parts_that_nothing_joins() -> None:
    graph = tensor("A:i,r B:r,j C:k D:", {"r": 2}, i=4, j=4, k=4)
    assert [(problem.text, problem.path) for problem in lint(graph)] == [
        ("the cores make 3 parts that nothing joins: (A, B), (C), (D).", ("terms", "main", "cores")),
        ("core 'C' touches no bond.", ("terms", "main", "cores", "C")),
        ("core 'D' touches no bond and no mode: it is a single number.", ("terms", "main", "cores", "D")),
    ]


def test_a_shared_mode_joins() -> None:
    modes = (Edge("b", 2, Role.IN), Edge("i", 5, Role.IN), Edge("o", 3, Role.OUT))
    blocks = Graph("linear", modes, (summand("main", "A:b,i B:b,o", {}),), shared=("b",))
    assert lint(blocks) == ()


def test_warns_of_a_graph_without_terms() -> None:
    (found,) = lint(Graph("tensor", free(i=4), ()))
    assert (found.text, found.path) == ("the graph has no terms, so its weight is zero.", ())


@pytest.mark.parametrize(("real", "warned"), [(8, False), (5, False), (4, True), (1, True)])
def test_warns_of_padding_larger_than_the_data(real: int, warned: bool) -> None:
    modes = (Edge("i", 8, Role.IN), Edge("o", 8, Role.OUT))
    cores = (summand("main", "A:i,r B:r,o", {"r": 1}),)
    found = [problem for problem in lint(Graph("linear", modes, cores, features=((Role.IN, real),))) if problem.path]
    expected = (f"the 'in' modes hold 8 entries, but only {real} of them are real.", ("features", "in"))
    assert [(problem.text, problem.path) for problem in found] == ([expected] if warned else [])


def test_padding_of_rows_and_patches_points_at_what_sets_it() -> None:
    rows = (Edge("l", 40, Role.LOOKUP), Edge("o", 8, Role.OUT))
    cores = (summand("main", "A:l,r B:r,o", {"r": 1}),)
    (found,) = lint(Graph("embedding", rows, cores, features=((Role.LOOKUP, 20),)))
    assert (found.text, found.path) == ("the 'lookup' modes hold 40 entries, but only 20 of them are real.", ("vocab",))
    patch = (Edge("l", 90, Role.PATCH), Edge("o", 8, Role.OUT))
    (found,) = lint(Graph("conv", patch, cores, features=((Role.IN, 5),), kernel_size=(3, 3)))
    assert found.text == "the 'patch' modes hold 90 entries, but only 45 of them are real."
    assert found.path == ("features", "in")


def test_equal_terms_are_reported_once_and_others_by_name() -> None:
    wide = [summand(name, "A:i,r B:r,j", {"r": 5}) for name in ("a", "b", "c")]
    other = summand("d", "A:i,r B:r,j", {"r": 6})
    graph = Graph("tensor", free(i=4, j=900), (wide[0], other, wide[1], wide[2]))
    assert [(problem.text, problem.path) for problem in lint(graph)[1:]] == [
        ("bond 'r' of 3 equal terms (a, b, c) has size 5, but can use at most 4.", ("terms", "a", "bonds", "r")),
        ("bond 'r' of term 'd' has size 6, but can use at most 4.", ("terms", "d", "bonds", "r")),
    ]


def test_equal_terms_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = linter.topology.narrow_cuts
    monkeypatch.setattr(linter.topology, "narrow_cuts", lambda graph, term: seen.append(term) or real(graph, term))
    lint(Graph("tensor", free(i=4, j=4), tuple(summand(f"t{at}", "A:i,r B:r,j", {"r": 2}) for at in range(50))))
    assert len(seen) == 1


def chain(bonds: int, size: int = 2, name: str = "main") -> Graph:
    modes = free(i=4, j=4)
    edges = [["i"], *([] for _ in range(bonds - 1)), ["j"]]
    for at in range(bonds):
        edges[at].append(f"r{at}")
        edges[at + 1].append(f"r{at}")
    cores = tuple(Core(f"G{at}", tuple(found)) for at, found in enumerate(edges))
    return Graph("tensor", modes, (Term(name, tuple(Edge(f"r{at}", size) for at in range(bonds)), cores),))


def test_useful_sizes_are_not_computed_above_200_bonds() -> None:
    assert sum("can use at most" in problem.text for problem in lint(chain(200, size=5))) == 200
    found = [problem for problem in lint(chain(412, size=5)) if "parameters" not in problem.text]
    assert found == [
        Problem(
            "useful sizes are not checked: the graph has 412 bonds; bounds are computed up to 200.",
            "A bond may be wider than it can use without a warning.",
        )
    ]


def test_the_bonds_of_equal_terms_count_once_towards_the_200() -> None:
    long, short = chain(150).terms[0], chain(60).terms[0]
    copies = [Term(f"t{at}", long.bonds, long.cores) for at in range(3)]
    assert not any("not checked" in problem.text for problem in lint(Graph("tensor", free(i=4, j=4), tuple(copies))))
    found = lint(Graph("tensor", free(i=4, j=4), (*copies, short)))
    assert found[-1].text == (
        "useful sizes are not checked: the graph has 210 bonds in 2 different terms; bounds are computed up to 200."
    )


def test_linting_loads_no_networkx_and_no_numpy() -> None:
    code = (
        "import sys; from tnmars.graph import *; from tnmars.graph.lint import lint;"
        "lint(Graph('tensor', (Edge('i', 4, Role.FREE),), (Term('t', (Edge('r', 9),), (Core('A', ('i', 'r')),"
        "Core('B', ('r',)))),))); print(sorted({'networkx', 'numpy', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
