"""The Python way to write a graph: what the text and the builder take, and where they say a mistake is."""

from __future__ import annotations

import pytest

from tnmars.dsl import Builder, network
from tnmars.errors import GraphError
from tnmars.families import tt
from tnmars.graph import Graph
from tnmars.spec import dump, loads

MODES = {"inputs": {"i": 4}, "outputs": {"o": 5}}


def linear(text: str, bonds: object = 2, **weight: object) -> Graph:
    return network("linear", text, bonds=bonds, **{**MODES, **weight})  # type: ignore[arg-type]


def said(text: str, bonds: object = 2, **weight: object) -> str:
    with pytest.raises(GraphError) as raised:
        linear(text, bonds, **weight)
    return str(raised.value)


# --- the text --------------------------------------------------------------------------------------------------------


def test_the_example_of_the_design_page_three_times() -> None:
    text = "G1[i1,o1,r1] G2[r1,i2,o2,r2] G3[r2,i3,o3,r3] G4[r3,i4,o4]"
    inputs, outputs = {"i1": 7, "i2": 4, "i3": 7, "i4": 4}, {"o1": 5, "o2": 5, "o3": 5, "o4": 5}
    graph = network("linear", text, inputs=inputs, outputs=outputs, bonds=20)
    assert graph == tt("linear", inputs=(7, 4, 7, 4), outputs=(5, 5, 5, 5), rank=20)
    assert graph == loads(
        "tnmars: 1\nkind: linear\nmodes:\n  in: {i1: 7, i2: 4, i3: 7, i4: 4}\n  out: {o1: 5, o2: 5, o3: 5, o4: 5}\n"
        "bonds: {r1: 20, r2: 20, r3: 20}\n"
        "cores: {G1: [i1, o1, r1], G2: [r1, i2, o2, r2], G3: [r2, i3, o3, r3], G4: [r3, i4, o4]}\n"
    )


@pytest.mark.parametrize(
    "text",
    ["A[i,r] B[r,o]", " A [ i , r ]\n\tB[r ,o] \n", "A[i,r]B[r,o]", "main: A[i,r] B[r,o]"],
)
def test_spaces_and_lines_are_free(text: str) -> None:
    assert linear(text) == linear("A[i, r] B[r, o]")


def test_a_core_may_have_no_edges() -> None:
    assert linear("A[i,o] B[]").cores == {"A": (4, 5), "B": ()}


def test_terms_are_joined_and_may_be_named() -> None:
    graph = linear("a: A[i,r] B[r,o] + C[i,o] + c: C[i,o]")
    assert [term.name for term in graph.terms] == ["a", "t2", "c"]
    assert [term.name for term in linear("only: C[i,o]").terms] == ["only"]
    assert [term.name for term in linear("C[i,o]").terms] == ["main"]


def test_two_terms_may_not_have_one_name() -> None:
    assert said("t2: C[i,o] + C[i,o]").startswith("two terms are named 't2'.")


def test_bonds_are_edges_that_are_no_mode_in_the_order_of_the_cores() -> None:
    graph = linear("A[s,i,r] B[r,o,s]", {"r": 3, "s": 6})
    assert {name: bond.size for name, bond in graph.bonds.items()} == {"r": 3, "s": 6}
    assert list(linear("A[s,i,r] B[r,o,s]", 2).bonds) == ["s", "r"]
    assert list(linear("A[s,i,r] B[r,o,s]", {"r": 3, "s": 6}).bonds) == ["r", "s"]


def test_bonds_of_several_terms_by_short_or_full_name() -> None:
    text = "a: A[i,r] B[r,o] + b: A[i,r] B[r,o]"

    def sizes(bonds: object) -> list[int]:
        return [bond.size for bond in linear(text, bonds).bonds.values()]

    assert sizes({"r": 3}) == [3, 3]
    assert sizes({"a.r": 3, "b.r": 4}) == [3, 4]
    assert sizes({"r": 3, "b.r": 4}) == [3, 4]
    assert sizes({"b.r": 4, "r": 3}) == [3, 4]
    assert said(text, {"a.r": 3}).startswith("edge 'r' is not a mode, and bonds gives no size for it.")
    assert said(text, {"a.r": 3, "b.r": 4, "c.r": 5}).startswith("bonds gives a size for 'c.r', which is not a bond.")


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 1, "expected a core such as G1[i1, r1], got the end."),
        ("A", 2, "expected '[', got the end."),
        ("A[i", 4, "expected ',' or ']', got the end."),
        ("A[i o,]", 5, "expected ',' or ']', got 'o'."),
        ("A[i,o,]", 7, "expected the name of an edge, got ']'."),
        ("A[i,,o]", 5, "expected the name of an edge, got ','."),
        ("A[,i]", 3, "expected ']', got ','."),
        ("A[i] ]", 6, "expected a core such as G1[i1, r1], got ']'."),
        ("A[i] + ", 7, "expected a core such as G1[i1, r1], got the end."),
        ("+ A[i]", 1, "expected a core such as G1[i1, r1], got '+'."),
        ("A[i] b: B[o]", 7, "expected '[', got ':'."),
        ("a: b: B[o]", 5, "expected '[', got ':'."),
        ("a:", 3, "expected a core such as G1[i1, r1], got the end."),
        ("A[1]", 3, "expected a name or one of [ ] , : + = . *, got '1'."),
        ("A[i;o]", 4, "expected a name or one of [ ] , : + = . *, got ';'."),
        ("A[i] é", 6, "expected a name or one of [ ] , : + = . *, got 'é'."),
    ],
)
def test_a_mistake_in_the_text_is_pointed_at(text: str, column: int, message: str) -> None:
    head, line, caret = said(text).split("\n")
    assert head == f"network text, column {column}: {message}"
    assert line == f"  {text.rstrip()}"
    assert caret == "  " + " " * (column - 1) + "^"


def test_a_mistake_in_a_long_text_is_shown_with_what_is_near() -> None:
    text = " ".join(f"A{at}[a{at}]" for at in range(50)) + " !" + " B[i]" * 50
    head, line, caret = said(text).split("\n")
    assert head.startswith(f"network text, column {text.index('!') + 1}: ")
    assert len(line) < 70
    assert line[len(caret) - 1] == "!"


def test_a_mistake_in_a_text_of_several_lines_has_its_line() -> None:
    head, line, caret = said("A[i,r]\n  + B[r;o]\n  + C[i,o]").split("\n")
    assert head == "network text, line 2, column 8: expected a name or one of [ ] , : + = . *, got ';'."
    assert line == "    + B[r;o]"
    assert line[len(caret) - 1] == ";"


def test_a_core_that_cannot_be_is_pointed_at() -> None:
    assert said("A[i,r]\nB=A.[r,o]").startswith("network text, line 2, column 5: expected the name of a core, got '['.")
    assert said(f"{'A' * 101}[i,o]").startswith("network text, column 1: core name 'AAAA")


def test_ties_and_traces() -> None:
    one = network("linear", "A[i,r] B=A[j,s] C[r,t,s,t]", inputs={"i": 4}, outputs={"j": 4}, bonds=2)
    assert [core.tied for core in one.terms[0].cores] == ["", "A", ""]
    assert (list(one.cores), one.nodes["B"], list(one.bonds)) == (["A", "C"], "A", ["r", "t"])
    two = network("linear", "a: A[i,r] B[r,o] + b: C=a.A[i,s] D[s,o]", inputs={"i": 4}, outputs={"o": 4}, bonds=2)
    assert (list(two.cores), two.nodes["b.C"], list(two.bonds)) == (["a.A", "a.B", "b.D"], "a.A", ["a.r"])
    for graph in (one, two):
        text = " + ".join(f"{term.name}: {term}" for term in graph.terms)
        assert network("linear", text, inputs={"i": 4}, outputs={graph.modes[1].name: 4}, bonds=2) == graph


def test_bonds_need_sizes() -> None:
    assert said("A[i,r] B[r,o]", None).startswith("no size is given for bond 'r'.")
    assert linear("A[i,o]", None) == linear("A[i,o]", 3)
    assert said("A[i,r] B[r,o]", 0).startswith("bond 'r' has size 0.")
    assert "Did you mean 'r1'?" in said("A[i,r] B[r,o]", {"r1": 2})


def test_every_bond_without_a_size_is_said_at_once() -> None:
    heads = [line for line in said("A[i,r,s] B[r,s,t,o] C[t]", {"q": 0, "r": 0}).split("\n") if line[0] != " "]
    assert heads == [
        "bond 'r' has size 0.",
        "edge 's' is not a mode, and bonds gives no size for it.",
        "edge 't' is not a mode, and bonds gives no size for it.",
        "bonds gives a size for 'q', which is not a bond.",
    ]


def test_every_problem_of_the_graph_is_said_at_once() -> None:
    text = said("A[i,r] B[s]")
    assert "bond 'r' touches only core 'A'" in text
    assert "bond 's' touches only core 'B'" in text
    assert "mode 'o' is declared, but no core lists it." in text


# --- the frame -------------------------------------------------------------------------------------------------------


def test_sizes_without_names_are_named_after_their_role() -> None:
    graph = network("linear", "A[i1,i2,o1]", inputs=(2, 3), outputs=[4])
    assert [mode.name for mode in graph.modes] == ["i1", "i2", "o1"]
    conv = network("conv", "A[p1,o1]", patch=[27], outputs=[4], kernel_size=(3, 3))
    assert conv.in_features == 3
    assert network("embedding", "A[v1,o1]", lookup=[9], outputs=[4], vocab=8).vocab == 8
    assert network("tensor", "A[n1,n2]", free=[9, 3]).dense_shape == (9, 3)


def test_a_map_takes_its_arguments_as_text_or_lists() -> None:
    weight = {"inputs": {"i": 4, "j": 3}, "outputs": {"o": 5}}
    graph = network("map", "A[i,j,o]", arguments={"x": "b, n (i j)"}, result="b n o", **weight)
    assert graph.inputs[0].axes == (("b",), ("n",), ("i", "j"))
    again = network("map", "A[i,j,o]", arguments={"x": ["b", "n", "(i j)"]}, result=["b", "n", "o"], **weight)
    assert again == graph


def test_a_keyword_that_is_none_is_refused() -> None:
    assert "Did you mean 'inputs'?" in said("A[i,o]", input={"i": 4})
    assert said("A[i,o]", inputs=4).startswith("inputs is 4, but must be a list")
    assert said("A[i,o]", inputs="i").startswith("inputs is 'i', but must be a list")
    assert "Did you mean 'in'?" in said("A[i,o]", features={"inn": 3})
    assert said("A[i,o]", input=3, output=4).count("is not known.") == 2


@pytest.mark.parametrize(
    "weight",
    [
        {"name": None},
        {"features": 3},
        {"options": ["bias"]},
        {"kernel_size": 3},
        {"shared": "i"},
        {"arguments": "x"},
        {"result": 3},
        {"result": [3]},
        {"inputs": 3.5},
        {"inputs": {"i": 4.0}},
        {"inputs": {"i": "4"}},
        {"inputs": {3: 4}},
    ],
)
def test_a_keyword_of_the_wrong_form_is_refused(weight: dict[str, object]) -> None:
    assert said("A[i,o]", **weight)


def test_a_kind_or_a_text_that_is_none_is_refused() -> None:
    for kind in (None, 3, []):
        with pytest.raises(GraphError, match="is not known"):
            network(kind, "A[i,o]", **MODES)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="the network must be text"):
        network("linear", None, **MODES)  # type: ignore[arg-type]


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    import numpy as np

    sizes = {"inputs": {"i": np.int64(4)}, "outputs": {"o": np.uint8(5)}, "features": {"in": np.int32(3)}}
    graph = linear("A[i,r] B[r,o]", np.int16(2), **sizes)
    assert graph == linear("A[i,r] B[r,o]", features={"in": 3})
    assert type(graph.bonds["r"].size) is int
    assert loads(dump(graph)) == graph
    conv = {"inputs": {"i": 4}, "outputs": {"o": 5}, "kernel": {"k": 9}}
    made = network("conv", "A[i,o,k]", kernel_size=np.array([3, 3]), options={"stride": np.int64(2)}, **conv)
    assert made == network("conv", "A[i,o,k]", kernel_size=(3, 3), options={"stride": [np.int8(2), 2]}, **conv)
    assert loads(dump(made)) == made


# --- the builder -----------------------------------------------------------------------------------------------------


def test_the_builder_gives_what_the_text_gives() -> None:
    built = (
        Builder("linear", name="built", options={"bias": False})
        .mode("in", i=4)
        .mode("out", o=5)
        .term("a")
        .bond(r=2)
        .core("A", "i", "r")
        .core("B", "r", "o")
        .term("b")
        .core("C", "i", "o")
        .build()
    )
    assert built == linear("a: A[i,r] B[r,o] + b: C[i,o]", options={"bias": False})
    assert built.name == "built"


def test_the_builder_goes_back_to_a_term_and_adds_to_it() -> None:
    builder = Builder("linear", **MODES).term("a").bond(r=2).term("b").core("C", "i", "o")
    assert builder.term("a").core("A", "i", "r").core("B", "r", "o").build() == linear("a: A[i,r] B[r,o] + b: C[i,o]")


def test_the_builder_without_a_term_makes_one() -> None:
    assert Builder("linear", **MODES).core("A", "i", "o").build() == linear("A[i,o]")
    assert Builder("linear", **MODES).build().terms == ()


def test_the_builder_refuses_what_was_given_before() -> None:
    with pytest.raises(GraphError, match="mode 'i' is added twice"):
        Builder("linear").mode("in", i=4).mode("in", i=5)
    with pytest.raises(GraphError, match="modes with role 'in' were already given, as inputs="):
        Builder("linear", inputs={"i": 4}).mode("in", j=4)
    with pytest.raises(GraphError, match="two bonds are named 'r'"):
        Builder("linear", **MODES).bond(r=2).bond(r=3).core("A", "i", "o", "r").core("B", "r").build()
    with pytest.raises(GraphError, match="role 'inn' is not known"):
        Builder("linear").mode("inn", i=4)
    with pytest.raises(GraphError, match="mode 'i' is declared twice, as 'in' and as 'out'"):
        Builder("linear").mode("in", i=4).mode("out", i=4).core("A", "i").build()


def test_any_name_goes_also_those_of_our_own_arguments() -> None:
    built = Builder("tensor").mode("free", self=2, role=3).bond(self_=2, name=2)
    assert built.core("A", "self", "self_", "name").core("B", "role", "self_", "name").build().dense_shape == (2, 3)
    assert list(Builder("tensor").mode("free", a=2).bond(self=2).core("A", "a", "self").core("B", "self").build().bonds)
