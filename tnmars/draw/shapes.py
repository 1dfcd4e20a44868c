"""What a picture consists of: paths, discs, pills and words, in groups. Writers turn them into SVG, TikZ or PDF.

Coordinates are whole pixels, y growing downwards. A shape's `kind` names its classes in the style sheet of `palette`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Pixel = tuple[int, int]
Curve = tuple[Pixel, Pixel | None, Pixel]
"""Start, control point of a quadratic curve or None for a straight line, end."""


@dataclass(frozen=True)
class Path:
    """Lines and curves of one width; a `dash` is the lengths of its strokes and gaps."""

    kind: str
    curves: tuple[Curve, ...]
    width: float | None = None
    dash: tuple[int, int] | None = None


@dataclass(frozen=True)
class Disc:
    """A filled circle."""

    kind: str
    x: int
    y: int
    radius: int


@dataclass(frozen=True)
class Pill:
    """A rectangle with round corners, given by its left upper corner."""

    kind: str
    x: int
    y: int
    wide: int
    high: int
    radius: int


@dataclass(frozen=True)
class Run:
    """A piece of text in one style, `gap` pixels after the piece before."""

    text: str
    kind: str = ""
    gap: int = 0


@dataclass(frozen=True)
class Words:
    """A line of text at its baseline: centered on `x`, or starting there, as the style of its kind says."""

    kind: str
    x: int
    y: int
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Group:
    """Shapes that belong together, with a tooltip and attributes for scripts."""

    shapes: tuple[Shape, ...]
    kind: str = ""
    tip: str = ""
    data: tuple[tuple[str, object], ...] = ()


Shape = Path | Disc | Pill | Words | Group


@dataclass(frozen=True)
class Picture:
    """A drawing of `wide` x `high` pixels.

    Attributes:
        name: What the picture shows, for readers that cannot see it.
        wide: Its width in pixels.
        high: Its height in pixels.
        shapes: Everything in it, from back to front.
        in_page: Whether it is a part of a page, which then provides the title and the style sheet.
    """

    name: str
    wide: int
    high: int
    shapes: tuple[Shape, ...]
    in_page: bool = False


def words(kind: str, x: int, y: int, text: str) -> Words:
    """A text in one style."""
    return Words(kind, x, y, (Run(text),))


def straight(start: Pixel, end: Pixel) -> Curve:
    """A straight line."""
    return start, None, end


def moved(shapes: Sequence[Shape], dx: int, dy: int) -> tuple[Shape, ...]:
    """The same shapes elsewhere."""
    return tuple(_moved(shape, dx, dy) for shape in shapes)


def _moved(shape: Shape, dx: int, dy: int) -> Shape:
    if isinstance(shape, Group):
        return Group(moved(shape.shapes, dx, dy), shape.kind, shape.tip, shape.data)
    if isinstance(shape, Path):
        curves = tuple(
            ((a[0] + dx, a[1] + dy), None if c is None else (c[0] + dx, c[1] + dy), (b[0] + dx, b[1] + dy))
            for a, c, b in shape.curves
        )
        return Path(shape.kind, curves, shape.width, shape.dash)
    if isinstance(shape, Words):
        return Words(shape.kind, shape.x + dx, shape.y + dy, shape.runs)
    if isinstance(shape, Pill):
        return Pill(shape.kind, shape.x + dx, shape.y + dy, shape.wide, shape.high, shape.radius)
    return Disc(shape.kind, shape.x + dx, shape.y + dy, shape.radius)
