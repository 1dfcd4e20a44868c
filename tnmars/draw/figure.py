"""A picture as a PDF or PNG file for print, in the light colors of the SVG.

matplotlib writes both: it installs from wheels without system libraries and embeds its own fonts, which journals ask
for. It is imported only here, and only when a file is written.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from tnmars.arguments import check_arguments
from tnmars.draw.palette import resolved
from tnmars.draw.picture import picture
from tnmars.draw.shapes import Disc, Group, Path, Picture, Pill, Run, Shape, Words
from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 0.75
"""Points to a pixel, as in CSS."""
_FAMILY = "DejaVu Sans"
_BOLD = 600
_ARC = 1 - 0.5522847498
"""How far from the corner the control points of a quarter circle are, for radius 1."""


def pdf(graph: Graph | Picture) -> bytes:
    """The bytes of a PDF file: one page of the picture's size, with embedded fonts and text that can be selected.

    Args:
        graph: A graph, or a picture such as `pair` returns.

    Returns:
        The content of the file; the same bytes for the same graph.

    Raises:
        TnmarsError: matplotlib is not installed.

    Example:
        >>> from tnmars import families
        >>> pdf(families.lowrank("linear", inputs=(8,), outputs=(6,), rank=2))[:5]
        b'%PDF-'
    """
    check_arguments(pdf, locals())
    return _written(graph, "pdf", 72.0, {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": "tnmars"})


def png(graph: Graph | Picture, scale: float = 3.0) -> bytes:
    """The bytes of a PNG file.

    Args:
        graph: A graph, or a picture such as `pair` returns.
        scale: Pixels of the file to a pixel of the SVG. The default gives 288 dots per inch, enough for print.

    Returns:
        The content of the file, with a white background.

    Raises:
        TnmarsError: matplotlib is not installed.

    Example:
        >>> from tnmars import families
        >>> png(families.lowrank("linear", inputs=(8,), outputs=(6,), rank=2))[1:4]
        b'PNG'
    """
    check_arguments(png, locals())
    if not scale > 0:
        raise TnmarsError(f"scale is {scale!r}, but must be a number above 0.")
    return _written(graph, "png", 96.0 * scale, {"Software": "tnmars"})


def _written(graph: Graph | Picture, ending: str, dpi: float, metadata: dict[str, str | None]) -> bytes:
    drawn = graph if isinstance(graph, Picture) else picture(graph)
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        fix = "Install it with: pip install 'tnmars[viz]'. SVG, TikZ and DOT files need no library."
        raise TnmarsError(Problem(f"writing .{ending} files needs matplotlib, which is not installed.", fix)) from None
    settings = {"pdf.fonttype": 42, "font.family": _FAMILY, "text.usetex": False, "path.simplify": False}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        page = Figure(figsize=(drawn.wide / 96, drawn.high / 96), facecolor="white")
        axes = page.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        axes.set_xlim(0, drawn.wide)
        axes.set_ylim(drawn.high, 0)
        _Painter(axes).paint(drawn.shapes)
        out = BytesIO()
        page.savefig(out, format=ending, dpi=dpi, metadata=metadata)
    return out.getvalue()


class _Painter:
    """Puts shapes on axes whose units are pixels, each above those before."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.order = 0

    def paint(self, shapes: Sequence[Shape], around: tuple[str, ...] = (), opacity: float = 1.0) -> None:
        """Draws shapes inside groups of some kinds."""
        for shape in shapes:
            self.order += 1
            kind = f"text {shape.kind}" if isinstance(shape, Words) else shape.kind
            style = resolved((*around, kind))
            shown = opacity * float(style.get("opacity", 1))
            if isinstance(shape, Group):
                self.paint(shape.shapes, (*around, kind), shown)
            elif isinstance(shape, Words):
                self._words(shape, (*around, kind), shown)
            else:
                self._outline(shape, style, shown)

    def _outline(self, shape: Path | Disc | Pill, style: dict[str, str], opacity: float) -> None:
        from matplotlib import patches

        look: dict[str, Any] = {"zorder": self.order, "alpha": opacity, "facecolor": style.get("fill", "none")}
        look |= {"edgecolor": style.get("stroke", "none"), "linewidth": POINTS * _pixels(style, "stroke-width", 0.0)}
        if isinstance(shape, Disc):
            self.axes.add_patch(patches.Circle((shape.x, shape.y), shape.radius, **look))
            return
        if isinstance(shape, Pill):
            if shape.kind == "page":
                return  # paper is white
            self.axes.add_patch(patches.PathPatch(_rounded(shape), **look))
            return
        self._path(shape, style, look)

    def _path(self, shape: Path, style: dict[str, str], look: dict[str, Any]) -> None:
        from matplotlib import patches
        from matplotlib.path import Path as Outline

        points: list[tuple[int, int]] = []
        codes: list[Any] = []
        for start, control, end in shape.curves:
            points += [start, control, end] if control else [start, end]
            codes += [Outline.MOVETO, *([Outline.CURVE3, Outline.CURVE3] if control else [Outline.LINETO])]
        width = shape.width if shape.width is not None else _pixels(style, "stroke-width", 1.0)
        look |= {"linewidth": POINTS * width, "capstyle": style.get("stroke-linecap", "butt")}
        dash = shape.dash or tuple(map(float, style.get("stroke-dasharray", "").split()))
        if dash:
            # matplotlib scales dashes by the width of the line
            look["linestyle"] = (0, tuple(length / width for length in dash))
        self.axes.add_patch(patches.PathPatch(Outline(points, codes), **look))

    def _words(self, shape: Words, path: tuple[str, ...], opacity: float) -> None:
        """A line of text: its runs one after the other, measured by the font, and a halo behind them."""
        from matplotlib import patheffects
        from matplotlib.font_manager import FontProperties

        base = resolved(path)
        runs = []
        for run in shape.runs:
            style = base | (resolved((*path, run.kind)) if run.kind else {})
            weight = "bold" if int(style.get("font-weight", 400)) >= _BOLD else "normal"
            font = FontProperties(family=_FAMILY, size=POINTS * _pixels(style, "font-size", 12.0), weight=weight)
            runs.append((run, style["fill"], font, _width(run, font)))
        total = sum(run.gap + width for run, _, _, width in runs)
        left = shape.x if base["text-anchor"] == "start" else shape.x - total / 2
        halo = base.get("stroke")
        for run, fill, font, width in runs:
            look: dict[str, Any] = {"fontproperties": font, "parse_math": False, "alpha": opacity}
            at = left + run.gap, shape.y
            if halo:
                edge = [patheffects.Stroke(linewidth=POINTS * _pixels(base, "stroke-width", 0.0), foreground=halo)]
                self.axes.text(*at, run.text, color=halo, zorder=self.order, path_effects=edge, **look)
            self.axes.text(*at, run.text, color=fill, zorder=self.order + 0.5, **look)
            left += run.gap + width


def _rounded(pill: Pill) -> Any:
    """The outline of a rectangle whose corners are quarters of a circle."""
    from matplotlib.path import Path as Outline

    radius = min(pill.radius, pill.wide / 2, pill.high / 2)
    left, top, right, bottom = pill.x, pill.y, pill.x + pill.wide, pill.y + pill.high
    points: list[tuple[float, float]] = [(left + radius, top)]
    codes: list[Any] = [Outline.MOVETO]
    for x, y, dx, dy in ((right, top, 1, 0), (right, bottom, 0, 1), (left, bottom, -1, 0), (left, top, 0, -1)):
        # The side in direction (dx, dy) ends before the corner (x, y); the next side turns right.
        points += [(x - radius * dx, y - radius * dy)]
        points += [(x - _ARC * radius * dx, y - _ARC * radius * dy), (x - _ARC * radius * dy, y + _ARC * radius * dx)]
        points += [(x - radius * dy, y + radius * dx)]
        codes += [Outline.LINETO, Outline.CURVE4, Outline.CURVE4, Outline.CURVE4]
    return Outline([*points, points[0]], [*codes, Outline.CLOSEPOLY])


def _width(run: Run, font: Any) -> float:
    """How many pixels wide a run is."""
    from matplotlib.textpath import text_to_path

    wide, _, _ = text_to_path.get_text_width_height_descent(run.text, font, ismath=False)
    return float(wide) / POINTS


def _pixels(style: dict[str, str], name: str, default: float) -> float:
    return float(style[name].removesuffix("px")) if name in style else default
