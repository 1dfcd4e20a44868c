"""The section about training: one chart for each figure of the history, and the ranks of a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tnmars.errors import plural
from tnmars.reporting.charts import Line, Point, chart
from tnmars.reporting.history import AXES, LEAST, MOST, History, is_drawable, is_number
from tnmars.reporting.markup import Html, join, tag, text
from tnmars.reporting.value import Layer

TITLES = {
    "loss": "Loss",
    "accuracy": "Accuracy",
    "expected_parameters": "Expected parameters",
    "temperature": "Temperature",
}
"""The figures that come first."""
WORDS = {
    "accuracy": "Accuracy is that of the model as pruning would leave it at that moment.",
    "expected_parameters": "Expected parameters are those of the cores.",
}


def training(history: History) -> Html:
    """Charts of all figures but the ranks, and words for those that cannot be drawn; empty without figures."""
    names = [name for name in TITLES if _figures(history, name)]
    more = dict.fromkeys(key for entry in history for key in entry if key not in (*TITLES, *AXES, "ranks"))
    names += [name for name in more if _figures(history, name)]
    bare = [name for name in (*TITLES, *more) if name not in names and _missing(history, name)]
    found = [_figure(history, name) for name in names]
    found += [tag("figure", tag("figcaption", tag("b", text(_title(name)))), _left_out(history, name)) for name in bare]
    if not found:
        return Html("")
    words = " ".join(WORDS[name] for name in names if name in WORDS)
    intro = tag("p", text(words)) if words else Html("")
    grid = tag("div", join(found), class_="charts")
    return tag("section", tag("h2", text("Training")), intro, grid, id="training", class_="card")


def _figure(history: History, name: str) -> Html:
    title = _title(name)
    points = _figures(history, name)
    head = tag("figcaption", tag("b", text(title)), tag("span", text(f"{points[-1][1]:,.5g}"), class_="value"))
    drawn = chart([Line(title, points)], title, x_name=_axis(history))
    return tag("figure", head, drawn, _left_out(history, name))


def _title(name: str) -> str:
    return TITLES.get(name, name.replace("_", " "))


def _missing(history: History, name: str) -> int:
    """How many numbers of a figure a chart cannot hold."""
    return sum(is_number(entry.get(name)) and not is_drawable(entry.get(name)) for entry in history)


def _left_out(history: History, name: str) -> Html:
    """What the chart of a figure does not show, in words; empty if it shows all."""
    missing = _missing(history, name)
    if not missing:
        return Html("")
    words = f"{plural(missing, 'value')} not drawn: not finite, above {MOST:g}, or nearer to 0 than {LEAST:g}."
    return tag("p", text(words), class_="hint")


def _figures(history: History, name: str) -> tuple[Point, ...]:
    return tuple(
        (_at(history, at), float(entry[name])) for at, entry in enumerate(history) if is_drawable(entry.get(name))
    )


def _axis(history: History) -> str:
    return next((name for name in AXES if all(is_drawable(entry.get(name)) for entry in history)), "record")


def _at(history: History, at: int) -> float:
    name = _axis(history)
    return float(history[at][name]) if name in AXES else float(at)


def ranks(layer: Layer, history: History) -> Html:
    """How many slices of each bond were kept over training; empty if the history has no ranks."""
    entries = [(_at(history, at), _ranks(entry, layer)) for at, entry in enumerate(history)]
    known = [(x, sizes) for x, sizes in entries if sizes]
    bonds = [bond for bond in layer.bonds if bond.before is not None]
    if not known or not bonds:
        return Html("")
    lines = [
        Line(bond.shown, tuple((x, float(sizes[at])) for x, sizes in known), bond.key) for at, bond in enumerate(bonds)
    ]
    names = [
        tag("span", text(bond.shown), class_=f"chip c{at % 8}", data_key=bond.key, tabindex="0")
        for at, bond in enumerate(bonds)
    ]
    drawn = chart(lines, "ranks over training", steps=True, x_name=_axis(history), from_zero=True)
    legend = tag("div", join(names), class_="chips")
    return tag("figure", tag("figcaption", tag("b", text("Ranks over training"))), drawn, legend, class_="ranks")


def _ranks(entry: Mapping[str, Any], layer: Layer) -> Sequence[int]:
    """The sizes of a layer's bonds in an entry; empty if they do not fit its graph before."""
    known = entry.get("ranks")
    sizes = known.get(layer.name) if isinstance(known, Mapping) else None
    count = sum(bond.before is not None for bond in layer.bonds)
    fits = isinstance(sizes, (list, tuple)) and len(sizes) == count and all(map(is_drawable, sizes))
    return sizes if fits and sizes is not None else ()
