"""Line charts as SVG: values over epochs, on a plain or a logarithmic scale. What the values mean is not known here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from tnmars.reporting.markup import Html

WIDE, HIGH = 400, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 26
DECADES = 2.0
"""From so many powers of ten between the least and the most on, the scale is logarithmic."""
MOST_POINTS = 600
"""More points than that are thinned out; nobody sees them."""
APART = 2.0
"""With steps, so many units lie between lines of one value at most: else the last would hide the others."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A named line; `key` is what names its bond in the page."""

    name: str
    points: tuple[Point, ...]
    key: str = ""


def chart(
    lines: Sequence[Line], label: str, *, steps: bool = False, x_name: str = "epoch", from_zero: bool = False
) -> Html:
    """The lines over one axis; with `steps`, values stay as they are until the next."""
    points = [point for line in lines for point in line.points]
    x_range = _widened(min(x for x, _ in points), max(x for x, _ in points))
    values = [y for _, y in points]
    is_log = not from_zero and min(values) > 0 and log10(max(values) / min(values)) >= DECADES
    low, high = min(values), max(values)
    ticks = _powers(low, high) if is_log else _ticks(*_widened(min(0.0, low) if from_zero else low, high))
    y_range = min(low, ticks[0]), max(high, ticks[-1])

    def x_at(value: float) -> float:
        return round(LEFT + (WIDE - LEFT - RIGHT) * (value - x_range[0]) / (x_range[1] - x_range[0]), 1)

    def y_at(value: float) -> float:
        first, last, at = (map(log10, (*y_range, value))) if is_log else (*y_range, value)
        return round(TOP + (HIGH - TOP - BOTTOM) * (1 - (at - first) / (last - first)), 1)

    parts = [_grid(y_at(tick), _short(tick)) for tick in ticks]
    room = WIDE - RIGHT - 9 * len(x_name)
    parts += [_under(x_at(x), _short(x)) for x in _ticks(*x_range, whole=True) if LEFT <= x_at(x) <= room]
    parts.append(f'<text class="tick end" x="{WIDE - RIGHT}" y="{HIGH - 8}">{escape(x_name)}</text>')
    apart = min(APART, 10 / len(lines)) if steps else 0.0
    for at, line in enumerate(lines):
        shift = apart * (at - (len(lines) - 1) / 2)
        thin = [(x_at(x), round(y_at(y) + shift, 1)) for x, y in _thinned(line.points)]
        key = f' data-key="{escape(line.key)}"' if line.key else ""
        last = f"{line.name}: {line.points[-1][1]:g}" if line.points else line.name
        x, y = thin[-1]
        parts.append(
            f'<g class="line c{at % 8}"{key}><title>{escape(last)}</title><path d="{_path(thin, steps)}"/>'
            f'<circle cx="{x}" cy="{y}" r="3"/></g>'
        )
    return Html(
        f'<svg class="chart" viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _path(points: Sequence[Point], steps: bool) -> str:
    (x, y), *rest = points
    found = f"M{x} {y}"
    for x, y in rest:
        found += f"H{x}V{y}" if steps else f"L{x} {y}"
    return found


def _thinned(points: Sequence[Point]) -> list[Point]:
    every = ceil(len(points) / MOST_POINTS)
    found = list(points[::every])
    return found if found[-1] == points[-1] else [*found, points[-1]]


def _widened(low: float, high: float) -> tuple[float, float]:
    """A range with room in it."""
    room = 0.5 * (abs(low) or 1.0)
    return (low, high) if high > low else (low - room, high + room)


def _ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Round numbers that hold a range between them, about five.

    >>> _ticks(0, 18), _ticks(0.13, 0.48), _ticks(0, 2, whole=True)
    ([0.0, 5.0, 10.0, 15.0, 20.0], [0.1, 0.2, 0.3, 0.4, 0.5], [0.0, 1.0, 2.0])
    """
    rough = (high - low) / 4
    power = 10.0 ** floor(log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    step = max(ceil(step), 1) if whole else step
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [float(f"{at * step:.12g}") for at in range(first, last + 1)]


def _powers(low: float, high: float) -> list[float]:
    first, last = floor(log10(low)), ceil(log10(high))
    every = ceil((last - first) / 5)
    return [10.0**power for power in range(first, last + every, every)]


def _grid(y: float, label: str) -> str:
    return (
        f'<path class="grid" d="M{LEFT} {y}H{WIDE - RIGHT}"/>'
        f'<text class="tick end" x="{LEFT - 7}" y="{y + 4}">{label}</text>'
    )


def _under(x: float, label: str) -> str:
    return f'<text class="tick middle" x="{x}" y="{HIGH - 8}">{label}</text>'


def _short(value: float) -> str:
    """A number that fits beside an axis.

    >>> _short(20.0), _short(25000), _short(0.001), _short(97.5), _short(2e14)
    ('20', '25k', '0.001', '97.5', '2e+14')
    """
    if abs(value) >= 1e12:
        return f"{value:.3g}"
    for power, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= power:
            return f"{value / power:.4g}{unit}"
    return f"{value:.4g}"
