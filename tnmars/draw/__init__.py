"""Drawings: a graph as an SVG file, a page, Graphviz text, or characters for a terminal."""

from tnmars.draw.dot import dot
from tnmars.draw.html import html
from tnmars.draw.layout import Layout, layout
from tnmars.draw.svg import svg
from tnmars.draw.terminal import terminal

__all__ = ["Layout", "dot", "html", "layout", "svg", "terminal"]
