"""Charts as SVG: lines over epochs, bars of gates with a threshold, and points over a logarithmic axis.

`chart` and `gates` are parts of a page, which has the style sheet. `gates_file`, `points_file` and `series_file` return
complete files. Nothing here knows what the values mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from statistics import fmean

from tnmars.reporting.markup import Html

WIDE, HIGH = 400, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 26
DECADES = 2.0
"""The scale is logarithmic if the values span at least this many powers of ten."""
MOST_POINTS = 600
"""With more points than this, only some are drawn."""
APART = 2.0
"""With steps, lines of one value are drawn at most this far apart, so that the last does not hide the others."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A named line; `key` identifies its bond in the page."""

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
    """A range that is not empty."""
    room = 0.5 * (abs(low) or 1.0)
    return (low, high) if high > low else (low - room, high + room)


def _ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """About five round numbers that enclose a range.

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


# --- gates ------------------------------------------------------------------------------------------------------------

GATES_WIDE, GATES_HIGH = 280, 90
GATES_TOP, GATES_LEFT, GATES_RIGHT, GATES_BOTTOM = 8, 34, 4, 16
LABEL = 11
"""The minimum distance between two numbers beside the axis."""
WIDEST = 24
"""The maximum width of a bar, with the gap beside it."""
MANY = 256
"""With more slices, all bars of one kind are one path without tooltips."""


@dataclass(frozen=True)
class _Bars:
    """The bars of some gates: their height is a probability, between 0 and 1."""

    values: Sequence[float]
    is_kept: Sequence[bool]
    left: float
    top: float
    high: float
    step: float
    gap: float

    def y(self, probability: float) -> float:
        return round(self.top + self.high * (1 - min(max(probability, 0.0), 1.0)), 1)

    def box(self, at: int) -> tuple[float, float, float, float]:
        """Left, top, width and height of a bar; a closed gate is still visible."""
        top = min(self.y(self.values[at]), self.top + self.high - 1.0)
        left = round(self.left + at * self.step + self.gap / 2, 2)
        return left, top, round(self.step - self.gap, 2), round(self.top + self.high - top, 1)

    def one_by_one(self) -> list[str]:
        return [self._bar(at) for at in range(len(self.values))]

    def _bar(self, at: int) -> str:
        x, y, wide, high = self.box(at)
        kept = self.is_kept[at]
        tip = f"slice {at}: {self.values[at]:.3g}, {'kept by its gate' if kept else 'cut'}"
        return (
            f'<rect class="{"on" if kept else "off"}" x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" '
            f'rx="{min(1.5, round(wide / 3, 2)):g}"><title>{tip}</title></rect>'
        )

    def together(self) -> list[str]:
        """One path for all bars that are kept, and one for all others."""
        paths = []
        for kept in (False, True):
            boxes = [self.box(at) for at, state in enumerate(self.is_kept) if state is kept]
            line = "".join(f"M{x} {y}h{wide}v{high}h{-wide}z" for x, y, wide, high in boxes)
            paths += [f'<path class="{"on" if kept else "off"}" d="{line}"/>'] if line else []
        return paths


def gates(values: Sequence[float], is_kept: Sequence[bool], label: str, threshold: float | None) -> Html:
    """The gates of a bond as bars, with the threshold: the figure of the paper."""
    count = len(values)
    step = min((GATES_WIDE - GATES_LEFT - GATES_RIGHT) / count, WIDEST)
    drawn = _Bars(values, is_kept, GATES_LEFT, GATES_TOP, GATES_HIGH, step, min(2.0, 0.2 * step))
    parts = [_gates_axes(drawn, threshold), *(drawn.together() if count > MANY else drawn.one_by_one())]
    if threshold is not None:
        y = drawn.y(threshold)
        parts.append(f'<path class="threshold" d="M{GATES_LEFT} {y}H{GATES_WIDE - GATES_RIGHT}"/>')
        parts.append(f'<text class="tick end threshold-label" x="{GATES_LEFT - 5}" y="{y + 4}">{threshold:.2f}</text>')
    return Html(
        f'<svg class="bars" viewBox="0 0 {GATES_WIDE} {GATES_HIGH + GATES_TOP + GATES_BOTTOM}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _gates_axes(drawn: _Bars, threshold: float | None) -> str:
    """The axes: probabilities 0 and 1, unless the threshold is near, and the first and the last slice."""
    end = GATES_WIDE - GATES_RIGHT
    axes = f'<path class="grid" d="M{GATES_LEFT} {drawn.y(1)}H{end}M{GATES_LEFT} {drawn.y(0)}H{end}"/>'
    for value in (0, 1):
        if threshold is not None and abs(drawn.y(value) - drawn.y(threshold)) < LABEL:
            continue
        axes += f'<text class="tick end" x="{GATES_LEFT - 5}" y="{drawn.y(value) + 4}">{value}</text>'
    low = GATES_TOP + GATES_HIGH + 13
    axes += f'<text class="tick" x="{GATES_LEFT}" y="{low}">slice 0</text>'
    if len(drawn.values) > 2:
        right = round(GATES_LEFT + len(drawn.values) * drawn.step, 1)
        axes += f'<text class="tick end" x="{right}" y="{low}">{len(drawn.values) - 1}</text>'
    return axes


# --- files of their own -----------------------------------------------------------------------------------------------

STYLE = """<style>
text { font: 11px sans-serif; fill: #444 } .title { font-size: 12px; font-weight: bold }
.grid { stroke: #8884; stroke-width: 1 } .on { fill: #1f77b4 } .off { fill: #8889 }
.threshold { stroke: #d62728; stroke-dasharray: 4 3 } .mean { stroke: #1f77b4; fill: none; stroke-width: 1.5 }
.run { fill: #1f77b4; fill-opacity: .6 } .end { text-anchor: end } .middle { text-anchor: middle }
@media (prefers-color-scheme: dark) { text { fill: #ccc } }
</style>"""
FILE_LEFT, FILE_TOP, FILE_HIGH, FILE_GAP = 44, 26, 110, 24


def _file(wide: float, high: float, label: str, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" width="{wide:g}" role="img"'
    return "\n".join([f'{head} aria-label="{escape(label)}">', STYLE, *parts, "</svg>\n"])


def gates_file(
    probabilities: Mapping[str, Sequence[float]], label: str, *, threshold: float = 0.5, step: float = 8
) -> str:
    """An SVG file with the gates of several bonds, and the threshold above which each is kept."""
    parts: list[str] = []
    left = float(FILE_LEFT)
    for name, values in probabilities.items():
        wide = step * len(values)
        is_kept = [value > threshold for value in values]
        drawn = _Bars(values, is_kept, left, FILE_TOP, FILE_HIGH, step, 2.0)
        title = f"{name}: {sum(is_kept)} of {len(values)}"
        parts.append(f'<text class="title" x="{left:g}" y="{FILE_TOP - 10}">{escape(title)}</text>')
        for mark in (0.0, 0.5, 1.0):
            parts.append(f'<path class="grid" d="M{left:g} {drawn.y(mark):g}h{wide:g}"/>')
            if left == FILE_LEFT:
                parts.append(f'<text class="end" x="{left - 6:g}" y="{drawn.y(mark) + 4:g}">{mark:g}</text>')
        parts += drawn.one_by_one()
        parts.append(f'<path class="threshold" d="M{left:g} {drawn.y(threshold):g}h{wide:g}"/>')
        left += max(wide, 7.0 * len(title)) + FILE_GAP
    return _file(left, FILE_TOP + FILE_HIGH + 12, label, parts)


def points_file(
    points: Mapping[str, Mapping[float, Sequence[float]]], x_name: str, label: str, *, wide: float = 300
) -> str:
    """An SVG file with a panel for each figure: its values over a logarithmic axis, and a line through the means."""
    parts: list[str] = []
    left = float(FILE_LEFT)
    for name, values in points.items():
        parts += _panel(name, values, x_name, left, wide)
        left += wide + FILE_LEFT + FILE_GAP
    return _file(left - FILE_GAP, FILE_TOP + FILE_HIGH + 44, label, parts)


def _panel(name: str, points: Mapping[float, Sequence[float]], x_name: str, left: float, wide: float) -> list[str]:
    values = [value for some in points.values() for value in some]
    ticks = _ticks(*_widened(min(values), max(values)))
    first, last = log10(min(points)) - 0.2, log10(max(points)) + 0.2

    def x_at(x: float) -> float:
        return left + wide * (log10(x) - first) / (last - first)

    def y_at(y: float) -> float:
        return FILE_TOP + FILE_HIGH * (1 - (y - ticks[0]) / (ticks[-1] - ticks[0]))

    low = FILE_TOP + FILE_HIGH
    parts = [f'<text class="title" x="{left:g}" y="{FILE_TOP - 10}">{escape(name)}</text>']
    for tick in ticks:
        parts.append(f'<path class="grid" d="M{left:g} {y_at(tick):.1f}h{wide:g}"/>')
        parts.append(f'<text class="end" x="{left - 6:g}" y="{y_at(tick) + 4:.1f}">{tick:g}</text>')
    parts += [f'<text class="middle" x="{x_at(x):.1f}" y="{low + 16}">{x:g}</text>' for x in points]
    parts.append(f'<text class="middle" x="{left + wide / 2:.1f}" y="{low + 34}">{escape(x_name)}</text>')
    means = " ".join(f"{x_at(x):.1f},{y_at(fmean(points[x])):.1f}" for x in sorted(points))
    parts.append(f'<polyline class="mean" points="{means}"/>')
    for x, some in points.items():
        parts += [
            f'<circle class="run" cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3.5"><title>{y:g}</title></circle>'
            for y in some
        ]
    return parts


COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22")
SERIES_WIDE, SERIES_HIGH, ROW = 420, 240, 16


def series_file(series: Mapping[str, Sequence[Point]], x_name: str, y_name: str, label: str) -> str:
    """An SVG file with the points of several series over a logarithmic axis, and their names beside it."""
    every = [point for points in series.values() for point in points]
    ticks = _ticks(*_widened(min(y for _, y in every), max(y for _, y in every)))
    first, last = log10(min(x for x, _ in every)) - 0.1, log10(max(x for x, _ in every)) + 0.1
    low = FILE_TOP + SERIES_HIGH

    def x_at(x: float) -> float:
        return FILE_LEFT + SERIES_WIDE * (log10(x) - first) / (last - first)

    def y_at(y: float) -> float:
        return low - SERIES_HIGH * (y - ticks[0]) / (ticks[-1] - ticks[0])

    parts = [f'<text class="title" x="{FILE_LEFT}" y="{FILE_TOP - 10}">{escape(y_name)}</text>']
    for tick in ticks:
        parts.append(f'<path class="grid" d="M{FILE_LEFT} {y_at(tick):.1f}h{SERIES_WIDE}"/>')
        parts.append(f'<text class="end" x="{FILE_LEFT - 6}" y="{y_at(tick) + 4:.1f}">{tick:g}</text>')
    marks = [factor * 10.0**power for power in range(floor(first), ceil(last) + 1) for factor in (1, 2, 5)]
    for mark in (mark for mark in marks if first <= log10(mark) <= last):
        parts.append(f'<text class="middle" x="{x_at(mark):.1f}" y="{low + 16}">{mark:g}</text>')
    parts.append(f'<text class="middle" x="{FILE_LEFT + SERIES_WIDE / 2:g}" y="{low + 34}">{escape(x_name)}</text>')
    for at, (name, points) in enumerate(series.items()):
        color, y = COLORS[at % len(COLORS)], FILE_TOP + ROW * at + 8
        beside = FILE_LEFT + SERIES_WIDE + 16
        parts.append(f'<circle cx="{beside}" cy="{y - 4}" r="4" fill="{color}"/>')
        parts.append(f'<text x="{beside + 10}" y="{y}">{escape(name)}</text>')
        parts += [
            f'<circle class="point" cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3.5" fill="{color}" fill-opacity=".7">'
            f"<title>{escape(name)}: {x:.4g}, {y:.4g}</title></circle>"
            for x, y in points
        ]
    wide = FILE_LEFT + SERIES_WIDE + 40 + 7 * max(map(len, series))
    return _file(wide, max(low + 44, FILE_TOP + ROW * len(series)), label, parts)
