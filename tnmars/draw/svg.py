"""A picture as an SVG file: self-contained, for light and dark pages, the same bytes for the same graph.

Cores, bonds and modes carry `data-core`, `data-bond` and `data-mode`, so that a page around the picture can find them.
All text is escaped here.
"""

from __future__ import annotations

from html import escape

from tnmars.arguments import check_arguments
from tnmars.draw.palette import style
from tnmars.draw.picture import picture
from tnmars.draw.shapes import Disc, Group, Path, Picture, Pill, Run, Shape, Words
from tnmars.graph import Graph

SCALE = 1.3
"""How much larger a drawing is in a page, if there is room."""


def svg(graph: Graph | Picture) -> str:
    """The text of an SVG file.

    Args:
        graph: A graph, or a picture such as `pair` returns.

    Returns:
        An `<svg>` element with its own style sheet for light and dark pages. It loads nothing.

    Example:
        >>> from tnmars import families
        >>> text = svg(families.lowrank("linear", inputs=(8,), outputs=(6,), rank=2))
        >>> text.startswith("<svg "), 'data-bond="r"' in text
        (True, True)
    """
    check_arguments(svg, locals())
    drawn = graph if isinstance(graph, Picture) else picture(graph)
    wide, high, name = drawn.wide, drawn.high, escape(drawn.name)
    shown = (round(SCALE * wide), round(SCALE * high)) if drawn.in_page else (wide, high)
    body = "\n".join(map(_shape, drawn.shapes))
    head = f"<title>{name}</title>\n{style()}\n" if not drawn.in_page else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tnmars" viewBox="0 0 {wide} {high}" width="{shown[0]}" '
        f'height="{shown[1]}" role="{"group" if drawn.in_page else "img"}" aria-label="{name}">\n{head}{body}\n</svg>\n'
    )


def _shape(shape: Shape) -> str:
    if isinstance(shape, Group):
        return _group(shape)
    if isinstance(shape, Path):
        return _path(shape)
    if isinstance(shape, Words):
        return f'<text class="{shape.kind}" x="{shape.x}" y="{shape.y}">{"".join(map(_run, shape.runs))}</text>'
    if isinstance(shape, Disc):
        return f'<circle class="{shape.kind}" cx="{shape.x}" cy="{shape.y}" r="{shape.radius}"/>'
    assert isinstance(shape, Pill)
    return (
        f'<rect class="{shape.kind}" x="{shape.x}" y="{shape.y}" width="{shape.wide}" height="{shape.high}" '
        f'rx="{shape.radius}"/>'
    )


def _group(group: Group) -> str:
    kind = f' class="{group.kind}"' if group.kind else ""
    data = "".join(f' {key}="{escape(str(value))}"' for key, value in group.data)
    tip = f"<title>{escape(group.tip)}</title>" if group.tip else ""
    inner = list(map(_shape, group.shapes))
    nested = any(isinstance(shape, Group) for shape in group.shapes)
    body = "\n".join(["", *inner, ""]) if nested else "".join(inner)
    return f"<g{kind}{data}>{tip}{body}</g>"


def _path(path: Path) -> str:
    width = f' stroke-width="{path.width:g}"' if path.width is not None else ""
    dash = f' stroke-dasharray="{path.dash[0]} {path.dash[1]}"' if path.dash else ""
    line = ""
    for (x0, y0), control, (x1, y1) in path.curves:
        bow = f"Q{control[0]} {control[1]} " if control else "L"
        line += f"M{x0} {y0}{bow}{x1} {y1}"
    return f'<path class="{path.kind}"{width}{dash} d="{line}"/>'


def _run(run: Run) -> str:
    gap = f' dx="{run.gap}"' if run.gap else ""
    return f'<tspan class="{run.kind}"{gap}>{escape(run.text)}</tspan>' if run.kind or gap else escape(run.text)
