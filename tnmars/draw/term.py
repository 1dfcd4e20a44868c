"""The shapes of one term, from its scene and a look: paths, discs, pills and words, from back to front."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2, prod

from tnmars.draw.labels import CORE_FONT, DOT_RADIUS, LABEL_FONT, Label, core_label
from tnmars.draw.look import Look
from tnmars.draw.scene import Scene
from tnmars.draw.shapes import Disc, Group, Path, Pill, Run, Shape, Words, straight, words
from tnmars.errors import plural
from tnmars.graph import Graph, Term
from tnmars.graph.parts import Edge

_ONE = (3, 5)
"""The dash of a bond of size 1."""


def term_shapes(graph: Graph, term: Term, drawn: Scene, look: Look, *, in_page: bool) -> Iterator[Shape]:
    """Everything of a term: bonds, legs, cores, and the labels of bonds."""
    yield from (_bond(term, bond, drawn, look, in_page=in_page) for bond in term.bonds)
    yield from _legs(graph, term, drawn)
    yield from _cores(graph, term, drawn)
    for name, label in drawn.labels.items():
        key = [("data-key", f"{term.name}.{name}")] if in_page else []
        kind = "gone" if (term.name, name) in look.gone else ""
        yield Group((_edge(label, "label"),), kind, data=(*key, ("data-bond", name)))


def _bond(term: Term, bond: Edge, drawn: Scene, look: Look, *, in_page: bool) -> Group:
    """The lines of a bond; behind them the width it had before, and in a page a wider line to point at."""
    place, ends = (term.name, bond.name), term.ends()[bond.name]
    was, fate = look.before(place, bond.size), look.fate(place, bond.size)
    curves = tuple((stroke.start, stroke.control, stroke.end) for stroke in drawn.strokes if stroke.bond == bond.name)
    width = look.width(bond.size)
    shapes: list[Shape] = [Path("hit", curves)] if in_page else []
    if fate != "whole":
        shapes.append(Path("was", curves, look.width(was)))
    shapes.append(Path("bond", curves, width, _ONE if bond.size == 1 and fate == "whole" else None))
    if bond.name in drawn.dots:
        shapes.append(Disc("dot", *drawn.dots[bond.name], max(DOT_RADIUS, round(width / 2) + 1)))
    ranks = f"rank {was:,}" if was == bond.size else f"rank {was:,} to {bond.size:,}"
    tip = f"bond {bond.name}, {ranks}{', removed' if fate == 'gone' else ''}: {', '.join(ends)}"
    data: list[tuple[str, object]] = [("data-bond", bond.name), ("data-size", bond.size)]
    if in_page:
        data = [("data-key", f"{term.name}.{bond.name}"), *data, ("data-was", was), ("data-ends", " ".join(ends))]
        data += [("tabindex", 0), ("role", "img"), ("aria-label", tip)]
    return Group(tuple(shapes), fate if in_page or fate != "whole" else "", tip, tuple(data))


def _legs(graph: Graph, term: Term, drawn: Scene) -> Iterator[Group]:
    sizes, ends = graph.sizes(term), term.ends()
    roles = {mode.name: mode.role for mode in graph.modes}
    for leg in drawn.legs:
        role, size = roles[leg.mode], sizes[leg.mode]
        kind = f"leg {role}{' shared' if leg.mode in graph.shared else ''}"
        tip = f"{role} mode {leg.mode}, size {size:,}"
        tip += f", shared by {', '.join(ends[leg.mode])}" if len(ends[leg.mode]) > 1 else ""
        line = Path(kind, (straight(leg.start, leg.end),), round(1.5 + 0.25 * min(log2(size), 14), 1))
        shapes = (line, _edge(leg.label, f"label {role}"))
        yield Group(shapes, tip=tip, data=(("data-mode", leg.mode), ("data-size", size)))


def _cores(graph: Graph, term: Term, drawn: Scene) -> Iterator[Group]:
    sizes = graph.sizes(term)
    for core in term.cores:
        box = drawn.cores[core.name]
        shape = [sizes[edge] for edge in core.edges]
        pairs = " x ".join(f"{edge} {size:,}" for edge, size in zip(core.edges, shape, strict=True)) or "scalar"
        own = f"the numbers of {core.tied}" if core.tied else plural(prod(shape), "parameter")
        tip = f"{core.name}: {pairs}, {own}{', conjugate' if core.conj else ''}"
        corner = box.x - box.wide // 2, box.y - box.high // 2
        pill = Pill("core", *corner, box.wide, box.high, box.high // 2)
        name = words("name", box.x, box.y + CORE_FONT // 3 + 1, core_label(core))
        yield Group((pill, name), tip=tip, data=(("data-core", core.name),))


def _edge(label: Label, kind: str) -> Words:
    """The name of an edge and, bold, its size."""
    runs = (Run(f"{label.name} "), Run(label.size, "size"))
    return Words(kind, label.box.x, label.box.y + LABEL_FONT // 3, runs)
