"""A graph as an SVG file: self-contained, for light and dark pages, the same bytes for the same graph.

Coordinates are whole pixels. Cores, bonds and modes carry `data-core`, `data-bond` and `data-mode`, so that a page
around the picture can find them; text from the user is escaped wherever it appears.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import ceil, log2, prod

from tnmars.draw.labels import CORE_FONT, DOT_RADIUS, LABEL_FONT, LONGEST_NAME, Label
from tnmars.draw.look import SCALE, Look
from tnmars.draw.palette import style
from tnmars.draw.scene import Scene, scene
from tnmars.draw.text import shorten, signature, text_width
from tnmars.errors import plural
from tnmars.graph import Graph, Term
from tnmars.graph.kinds import MODE_ROLES

_MARGIN, _GUTTER, _TITLE_HIGH, _CAPTION_HIGH, _LEGEND_HIGH, _MOST_IN_A_ROW = 20, 44, 34, 26, 30, 3


def svg(graph: Graph, look: Look | None = None) -> str:
    """The drawing of a graph as the text of an SVG file: a panel for each term, a title, and a legend of the roles.

    With a look it is a part of a page, which has the title and the style sheet.

    >>> from tnmars.graph import Core, Edge, Role
    >>> modes = (Edge("i", 8, Role.IN), Edge("o", 6, Role.OUT))
    >>> cores = (Core("A", ("i", "r")), Core("B", ("r", "o")))
    >>> picture = svg(Graph("linear", modes, (Term("main", (Edge("r", 2),), cores),), name="fc1"))
    >>> picture.startswith("<svg "), 'data-bond="r"' in picture
    (True, True)
    """
    if look is not None:
        return _part(graph, look)
    panels, wide, high = _panels(graph)
    title = graph.name, signature(graph)
    legend, legend_wide = _legend(graph, high)
    high += _LEGEND_HIGH if legend else 0
    shown, kind = shorten(title[0], 48), shorten(title[1], 60)
    title_wide = text_width(shown, 15) + text_width(kind, 13) + 12
    wide = max(wide, 2 * _MARGIN + title_wide, legend_wide + _MARGIN)
    heading = _text(_MARGIN, 30, "title", shown) if shown else ""
    left = _MARGIN + (text_width(shown, 15) + 12 if shown else 0)
    heading += _text(left, 30, "kind", kind)
    name = escape(": ".join(filter(None, (title[0], title[1]))))
    body = "\n".join(filter(None, (heading, *panels, legend)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tnmars" viewBox="0 0 {wide} {high}" '
        f'width="{wide}" height="{high}" role="img" aria-label="{name}">\n<title>{name}</title>\n'
        f'{style()}\n<rect class="page" x="0" y="0" width="{wide}" height="{high}" rx="10"/>\n{body}\n</svg>\n'
    )


def _part(graph: Graph, look: Look) -> str:
    """The drawing as a part of a page."""
    panels, wide, high = _panels(graph, look)
    legend, legend_wide = _legend(graph, high)
    high += _LEGEND_HIGH if legend else 0
    wide = max(wide, legend_wide + _MARGIN)
    name = escape(": ".join(filter(None, (graph.name, signature(graph)))))
    body = "\n".join(filter(None, (*panels, legend)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tnmars" viewBox="0 0 {wide} {high}" '
        f'width="{round(SCALE * wide)}" height="{round(SCALE * high)}" role="group" aria-label="{name}">\n'
        f"{body}\n</svg>\n"
    )


def _panels(graph: Graph, look: Look | None = None) -> tuple[list[str], int, int]:
    """The drawings of the terms in rows, and the width and height that they take with the title, if there is one."""
    found: list[str] = []
    several = len(graph.terms) > 1
    top, widest = 12 if look else _TITLE_HIGH + 10, 0
    if not graph.terms:
        found.append(_text(_MARGIN, top + 24, "kind", "no terms: the weight is zero"))
        return found, 240, top + 50
    in_a_row = ceil(len(graph.terms) / ceil(len(graph.terms) / _MOST_IN_A_ROW))
    for first in range(0, len(graph.terms), in_a_row):
        row = [(term, scene(graph, term)) for term in graph.terms[first : first + in_a_row]]
        row_high = max(bounds[3] - bounds[1] for bounds in (drawn.bounds() for _, drawn in row))
        body = top + (_CAPTION_HIGH if several else 0)
        left = _MARGIN
        for at, (term, drawn) in enumerate(row):
            if at or first:
                left += 0 if at else _GUTTER
                found.append(_text(left - _GUTTER // 2, body + row_high // 2 + 8, "plus", "+"))
            x0, y0, x1, y1 = drawn.bounds()
            wide = max(x1 - x0, text_width(term.name, 13) if several else 0)
            if several:
                found.append(_text(left + wide // 2, top + 14, "term", shorten(term.name, 2 * LONGEST_NAME)))
            shift = left - x0 + (wide - (x1 - x0)) // 2, body - y0 + (row_high - (y1 - y0)) // 2
            gone = ' class="gone"' if look and term.name in look.gone_terms else ""
            body_of = _term(graph, term, drawn, *shift, look)
            found.append("\n".join([f'<g{gone} data-term="{term.name}">', *body_of, "</g>"]))
            left += wide + _GUTTER
        widest = max(widest, left - _GUTTER + _MARGIN)
        top = body + row_high + _MARGIN
    return found, widest, top


def _term(graph: Graph, term: Term, drawn: Scene, dx: int, dy: int, look: Look | None) -> Iterator[str]:
    """The elements of a term, from back to front: lines, legs, dots, cores, labels."""
    sizes, ends = graph.sizes(term), term.ends()
    paths: dict[str, str] = {}
    for stroke in drawn.strokes:
        (x0, y0), (x1, y1) = stroke.start, stroke.end
        bow = f"Q{stroke.control[0] + dx} {stroke.control[1] + dy} " if stroke.control else "L"
        paths[stroke.bond] = paths.get(stroke.bond, "") + f"M{x0 + dx} {y0 + dy}{bow}{x1 + dx} {y1 + dy}"
    for bond in term.bonds:
        tip = f"bond {bond.name}, size {bond.size}: {', '.join(ends[bond.name])}"
        dash = ' stroke-dasharray="3 5"' if bond.size == 1 else ""
        dot = ""
        if bond.name in drawn.dots:
            x, y = drawn.dots[bond.name]
            dot = f'<circle class="dot" cx="{x + dx}" cy="{y + dy}" r="{DOT_RADIUS}"/>'
        if look is not None:
            place = (term.name, bond.name)
            tip = look.tip(place, bond.size, ends[bond.name])
            yield look.bond(place, bond.size, ends[bond.name], paths[bond.name], dot, tip)
            continue
        yield (
            f'<g data-bond="{bond.name}" data-size="{bond.size}"><title>{tip}</title>'
            f'<path class="bond" stroke-width="{_thick(bond.size)}"{dash} d="{paths[bond.name]}"/>{dot}</g>'
        )
    roles = {mode.name: mode.role for mode in graph.modes}
    for leg in drawn.legs:
        shared = leg.mode in graph.shared
        kinds = f"leg {roles[leg.mode]}{' shared' if shared else ''}"
        tip = f"{roles[leg.mode]} mode {leg.mode}, size {sizes[leg.mode]}"
        tip += f", shared by {', '.join(ends[leg.mode])}" if len(ends[leg.mode]) > 1 else ""
        (x0, y0), (x1, y1) = leg.start, leg.end
        yield (
            f'<g data-mode="{leg.mode}" data-size="{sizes[leg.mode]}"><title>{tip}</title><path class="{kinds}" '
            f'stroke-width="{_thick(sizes[leg.mode])}" d="M{x0 + dx} {y0 + dy}L{x1 + dx} {y1 + dy}"/>'
            f"{_edge(leg.label, f'label {roles[leg.mode]}', dx, dy)}</g>"
        )
    for core in term.cores:
        box = drawn.cores[core.name]
        shape = [sizes[edge] for edge in core.edges]
        pairs = " x ".join(f"{edge} {size}" for edge, size in zip(core.edges, shape, strict=True)) or "scalar"
        yield (
            f'<g data-core="{core.name}"><title>{core.name}: {pairs}, {plural(prod(shape), "parameter")}</title>'
            f'<rect class="core" x="{box.x - box.wide // 2 + dx}" y="{box.y - box.high // 2 + dy}" '
            f'width="{box.wide}" height="{box.high}" rx="{box.high // 2}"/>'
            f"{_text(box.x + dx, box.y + dy + CORE_FONT // 3 + 1, 'name', shorten(core.name, LONGEST_NAME))}</g>"
        )
    for name, label in drawn.labels.items():
        key = f'data-key="{term.name}.{name}" ' if look else ""
        gone = ' class="gone"' if look and (term.name, name) in look.gone else ""
        strokes = [stroke for stroke in drawn.strokes if stroke.bond == name] if look else []
        right, down = look.away((label.box.x, label.box.y), strokes) if look else (0, 0)
        yield f'<g{gone} {key}data-bond="{name}">{_edge(label, "label", dx + right, dy + down)}</g>'


def _thick(size: int) -> float:
    return round(1.5 + 0.25 * min(log2(size), 14), 1)


def _text(x: int, y: int, kind: str, text: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'


def _edge(label: Label, kind: str, dx: int, dy: int) -> str:
    x, y = label.box.x + dx, label.box.y + dy + LABEL_FONT // 3
    return f'<text class="{kind}" x="{x}" y="{y}">{label.name} <tspan class="size">{label.size}</tspan></text>'


def _legend(graph: Graph, top: int) -> tuple[str, int]:
    """A sample of each role's legs, where there are several, and the width that they take."""
    roles = [role for role in MODE_ROLES if graph.of_role(role)]
    entries = [(str(role), f"leg {role}") for role in roles] if len(roles) > 1 else []
    entries += [("shared", "leg shared")] if graph.shared else []
    left, found = _MARGIN, ""
    for text, kind in entries:
        found += f'<path class="{kind}" stroke-width="3" d="M{left} {top + 10}L{left + 22} {top + 10}"/>'
        found += _text(left + 29, top + 14, "legend", text)
        left += 29 + text_width(text, 12) + 18
    return found, left
