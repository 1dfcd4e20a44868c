"""Small pieces of Markdown: tables and blocks of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NOTICE = "<!-- Written by `python docs/generate`: change tnmars/, not this page. -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; `|` in a cell is escaped, because it would end the cell."""
    lines = [tuple(head), ("---",) * len(head), *map(tuple, rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: str) -> str:
    """Text as code."""
    return f"`{text}`"


def codes(texts: Iterable[object]) -> str:
    """Several texts as code, with commas."""
    return ", ".join(code(str(text)) for text in texts)


def block(text: str, language: str = "text") -> str:
    """Lines of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def page(*parts: str) -> str:
    """A whole page: the notice below its title, and an empty line between parts."""
    title, *rest = parts
    return "\n\n".join((title, NOTICE, *rest)) + "\n"
