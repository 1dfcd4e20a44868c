"""The first table of a page about several layers: one line for each, and the total."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tnmars.reporting.markup import Html, Row, duration, number, ratio, row, table, tag, text
from tnmars.reporting.value import Layer, Report, Side
from tnmars.text.numbers import brief

WIDE, HIGH = 96, 10
"""The width and height, in pixels, of the bar that shows how many parameters a layer has."""
MOST = 4
"""Up to this many ranks are listed one by one."""


def overview(report: Report) -> Html:
    """The section: size, work and time of each layer, before and after."""
    heads = ["Layer", "parameters", "", "fewer", "ranks", "maps", "MACs", "latency"]
    largest = max((side.count.cores for layer in report.layers for side in (layer.before, layer.after)), default=1)
    lines = [
        _line(at, title, layer, report.is_measured, max(largest, 1))
        for at, (title, layer) in enumerate(zip(report.titles, report.layers, strict=True))
    ]
    shown = table(heads if report.is_measured else heads[:-1], [*lines, _sum(report)], "Layers")
    words = "Blue is what is left of each layer's parameters; pale, what was there before."
    words += f" All names begin with “{report.prefix}”, which is left out." if report.prefix else ""
    hint = tag("p", text(words), class_="hint")
    return tag("section", tag("h2", text("Layers")), shown, hint, id="overview", class_="card")


def _line(at: int, title: str, layer: Layer, is_measured: bool, largest: int) -> Row:
    before, after = layer.before, layer.after
    graph = after.graph
    ranks = [[bond.before for bond in layer.bonds], [bond.after for bond in layer.bonds]]
    cells = [
        _change(number(before.count.cores), number(after.count.cores)),
        _bar(before.count.cores / largest, after.count.cores / largest),
        text(ratio(before.count.cores, after.count.cores)),
        _change(*map(_ranks, ranks)),
        text(f"{graph.kind} {graph.signature}".replace("->", "→")),
        _change(brief(before.macs), brief(after.macs)),
        *([_change(duration(before.seconds), duration(after.seconds))] if is_measured else []),
    ]
    return row([tag("a", _breakable(title), href=f"#layer-{at}"), *cells])


def _breakable(name: str) -> Html:
    """A name of a layer, which may break after a dot or an underscore."""
    return Html("<wbr>".join(map(text, re.split(r"(?<=[._])", name))))


def _sum(report: Report) -> Row:
    """The last line. Parameters are those of the layers above, without biases and what is not compiled."""
    sides: list[list[Side]] = [[getattr(layer, side) for layer in report.layers] for side in ("before", "after")]
    cores = [sum(side.count.cores for side in found) for found in sides]
    macs = [sum(side.macs for side in found) for found in sides]
    seconds = [sum(side.seconds or 0.0 for side in found) for found in sides]
    cells = [
        _change(*map(number, cores)),
        text(""),
        text(ratio(*cores)),
        text(""),
        text(""),
        _change(*map(brief, macs)),
        *([_change(*map(duration, seconds))] if report.is_measured else []),
    ]
    return row([text("all of them"), *cells], class_="total")


def _change(before: str, after: str) -> Html:
    """Both values, each of which stays on one line."""
    first, second = (tag("span", text(value), class_="whole") for value in (before, after))
    return Html(f"{first} → {second}")


def _ranks(sizes: Sequence[int | None]) -> str:
    """The sizes of some bonds in a few words; a dash for one that is gone.

    >>> _ranks([12, 12]), _ranks([5, None, 2]), _ranks([16] * 7), _ranks([2, 4, 5, None, 2]), _ranks([None] * 8)
    ('12 12', '5 – 2', '7 of 16', '4 of 2 to 5', 'none')
    """
    if len(sizes) <= MOST:
        return " ".join(map(number, sizes)) or "none"
    left = [size for size in sizes if size is not None]
    if not left:
        return "none"
    low, high = min(left), max(left)
    return f"{len(left)} of {number(low)}" + (f" to {number(high)}" if high > low else "")


def _bar(before: float, after: float) -> Html:
    """Two shares of the largest layer, one on top of the other; even the smallest is visible."""
    bars = "".join(
        f'<rect class="{name}" width="{max(round(WIDE * share, 1), 1.5)}" height="{HIGH}" rx="2"/>'
        for name, share in (("off", before), ("on", after))
        if share > 0
    )
    return Html(
        f'<svg class="bars" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}" aria-hidden="true">{bars}</svg>'
    )
