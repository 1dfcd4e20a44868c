"""Picture files: which endings there are, and what writes each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from tnmars.cli.outputs import check_output, holds
from tnmars.graph import Graph

MARKS = {
    ".svg": b'class="tnmars"',
    ".pdf": b"(tnmars)",
    ".png": b"Software\0tnmars",
    ".tex": b"% Written by tnmars",
    ".html": b'class="tnmars"',
    ".dot": b'fillcolor="#e6eefb"',
}
"""What every picture of ours contains, by the ending of its name."""


def check_picture(output: str, *read: str) -> None:
    """Refuses to write a picture over an input, or over a file that this command did not write."""
    mark = MARKS.get(Path(output).suffix.lower(), b"")  # any other ending is refused later
    check_output(output, read, holds(mark), "a picture that tnmars drew")


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
