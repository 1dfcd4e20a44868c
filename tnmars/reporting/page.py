"""A report as one HTML page: style and script are written into it, and its policy forbids it to load anything."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

from tnmars.draw.palette import rules
from tnmars.reporting.headline import headline
from tnmars.reporting.markup import Html, join, number, ratio, tag, text
from tnmars.reporting.overview import overview
from tnmars.reporting.plan_table import plan_section
from tnmars.reporting.sections import layer_section, settings_table
from tnmars.reporting.training import training
from tnmars.reporting.value import Report

DARK = "screen and (prefers-color-scheme:dark)"
"""The media query for dark colors: paper stays white."""
FEW = 4
"""With more layers, the section of each is folded."""


def page(report: Report) -> str:
    """The text of the file."""
    several, many = len(report.layers) > 1, len(report.layers) > FEW
    body = [
        headline(report),
        plan_section(report.plan),
        overview(report) if several else Html(""),
        training(report.history),
        *(
            layer_section(layer, at, title, report.history, report.threads, several=several, folded=many)
            for at, (layer, title) in enumerate(zip(report.layers, report.titles, strict=True))
        ),
        _counting(report),
        _versions(report),
    ]
    return document(f"{report.title}: before and after", join(body))


def document(title: str, body: Html) -> str:
    """A page with this body."""
    style = f"{rules(DARK)}\n{_data('page.css')}"
    script = _data("page.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="tnmars">
<title>{text(title)}</title>
<style>
{style}
</style>
</head>
<body>
<main>
{body}
</main>
<script>{script}</script>
</body>
</html>
"""


def _data(name: str) -> str:
    return files("tnmars.reporting").joinpath(name).read_text(encoding="utf-8")


def _counting(report: Report) -> Html:
    after = report.after
    weights = ratio(after.dense, after.cores)
    whole = ratio(after.dense + after.other, after.cores + after.other)
    words = (
        f"Weights alone: the dense weights of the compiled layers hold {number(after.dense)} numbers, their cores "
        f"after pruning {number(after.cores)}; that is {weights}.\n"
        f"Whole model: the {number(after.other)} other parameters (biases, normalization, layers that are not "
        f"decomposed) are added on both sides; that is {whole}. The paper's notebooks count in this way.\n"
        "Logits of gates count nowhere, and padding never counts as dense. MACs are multiply-adds."
    )
    points = join(tag("li", text(line)) for line in words.splitlines())
    title = tag("h2", text("What “compression” counts"))
    return tag("section", title, tag("ul", points), id="counting", class_="card")


def _versions(report: Report) -> Html:
    title = tag("h2", text("Versions"))
    return tag("section", title, settings_table(report.versions), id="versions", class_="card")
