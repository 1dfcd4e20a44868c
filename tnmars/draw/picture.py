"""A graph as a picture: a panel for each term, a title, and a legend of the roles. Nothing here knows a file format."""

from __future__ import annotations

from math import ceil

from tnmars.arguments import check_arguments
from tnmars.draw.labels import LONGEST_NAME
from tnmars.draw.look import Look, own_look
from tnmars.draw.scene import scene
from tnmars.draw.shapes import Group, Path, Picture, Pill, Run, Shape, Words, moved, straight, words
from tnmars.draw.term import term_shapes
from tnmars.draw.text import shorten, signature, text_width
from tnmars.draw.traces import looks
from tnmars.graph import Graph
from tnmars.graph.counts import count
from tnmars.graph.kinds import MODE_ROLES

_MARGIN, _GUTTER, _TITLE_HIGH, _CAPTION_HIGH, _LEGEND_HIGH, _MOST_IN_A_ROW = 20, 44, 44, 26, 30, 3
_BOLD = 1.1
"""How much wider bold text is."""
_TITLE_GAP = 10
_PAIR_WIDE = 1000
"""Two graphs stand side by side up to this width, one below the other if they are wider."""
FLAT = 0.4
"""Drawings whose height is less than this share of their width stand one below the other."""


def picture(graph: Graph) -> Picture:
    """The picture of a graph, with a title and a legend. Lines are as wide as the ranks of their bonds.

    The widest line is that of the largest rank. A pruned graph that knows the ranks it was pruned from (its `origin`)
    is drawn on their scale, so its picture can be compared with the one before.

    Args:
        graph: The graph to draw.

    Returns:
        A picture for `svg`, `tikz`, `pdf` and `png`.

    Example:
        >>> from tnmars import families
        >>> graph = families.tt("linear", inputs=(4, 4), outputs=(3, 3), rank=2, name="fc1")
        >>> drawn = picture(graph)
        >>> drawn.name
        'fc1: linear 16 → 9'
    """
    check_arguments(picture, locals())
    panels, wide, high = _panels(graph, own_look(graph), in_page=False)
    return _titled(graph, panels, wide, high)


def part(graph: Graph, look: Look) -> Picture:
    """The picture of a graph as a part of a page: without title and background, with attributes for its script."""
    panels, wide, high = _panels(graph, look, in_page=True)
    legend, legend_wide = _legend(graph, high + 12)
    high += 12 + (_LEGEND_HIGH if legend else 0)
    shapes = (*moved(panels, 0, 12), *legend)
    return Picture(_name(graph), max(wide, legend_wide + _MARGIN), high, shapes, in_page=True)


def pair(before: Graph, after: Graph) -> Picture:
    """The picture of two graphs, before and after, on one scale.

    Behind each line of the second graph is, pale, what was cut from it. Removed bonds are dashed, removed terms
    faint.

    Args:
        before: The graph before, for example the one that was trained.
        after: The graph after, for example the pruned one.

    Returns:
        A picture for `svg`, `tikz`, `pdf` and `png`.

    Example:
        >>> from tnmars import families
        >>> modes = {"inputs": (4, 4), "outputs": (3, 3)}
        >>> large, small = (families.tt("linear", rank=rank, **modes) for rank in (6, 2))
        >>> pair(large, small).name
        'linear 16 → 9: before and after'
    """
    check_arguments(pair, locals())
    drawn = [_panels(graph, look, in_page=False) for graph, look in looks(before, after)]
    flat = all(high < FLAT * wide for _, wide, high in drawn)
    beside = not flat and sum(wide for _, wide, _ in drawn) <= _PAIR_WIDE
    shapes: list[Shape] = []
    left = top = right = bottom = 0
    for when, graph, (panels, wide, high) in zip(("before", "after"), (before, after), drawn, strict=True):
        runs = Run(f"{when} ", "when"), Run(f"{count(graph).cores:,} parameters", gap=4)
        caption_wide = 2 * _MARGIN + text_width(f"{when}  {count(graph).cores:,} parameters", 13)
        shapes.append(Words("caption", left + _MARGIN, top + 16, runs))
        shapes += moved(panels, left, top + _CAPTION_HIGH)
        right, bottom = max(right, left + max(wide, caption_wide)), max(bottom, top + _CAPTION_HIGH + high)
        left, top = (right, top) if beside else (left, bottom)
    return _titled(before, tuple(shapes), right, bottom, " before and after")


def _name(graph: Graph) -> str:
    return ": ".join(filter(None, (graph.name, signature(graph))))


def _titled(graph: Graph, shapes: tuple[Shape, ...], wide: int, high: int, more: str = "") -> Picture:
    """Shapes on a page with a title above and a legend below."""
    title, kind = shorten(graph.name, 48), shorten(signature(graph), 60) + ("," + more if more else "")
    runs = (Run(f"{title} "), Run(kind, "kind", _TITLE_GAP)) if title else (Run(kind, "kind"),)
    title_wide = int(_BOLD * text_width(f"{title} ", 15)) + _TITLE_GAP + text_width(kind, 13)
    legend, legend_wide = _legend(graph, _TITLE_HIGH + high)
    wide = max(wide, 2 * _MARGIN + title_wide, legend_wide + _MARGIN)
    high += _TITLE_HIGH + (_LEGEND_HIGH if legend else 0)
    page = Pill("page", 0, 0, wide, high, 10)
    name = _name(graph) + (":" + more if more else "")
    return Picture(name, wide, high, (page, Words("title", _MARGIN, 30, runs), *moved(shapes, 0, _TITLE_HIGH), *legend))


def _panels(graph: Graph, look: Look, *, in_page: bool) -> tuple[tuple[Shape, ...], int, int]:
    """The drawings of the terms in rows, and their width and height."""
    if not graph.terms:
        return (words("caption", _MARGIN, 24, "no terms: the weight is zero"),), 240, 50
    shapes: list[Shape] = []
    several = len(graph.terms) > 1
    top = widest = 0
    in_a_row = ceil(len(graph.terms) / ceil(len(graph.terms) / _MOST_IN_A_ROW))
    for first in range(0, len(graph.terms), in_a_row):
        row = [(term, scene(graph, term, look.widths(term))) for term in graph.terms[first : first + in_a_row]]
        row_high = max(bounds[3] - bounds[1] for bounds in (drawn.bounds() for _, drawn in row))
        body = top + (_CAPTION_HIGH if several else 0)
        left = _MARGIN
        for at, (term, drawn) in enumerate(row):
            if at or first:
                left += 0 if at else _GUTTER
                shapes.append(words("plus", left - _GUTTER // 2, body + row_high // 2 + 8, "+"))
            x0, y0, x1, y1 = drawn.bounds()
            wide = max(x1 - x0, int(_BOLD * text_width(term.name, 13)) if several else 0)
            if several:
                shapes.append(words("term", left + wide // 2, top + 14, shorten(term.name, 2 * LONGEST_NAME)))
            shift = left - x0 + (wide - (x1 - x0)) // 2, body - y0 + (row_high - (y1 - y0)) // 2
            inner = moved(tuple(term_shapes(graph, term, drawn, look, in_page=in_page)), *shift)
            kind = "gone-term" if term.name in look.gone_terms else ""
            shapes.append(Group(inner, kind, data=(("data-term", term.name),)))
            left += wide + _GUTTER
        widest = max(widest, left - _GUTTER + _MARGIN)
        top = body + row_high + _MARGIN
    return tuple(shapes), widest, top


def _legend(graph: Graph, top: int) -> tuple[tuple[Shape, ...], int]:
    """A sample of the legs of each role, if there are several, and the width that they take."""
    roles = [role for role in MODE_ROLES if graph.of_role(role)]
    entries = [(str(role), f"leg {role}") for role in roles] if len(roles) > 1 else []
    entries += [("shared", "leg shared")] if graph.shared else []
    left = _MARGIN
    shapes: list[Shape] = []
    for text, kind in entries:
        shapes.append(Path(kind, (straight((left, top + 10), (left + 22, top + 10)),), 3))
        shapes.append(words("legend", left + 29, top + 14, text))
        left += 29 + text_width(text, 12) + 18
    return tuple(shapes), left
