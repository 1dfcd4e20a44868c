"""Two graphs side by side: what is said about bonds, cores and counts."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given, settings
from strategies import cases, graphs

from tnmars import families, network
from tnmars.graph.difference import difference
from tnmars.graph.rewrite import drop_ones, prune

TT = families.tt("linear", inputs=(4, 3, 2), outputs=(2, 3, 4), rank=5)


def test_a_pruned_graph_beside_the_one_before() -> None:
    after = drop_ones(prune(TT, {"r1": [1, 3], "r2": [4]}).graph).graph
    found = difference(TT, after)
    assert str(found) == (
        "             before                    after\n"
        "graph        linear: 24 -> 24          linear: 24 -> 24\n"
        "bond r1      5                         2                          -3\n"
        "bond r2      5                         -                          removed\n"
        "core G1      i1=4 o1=2 r1=5            i1=4 o1=2 r1=2             changed\n"
        "core G2      r1=5 i2=3 o2=3 r2=5       r1=2 i2=3 o2=3             changed\n"
        "core G3      r2=5 i3=2 o3=4            i3=2 o3=4                  changed\n"
        "parameters   305                       42\n"
        "compression  1.89x smaller than dense  13.71x smaller than dense"
    )
    assert found.as_json() == {
        "same": False,
        "graphs": ["linear: 24 -> 24", "linear: 24 -> 24"],
        "bonds": [{"name": "r1", "before": 5, "after": 2}, {"name": "r2", "before": 5, "after": None}],
        "cores": [
            {
                "name": "G1",
                "change": "changed",
                "before": {"edges": ["i1", "o1", "r1"], "shape": [4, 2, 5], "parameters": 40},
                "after": {"edges": ["i1", "o1", "r1"], "shape": [4, 2, 2], "parameters": 16},
            },
            {
                "name": "G2",
                "change": "changed",
                "before": {"edges": ["r1", "i2", "o2", "r2"], "shape": [5, 3, 3, 5], "parameters": 225},
                "after": {"edges": ["r1", "i2", "o2"], "shape": [2, 3, 3], "parameters": 18},
            },
            {
                "name": "G3",
                "change": "changed",
                "before": {"edges": ["r2", "i3", "o3"], "shape": [5, 2, 4], "parameters": 40},
                "after": {"edges": ["i3", "o3"], "shape": [2, 4], "parameters": 8},
            },
        ],
        "parameters": {"before": 305, "after": 42},
        "compression": {"before": 576 / 305, "after": 576 / 42},
        "other": [],
    }


def test_terms_are_matched_by_name_when_one_is_left() -> None:
    btd = families.btd("linear", inputs=(4, 3), outputs=(2, 3), rank=2, terms=2)
    first, second = (term.name for term in btd.terms)
    left = prune(btd, {f"{first}.{btd.terms[0].bonds[0].name}": []}).graph
    found = difference(btd, left)
    changes = {bond.name: bond.after for bond in found.bonds}
    assert all((changes[name] is None) == name.startswith(f"{first}.") for name in changes)
    assert {core.change for core in found.cores if core.name.startswith(f"{second}.")} == {"same"}
    assert {core.change for core in found.cores if core.name.startswith(f"{first}.")} == {"removed"}


def test_what_else_differs_is_said() -> None:
    other = families.tt("linear", inputs=(4, 3, 2), outputs=(2, 3, 5), rank=5)
    text = str(difference(TT, replace(other, options=(("bias", False),))))
    assert "the modes differ: i1=4 i2=3 i3=2 o1=2 o2=3 o3=4 | i1=4 i2=3 i3=2 o1=2 o2=3 o3=5" in text
    assert "the options differ: none | bias=False" in text
    assert "the dense shapes differ: 24 24 | 30 24" in text


@settings(max_examples=cases(300))
@given(graphs())
def test_a_graph_is_equal_to_itself(graph) -> None:
    found = difference(graph, graph)
    assert found.is_same
    assert str(found).endswith("the graphs are equal")
    assert all(bond.before == bond.after for bond in found.bonds)
    assert {core.change for core in found.cores} <= {"same"}
    json.dumps(found.as_json(), allow_nan=False)


def test_ties_are_distinguished() -> None:
    """Two graphs that differ in nothing but whether a core is another one in a second place."""
    modes = {"free": {"i": 4, "j": 4}, "bonds": 2}
    plain, tied = (network("tensor", f"A[i,r] {name}[j,r]", **modes) for name in ("B", "B=A"))
    found = difference(plain, tied)
    assert not found.is_same
    assert found.notes == ("the tied cores differ: none | B=A",)
    assert (found.before.cores, found.after.cores) == (16, 8)
