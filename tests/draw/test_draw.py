"""Drawings: everything is there, nothing lies on a core, and the layout shows the topology."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise
from math import dist
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tnmars.draw import dot, layout, svg, terminal
from tnmars.draw.scene import scene
from tnmars.draw.text import signature
from tnmars.families import FAMILIES
from tnmars.graph import Core, Edge, Graph, Role, Term

Bonds = Mapping[str, tuple[object, ...]]


def term_of(bonds: Bonds, modes: Bonds, order: tuple[str, ...] = (), name: str = "main") -> Term:
    """A term from `{bond: (size, core, ...)}` and `{mode: (size, role, core, ...)}`."""
    edges: dict[str, list[str]] = {core: [] for core in order}
    for bond, (_, *cores) in bonds.items():
        for core in cores:
            edges.setdefault(str(core), []).append(bond)
    for mode, (_, _, *cores) in modes.items():
        for core in cores:
            edges.setdefault(str(core), []).append(mode)
    cores = tuple(Core(core, tuple(found)) for core, found in edges.items())
    return Term(name, tuple(Edge(bond, int(str(size))) for bond, (size, *_) in bonds.items()), cores)


def build(bonds: Bonds, modes: Bonds, kind: str = "tensor", name: str = "", order: tuple[str, ...] = ()) -> Graph:
    edges = tuple(Edge(mode, int(str(size)), Role(role)) for mode, (size, role, *_) in modes.items())
    shared = tuple(mode for mode, value in modes.items() if len(value) > 3)
    return Graph(kind, edges, (term_of(bonds, modes, order),), shared=shared, name=name)


def free(count: int) -> Bonds:
    return {f"i{k}": (3 + k, "free", f"A{k}") for k in range(count)}


def path(count: int) -> Graph:
    bonds = {f"r{k}": (20 + k, f"A{k}", f"A{k + 1}") for k in range(count - 1)}
    modes = {f"i{k}": (2 + k, "in", f"A{k}") for k in range(count)}
    return build(bonds, {**modes, **{f"o{k}": (3 + k, "out", f"A{k}") for k in range(count)}}, "linear", "fc1")


def ring(count: int, chords: Bonds | None = None) -> Graph:
    bonds = {f"r{k}": (4 + k, f"A{k}", f"A{(k + 1) % count}") for k in range(count)}
    return build({**bonds, **(chords or {})}, free(count))


def star(count: int) -> Graph:
    return build({f"r{k}": (4 + k, "G", f"A{k}") for k in range(count)}, free(count))


def hyper(count: int) -> Graph:
    return build({"r": (16, *(f"A{k}" for k in range(count)))}, free(count))


def tree(depth: int) -> Graph:
    leaves = 2**depth
    names = {k: f"A{k - leaves}" if k >= leaves else f"B{k}" for k in range(1, 2 * leaves)}
    return build({f"r{k}": (2 + k, names[k // 2], names[k]) for k in range(2, 2 * leaves)}, free(leaves))


def grid(columns: int, rows: int, without: tuple[str, ...] = ()) -> Graph:
    bonds: dict[str, tuple[object, ...]] = {}
    names = [f"P{x}{y}" for y in range(rows) for x in range(columns) if f"P{x}{y}" not in without]
    for x in range(columns):
        for y in range(rows):
            bonds[f"h{x}{y}"] = (2 + x, f"P{x}{y}", f"P{x + 1}{y}")
            bonds[f"v{x}{y}"] = (6 + y, f"P{x}{y}", f"P{x}{y + 1}")
    kept = {bond: value for bond, value in bonds.items() if value[1] in names and value[2] in names}
    return build(kept, {f"s{name}": (3, "free", name) for name in names}, order=tuple(names))


def complete(count: int) -> Graph:
    pairs = combinations(range(count), 2)
    return build({f"r{a}{b}": (2 + a + b, f"A{a}", f"A{b}") for a, b in pairs}, free(count))


def petersen() -> Graph:
    outer = {f"a{k}": (2, f"A{k}", f"A{(k + 1) % 5}") for k in range(5)}
    spokes = {f"b{k}": (3, f"A{k}", f"B{k}") for k in range(5)}
    return build({**outer, **spokes, **{f"c{k}": (4, f"B{k}", f"B{(k + 2) % 5}") for k in range(5)}}, free(5))


def comb() -> Graph:
    spine = {f"r{k}": (5 + k, f"G{k}", f"G{k + 1}") for k in range(3)}
    return build({**spine, **{f"k{k}": (3, f"G{k}", f"A{k}") for k in range(4)}}, free(4))


def parallel() -> Graph:
    bonds = {"r1": (4, "A0", "A1"), "r2": (8, "A0", "A1"), "s": (1, "A1", "A2")}
    return build({**bonds, **{f"t{k}": (9 + k, "A2", "A3") for k in range(3)}}, free(4))


def two_dots() -> Graph:
    return build({"r": (16, "A0", "A1", "A2"), "s": (3, "A2", "A3", "A4"), "t": (2, "A4", "A0")}, free(5))


def two_parts() -> Graph:
    bonds = {"r0": (4, "A0", "A1"), "r1": (5, "A1", "A2"), "r2": (6, "A2", "A0"), "s": (7, "A3", "A4")}
    return build(bonds, free(5))


def two_terms() -> Graph:
    modes = {"i": (28, "in", "A"), "o": (25, "out", "B")}
    edges = (Edge("i", 28, Role.IN), Edge("o", 25, Role.OUT))
    thin = term_of({"r": (3, "A", "B")}, modes, name="thin")
    wide = term_of({"s": (17, "A", "B", "C")}, modes, name="wide")
    return Graph("linear", edges, (thin, wide), name="sum")


def shared() -> Graph:
    modes = {"b": (4, "in", "L", "R"), "i": (16, "in", "L"), "o": (13, "out", "R")}
    return build({"r": (8, "L", "R")}, modes, "linear")


def long_names() -> Graph:
    names = ["embed", "query_projection_of_the_first_layer", "key", "feed_forward_inner_weight", "z" * 100]
    bonds = {f"bond_with_a_long_name_{k}": (20 + k, a, b) for k, (a, b) in enumerate(pairwise(names))}
    return build(bonds, {f"mode_with_a_long_name_{k}": (5 + k, "free", name) for k, name in enumerate(names)})


GRAPHS = {
    "path": path(4),
    "long path": path(12),
    "ring": ring(5),
    "triangle": ring(3),
    "chords": ring(7, {"c1": (2, "A0", "A3"), "c2": (3, "A1", "A5")}),
    "star3": star(3),
    "star6": star(6),
    "hyper": hyper(4),
    "tree": tree(3),
    "comb": comb(),
    "grid": grid(3, 3),
    "ladder": grid(2, 5),
    "holed": grid(3, 3, ("P22",)),
    "k5": complete(5),
    "petersen": petersen(),
    "parallel": parallel(),
    "two dots": two_dots(),
    "parts": two_parts(),
    "outer": build({}, free(5)),
    "terms": two_terms(),
    "shared": shared(),
    "one": build({}, {"i1": (28, "in", "W"), "i2": (27, "in", "W"), "o": (10, "out", "W")}, "linear"),
    "scalar": build({}, {"i": (3, "free", "A")}, order=("A", "scalar")),
    "long names": long_names(),
    "crowded": complete(12),
}


@pytest.fixture(params=GRAPHS)
def graph(request: pytest.FixtureRequest) -> Graph:
    return GRAPHS[request.param]


def elements(picture: str, tag: str) -> Iterator[ElementTree.Element]:
    return ElementTree.fromstring(picture).iter(f"{{http://www.w3.org/2000/svg}}{tag}")


def text_of(element: ElementTree.Element) -> str:
    return "".join(element.itertext())


def tags(graph: Graph, mark: str) -> Iterator[str]:
    """The text of every edge as often as it must be drawn."""
    for term in graph.terms:
        yield from (f"{bond.name}{mark}{bond.size}" for bond in term.bonds)
        ends = term.ends()
        for mode in graph.modes:
            yield from [f"{mode.name}{mark}{mode.size}"] * len(ends[mode.name])


# What is drawn


def test_svg_has_every_part(graph: Graph) -> None:
    picture = svg(graph)
    for kind, wanted in (
        ("core", [core.name for term in graph.terms for core in term.cores]),
        ("mode", [mode.name for term in graph.terms for mode in graph.modes for _ in term.ends()[mode.name]]),
    ):
        found = [group.get(f"data-{kind}") for group in elements(picture, "g") if group.get(f"data-{kind}")]
        assert sorted(filter(None, found)) == sorted(wanted)
    bonds = {(group.get("data-bond"), group.get("data-size")) for group in elements(picture, "g")}
    assert bonds >= {(bond.name, str(bond.size)) for term in graph.terms for bond in term.bonds}
    shown = [text_of(text) for text in elements(picture, "text")]
    for tag in set(tags(graph, " ")):
        if len(tag) < 18:
            assert shown.count(tag) == list(tags(graph, " ")).count(tag)


def test_svg_labels_have_every_size_even_of_long_names() -> None:
    graph = long_names()
    shown = [text_of(text) for text in elements(svg(graph), "text")]
    assert {text.rpartition(" ")[2] for text in shown} >= {tag.rpartition(" ")[2] for tag in tags(graph, " ")}
    assert any("…" in text for text in shown) and max(map(len, shown)) < 60
    assert "z" * 100 in svg(graph)


def test_terminal_has_every_part(graph: Graph) -> None:
    drawn = terminal(graph)
    words = re.split(r"[^\w:]+", drawn)
    for term in graph.terms:
        for core in term.cores:
            assert core.name in words
    for tag in tags(graph, ":"):
        assert words.count(tag) >= list(tags(graph, ":")).count(tag)


def test_dot_has_every_part(graph: Graph) -> None:
    text = dot(graph)
    for term in graph.terms:
        for core in term.cores:
            assert f'"{term.name}.core.{core.name}" [label="{core.name}"]' in text
    for tag in tags(graph, " "):
        assert text.count(f'label="{tag}"') == list(tags(graph, " ")).count(tag)
    assert text.count("{") == text.count("}") and text.startswith("// Written by tnmars\ngraph ")
    hyperedges = sum(len(ends) > 2 for term in graph.terms for ends in term.ends().values() if term.bonds)
    assert text.count('shape="point"') == hyperedges


def test_a_graph_without_terms() -> None:
    graph = Graph("tensor", (Edge("i", 3, Role.FREE),), ())
    assert "the weight is zero" in terminal(graph) and "the weight is zero" in svg(graph)
    assert "--" not in dot(graph)


def test_core_tooltip_has_shape_and_count() -> None:
    tips = [text_of(title) for title in elements(svg(path(3)), "title")]
    assert "A1: r0 20 x r1 21 x i1 3 x o1 4, 5,040 parameters" in tips


def _one_term(cores: tuple[Core, ...]) -> Term:
    return Term("first", (Edge("r", 3),), cores)


def test_ties_and_conjugates_are_marked() -> None:
    chain = (Core("A", ("i", "r")), Core("B", ("j", "r"), tied="A", conj=True))
    star = (Core("A", ("i", "r")), Core("B", ("j", "r"), conj=True), Core("C", ("k", "r"), tied="A"))
    two = (Core("C", ("i", "r")), Core("D", ("j", "r"), tied="first.A"))
    modes = tuple(Edge(name, 4, Role.FREE) for name in "ijk")
    for cores, marked in ((chain, {"B": "B* = A"}), (star, {"B": "B*", "C": "C = A"})):
        graph = Graph("tensor", modes[: len(cores)], (_one_term(cores),))
        for name, label in marked.items():
            assert f">{label}</text>" in svg(graph)
            assert f'"first.core.{name}" [label="{label.replace(" ", "")}"];' in dot(graph)
            for width in (80, 12):
                assert label.replace(" ", "") in terminal(graph, width)
    assert "B: j 4 x r 3, the numbers of A, conjugate" in svg(Graph("tensor", modes[:2], (_one_term(chain),)))
    terms = tuple(Term(name, (Edge("r", 3),), cores) for name, cores in (("first", chain), ("second", two)))
    assert ">D = first.A</text>" in svg(Graph("tensor", modes[:2], terms))


def test_title_and_legend() -> None:
    picture = svg(path(3))
    shown = [text_of(text) for text in elements(picture, "text")]
    assert shown[0] == "fc1 linear 24 → 60"
    assert shown[-2:] == ["in", "out"]
    assert "in" not in [text_of(text) for text in elements(svg(ring(3)), "text")]
    large = build({"r": (4096, "A0", "A1")}, {"i": (1024, "in", "A0"), "o": (2048, "out", "A1")}, "linear")
    shown = [text_of(text) for text in elements(svg(large), "text")]
    assert shown[:3] == ["linear 1,024 → 2,048", "i 1,024", "o 2,048"] and "r 4,096" in shown
    assert signature(ring(3)) == "tensor 3x4x5"


def test_line_styles() -> None:
    groups = {group.get("data-bond"): group for group in elements(svg(parallel()), "g") if group.get("data-size")}
    lines = {bond: group.find("{*}path") for bond, group in groups.items() if bond}
    dashes = {bond: line.get("stroke-dasharray") for bond, line in lines.items() if line is not None}
    assert dashes.pop("s") is not None and set(dashes.values()) == {None}
    widths = {bond: float(line.get("stroke-width", 0)) for bond, line in lines.items() if line is not None}
    # Each slice adds the same width, so that widths can be compared.
    assert widths["r1"] - widths["s"] == pytest.approx(3 * 0.9, abs=0.11)
    assert widths["r2"] - widths["s"] == pytest.approx(7 * 0.9, abs=0.11)
    curves = {line.get("d") for bond, line in lines.items() if line is not None and bond.startswith("r")}
    assert len(curves) == 2 and all("Q" in str(curve) for curve in curves)


def test_shared_modes_are_dotted_at_each_core() -> None:
    legs = [path for path in elements(svg(shared()), "path") if "shared" in path.get("class", "")]
    assert len(legs) == 3  # one at each of two cores, and the legend
    assert terminal(shared()).count("b:4*") == 2 and "i:16*" not in terminal(shared())
    assert dot(shared()).count('style="dotted"') == 2


def test_both_themes_and_nothing_from_outside() -> None:
    picture = svg(path(3))
    assert "prefers-color-scheme:dark" in picture
    assert re.findall(r"https?://[^\"]*", picture) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"url\(|@import|<script|href", picture)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "\"quotes' & more", "]]>", "\\", "größe λ 層"])
def test_hostile_names(name: str) -> None:
    plain = path(3)
    graph = Graph("linear", plain.modes, plain.terms, name=name)
    picture = svg(graph)
    root = ElementTree.fromstring(picture.encode())
    assert {element.tag.rpartition("}")[2] for element in root.iter()} == {
        "svg", "title", "style", "rect", "text", "g", "path", "tspan",
    }  # fmt: skip
    assert name in text_of(next(elements(picture, "title")))
    first = dot(graph).splitlines()[1]
    assert re.fullmatch(r'graph "(?:[^"\\\n]|\\\\|\\")*" \{', first)


# The SVG's geometry


def numbers(picture: str) -> Iterator[tuple[float, float]]:
    """Every point of the picture that is written down."""
    for element in ElementTree.fromstring(picture).iter():
        for x, y in (("x", "y"), ("cx", "cy")):
            if x in element.attrib:
                yield float(element.attrib[x]), float(element.attrib[y])
        if "width" in element.attrib and "x" in element.attrib:
            right, bottom = (
                float(element.attrib[a]) + float(element.attrib[b]) for a, b in (("x", "width"), ("y", "height"))
            )
            yield right, bottom
        found = re.findall(r"-?[\d.]+", element.attrib.get("d", ""))
        yield from zip(map(float, found[::2]), map(float, found[1::2]), strict=True)


def test_view_box_holds_everything(graph: Graph) -> None:
    picture = svg(graph)
    left, top, wide, high = map(int, ElementTree.fromstring(picture).attrib["viewBox"].split())
    assert (left, top) == (0, 0)
    for x, y in numbers(picture):
        assert 0 <= x <= wide and 0 <= y <= high
    for text in elements(picture, "text"):
        half = 3 * len(text_of(text))
        middle = float(text.attrib["x"])
        if text.get("class") not in ("title", "kind", "legend"):
            assert middle - half >= 0 and middle + half <= wide
        else:
            assert middle + 2 * half <= wide


def test_coordinates_are_whole(graph: Graph) -> None:
    for value in re.findall(r' (?:x|y|cx|cy|width|height|rx|r|d)="([^"]*)"', svg(graph)):
        assert "." not in value


def test_nothing_lies_on_a_core(graph: Graph) -> None:
    for term in graph.terms:
        drawn = scene(graph, term)
        labels = {bond: label.box for bond, label in drawn.labels.items()}
        labels |= {f"{leg.core} {leg.mode}": leg.label.box for leg in drawn.legs}
        for core, box in drawn.cores.items():
            assert not [label for label, other in labels.items() if other.meets(box)], core
        for one, other in combinations(drawn.cores.values(), 2):
            assert not one.grown(4).meets(other)


@pytest.mark.parametrize("name", sorted(set(GRAPHS) - {"crowded"}))
def test_labels_keep_clear_of_each_other(name: str) -> None:
    for term in GRAPHS[name].terms:
        drawn = scene(GRAPHS[name], term)
        boxes = [*(label.box for label in drawn.labels.values()), *(leg.label.box for leg in drawn.legs)]
        assert not any(one.meets(other) for one, other in combinations(boxes, 2))


# The layout's geometry


def test_no_two_vertices_are_close(graph: Graph) -> None:
    for term in graph.terms:
        found = layout(graph, term)
        points = [*found.cores.values(), *found.dots.values()]
        assert all(dist(one, other) >= 0.5 for one, other in combinations(points, 2))


def test_layout_is_complete(graph: Graph) -> None:
    for term in graph.terms:
        found, ends = layout(graph, term), term.ends()
        assert list(found.cores) == [core.name for core in term.cores]
        assert set(found.dots) == {bond.name for bond in term.bonds if len(ends[bond.name]) > 2}
        assert set(found.legs) == {(core, mode.name) for mode in graph.modes for core in ends[mode.name]}
        joined = [(line.bond, line.end) for line in found.lines]
        joined += [(line.bond, line.start) for line in found.lines if line.start is not None]
        assert sorted(joined) == sorted((bond.name, core) for bond in term.bonds for core in ends[bond.name])
        assert all(abs(dist((0, 0), leg) - 1) < 1e-5 for leg in found.legs.values())


def test_path_is_level_and_in_order() -> None:
    names = ["C", "A", "D", "B"]
    bonds = {f"r{k}": (3, a, b) for k, (a, b) in enumerate(pairwise(names))}
    modes = {"i": (4, "in", "A"), "o": (5, "out", "A"), "p": (6, "out", "B")}
    graph = build(bonds, modes, "linear", order=("A", "B", "C", "D"))
    found = layout(graph, graph.terms[0])
    assert {y for _, y in found.cores.values()} == {0.0}
    assert sorted(found.cores, key=lambda core: found.cores[core][0]) == ["B", "D", "A", "C"]
    assert sorted(x for x, _ in found.cores.values()) == [0, 1, 2, 3]
    assert found.legs["A", "i"] == (0, -1) and found.legs["A", "o"] == (0, 1) == found.legs["B", "p"]


def test_legs_of_one_role_point_down() -> None:
    graph = build({"r": (3, "A0", "A1")}, free(2))
    assert set(layout(graph, graph.terms[0]).legs.values()) == {(0, 1)}


@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_ring_is_round(count: int) -> None:
    graph = ring(count)
    found = layout(graph, graph.terms[0])
    middle = centre(found.cores.values())
    radii = [dist(point, middle) for point in found.cores.values()]
    assert max(radii) - min(radii) < 1e-5
    for k in range(count):
        assert abs(dist(found.cores[f"A{k}"], found.cores[f"A{(k + 1) % count}"]) - 1) < 1e-5
        x, y = found.cores[f"A{k}"]
        outwards = (x - middle[0]) / radii[k], (y - middle[1]) / radii[k]
        assert dist(found.legs[f"A{k}", f"i{k}"], outwards) < 1e-4


@pytest.mark.parametrize("count", [3, 4, 6, 9])
def test_hub_of_a_star_is_in_the_middle(count: int) -> None:
    for graph, hub in ((star(count), "G"), (hyper(count), "r")):
        found = layout(graph, graph.terms[0])
        at = {**found.cores, **found.dots}[hub]
        leaves = [found.cores[f"A{k}"] for k in range(count)]
        assert dist(at, centre(leaves)) < 1e-5
        assert max(dist(at, leaf) for leaf in leaves) - min(dist(at, leaf) for leaf in leaves) < 1e-5


def test_tree_hangs_from_its_middle() -> None:
    graph = tree(3)
    found = layout(graph, graph.terms[0])
    depth = {name: y for name, (_, y) in found.cores.items()}
    assert [name for name, y in depth.items() if y == min(depth.values())] == ["B1"]
    assert {name for name, y in depth.items() if y == max(depth.values())} == {f"A{k}" for k in range(8)}
    assert set(found.legs.values()) == {(0, 1)}
    for line in found.lines:
        assert abs(abs(depth[str(line.start)] - depth[line.end]) - 1) < 1e-9
    leaves = [found.cores[f"A{k}"][0] for k in range(8)]
    assert leaves == sorted(leaves)


def test_comb_has_its_teeth_below() -> None:
    found = layout(comb(), comb().terms[0])
    for k in range(4):
        assert found.cores[f"G{k}"] == (k, 0) and found.cores[f"A{k}"] == (k, 1)


@pytest.mark.parametrize(
    "graph", [grid(3, 3), grid(4, 3), grid(2, 5), grid(3, 3, ("P22",)), grid(4, 4, ("P00", "P33"))]
)
def test_grid_is_a_grid(graph: Graph) -> None:
    found = layout(graph, graph.terms[0])
    for line in found.lines:
        (x0, y0), (x1, y1) = found.ends(line)
        assert sorted((abs(x1 - x0), abs(y1 - y0))) == [0, 1]
    assert len(set(found.cores.values())) == len(found.cores)
    wide, high = (1 + max(p[k] for p in found.cores.values()) - min(p[k] for p in found.cores.values()) for k in (0, 1))
    assert wide >= high


@pytest.mark.parametrize(
    "graph", [ring(3), ring(6), star(5), hyper(4), complete(5), grid(3, 3), ring(7, {"c": (2, "A0", "A3")})]
)
def test_legs_point_outwards(graph: Graph) -> None:
    found = layout(graph, graph.terms[0])
    middle = centre(found.cores.values())
    for (core, _), leg in found.legs.items():
        x, y = found.cores[core][0] - middle[0], found.cores[core][1] - middle[1]
        if dist((x, y), (0, 0)) > 1e-6:
            assert x * leg[0] + y * leg[1] > 0


def test_legs_keep_off_lines(graph: Graph) -> None:
    for term in graph.terms:
        found = layout(graph, term)
        for (core, _), leg in found.legs.items():
            x, y = found.cores[core]
            for line in found.lines:
                ends = found.ends(line)
                if core in (line.start, line.end):
                    other = ends[0] if line.end == core else ends[1]
                    far = dist(other, (x, y))
                    assert ((other[0] - x) * leg[0] + (other[1] - y) * leg[1]) / far < 0.95


def test_parallel_bonds_bow_apart() -> None:
    bends = {line.bond: line.bend for line in layout(parallel(), parallel().terms[0]).lines}
    assert len({bends["r1"], bends["r2"]}) == 2 and len({bends[f"t{k}"] for k in range(3)}) == 3
    assert bends["s"] == 0


def test_lines_pass_by_other_cores(graph: Graph) -> None:
    for term in graph.terms:
        drawn = scene(graph, term)
        owners = {(box.x, box.y): core for core, box in drawn.cores.items()}
        for stroke in drawn.strokes:
            own = {owners.get(stroke.start), owners.get(stroke.end)}
            for step in range(1, 40):
                x, y = stroke.at(step / 40)
                inside = [
                    core for core, box in drawn.cores.items()
                    if core not in own and abs(x - box.x) < box.wide / 2 - 4 and abs(y - box.y) < box.high / 2 - 4
                ]  # fmt: skip
                assert not inside, stroke.bond


def test_parts_stand_apart() -> None:
    found = layout(two_parts(), two_parts().terms[0])
    assert found.parts == (("A0", "A1", "A2"), ("A3", "A4"))
    assert max(found.cores[f"A{k}"][0] for k in range(3)) + 0.5 < min(found.cores[f"A{k}"][0] for k in (3, 4))


def centre(points: object) -> tuple[float, float]:
    xs, ys = zip(*points, strict=True)  # type: ignore[call-overload]
    return sum(xs) / len(xs), sum(ys) / len(ys)


def test_large_graphs_are_drawn_as_circles() -> None:
    bonds = {f"r{k}": (1, f"A{k}", f"A{(k + 1) % 160}") for k in range(160)}
    bonds |= {f"c{k}": (1, f"A{k}", f"A{k + 50}") for k in range(0, 100, 7)}
    graph = build(bonds, {"i": (3, "free", "A0")})
    found = layout(graph, graph.terms[0])
    radii = [dist(point, (0, 0)) for point in found.cores.values()]
    assert max(radii) - min(radii) < 1e-5


# Terminal


def test_terminal_path() -> None:
    assert terminal(path(4)).splitlines() == [
        "i0:2     i1:3     i2:4     i3:5",
        " │        │        │        │",
        "A0─r0:20─A1─r1:21─A2─r2:22─A3",
        " │        │        │        │",
        "o0:3     o1:4     o2:5     o3:6",
    ]


def test_terminal_ring() -> None:
    assert terminal(ring(3)).splitlines() == [
        "i0:3           i1:4",
        " │              │",
        "A0─────r0:4────A1",
        " │              │",
        " └─r2:6─A2─r1:5─┘",
        "         │",
        "        i2:5",
    ]


def test_terminal_tree_sideways_and_indented() -> None:
    assert terminal(tree(2)).splitlines()[1] == "    │              └─ r5:7 ── A1 ─── i1:4"
    assert terminal(tree(2), 30).splitlines()[:6] == [
        "B1",
        "├─ r2:4 ── B2",
        "│  ├─ r4:6 ── A0",
        "│  │  └─ i0:3",
        "│  └─ r5:7 ── A1",
        "│     └─ i1:4",
    ]


def test_terminal_wraps(graph: Graph) -> None:
    for width in (40, 80, 200):
        # A name of a hundred characters is not broken up.
        limit = max(width, 130) if graph is GRAPHS["long names"] else width
        assert max(map(len, terminal(graph, width).splitlines())) <= limit
    assert len(terminal(path(12), 40).splitlines()) > len(terminal(path(12), 200).splitlines()) == 5


def test_terminal_falls_back_to_a_listing() -> None:
    lines = terminal(complete(12)).splitlines()
    assert lines[0].split() == ["cores"] and "bonds" in [line.strip() for line in lines]
    assert lines[1].split()[:2] == ["A0", "i0:3"]
    assert "cores" not in terminal(complete(4))


def test_terminal_colours_change_nothing_else(graph: Graph) -> None:
    coloured = terminal(graph, colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[\d*m", "", coloured) == terminal(graph)


def test_terminal_shows_every_term() -> None:
    lines = terminal(two_terms()).splitlines()
    assert lines[0] == "term thin" and "+ term wide" in lines


# All of them


@st.composite
def any_graph(draw: st.DrawFn) -> Graph:
    """Cores joined at random by bonds of two to four ends."""
    count = draw(st.integers(1, 9))
    names = [f"A{k}" for k in range(count)]
    bonds: dict[str, tuple[object, ...]] = {}
    if count > 1:
        for k in range(draw(st.integers(0, 12))):
            ends = draw(st.lists(st.sampled_from(names), min_size=2, max_size=4, unique=True))
            bonds[f"r{k}"] = (draw(st.integers(1, 16)), *ends)
    modes = {f"i{k}": (3 + k, "free", draw(st.sampled_from(names))) for k in range(draw(st.integers(1, 5)))}
    return build(bonds, modes, order=tuple(names), name=draw(st.text("aé<>&\"'\\层", max_size=8)))


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(any_graph())
def test_any_graph_is_drawn(graph: Graph) -> None:
    term = graph.terms[0]
    found = layout(graph, term)
    points = [*found.cores.values(), *found.dots.values()]
    assert all(dist(one, other) >= 0.5 for one, other in combinations(points, 2))
    picture, characters, text = svg(graph), terminal(graph), dot(graph)
    ElementTree.fromstring(picture.encode())
    for tag in tags(graph, ":"):
        assert tag in re.split(r"[^\w:]+", characters)
        assert f'label="{tag.replace(":", " ")}"' in text
    drawn = scene(graph, term)
    for label in [*drawn.labels.values(), *(leg.label for leg in drawn.legs)]:
        assert not any(label.box.meets(box) for box in drawn.cores.values())


ELSEWHERE = """
import json, pickle, sys
from tnmars.draw import dot, layout, svg, terminal
graphs = pickle.loads(sys.stdin.buffer.read())
print(json.dumps({
    name: [svg(graph), dot(graph), terminal(graph), repr(layout(graph, graph.terms[0]))]
    for name, graph in graphs.items()
}))
"""


Drawings = list[dict[str, list[str]]]


@pytest.fixture(scope="module")
def elsewhere() -> Drawings:
    """The drawings of all graphs by two other processes, in which sets have other orders."""
    drawn = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"}
        command = [sys.executable, "-c", ELSEWHERE]
        done = subprocess.run(command, env=environment, input=pickle.dumps(GRAPHS), capture_output=True, check=True)
        drawn.append(json.loads(done.stdout))
    return drawn


def test_the_same_everywhere(elsewhere: Drawings, request: pytest.FixtureRequest, graph: Graph) -> None:
    name = request.node.callspec.params["graph"]
    here = [svg(graph), dot(graph), terminal(graph), repr(layout(graph, graph.terms[0]))]
    for there in elsewhere:
        assert there[name] == here


def test_the_same_in_another_process(elsewhere: Drawings) -> None:
    """A test of the test: the other processes drew every graph, and no two graphs in the same way."""
    for there in elsewhere:
        assert there.keys() == GRAPHS.keys()
        assert len({picture for picture, *_ in there.values()}) == len(GRAPHS)


def test_drawing_needs_nothing_heavy() -> None:
    code = (
        "import sys; from tnmars.draw import svg, dot, terminal\n"
        "print(sorted({'torch', 'numpy', 'networkx', 'rich', 'scipy', 'opt_einsum'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_effort_for_a_tangle_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every scale has labels on cores here, so that without a limit all would be tried."""
    scenes = sys.modules["tnmars.draw.scene"]
    calls = []
    real = scenes._attempt
    monkeypatch.setattr(scenes, "_attempt", lambda *given: calls.append(given) or real(*given))
    graph = FAMILIES["complete"]("tensor", free=(2,) * 30, rank=1)
    monkeypatch.setattr(scenes, "_EFFORT", 1000)
    found = scenes.scene(graph, graph.terms[0])
    assert len(found.labels) == len(graph.bonds) == 435
    assert len(calls) <= 2
