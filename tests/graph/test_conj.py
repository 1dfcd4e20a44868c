"""Conjugates as an option of a core: in specs, the DSL, rewrites and differences."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from strategies import cases, conjugates, graphs

import tnmars
from tnmars.graph import Core, Graph
from tnmars.graph.difference import difference
from tnmars.graph.rewrite import conjugated, drop_ones, merge, prune, unconjugated
from tnmars.plan.cost import CostModel
from tnmars.plan.layout import Weighing
from tnmars.program.choice import choose
from tnmars.program.codec import form_from_json, form_to_json

NORM = "A[i,r] B[r,j] C*[i,s] D*[s,j]"
MODES = {"free": {"i": 2, "j": 3}, "bonds": 2, "shared": ("i", "j")}
TEXT = """\
tnmars: 1
kind: tensor
modes:
  free: {i: 2, j: 3}
shared: [i, j]
bonds: {r: 2, s: 2}
cores:
  A: [i, r]
  B: [r, j]
  C: [i, s]
  D: [s, j]
conj: [C, D]
"""


def test_text_builder_and_spec_say_the_same() -> None:
    graph = tnmars.network("tensor", NORM, **MODES)
    built = tnmars.Builder("tensor", shared=("i", "j")).mode("free", i=2, j=3).bond(r=2, s=2)
    built = built.core("A", "i", "r").core("B", "r", "j").core("C", "i", "s", conj=True).core("D", "s", "j", conj=True)
    assert graph == built.build() == tnmars.loads(TEXT)
    assert tnmars.dump(graph) == TEXT
    assert graph.conjugated == {"C", "D"}
    assert str(graph.terms[0]) == "A[i, r] B[r, j] C*[i, s] D*[s, j]"


@settings(max_examples=cases(300))
@given(graphs().flatmap(conjugates))
def test_a_spec_holds_them(graph: Graph) -> None:
    again = tnmars.loads(tnmars.dump(graph))
    assert again == graph
    assert again.conjugated == graph.conjugated
    assert conjugated(unconjugated(graph), graph.conjugated) == graph


def test_they_are_part_of_what_a_graph_is() -> None:
    graph = tnmars.network("tensor", NORM, **MODES)
    other = unconjugated(graph)
    assert graph != other
    assert "conjugates differ: C D | none" in str(difference(graph, other))


def test_terms_in_copies_have_them_too() -> None:
    text = TEXT.replace("tensor\n", "tensor\n").partition("bonds")[0]
    text += (
        "terms:\n  t:\n    copies: 2\n    bonds: {r: 2}\n    cores:\n      A: [i, r]\n      B: [r, j]\n    conj: [B]\n"
    )
    assert tnmars.loads(text.replace("shared: [i, j]\n", "")).conjugated == {"t1.B", "t2.B"}


def test_cuts_and_mergers_keep_them() -> None:
    graph = tnmars.network("tensor", NORM, **MODES)
    assert prune(graph, {"r": (0,)}).graph.conjugated == {"C", "D"}
    assert drop_ones(prune(graph, {"r": (0,)}).graph).graph.conjugated == {"C", "D"}
    assert merge(graph, "main", "C", "D").graph.conjugated == {"C"}
    mixed = merge(graph, "main", "A", "C")
    assert mixed.graph.conjugated == {"D"}
    (piece,) = [piece for piece in mixed.pieces if piece.name == "A"]
    assert [source.conj for source in piece.sources] == [False, True]


def test_a_core_that_is_not_there_is_reported() -> None:
    with pytest.raises(tnmars.SpecError, match=r":12:11: conj names core 'E', which is not one of the cores\."):
        tnmars.loads(TEXT.replace("[C, D]", "[C, E]"))
    with pytest.raises(tnmars.GraphError, match="conj of core 'A' is 1"):
        Core("A", ("i",), conj=1)
    with pytest.raises(tnmars.GraphError, match=r"expected '\['"):
        tnmars.network("tensor", "A**[i]", free={"i": 2})
    assert replace(Core("A", ("i",)), conj=True).conj


@settings(max_examples=cases(300))
@given(graphs(terms=1).flatmap(conjugates))
def test_plans_are_read_back_only_for_the_same_conjugates(graph: Graph) -> None:
    form = choose(graph, 3, Weighing(CostModel()))[0]
    data = json.loads(json.dumps(form_to_json(form)))
    assert form_from_json(data, graph) == form
    if not graph.conjugated:
        assert "conj" not in json.dumps(data)
    else:
        with pytest.raises(tnmars.TnmarsError, match="with a conjugate that the graph has not"):
            form_from_json(data, unconjugated(graph))
