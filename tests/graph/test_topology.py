"""The shape of a term: views, parts, cycles, cuts and isomorphism."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, graphs

from tnmars.errors import GraphError
from tnmars.graph import Core, Edge, Graph, Operand, Role, Term
from tnmars.graph.cuts import Cut
from tnmars.graph.topology import cut, cycles, is_tree, isomorphic, narrow_cuts, parts, view


def term(cores: str, name: str = "main", **bonds: int) -> Term:
    """A term written as `A:i,r B:r,j`."""
    listed = [core.split(":") for core in cores.split()]
    found = tuple(Core(core, tuple(filter(None, edges.split(",")))) for core, edges in listed)
    return Term(name, tuple(Edge(bond, size) for bond, size in bonds.items()), found)


def tensor(*terms: Term, **modes: int) -> Graph:
    free = tuple(Edge(name, size, Role.FREE) for name, size in modes.items())
    shared = {edge for part in terms for edge, cores in part.ends().items() if len(cores) > 1} & set(modes)
    return Graph("tensor", free, terms, shared=tuple(shared))


RING = tensor(term("A:i,r,t B:j,r,s C:k,s,t", r=2, s=3, t=4), i=5, j=6, k=7)


# --- views, parts, cycles --------------------------------------------------------------------------------------------


def test_view_has_cores_and_edges_with_size_and_role() -> None:
    seen = view(RING, RING.terms[0])
    assert seen.nodes["edge", "i"] == {"size": 5, "role": Role.FREE}
    assert seen.nodes["edge", "r"] == {"size": 2, "role": Role.BOND}
    assert seen.nodes["core", "A"] == {"size": 40, "role": None}
    assert set(seen["edge", "r"]) == {("core", "A"), ("core", "B")}
    assert seen.number_of_nodes() == 9
    assert seen.number_of_edges() == 9


@settings(max_examples=cases(300))
@given(graphs())
def test_view_has_the_incidence_of_the_term(graph: Graph) -> None:
    for part in graph.terms:
        seen = view(graph, part)
        ends = {name: tuple(sorted(core for _, core in seen["edge", name])) for what, name in seen if what == "edge"}
        assert ends == {edge: tuple(sorted(cores)) for edge, cores in part.ends().items()}
        assert nx.is_bipartite(seen)


def test_parts_are_joined_by_bonds_and_by_shared_modes() -> None:
    assert parts(term("A:i,r B:r C:j D:", r=2)) == (("A", "B"), ("C",), ("D",))
    assert parts(term("A:b,i B:b,o")) == (("A", "B"),)
    assert parts(term("A:r B:s C:r D:s E:s", r=2, s=2)) == (("A", "C"), ("B", "D", "E"))


def test_is_tree_of_examples() -> None:
    assert is_tree(term("A:i"))
    assert is_tree(term("A:i,r B:j,r C:k,r", r=2)), "a hyperedge is no cycle"
    assert not is_tree(term("A:i,r,s B:j,r,s", r=2, s=2)), "parallel bonds are one"
    assert not is_tree(term("A:b,i,r B:b,r,o", r=2)), "so are a bond and a shared mode"
    assert not is_tree(term("A:i B:j")), "two parts are no tree"
    assert not is_tree(RING.terms[0])


@settings(max_examples=cases(300))
@given(graphs())
def test_parts_and_trees_are_those_of_networkx(graph: Graph) -> None:
    for part in graph.terms:
        seen = view(graph, part)
        expected = [{name for what, name in nodes if what == "core"} for nodes in nx.connected_components(seen)]
        assert sorted(map(sorted, parts(part))) == sorted(map(sorted, expected))
        assert is_tree(part) == nx.is_tree(seen)


@settings(max_examples=cases(300))
@given(graphs(connected=True, trees_only=True))
def test_trees_are_drawn_as_trees(graph: Graph) -> None:
    assert all(is_tree(part) for part in graph.terms)
    assert not any(cycles(graph, part) for part in graph.terms)


def test_cycles_of_examples() -> None:
    assert cycles(RING, RING.terms[0]) == (("r", "s", "t"),)
    chain = tensor(term("A:i,r B:r,j", r=2), i=4, j=4)
    assert cycles(chain, chain.terms[0]) == ()
    triple = tensor(term("A:i,r,s,t B:r,s,t", r=2, s=2, t=2), i=4)
    assert len(cycles(triple, triple.terms[0])) == 2


@settings(max_examples=cases(300))
@given(graphs())
def test_there_are_as_many_cycles_as_joints_too_many(graph: Graph) -> None:
    for part in graph.terms:
        joints = sum(len(cores) - 1 for cores in part.ends().values())
        assert len(cycles(graph, part)) == joints - (len(part.cores) - len(parts(part)))


# --- cuts ------------------------------------------------------------------------------------------------------------


def test_cut_at_both_ends_of_a_bond() -> None:
    assert cut(RING, RING.terms[0], "s") == {"B": Cut(("r", "j"), 12), "C": Cut(("t", "k"), 28)}


def test_cut_of_an_unknown_bond() -> None:
    with pytest.raises(GraphError, match="term 'main' has no bond 'i'"):
        cut(RING, RING.terms[0], "i")


@settings(max_examples=cases(300))
@given(graphs())
def test_narrow_cuts_are_the_cuts_below_the_size_of_the_bond(graph: Graph) -> None:
    for part in graph.terms:
        found = narrow_cuts(graph, part)
        assert list(found) == [bond.name for bond in part.bonds]
        for bond in part.bonds:
            expected = cut(graph, part, bond.name)
            assert found[bond.name] == {core: at if at.size < bond.size else None for core, at in expected.items()}


# --- isomorphism -----------------------------------------------------------------------------------------------------


def shuffled(graph: Graph, seed: int) -> Graph:
    """The same graph under other names, with its terms, cores, bonds and the edges of its cores in another order."""
    rng = random.Random(seed)
    names: dict[str, str] = {}

    def new(name: str) -> str:
        return names.setdefault(name, f"z{len(names)}_{rng.randrange(100)}")

    def mixed(items: tuple) -> tuple:
        return tuple(rng.sample(items, len(items)))

    terms = []
    for at, part in enumerate(mixed(graph.terms)):
        bonds = tuple(replace(bond, name=new(bond.name)) for bond in mixed(part.bonds))
        cores = [
            Core(f"c{number}", mixed(tuple(map(new, core.edges)))) for number, core in enumerate(mixed(part.cores))
        ]
        terms.append(Term(f"q{at}", bonds, tuple(cores)))
    return replace(
        graph,
        modes=tuple(replace(mode, name=new(mode.name)) for mode in graph.modes),
        terms=tuple(terms),
        shared=tuple(map(new, graph.shared)),
        inputs=tuple(Operand(each.name, tuple(tuple(map(new, axis)) for axis in each.axes)) for each in graph.inputs),
        output=tuple(tuple(map(new, axis)) for axis in graph.output),
        name="another name",
    )


@settings(max_examples=cases(300))
@given(graphs(least_terms=0), st.integers(0, 1000))
def test_isomorphic_to_itself_under_other_names_and_orders(graph: Graph, seed: int) -> None:
    assert isomorphic(graph, graph)
    assert isomorphic(graph, shuffled(graph, seed))
    assert isomorphic(shuffled(graph, seed), graph)


@settings(max_examples=cases(300))
@given(graphs(bonded=True), st.data())
def test_not_isomorphic_to_a_changed_graph(graph: Graph, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(graph.terms) - 1))
    part = graph.terms[at]
    which = data.draw(st.integers(0, len(part.bonds) - 1))
    bond = part.bonds[which]

    def with_term(*terms: Term) -> Graph:
        return graph.with_terms((*graph.terms[:at], *terms, *graph.terms[at + 1 :]))

    wider = replace(part, bonds=(*part.bonds[:which], Edge(bond.name, bond.size + 1), *part.bonds[which + 1 :]))
    assert not isomorphic(graph, with_term(wider))
    assert not isomorphic(graph, with_term(replace(part, cores=(*part.cores, Core("one_more", ())))))
    assert not isomorphic(graph, with_term(part, replace(part, name="one_more")))


def test_the_order_of_modes_within_a_role_matters() -> None:
    chain = term("A:i,r B:r,j", r=2)
    assert not isomorphic(tensor(chain, i=3, j=4), tensor(chain, j=4, i=3))
    uneven = term("A:i,k,r B:r,j", r=2)
    assert not isomorphic(tensor(uneven, i=3, j=3, k=3), tensor(uneven, i=3, k=3, j=3)), "also where sizes are equal"


def test_the_order_of_roles_and_of_edges_does_not_matter() -> None:
    modes = (Edge("i", 3, Role.IN), Edge("o", 3, Role.OUT))
    one = Graph("linear", modes, (term("A:i,r B:r,o", r=2),))
    assert isomorphic(one, Graph("linear", modes[::-1], (term("B:o,s A:s,i", s=2),)))


def test_where_a_bond_hangs_matters() -> None:
    """A star and a chain have the same cores by number of edges, but not the same neighbours."""
    one = term("A:i,r,s B:r,j C:s,k,t D:t,l", r=2, s=2, t=2)
    other = term("A:i,r,s B:r,j,t C:s,k D:t,l", r=2, s=2, t=2)
    assert not isomorphic(tensor(one, i=2, j=2, k=2, l=2), tensor(other, i=2, j=2, k=2, l=2))


def test_parts_without_modes_are_distinguished() -> None:
    """Two rings of three cores, or one of six: every core sees the same around it, which no refinement tells apart."""
    two = term("M:i A:a,b B:b,c C:c,a D:d,e E:e,f F:f,d", a=2, b=2, c=2, d=2, e=2, f=2)
    one = term("M:i A:a,b B:b,c C:c,d D:d,e E:e,f F:f,a", a=2, b=2, c=2, d=2, e=2, f=2)
    assert not isomorphic(tensor(two, i=2), tensor(one, i=2))
    assert isomorphic(tensor(one, i=2), shuffled(tensor(one, i=2), 3))


def test_two_bonds_are_not_one_hyperedge() -> None:
    two = term("A:i,r B:r,s,j C:s,k", r=2, s=2)
    one = term("A:i,r B:r,j C:r,k", r=2)
    assert not isomorphic(tensor(two, i=2, j=2, k=2), tensor(one, i=2, j=2, k=2))


def test_frames_must_match() -> None:
    modes = (Edge("i", 4, Role.IN), Edge("o", 4, Role.OUT))
    chain = (term("A:i,r B:r,o", r=2),)
    plain = Graph("linear", modes, chain)
    assert isomorphic(plain, replace(plain, options=(("bias", True),)))
    assert not isomorphic(plain, replace(plain, options=(("bias", False),)))
    assert not isomorphic(plain, replace(plain, features=((Role.IN, 3),)))
    assert not isomorphic(plain, plain.with_terms(()))
    assert not isomorphic(plain, Graph("conv", modes, chain, kernel_size=(1,)))


def test_data_axes_may_be_renamed_but_not_moved() -> None:
    modes = (Edge("i", 4, Role.IN), Edge("o", 4, Role.OUT))
    chain = (term("A:i,r B:r,o", r=2),)

    def mapped(axes: str, output: str, name: str = "x") -> Graph:
        operand = Operand(name, tuple((axis,) for axis in axes.split()))
        return Graph("map", modes, chain, inputs=(operand,), output=tuple((axis,) for axis in output.split()))

    assert isomorphic(mapped("b n i", "b n o"), mapped("n m i", "n m o"))
    assert not isomorphic(mapped("b n i", "b n o"), mapped("b n i", "n b o"))
    assert not isomorphic(mapped("b n i", "b o"), mapped("b n i", "n o"))
    assert not isomorphic(mapped("b i", "b o"), mapped("b i", "b o", name="y"))


def test_many_copies_pair_up() -> None:
    terms = [term("A:i,r B:r,j", f"t{at}", r=1 + at % 3) for at in range(60)]
    assert isomorphic(tensor(*terms, i=4, j=4), tensor(*terms[::-1], i=4, j=4))
    assert not isomorphic(tensor(*terms, i=4, j=4), tensor(*terms[:-1], term("A:i,r B:r,j", "t", r=1), i=4, j=4))


def test_networkx_is_imported_late() -> None:
    code = "import sys, tnmars.graph.topology; print('networkx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
