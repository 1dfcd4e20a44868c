"""Pictures of graphs: SVG, HTML, PDF, PNG, TikZ and Graphviz files, and characters for a terminal.

`svg`, `html`, `dot`, `tikz` and `terminal` return text, `pdf` and `png` bytes. `pair` draws two graphs, before and
after; `svg`, `tikz`, `pdf` and `png` take its result in place of a graph. PDF and PNG files need matplotlib, which
`pip install 'tnmars[viz]'` installs.

Example:
    >>> from tnmars import draw, families
    >>> graph = families.tt("linear", inputs=(4, 4), outputs=(3, 3), rank=2)
    >>> print(draw.terminal(graph))
    i1:4    i2:4
     │       │
    G1─r1:2─G2
     │       │
    o1:3    o2:3
"""

from tnmars.draw.dot import dot
from tnmars.draw.figure import pdf, png
from tnmars.draw.html import html
from tnmars.draw.layout import Layout, layout
from tnmars.draw.picture import pair, picture
from tnmars.draw.shapes import Picture
from tnmars.draw.svg import svg
from tnmars.draw.terminal import terminal
from tnmars.draw.tikz import tikz

__all__ = ["Layout", "Picture", "dot", "html", "layout", "pair", "pdf", "picture", "png", "svg", "terminal", "tikz"]
