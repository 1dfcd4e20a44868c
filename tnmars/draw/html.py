"""A graph as a page that opens from disk: its drawing and its numbers, nothing loaded from elsewhere."""

from __future__ import annotations

from html import escape

from tnmars.arguments import check_arguments
from tnmars.draw.svg import svg
from tnmars.graph import Graph
from tnmars.graph.counts import count
from tnmars.text.numbers import number

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
svg { max-width: 100%; height: auto; }
pre { overflow-x: auto; padding: 1rem; border: 1px solid color-mix(in srgb, currentColor 25%, transparent); }
"""


def html(graph: Graph) -> str:
    """The page."""
    check_arguments(html, locals())
    numbers = count(graph)
    title = escape(graph.name or graph.kind)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="generator" content="tnmars show">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_STYLE}</style>
<h1>{title}</h1>
<p>{numbers.cores:,} parameters in the cores, {number(numbers.dense)} in the dense weight: {numbers.sentence}.</p>
{svg(graph)}
<pre>{escape(str(graph))}</pre>
</html>
"""
