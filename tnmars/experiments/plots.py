"""Plots as SVG files: bars of learned gates, and points over a logarithmic axis. They know no experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from statistics import fmean

STYLE = """<style>
text { font: 11px sans-serif; fill: #444 } .title { font-size: 12px; font-weight: bold }
.grid { stroke: #8884; stroke-width: 1 } .open { fill: #1f77b4 } .shut { fill: #8889 }
.limit { stroke: #d62728; stroke-dasharray: 4 3 } .mean { stroke: #1f77b4; fill: none; stroke-width: 1.5 }
.run { fill: #1f77b4; fill-opacity: .6 } .end { text-anchor: end } .middle { text-anchor: middle }
@media (prefers-color-scheme: dark) { text { fill: #ccc } }
</style>"""
LEFT, TOP, HIGH, GAP = 44, 26, 110, 24


def _page(wide: float, high: float, label: str, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" width="{wide:g}" role="img"'
    return "\n".join([f'{head} aria-label="{escape(label)}">', STYLE, *parts, "</svg>\n"])


def bars(probabilities: Mapping[str, Sequence[float]], label: str, *, threshold: float = 0.5, step: float = 8) -> str:
    """For each bond, the probability of every gate as a bar, and the threshold above which it is kept."""
    parts, left = [], float(LEFT)
    for name, values in probabilities.items():
        wide = step * len(values)
        kept = sum(value > threshold for value in values)
        title = f"{name}: {kept} of {len(values)}"
        parts.append(f'<text class="title" x="{left:g}" y="{TOP - 10}">{escape(title)}</text>')
        for mark in (0.0, 0.5, 1.0):
            y = TOP + HIGH * (1 - mark)
            parts.append(f'<path class="grid" d="M{left:g} {y:g}h{wide:g}"/>')
            if left == LEFT:
                parts.append(f'<text class="end" x="{left - 6:g}" y="{y + 4:g}">{mark:g}</text>')
        for at, value in enumerate(values):
            high = max(HIGH * value, 1.0)
            kind = "open" if value > threshold else "shut"
            place = f'x="{left + step * at + 1:g}" y="{TOP + HIGH - high:.1f}" width="{step - 2:g}" height="{high:.1f}"'
            parts.append(f'<rect class="{kind}" {place}><title>gate {at}: {value:.3f}</title></rect>')
        y = TOP + HIGH * (1 - threshold)
        parts.append(f'<path class="limit" d="M{left:g} {y:g}h{wide:g}"/>')
        left += max(wide, 7.0 * len(title)) + GAP
    return _page(left, TOP + HIGH + 12, label, parts)


def over(points: Mapping[str, Mapping[float, Sequence[float]]], x_name: str, label: str, *, wide: float = 300) -> str:
    """For each figure a panel: its values at each x, on a logarithmic axis of x, and a line through the means."""
    parts, left = [], float(LEFT)
    for name, found in points.items():
        parts += _panel(name, found, x_name, left, wide)
        left += wide + LEFT + GAP
    return _page(left - GAP, TOP + HIGH + 44, label, parts)


def _panel(name: str, found: Mapping[float, Sequence[float]], x_name: str, left: float, wide: float) -> list[str]:
    values = [value for some in found.values() for value in some]
    ticks = _ticks(min(values), max(values))
    first, last = log10(min(found)) - 0.2, log10(max(found)) + 0.2

    def x_at(x: float) -> float:
        return left + wide * (log10(x) - first) / (last - first)

    def y_at(y: float) -> float:
        return TOP + HIGH * (1 - (y - ticks[0]) / (ticks[-1] - ticks[0]))

    parts = [f'<text class="title" x="{left:g}" y="{TOP - 10}">{escape(name)}</text>']
    for tick in ticks:
        parts.append(f'<path class="grid" d="M{left:g} {y_at(tick):.1f}h{wide:g}"/>')
        parts.append(f'<text class="end" x="{left - 6:g}" y="{y_at(tick) + 4:.1f}">{tick:g}</text>')
    for x in found:
        parts.append(f'<text class="middle" x="{x_at(x):.1f}" y="{TOP + HIGH + 16}">{x:g}</text>')
    parts.append(f'<text class="middle" x="{left + wide / 2:.1f}" y="{TOP + HIGH + 34}">{escape(x_name)}</text>')
    means = " ".join(f"{x_at(x):.1f},{y_at(fmean(found[x])):.1f}" for x in sorted(found))
    parts.append(f'<polyline class="mean" points="{means}"/>')
    for x, some in found.items():
        parts += [
            f'<circle class="run" cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3.5"><title>{y:g}</title></circle>'
            for y in some
        ]
    return parts


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers around some values, three to seven of them."""
    spread = max(high - low, 1e-6 * abs(high), 1e-9)
    unit = 10.0 ** floor(log10(spread))
    step = next(unit * factor for factor in (0.2, 0.5, 1.0, 2.0, 5.0) if spread <= 4 * unit * factor)
    first = floor(low / step)
    last = max(ceil(high / step), first + 1)
    return [round(at * step, 10) for at in range(first, last + 1)]
