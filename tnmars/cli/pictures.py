"""Picture files: which endings there are, and what writes each."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import click

from tnmars.cli.outputs import check_output
from tnmars.graph import Graph

STARTS = {
    ".svg": rb'<svg xmlns="http://www.w3.org/2000/svg" class="tnmars" ',
    ".png": rb"\x89PNG.{33}tEXtSoftware\0tnmars",
    ".tex": rb"% Written by tnmars: ",
    ".html": rb'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="generator" content="tnmars show',
    ".dot": rb"// Written by tnmars\n",
    ".pdf": rb"%PDF-",
}
"""What every picture of ours starts with, by the ending of its name. A document of the user's may contain a picture."""
END_OF_PDF = re.compile(rb"trailer\n<< [^<>]*/Info (\d+) 0 R >>\nstartxref\n\d+\n%%EOF\n\Z")


def check_picture(output: str, *read: str) -> None:
    """Refuses to write a picture over an input, or over a file that this command did not write."""
    check_output(output, read, _is_ours, "a picture that tnmars drew")


def _is_ours(path: Path) -> bool:
    """Whether a file is a picture of the kind that its name ends in, as we write it."""
    ending = path.suffix.lower()
    try:
        data = path.read_bytes()
    except OSError:
        return False
    if ending not in STARTS or not re.match(STARTS[ending], data, re.DOTALL):
        return False
    return ending != ".pdf" or _names_us(data)


def _names_us(data: bytes) -> bool:
    """Whether a PDF file names us as its creator, and nothing was added to it."""
    end = END_OF_PDF.search(data)
    return (
        end is not None
        and data.count(b"%%EOF") == 1
        and b"\n%b 0 obj\n<< /Creator (tnmars) >>\n" % end.group(1) in data
    )


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
