"""A curve as one HTML page that opens from disk and loads nothing. It knows numbers and rows of text, no models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tnmars.files import write_text
from tnmars.reporting.charts import Line, chart
from tnmars.reporting.markup import join, row, table, tag, text
from tnmars.reporting.page import document
from tnmars.text.numbers import typographic

TITLE = "Size and score along one training"


def write_page(
    path: str | Path, scores: Sequence[tuple[float, float]], chosen: int, rows: Sequence[Sequence[str]], reason: str
) -> None:
    """Writes the page: scores over ratios with the chosen point marked, the rows as a table, and the reason.

    Of points with one ratio, such as a model before and after its first training, the line goes through the best.
    """
    best = {ratio: max(own for other, own in scores if other == ratio) for ratio, _ in scores}
    lines = [Line("score", tuple(sorted(best.items()))), Line("chosen", (scores[chosen],))]
    head = tag("figcaption", tag("b", text("Score over the ratio to the dense size; the chosen point is marked")))
    picture = tag("figure", head, chart(lines, "score over ratio", x_name="times smaller"), class_="curve")
    why = tag("p", tag("b", text("Chosen: ")), text(reason))
    heads, *body = rows
    found = table(heads, [row([text(typographic(cell)) for cell in line]) for line in body], "The points of the path")
    body_text = join([tag("h1", text(TITLE)), tag("section", why, picture, found, class_="card")])
    write_text(path, document(TITLE, body_text))
