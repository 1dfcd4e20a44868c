"""The graph as a value: what is valid, what is equal, what it says about itself."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, graphs, keeps

from tnmars import families
from tnmars.errors import GraphError
from tnmars.graph import MAIN, Core, Edge, Graph, Operand, Role, Term
from tnmars.graph.counts import Count, count
from tnmars.graph.fields import Fields
from tnmars.graph.kinds import KINDS
from tnmars.graph.layer_rules import tap_groups
from tnmars.graph.rules import MAX_PARTS, MAX_PROBLEMS

I, O, R = Edge("i", 8, Role.IN), Edge("o", 6, Role.OUT), Edge("r", 2)  # noqa: E741
CHAIN = (Term(MAIN, (R,), (Core("A", ("i", "r")), Core("B", ("r", "o")))),)
LINEAR = Graph("linear", (I, O), CHAIN)


def dense(*modes: Edge) -> tuple[Term, ...]:
    """One term of one core with all modes."""
    return (Term(MAIN, (), (Core("W", tuple(mode.name for mode in modes)),)),)


def modes(role: Role, *sizes: int) -> tuple[Edge, ...]:
    return tuple(Edge(f"{role.value[0]}{at}", size, role) for at, size in enumerate(sizes, 1))


def plain(kind: str, *found: Edge, **fields: object) -> Graph:
    """A graph of one core with all modes."""
    return Graph(kind, found, dense(*found), **fields)


def conv(kernel: tuple[int, ...], **fields: object) -> Graph:
    return plain("conv", I, *modes(Role.KERNEL, *kernel), O, **fields)


def patched(*patch: int, **fields: object) -> Graph:
    return plain("conv", *modes(Role.PATCH, *patch), O, **fields)


def table(*rows: int, **fields: object) -> Graph:
    return plain("embedding", *modes(Role.LOOKUP, *rows), O, **fields)


def mapped(inputs: dict[str, str], output: str, *found: Edge) -> Graph:
    """A map; axes are written as words, flattened ones joined by `+`."""

    def axes(text: str) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(word.split("+")) for word in text.split())

    operands = tuple(Operand(name, axes(text)) for name, text in inputs.items())
    return plain("map", *(found or (I, O)), inputs=operands, output=axes(output))


# --- the parts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "1r", "r-1", "r 1", "r.1", "ü", "a" * 101, None, 3, "r\n"])
def test_names_are_identifiers(name: object) -> None:
    for build in (
        lambda: Edge(name, 2),
        lambda: Core(name, ()),
        lambda: Term(name, (), ()),
        lambda: Operand(name, ()),
    ):
        with pytest.raises(GraphError, match="is not an identifier"):
            build()


@pytest.mark.parametrize("name", ["_", "on", "class", "None", "values", "A9_", "a" * 100])
def test_odd_names_are_fine(name: str) -> None:
    assert Edge(name, 2).name == Core(name, ()).name == name


@pytest.mark.parametrize("size", [0, -1, 2**31, 2.0, "2", True, None])
def test_sizes_are_whole_numbers(size: object) -> None:
    with pytest.raises(GraphError, match="bond 'r' has size"):
        Edge("r", size)


def test_the_largest_size_is_fine() -> None:
    assert Edge("r", 2**31 - 1).size == 2**31 - 1


def test_a_bond_may_be_twice_on_a_core() -> None:
    core = Core("A", ("r", "i", "r"))
    assert core.has_trace
    assert not Core("A", ("i", "r")).has_trace
    assert Term("t", (R,), (core,)).ends()["r"] == ("A", "A")


def test_a_term_has_each_name_once_and_holds_bonds_only() -> None:
    with pytest.raises(GraphError) as raised:
        Term("t", (R, R, I), (Core("A", ()), Core("A", ())))
    assert [problem.path for problem in raised.value.problems] == [("bonds", "r"), ("cores", "A"), ("bonds", "i")]


def test_ends_have_bonds_first_and_cores_in_order() -> None:
    assert list(CHAIN[0].ends().items()) == [("r", ("A", "B")), ("i", ("A",)), ("o", ("B",))]


def test_parts_take_lists_and_role_names() -> None:
    assert Edge("i", 8, "in") == I
    assert Core("A", ["i", "r"]) == CHAIN[0].cores[0]
    assert hash(Term(MAIN, [R], list(CHAIN[0].cores))) == hash(CHAIN[0])


# --- what is not valid: a start of each text, and the path -----------------------------------------------------------


def one_problem(start: str, path: tuple[str | int, ...], kind: str = "linear", **fields: object) -> None:
    """The graph with these fields in place of those of `LINEAR` has just this problem."""
    given: dict[str, object] = {"modes": (I, O), "terms": CHAIN, **fields}
    with pytest.raises(GraphError) as raised:
        Graph(kind, **given)
    assert [(problem.text[: len(start)], problem.path) for problem in raised.value.problems] == [(start, path)]


def test_kind_must_be_known() -> None:
    one_problem("kind 'linaer' is not known", ("kind",), "linaer")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_needs_its_roles(kind: str) -> None:
    with pytest.raises(GraphError) as raised:
        Graph(kind, (), ())
    needed = [problem for problem in raised.value.problems if "needs at least one mode" in problem.text]
    assert len(needed) == len(KINDS[kind].needs)
    assert {problem.path for problem in needed} == {("modes",)}


def test_modes_have_a_role_of_the_kind() -> None:
    f = Edge("f", 2, Role.FREE)
    one_problem("mode 'f' has role 'free'", ("modes", "free", "f"), modes=(I, O, f), terms=dense(I, O, f))


def test_modes_are_declared_once() -> None:
    twice = Edge("i", 3, Role.OUT)
    one_problem("mode 'i' is declared twice", ("modes", "out", "i"), modes=(I, O, twice))


def test_the_product_of_modes_is_limited() -> None:
    large = tuple(Edge(f"i{at}", 2**31 - 1, Role.IN) for at in range(3))
    cores = tuple(Core(f"G{mode.name}", (mode.name,)) for mode in (*large, O))
    one_problem("the product of the 'in' modes", ("modes", "in"), modes=(*large, O), terms=(Term("t", (), cores),))


def test_a_core_is_limited() -> None:
    large = tuple(Edge(f"r{at}", 2**31 - 1) for at in range(3))
    names = tuple(edge.name for edge in large)
    terms = (Term("t", large, (Core("A", ("i", "o", *names)), *(Core(f"B{name}", (name,)) for name in names))),)
    one_problem("core 'A' would have more than", ("terms", "t", "cores", "A"), terms=terms)


def test_the_number_of_parts_is_limited() -> None:
    cores = tuple(Core(f"G{at}", ()) for at in range(MAX_PARTS))
    one_problem(
        "the graph has 10,003 modes, bonds and cores", (), terms=(Term("t", (), (*CHAIN[0].cores[:1], *cores)),)
    )


def test_terms_have_different_names() -> None:
    one_problem("two terms are named 'main'", ("terms", MAIN), terms=CHAIN * 2)


@pytest.mark.parametrize(("cores", "start"), [((), "bond 's' is declared, but no"), (("A",), "bond 's' touches only")])
def test_a_bond_joins_two_cores(cores: tuple[str, ...], start: str) -> None:
    found = tuple(
        replace(core, edges=(*core.edges, *("s" for at in cores if at == core.name))) for core in CHAIN[0].cores
    )
    one_problem(start, ("terms", MAIN, "bonds", "s"), terms=(Term(MAIN, (R, Edge("s", 3)), found),))


def test_a_bond_is_no_mode() -> None:
    cores = (Core("A", ("i", "o")), Core("B", ("o",)))
    one_problem(
        "bond 'o' has the name of a mode",
        ("terms", MAIN, "bonds", "o"),
        terms=(Term(MAIN, (Edge("o", 6),), cores),),
        shared=("o",),
    )


def test_a_core_lists_declared_edges() -> None:
    terms = (Term(MAIN, (R,), (Core("A", ("i", "r", "q")), CHAIN[0].cores[1])),)
    one_problem("core 'A' lists edge 'q', which is not declared", ("terms", MAIN, "cores", "A", 2), terms=terms)


def test_every_term_has_every_mode() -> None:
    terms = (*CHAIN, Term("t", (), (Core("A", ("i",)),)))
    one_problem("mode 'o' is declared, but no core of term 't' lists it.", ("terms", "t", "cores"), terms=terms)


def test_a_mode_that_no_term_has_is_reported_once() -> None:
    terms = tuple(Term(name, (), (Core("A", ("i",)),)) for name in "ab")
    one_problem("mode 'o' is declared, but no core lists it.", ("terms", "a", "modes", "out", "o"), terms=terms)


def test_a_mode_on_two_cores_is_declared_as_shared() -> None:
    terms = (Term(MAIN, (), (Core("A", ("i", "o")), Core("B", ("i",)))),)
    one_problem("mode 'i' is on 2 cores", ("terms", MAIN, "modes", "in", "i"), terms=terms)
    assert Graph("linear", (I, O), terms, shared=("i",)).shared == ("i",)


def test_shared_lists_modes_that_are_shared() -> None:
    one_problem("shared lists 'r', which is not a mode", ("shared", 0), shared=("r",))
    one_problem("shared lists mode 'o', but no term", ("shared", 0), shared=("o",))


def test_shared_lists_a_mode_once() -> None:
    terms = (Term(MAIN, (), (Core("A", ("i", "o")), Core("B", ("i",)))),)
    one_problem("shared lists mode 'i' twice", ("shared", 1), terms=terms, shared=("i", "i"))


def test_only_convolutions_have_a_kernel() -> None:
    one_problem("kernel_size is for convolutions", ("kernel_size",), kernel_size=(3,))


def test_convolutions_need_taps() -> None:
    one_problem("a convolution needs taps", ("modes",), "conv")
    p = Edge("p", 9, Role.PATCH)
    one_problem("patch modes need kernel_size", (), "conv", modes=(p, O), terms=dense(p, O))


@pytest.mark.parametrize(
    ("kernel", "size", "start", "path"),
    [
        ((9,), (3, 4), "kernel modes k1=9 do not make up", ("kernel_size",)),
        ((3, 3), (3,), "kernel modes k1=3, k2=3 do not make up", ("kernel_size",)),
        ((), (3,), "kernel modes none do not make up", ("kernel_size",)),
        ((3,), (3, 0), "axis 2 of kernel_size has size 0", ("kernel_size", 1)),
        ((16,), (2, 2, 2, 2), "the kernel has 4 spatial axes", ("kernel_size",)),
        ((2, 2, 2, 2), (), "the kernel has 4 spatial axes", ("modes", "kernel")),
    ],
)
def test_kernel_modes_make_up_the_kernel(
    kernel: tuple[int, ...], size: tuple[int, ...], start: str, path: tuple[str | int, ...]
) -> None:
    found = (I, *modes(Role.KERNEL, *kernel), O)
    one_problem(start, path, "conv", modes=found, terms=dense(*found), kernel_size=size)


@pytest.mark.parametrize("role", [Role.IN, Role.KERNEL])
def test_patch_modes_stand_alone(role: Role) -> None:
    found = (Edge("p", 9, Role.PATCH), Edge("x", 9, role), O)
    one_problem(
        f"mode 'x' has role '{role}', but the graph has patch modes",
        ("modes", str(role), "x"),
        "conv",
        modes=found,
        terms=dense(*found),
        kernel_size=(3, 3),
    )


def test_patch_modes_hold_whole_channels_or_say_how_many_are_real() -> None:
    found = (Edge("p", 20, Role.PATCH), O)
    fields = {"modes": found, "terms": dense(*found), "kernel_size": (3, 3)}
    one_problem("the patch modes' product is 20", ("modes", "patch"), "conv", **fields)
    one_problem("features 'in' is 3, but", ("features", "in"), "conv", **fields, features=((Role.IN, 3),))
    assert Graph("conv", **fields, features=((Role.IN, 2),)).dense_shape == (6, 2, 3, 3)


@pytest.mark.parametrize(
    "size",
    [
        (0,),
        ("a",),
        (3, -1),
    ],
)
def test_a_wrong_kernel_does_not_hide_behind_features(size: tuple[object, ...]) -> None:
    with pytest.raises(GraphError, match="of kernel_size has size"):
        patched(9, kernel_size=size, features=((Role.IN, 1),))


def test_features_fit_into_the_modes() -> None:
    one_problem("features 'in' is 9, but the modes hold only 8", ("features", "in"), features=((Role.IN, 9),))
    one_problem("features 'out' has size 0", ("features", "out"), features=((Role.OUT, 0),))
    one_problem("kind 'linear' does not take vocab", ("vocab",), features=((Role.LOOKUP, 2),))


def test_only_maps_have_operands() -> None:
    one_problem("'inputs' is for kind 'map'", ("inputs",), inputs=(Operand("x", (("i",),)),))
    one_problem("'output' is for kind 'map'", ("output",), output=(("o",),))


@pytest.mark.parametrize(
    ("inputs", "output", "start", "path"),
    [
        ({}, "b o", "kind 'map' needs its inputs", ()),
        ({"x": "b i"}, "", "kind 'map' needs its output", ()),
        ({"x": "b i"}, "b c o", "the output has axis 'c', which is neither a mode nor on an input", ("output", 1)),
        ({"x": "b"}, "b o", "mode 'i' is on no input", ("modes", "in", "i")),
        ({"x": "b i"}, "b", "mode 'o' is not on the output", ("modes", "out", "o")),
        ({"x": "b i o"}, "b o", "input 'x' has axis 'o', a mode with role 'out'", ("inputs", "x", 2)),
        ({"x": "b i"}, "b i o", "the output has axis 'i', a mode with role 'in'", ("output", 1)),
        ({"x": "b b i"}, "b o", "input 'x' has axis 'b' twice", ("inputs", "x", 1)),
        ({"x": "b+i"}, "b o", "input 'x' flattens '(b i)', but 'b' is not a mode", ("inputs", "x", 0)),
        ({"x": "b, i"}, "o", "input 'x' has axis 'b,', which is not an identifier", ("inputs", "x", 0)),
    ],
)
def test_operands_of_a_map(inputs: dict[str, str], output: str, start: str, path: tuple[str | int, ...]) -> None:
    with pytest.raises(GraphError) as raised:
        mapped(inputs, output)
    assert [(problem.text[: len(start)], problem.path) for problem in raised.value.problems] == [(start, path)]


def test_inputs_have_different_names_and_no_bonds() -> None:
    x = Operand("x", (("i",),))
    one_problem("two inputs are named 'x'", ("inputs", "x"), "map", inputs=(x, x), output=(("o",),))
    bond = Operand("x", (("i",), ("r",)))
    one_problem("input 'x' has axis 'r', which is a bond", ("inputs", "x", 1), "map", inputs=(bond,), output=(("o",),))


def test_options_belong_to_the_kind() -> None:
    one_problem("option 'stride' is not one that kind 'linear' takes", ("options", "stride"), options=(("stride", 2),))
    one_problem("option 'bias' is 'no'", ("options", "bias"), options=(("bias", "no"),))


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"stride": 0}, "option 'stride' is 0"),
        ({"stride": (1, 2, 3)}, "option 'stride' has 3 numbers for a kernel of 2"),
        ({"padding": -1}, "option 'padding' is -1"),
        ({"padding": "some"}, "option 'padding' is 'some'"),
        ({"dilation": True}, "option 'dilation' is True"),
        ({"padding": "same", "stride": (1, 2)}, "padding 'same' requires a stride of 1"),
    ],
)
def test_options_of_a_convolution(options: dict[str, object], start: str) -> None:
    with pytest.raises(GraphError) as raised:
        conv((3, 3), options=tuple(options.items()))
    assert [problem.text[: len(start)] for problem in raised.value.problems] == [start]


@pytest.mark.parametrize("row", [-5, 4, "0", 1.0])
def test_padding_idx_is_a_real_row(row: object) -> None:
    with pytest.raises(GraphError, match="option 'padding_idx' is"):
        table(2, 3, features=((Role.LOOKUP, 4),), options=(("padding_idx", row),))


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(GraphError) as raised:
        Graph("linear", (I,), (Term("t", (R,), (Core("A", ("x",)),)),), shared=("y",), kernel_size=(3,))
    assert len(raised.value.problems) == 6


def test_a_hundred_problems_are_enough() -> None:
    cores = tuple(Core(f"G{at}", (f"x{at}",)) for at in range(300))
    with pytest.raises(GraphError) as raised:
        Graph("linear", (I, O), (Term("t", (), cores),))
    assert len(raised.value.problems) == MAX_PROBLEMS


# --- what is valid though odd ----------------------------------------------------------------------------------------


def test_a_graph_without_terms_is_valid() -> None:
    empty = LINEAR.with_terms(())
    assert (empty.terms, empty.bonds, empty.cores, empty.dense_shape) == ((), {}, {}, (6, 8))


def test_dropping_the_only_term_that_shares_a_mode() -> None:
    terms = (Term("a", (), (Core("A", ("i", "o")), Core("B", ("i",)))), Term("b", (), (Core("A", ("i", "o")),)))
    graph = Graph("linear", (I, O), terms, shared=("i",))
    assert graph.with_terms(terms[1:]).shared == ()


def test_a_core_may_be_named_as_an_edge() -> None:
    assert Graph("linear", (I, O), (Term("r", (R,), (Core("i", ("i", "r")), Core("r", ("r", "o")))),)).cores == {
        "i": (8, 2),
        "r": (2, 6),
    }


def test_a_scalar_core_is_valid() -> None:
    assert Graph("linear", (I, O), (Term(MAIN, (), (Core("W", ("i", "o")), Core("c", ()))),)).cores["c"] == ()


# --- equality --------------------------------------------------------------------------------------------------------


def same(*found: Graph) -> bool:
    return len(set(found)) == 1


def test_name_and_origin_do_not_count() -> None:
    assert same(LINEAR, replace(LINEAR, name="x", origin={"a": [1]}))


def test_features_without_padding_are_dropped() -> None:
    assert same(LINEAR, replace(LINEAR, features=((Role.IN, 8), (Role.OUT, 6))))
    assert replace(LINEAR, features=((Role.IN, 8),)).features == ()
    assert replace(LINEAR, features=((Role.OUT, 5), (Role.IN, 7))).features == ((Role.IN, 7), (Role.OUT, 5))
    assert not same(LINEAR, replace(LINEAR, features=((Role.IN, 7),)))
    assert same(patched(18, kernel_size=(3, 3)), patched(18, kernel_size=(3, 3), features=((Role.IN, 2),)))


def test_modes_are_grouped_by_role() -> None:
    mixed = (O, Edge("i1", 2, Role.IN), Edge("o2", 3, Role.OUT), Edge("i2", 4, Role.IN))
    assert [mode.name for mode in plain("linear", *mixed).modes] == ["i1", "i2", "o", "o2"]
    assert same(LINEAR, replace(LINEAR, modes=(O, I)))


def test_the_order_within_a_role_counts() -> None:
    terms = dense(Edge("a", 2, Role.FREE), Edge("b", 2, Role.FREE))
    found = (Edge("a", 2, Role.FREE), Edge("b", 2, Role.FREE))
    assert not same(Graph("tensor", found, terms), Graph("tensor", found[::-1], terms))


def test_defaults_of_options_are_dropped() -> None:
    assert same(LINEAR, replace(LINEAR, options=(("bias", True),)))
    assert not same(LINEAR, replace(LINEAR, options=(("bias", False),)))
    given = (("bias", True), ("dilation", (1, 1)), ("padding", "valid"), ("stride", [1, 1]))
    assert same(conv((3, 3)), conv((3, 3), options=given))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"stride": 2}, {"stride": [2, 2]}),
        ({"stride": (2, 2)}, {"stride": [2, 2]}),
        ({"padding": 0}, {"padding": "valid"}),
        ({"padding": (1, 1), "stride": 2}, {"stride": 2, "padding": 1}),
        ({"padding": "same", "stride": 1}, {"padding": "same"}),
    ],
)
def test_options_of_equal_meaning_are_equal(one: dict[str, object], other: dict[str, object]) -> None:
    assert same(conv((3, 3), options=tuple(one.items())), conv((3, 3), options=tuple(other.items())))


def test_options_of_other_meaning_differ() -> None:
    found = [conv((3, 3), options=(("stride", stride),)) for stride in (1, 2, (1, 2), (2, 1))]
    assert len(set(found)) == 4


def test_rows_counted_from_the_end() -> None:
    def with_row(row: int) -> Graph:
        return table(2, 4, features=((Role.LOOKUP, 7),), options=(("padding_idx", row),))

    assert same(with_row(-1), with_row(6))
    assert with_row(0).options == (("padding_idx", 0),), "row 0 is no default"


def test_the_kernel_size_is_filled_in() -> None:
    assert same(conv((3, 5)), conv((3, 5), kernel_size=[3, 5]))
    assert not same(conv((9,)), conv((9,), kernel_size=(3, 3)))


def test_the_order_of_shared_does_not_count() -> None:
    terms = (Term(MAIN, (), (Core("A", ("i", "o")), Core("B", ("i", "o")))),)
    assert same(*(Graph("linear", (I, O), terms, shared=shared) for shared in (("i", "o"), ("o", "i"))))


def test_lists_are_stored_as_tuples() -> None:
    given = Graph("linear", [I, O], list(CHAIN), shared=[], features=[(Role.IN, 7)], options=[("bias", False)])
    assert same(given, Graph("linear", (I, O), CHAIN, features=((Role.IN, 7),), options=(("bias", False),)))


def test_a_graph_is_made_of_its_fields() -> None:
    assert Graph.of(Fields("linear", (I, O), CHAIN), name="x") == LINEAR
    assert Graph.of(Fields("linear", (I, O), CHAIN), name="x").name == "x"


# --- what is computed once ------------------------------------------------------------------------------------------

CACHED = (
    *("bonds", "cores", "padding", "tap_groups", "dense_shape", "weight_axes", "weight_lengths", "is_lookup", "window"),
    *("in_features", "signature"),
)


def asked(graph: Graph) -> Graph:
    """The graph, of which everything that is cached has been asked."""
    for name in CACHED:
        getattr(graph, name)
    for core in graph.cores:
        graph.edges_of(core), graph.bonds_of(core)
    for term in graph.terms:
        term.ends(), term.bond_sizes
    return graph


def test_bonds_and_cores_are_built_once() -> None:
    for name in ("bonds", "cores", "padding"):
        assert getattr(LINEAR, name) is getattr(LINEAR, name)
    assert CHAIN[0].ends() is CHAIN[0].ends()


@pytest.mark.parametrize("name", ["bonds", "cores", "padding"])
def test_what_is_built_once_cannot_be_changed(name: str) -> None:
    with pytest.raises(TypeError):
        getattr(LINEAR, name)["x"] = None


@settings(max_examples=cases(300))
@given(graphs(least_terms=0))
def test_what_was_asked_changes_neither_equality_nor_pickles(graph: Graph) -> None:
    fresh, used = rebuilt(graph), asked(rebuilt(graph))
    assert (used, hash(used), repr(used), str(used)) == (fresh, hash(fresh), repr(fresh), str(fresh))
    assert pickle.dumps(used) == pickle.dumps(fresh)
    for copied in (pickle.loads(pickle.dumps(used)), copy.copy(used), copy.deepcopy(used)):  # noqa: S301  # our own
        assert copied == graph
        assert copied.bonds == graph.bonds
        assert copied.name == graph.name


def test_a_changed_graph_is_asked_again() -> None:
    wider = asked(LINEAR).with_terms((replace(CHAIN[0], bonds=(Edge("r", 3),)),))
    assert wider.cores == {"A": (8, 3), "B": (3, 6)}
    assert wider.terms[0].bond_sizes == {"r": 3}
    assert replace(asked(LINEAR), features=((Role.IN, 7),)).dense_shape == (6, 7)


def test_an_origin_is_noted_and_checked() -> None:
    noted = asked(LINEAR).with_origin({"step": 3})
    assert (noted, noted.origin, noted.name, LINEAR.origin) == (LINEAR, {"step": 3}, LINEAR.name, None)
    with pytest.raises(GraphError, match="origin must be plain data"):
        LINEAR.with_origin({"step": object()})


# --- what a graph says about itself ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "kernel_size", "groups"),
    [
        ((3, 5), (3, 5), [(0,), (1,)]),
        ((9,), (3, 3), [(0, 1)]),
        ((3, 6), (3, 2, 3), [(0,), (1, 2)]),
        ((3,), (1, 3), [(0, 1)]),
        ((3,), (3, 1, 1), [(0, 1, 2)]),
        ((1, 3), (1, 3), [(0,), (1,)]),
        ((3, 2), (3, 1, 2), [(0,), (1, 2)]),
        ((), (1, 1), []),
        ((), (3,), None),
        ((3, 3), (9,), None),
        ((1, 1), (1,), None),
    ],
)
def test_tap_groups(sizes: tuple[int, ...], kernel_size: tuple[int, ...], groups: list | None) -> None:
    assert tap_groups(sizes, kernel_size) == groups


def test_dense_shapes_are_those_of_torch() -> None:
    assert LINEAR.dense_shape == (6, 8)
    assert replace(LINEAR, features=((Role.IN, 7), (Role.OUT, 5))).dense_shape == (5, 7)
    assert conv((3, 5)).dense_shape == (6, 8, 3, 5)
    assert conv((15,), kernel_size=(3, 5)).dense_shape == (6, 8, 3, 5)
    assert conv((), kernel_size=(1, 1)).dense_shape == (6, 8, 1, 1)
    assert patched(5, 6, kernel_size=(3, 5)).dense_shape == (6, 2, 3, 5)
    assert table(4, 5, features=((Role.LOOKUP, 17),)).dense_shape == (17, 6)
    assert plain("tensor", *modes(Role.FREE, 2, 3, 4)).dense_shape == (2, 3, 4)
    assert mapped({"x": "b i"}, "b o").dense_shape == (8, 6), "modes in canonical order"


@pytest.mark.parametrize(
    ("graph", "axes", "lengths"),
    [
        (LINEAR, (("o",), ("i",)), (6, 8)),
        (replace(LINEAR, features=((Role.IN, 7), (Role.OUT, 5))), (("o",), ("i",)), (5, 7)),
        (plain("linear", *modes(Role.IN, 2, 4), O), (("o",), ("i1", "i2")), (6, 8)),
        (conv((3, 5)), (("o",), ("i",), ("k1", "k2")), (6, 8, 15)),
        (conv((), kernel_size=(1, 1)), (("o",), ("i",), ()), (6, 8, 1)),
        (patched(5, 6, kernel_size=(3, 5)), (("o",), ("p1", "p2"), ()), (6, 30, 1)),
        (patched(20, kernel_size=(3, 3), features=((Role.IN, 2),)), (("o",), ("p1",), ()), (6, 18, 1)),
        (table(4, 5, features=((Role.LOOKUP, 17),)), (("l1", "l2"), ("o",)), (17, 6)),
        (plain("tensor", *modes(Role.FREE, 2, 3)), (("f1",), ("f2",)), (2, 3)),
        (mapped({"x": "b i"}, "b o"), (("i",), ("o",)), (8, 6)),
    ],
)
def test_the_axes_of_the_weight(graph: Graph, axes: tuple[tuple[str, ...], ...], lengths: tuple[int, ...]) -> None:
    assert (graph.weight_axes, graph.weight_lengths) == (axes, lengths)


def test_tables_and_tensors_are_looked_up() -> None:
    assert table(4).is_lookup
    assert plain("tensor", *modes(Role.FREE, 2)).is_lookup
    assert not any(graph.is_lookup for graph in (LINEAR, conv((3,)), mapped({"x": "b i"}, "b o")))


def test_padding_is_what_the_modes_hold_too_much() -> None:
    assert LINEAR.padding == {}
    assert replace(LINEAR, features=((Role.IN, 7),)).padding == {Role.IN: (8, 7)}
    assert table(4, 5, features=((Role.LOOKUP, 17),)).padding == {Role.LOOKUP: (20, 17)}
    assert patched(20, kernel_size=(3, 3), features=((Role.IN, 2),)).padding == {Role.PATCH: (20, 18)}


def test_real_sizes() -> None:
    assert (LINEAR.in_features, LINEAR.out_features) == (8, 6)
    assert table(4, 5, features=((Role.LOOKUP, 17),)).vocab == 17
    assert patched(20, kernel_size=(3, 3), features=((Role.IN, 2),)).in_features == 2


def test_who_has_a_bias() -> None:
    assert LINEAR.has_bias
    assert not replace(LINEAR, options=(("bias", False),)).has_bias
    assert conv((3,)).has_bias
    assert not any(graph.has_bias for graph in (table(4), plain("tensor", Edge("f", 2, Role.FREE))))


def test_names_are_qualified_where_there_are_several_terms() -> None:
    assert (list(LINEAR.bonds), LINEAR.cores) == (["r"], {"A": (8, 2), "B": (2, 6)})
    two = LINEAR.with_terms((*CHAIN, replace(CHAIN[0], name="t")))
    assert list(two.bonds) == ["main.r", "t.r"]
    assert list(two.cores) == ["main.A", "main.B", "t.A", "t.B"]


def test_a_graph_prints() -> None:
    assert str(replace(LINEAR, name="tt", features=((Role.IN, 7),), options=(("bias", False),))) == (
        "linear tt: 7 -> 6\n  in     i=8\n  out    o=6\n  option bias=false\n  bonds  r=2\n  cores  A[i, r] B[r, o]"
    )


def test_a_sum_prints() -> None:
    terms = (Term("a", (), (Core("A", ("i", "o")), Core("B", ("i",)))), Term("b", (), (Core("A", ("i", "o")),)))
    assert str(Graph("linear", (I, O), terms, shared=("i",))) == (
        "linear (unnamed): 8 -> 6\n"
        "  in     i=8\n"
        "  out    o=6\n"
        "  shared i\n"
        "  term a\n"
        "  bonds  none\n"
        "  cores  A[i, o] B[i]\n"
        "  term b\n"
        "  bonds  none\n"
        "  cores  A[i, o]"
    )


def test_other_kinds_print() -> None:
    def head(graph: Graph) -> str:
        return str(graph).splitlines()[0]

    assert head(conv((3, 5), options=(("stride", (1, 2)),))) == "conv (unnamed): 8 -> 6, kernel 3x5"
    assert "  option stride=[1, 2]" in str(conv((3, 5), options=(("stride", (1, 2)),))).splitlines()
    assert head(table(4, 5)) == "embedding (unnamed): 20 rows of 6"
    assert head(plain("tensor", *modes(Role.FREE, 2, 3))) == "tensor (unnamed): 2x3"
    bilinear = mapped({"x": "b i", "y": "b k+j"}, "b o", I, Edge("j", 3, Role.IN), Edge("k", 2, Role.IN), O)
    assert head(bilinear) == "map (unnamed): x, y -> output, weight 8x3x2x6"
    assert str(bilinear).splitlines()[3:6] == ["  input  x[b, i]", "  input  y[b, (k j)]", "  output [b, o]"]


# --- laws ------------------------------------------------------------------------------------------------------------


def rebuilt(graph: Graph) -> Graph:
    return Graph.of(graph, name=graph.name)


@settings(max_examples=cases(2000))
@given(graphs(least_terms=0))
def test_canonical_form_is_stable(graph: Graph) -> None:
    again = rebuilt(graph)
    assert (again, hash(again), str(again), repr(again)) == (graph, hash(graph), str(graph), repr(graph))


@settings(max_examples=cases(2000))
@given(graphs(least_terms=0))
def test_ends_are_what_the_cores_list(graph: Graph) -> None:
    for term in graph.terms:
        ends = term.ends()
        assert set(ends) == set(graph.sizes(term))
        assert {(core.name, edge) for core in term.cores for edge in core.edges} == {
            (core, edge) for edge, cores in ends.items() for core in cores
        }
        assert all(len(ends[bond.name]) >= 2 for bond in term.bonds)
        assert all(len(ends[mode.name]) == 1 or mode.name in graph.shared for mode in graph.modes)


@settings(max_examples=cases(2000))
@given(graphs(least_terms=0))
def test_sizes_agree(graph: Graph) -> None:
    held = prod(mode.size for mode in graph.modes)
    assert prod(graph.dense_shape) <= held
    if not graph.features:
        assert prod(graph.dense_shape) == held
    assert len(graph.cores) == sum(len(term.cores) for term in graph.terms)
    assert len(graph.bonds) == sum(len(term.bonds) for term in graph.terms)
    assert all(1 <= real < all_ for all_, real in graph.padding.values())
    assert prod(graph.weight_lengths) == prod(graph.dense_shape)
    assert sorted(name for axis in graph.weight_axes for name in axis) == sorted(mode.name for mode in graph.modes)
    axes = [axis for group in graph.tap_groups for axis in group]
    assert axes == list(range(len(graph.kernel_size)))[: len(axes)]


@settings(max_examples=cases(300))
@given(graphs(), st.data())
def test_keeps_name_every_bond(graph: Graph, data: st.DataObject) -> None:
    kept = data.draw(keeps(graph))
    assert kept.keys() == graph.bonds.keys()
    for name, indices in kept.items():
        assert indices
        assert list(indices) == sorted(set(indices))
        assert set(indices) <= set(range(graph.bonds[name].size))


@pytest.mark.parametrize("modes", [64, 900])
def test_the_axes_of_a_tensor_may_hold_more_than_any_memory(modes: int) -> None:
    graph = families.tt("tensor", free=(2,) * modes, rank=2)
    assert count(graph) == Count(8 * (modes - 2) + 8, 2**modes)
    assert graph.dense_shape == (2,) * modes
    assert count(graph).sentence == ("3.66e+16x smaller than dense" if modes == 64 else "1.18e+267x smaller than dense")
