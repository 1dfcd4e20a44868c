"""A report as one HTML page: style and script are written into it, and its policy forbids it to load anything."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

from tnmars.draw.palette import rules
from tnmars.graph.counts import Count
from tnmars.reporting.markup import Html, brief, change, duration, join, number, ratio, tag, text
from tnmars.reporting.overview import overview
from tnmars.reporting.sections import conditions, layer_section, settings_table
from tnmars.reporting.training import training
from tnmars.reporting.value import Report, Side

DARK = "screen and (prefers-color-scheme:dark)"
"""Where colours are dark: paper stays white."""


def page(report: Report) -> str:
    """The text of the file."""
    style = f"{rules(DARK)}\n{_data('page.css')}"
    script = _data("page.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    several = len(report.layers) > 1
    body = [
        _head(report),
        overview(report) if several else Html(""),
        training(report.history),
        *(
            layer_section(layer, at, report.history, report.threads, several=several)
            for at, layer in enumerate(report.layers)
        ),
        _counting(report),
        _versions(report),
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="tnmars">
<title>{text(report.title)}: before and after</title>
<style>
{style}
</style>
</head>
<body>
<main>
{join(body)}
</main>
<script>{script}</script>
</body>
</html>
"""


def _data(name: str) -> str:
    return files("tnmars.reporting").joinpath(name).read_text(encoding="utf-8")


def _head(report: Report) -> Html:
    before, after = report.before, report.after
    cards = [
        _card(
            "Parameters",
            brief(before.cores + before.other),
            brief(after.cores + after.other),
            f"{change(before.cores + before.other, after.cores + after.other, 'fewer', 'more')} in the whole model",
        ),
        _card(
            "Weights against dense", ratio(before.dense, before.cores), ratio(after.dense, after.cores), _share(after)
        ),
        _macs(report),
        *([_latency(report)] if report.is_measured else []),
    ]
    lead = "What rank selection kept, and what it cut."
    title = tag("h1", text(report.title), tag("span", text("before and after"), class_="sub"))
    notes = [tag("p", text(note), class_="note") for note in report.notes]
    return tag("header", title, tag("p", text(lead), class_="lead"), tag("div", *cards, class_="cards"), *notes)


def _card(name: str, before: str, after: str, words: str) -> Html:
    arrow = Html('<span class="arrow" aria-label="to">→</span>')
    figures = tag("p", tag("span", text(before), class_="from"), arrow, tag("b", text(after)), class_="figures")
    return tag(
        "div", tag("p", text(name), class_="name"), figures, tag("p", text(words), class_="words"), class_="tile"
    )


def _share(count: Count) -> str:
    return f"{number(count.dense)} dense, {number(count.cores)} in cores"


def _macs(report: Report) -> Html:
    before, after = (sum(side.macs for side in sides) for sides in _sides(report))
    return _card(
        "Multiply-adds", brief(before), brief(after), f"{change(before, after, 'fewer', 'more')}; {_when(report)}"
    )


def _latency(report: Report) -> Html:
    before, after = (sum(side.seconds or 0.0 for side in sides) for sides in _sides(report))
    threads = f"{report.threads} thread{'' if report.threads == 1 else 's'}"
    words = f"{change(before, after, 'faster', 'slower')}; {_when(report)}, {threads}"
    return _card("Measured latency", duration(before), duration(after), words)


def _sides(report: Report) -> tuple[list[Side], list[Side]]:
    return [layer.before for layer in report.layers], [layer.after for layer in report.layers]


def _when(report: Report) -> str:
    """The batch that figures of all layers are for."""
    found = sorted({conditions(layer) for layer in report.layers})
    text_of = found[0] if len(found) == 1 else "each layer's own batch"
    return text_of if len(report.layers) == 1 else f"{text_of}, sum of the layers"


def _counting(report: Report) -> Html:
    after = report.after
    weights = ratio(after.dense, after.cores)
    whole = ratio(after.dense + after.other, after.cores + after.other)
    words = (
        f"Weights alone: the dense weights of the compiled layers hold {number(after.dense)} numbers, their cores "
        f"after pruning {number(after.cores)}; that is {weights}.\n"
        f"Whole model: the {number(after.other)} other parameters (biases, normalisation, layers that are not "
        f"decomposed) are added on both sides; that is {whole}. The paper's notebooks count so.\n"
        "Logits of gates count nowhere, and padding never counts as dense. MACs are multiply-adds."
    )
    points = join(tag("li", text(line)) for line in words.splitlines())
    title = tag("h2", text("What “compression” counts"))
    return tag("section", title, tag("ul", points), id="counting", class_="card")


def _versions(report: Report) -> Html:
    title = tag("h2", text("Versions"))
    return tag("section", title, settings_table(report.versions), id="versions", class_="card")
