"""A graph in characters for a terminal. The shape follows from the topology; an illegible graph is listed instead."""

from __future__ import annotations

from collections.abc import Sequence

from tnmars.arguments import check_arguments
from tnmars.draw.branches import branches
from tnmars.draw.canvas import BOND, CORE, PLAIN, Canvas, beside
from tnmars.draw.layout import Layout, layout
from tnmars.draw.plane import plane
from tnmars.draw.rows import path_rows, ring_rows
from tnmars.draw.view import Token, View, view
from tnmars.draw.web import comb_spine, is_tree, parts, path_order, ring_order, tree_roots
from tnmars.graph import Graph, Term


def terminal(graph: Graph, width: int = 80, colour: bool = False) -> str:
    """The drawing of a graph in lines of about `width` characters, with ANSI colors if `colour` is true.

    >>> from tnmars.graph import Core, Edge, Role
    >>> modes = (Edge("i", 8, Role.IN), Edge("o", 6, Role.OUT))
    >>> cores = (Core("A", ("i", "r")), Core("B", ("r", "o")))
    >>> print(terminal(Graph("linear", modes, (Term("main", (Edge("r", 2),), cores),))))
    i:8
     │
     A─r:2─B
           │
          o:6
    """
    check_arguments(terminal, locals())
    found, top = Canvas(), 0
    if not graph.terms:
        found.put(0, 0, "no terms: the weight is zero")
    for at, term in enumerate(graph.terms):
        if len(graph.terms) > 1:
            found.put(top, 0, f"{'+ ' if at else ''}term {term.name}", CORE)
            top += 1
        block = _term(graph, term, width)
        found.paste(block, top, 0)
        top += block.height + 1
    return found.render(colour)


def _term(graph: Graph, term: Term, width: int) -> Canvas:
    seen = view(graph, term)
    placed: Layout | None = None
    blocks: list[Canvas] = []
    listed: list[list[int]] = []
    for part in parts(seen.web.near):
        block = _known(seen, part, width)
        if block is None and not is_tree(seen.web.near, part):
            placed = placed or layout(graph, term)
            names = [seen.web.cores[at] for at in part if not seen.is_dot(at)]
            block = plane(seen, placed, names, width)
        if block is None:
            listed.append(part)
        else:
            blocks.append(block)
    if listed:
        blocks.append(_listing(seen, sorted(at for part in listed for at in part), width))
    return beside(blocks, width)


def _known(seen: View, part: Sequence[int], width: int) -> Canvas | None:
    """The drawing of a path, a ring, a comb or any other tree; None if the part has another shape, or is too wide."""
    near = seen.web.near
    if (order := path_order(near, part)) is not None:
        return path_rows(seen, order, width)
    if (order := ring_order(near, part)) is not None:
        return ring_rows(seen, order, width)
    if (order := comb_spine(near, part)) is not None and not any(map(seen.is_dot, part)):
        return path_rows(seen, order, width, leaves=True)
    return branches(seen, tree_roots(near, part)[0], width) if is_tree(near, part) else None


def _listing(seen: View, vertices: Sequence[int], width: int) -> Canvas:
    """A line for each core with its edges, and one for each bond with its ends."""
    cores = [at for at in vertices if not seen.is_dot(at)]
    inside = set(cores)
    ends: dict[str, dict[str, None]] = {}
    edges: dict[int, dict[str, None]] = {at: {} for at in cores}
    for bond, one, other in seen.web.lines:
        for end in (one, other):
            if end in inside:
                ends.setdefault(bond, {})[seen.web.cores[end]] = None
                edges[end][bond] = None
    by_core = [(seen.token(at), [*seen.tags(at), *((seen.tag(bond), BOND) for bond in edges[at])]) for at in cores]
    by_bond = [((seen.tag(bond), BOND), [(core, CORE) for core in joined]) for bond, joined in ends.items()]
    return beside(
        [_table(rows, title, width) for title, rows in (("cores", by_core), ("bonds", by_bond)) if rows], width
    )


def _table(rows: Sequence[tuple[Token, Sequence[Token]]], title: str, width: int) -> Canvas:
    """A title and rows of a key and its entries, wrapped at the width."""
    found, top = Canvas(), 0
    found.put(top, 0, title, PLAIN)
    first = 4 + min(24, max(len(key) for (key, _), _ in rows))
    for (key, style), entries in rows:
        top += 1
        at = max(first, found.put(top, 2, key, style) + 2)
        for text, entry_style in entries:
            if at > first and at + len(text) > width:
                top, at = top + 1, first
            at = found.put(top, at, text, entry_style) + 2
    return found
