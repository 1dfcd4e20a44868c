"""Picture files: which endings there are, and what writes each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from tnmars.graph import Graph


def write_picture(output: str, before: Graph, after: Graph | None = None) -> None:
    """Writes a graph, or two of them side by side, in the format that the file's name ends in."""
    from tnmars import draw
    from tnmars.files import write_bytes

    ending = Path(output).suffix.lower()
    drawn: dict[str, Callable[[Graph | draw.Picture], str | bytes]]
    drawn = {".svg": draw.svg, ".pdf": draw.pdf, ".png": draw.png, ".tex": draw.tikz}
    single = {".html": draw.html, ".dot": draw.dot} if after is None else {}
    if ending not in {**drawn, **single}:
        endings = ", ".join((*drawn, *single))
        raise click.BadParameter(f"'{output}' must end in one of {endings}.", param_hint="--output")
    content: str | bytes
    if ending in single:
        content = single[ending](before)
    else:
        content = drawn[ending](before if after is None else draw.pair(before, after))
    write_bytes(output, [content.encode() if isinstance(content, str) else content])
