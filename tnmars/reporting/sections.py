"""The section of one layer: drawings, bonds and gates, sizes and speed, contraction order, spec and settings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tnmars.draw.picture import FLAT, part
from tnmars.draw.svg import svg
from tnmars.draw.traces import looks
from tnmars.errors import listing, plural
from tnmars.program.explain import Explained, StepRow
from tnmars.reporting.charts import gates
from tnmars.reporting.history import History
from tnmars.reporting.markup import Html, Row, duration, join, number, ratio, row, table, tag, text
from tnmars.reporting.training import ranks
from tnmars.reporting.value import Bond, Layer, Rows, Side
from tnmars.text.numbers import byte_count

FATES = {
    "gone": "removed",
    "cut": "cut",
    "whole": "as it was",
    "grown": "grown",
    "new": "new",
    "merged": "merged into ",
}
BESIDE = {
    ("cut", "fewer"): "cut further than by gates",
    ("cut", "more"): "cut less than by gates",
    ("whole", "more"): "as it was, not cut",
    ("gone", "gone"): "removed, not by gates",
}
"""Where the rank after is not what the gates keep, by fate and by how it differs."""

FORMS = {
    "dense": "the weight is built first",
    "push": "the input goes through single cores",
    "parts": "the input goes through parts of several cores",
    "blocks": "the input goes through large parts",
    "taps": "the cores with taps are one convolution",
    "path": "in opt_einsum's order",
    "tables1": "rows of one table",
    "tables2": "rows of two tables, multiplied",
    "tables3": "rows of three tables, multiplied",
    "tables": "rows of each core, multiplied",
}
"""The names of plans in words."""


def layer_section(
    layer: Layer, at: int, title: str, history: History, threads: int, *, several: bool = False, folded: bool = False
) -> Html:
    """Everything about a layer; if there are several, with a link back to their table."""
    graph = layer.after.graph
    known = (
        f"{graph.kind} {graph.signature.replace('->', '→')}; {plural(len(layer.before.graph.cores), 'core')} before, "
    )
    known += f"{len(graph.cores)} after"
    name = f" · {graph.name}" if graph.name and graph.name != title else ""
    back = tag("a", text("all layers"), href="#overview", class_="back screen") if several else Html("")
    head = tag("h2", text(title), tag("small", text(name)))
    body = [
        tag("p", text(known), class_="about"),
        _drawings(layer),
        _bonds(layer, history),
        _sizes(layer, threads),
        _orders(layer),
        _spec(layer, at),
        _folded("Settings", settings_table(layer.settings)),
    ]
    if folded:
        counts = [f"{number(side.count.cores)}" for side in (layer.before, layer.after)]
        short = tag("span", text(f"{' → '.join(counts)} parameters"), class_="value")
        inner = tag("details", tag("summary", head, short), back, *body, class_="whole-layer")
    else:
        inner = join([tag("div", head, back, class_="bar"), *body])
    return tag("section", inner, id=f"layer-{at}", class_="card layer")


def _drawings(layer: Layer) -> Html:
    before, after = looks(layer.before.graph, layer.after.graph)
    drawn = [Html(svg(part(graph, look))) for graph, look in (before, after)]
    sizes = [_size(drawing) for drawing in drawn]
    widths = [wide for wide, _ in sizes]
    kind = "graphs flat" if all(high < FLAT * wide for wide, high in sizes) else "graphs"
    found = []
    for name, side, drawing, wide in zip(("Before", "After"), (layer.before, layer.after), drawn, widths, strict=True):
        head = tag("figcaption", tag("b", text(name)), text(f"{number(side.count.cores)} parameters"))
        share = f"--share: {wide / max(widths):.4f}"
        found.append(tag("figure", head, drawing, class_=f"graph {name.lower()}", style=share))
    words = "A line is as wide as the rank of its bond. Behind it, pale, what was cut; dashed, bonds that were removed."
    point = tag("span", text(" Point at a bond, or go to it with Tab, to see it everywhere."), class_="screen")
    pair = tag("div", *found, class_=kind, style=f"--wide: {max(widths)}")
    return join([pair, tag("p", text(words), point, class_="hint")])


def _size(drawing: str) -> tuple[int, int]:
    """How wide and how high a drawing would be, in pixels."""
    known = re.search(r'<svg[^>]* width="([0-9]+)" height="([0-9]+)"', drawing)
    assert known
    return int(known[1]), int(known[2])


def _bonds(layer: Layer, history: History) -> Html:
    heads = ["Bond", "joins", "rank before", "useful at most", "gates keep", "rank after", ""]
    rows = [_bond(bond) for bond in layer.bonds]
    if not rows:
        return tag("p", text("The graph has no bonds."))
    parts = [tag("h3", text("Bonds and gates")), table(heads, rows, "Bonds")]
    gated = [bond for bond in layer.bonds if bond.probabilities]
    words = "The layer had no gates before."
    if gated:
        words = "The probability that each slice's gate is open, before pruning. Blue slices are kept by the gates."
        if layer.is_warm:
            words += " Warm-up was still on, which keeps all slices."
        elif layer.threshold is not None:
            words += f" The dashed line is the threshold, {layer.threshold:.3g}."
    parts += [_hint(words), *map(_hint, _beside(gated))]
    figures = [_gates(bond, None if layer.is_warm else layer.threshold) for bond in gated]
    return join([*parts, tag("div", join([ranks(layer, history), *figures]), class_="gates")])


def _beside(gated: Sequence[Bond]) -> list[str]:
    """Where the ranks after are not what the gates keep, and in which way; empty if they are."""
    found = []
    for kind, words in (
        ("fewer", "Slices removed after the gates"),
        ("more", "More slices left than the gates keep"),
        ("gone", "Removed for a reason other than its gates"),
    ):
        known = [f"{bond.shown} ({number(bond.kept)} to {number(bond.after)})" for bond in gated if bond.beside == kind]
        if known:
            found.append(f"{words}: {listing(known)}.")
    return found


def _bond(bond: Bond) -> Row:
    now = "–" if bond.after is None else number(bond.after)
    cells = (", ".join(bond.ends), number(bond.before), number(bond.useful), number(bond.kept), now)
    words = BESIDE.get((bond.fate, bond.beside), FATES[bond.fate] + bond.merged_into)
    fate = tag("span", text(words), class_=f"fate {bond.fate}")
    return row([text(bond.shown), *map(text, cells), fate], data_key=bond.key, tabindex="0")


def _gates(bond: Bond, threshold: float | None) -> Html:
    count = tag("span", text(f"{bond.kept} of {len(bond.probabilities)}"), class_="value")
    head = tag("figcaption", tag("b", text(bond.shown)), count)
    label = f"bond {bond.shown}: the gates keep {bond.kept} of {len(bond.probabilities)} slices"
    drawn = gates(bond.probabilities, bond.is_kept, label, threshold)
    return tag("figure", head, drawn, data_key=bond.key, tabindex="0", class_="gate")


def conditions(layer: Layer) -> str:
    """The batch that counts and times are for."""
    image = f", image {'x'.join(map(str, layer.image))}" if layer.image else ""
    return f"batch {number(layer.batch)}{image}"


def _sizes(layer: Layer, threads: int) -> Html:
    before, after = layer.before, layer.after
    heads = ["", "dense", "before", "after", "before / after", "dense / after"]

    def line(name: str, *values: object, shown: tuple[str, ...]) -> Row:
        dense, first, second = values
        ratios = ratio(first, second), ratio(dense, second)  # type: ignore[arg-type]
        return row([text(name), *map(text, (*shown, *ratios))])

    numbers = (after.count.dense, before.count.cores, after.count.cores)
    taken = (layer.dense_bytes, before.bytes, after.bytes)
    macs = (layer.dense_macs, before.macs, after.macs)
    rows = [line("parameters of the weight", *numbers, shown=tuple(map(number, numbers)))]
    if after.count.other:
        rows.append(row([text("bias"), *map(text, (*[number(after.count.other)] * 3, "", ""))]))
    rows.append(line("bytes, bias included", *taken, shown=tuple(map(byte_count, taken))))
    rows.append(line(f"MACs, {conditions(layer)}", *macs, shown=tuple(map(number, macs))))
    if before.seconds is not None:
        times = (layer.dense_seconds, before.seconds, after.seconds)
        rows.append(line(f"latency, {conditions(layer)}", *times, shown=tuple(map(duration, times))))
    words = (
        f"Measured in this process, without gradients: {plural(threads, 'thread')}, the shortest of many passes, taken "
        "in turns. Before: with gates, as eval() computes. Dense: torch's own layer."
        if before.seconds is not None
        else "Latency was not measured."
    )
    return join([tag("h3", text("Size and speed")), table(heads, rows, "Size and speed"), _hint(words)])


def _hint(words: str) -> Html:
    return tag("p", text(words), class_="hint")


def _orders(layer: Layer) -> Html:
    words = f"For {conditions(layer)}, without gradients; bytes are what a step writes, in float32. Steps in italics "
    words += "depend only on cores."
    sides = [_order("Before", layer.before), _order("After", layer.after)]
    return join([tag("h3", text("Contraction order")), tag("div", *sides, class_="pair"), _hint(words)])


def _order(name: str, side: Side) -> Html:
    if side.explained is None:
        return tag("div", tag("h4", text(name)), tag("p", text("No term is left, so nothing is contracted.")))
    found = side.explained
    heads = ["Step", "shape", "MACs", "bytes"]
    head = tag("h4", text(f"{name}: {found.form.rstrip('123')}"), tag("small", text(_form(found))))
    return tag("div", head, table(heads, _steps(found), f"Steps {name.lower()}", stacks=False))


def _form(found: Explained) -> str:
    """A plan in words."""
    return FORMS.get(found.form, "") + (f", in chunks of {found.chunk}" if found.chunk else "")


def _steps(found: Explained) -> list[Row]:
    rows = [_step(at, step) for at, step in enumerate(found.steps, 1)]
    total = [text("total"), text(""), text(number(found.macs)), text(byte_count(found.written))]
    return [*rows, row(total, class_="total")]


def _step(at: int, step: StepRow) -> Row:
    made, _, summed = step.step.partition("  <- ")
    words = tag("span", text(f"{at}. {made}"), class_="made")
    words = Html(words + tag("span", text(f"← {summed}"), class_="summed")) if summed else words
    work = number(step.macs) if step.macs else f"{number(step.elementwise)} ops" if step.elementwise else "–"
    cells = [words, *map(text, ("×".join(map(str, step.shape)) or "1", work, byte_count(step.written)))]
    return row(cells, class_="folded") if step.folded else row(cells)


def _spec(layer: Layer, at: int) -> Html:
    button = tag("button", text("Copy"), type="button", class_="copy", data_copy=f"spec-{at}")
    head = tag("div", tag("h3", text("The pruned spec")), button, class_="bar")
    block = tag("pre", tag("code", text(layer.spec), id=f"spec-{at}"), tabindex="0")
    return join([head, block])


def _folded(title: str, inner: Html) -> Html:
    return tag("details", tag("summary", text(title)), inner)


def settings_table(rows: Rows) -> Html:
    """Names and values."""
    found = [tag("div", tag("dt", text(name)), tag("dd", text(value))) for name, value in rows]
    return tag("dl", join(found), class_="settings")
