"""Google-style docstrings as values: a summary, the prose below it, and named sections with their entries.

It knows text alone. What a docstring belongs to, and whether it is complete, is decided elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import cleandoc
from textwrap import dedent

SECTIONS = ("Args", "Attributes", "Shape", "Returns", "Yields", "Raises", "Warns", "Example", "Note")
"""The sections that a docstring may have, in the order in which a page shows them."""
PLURALS = {"Examples": "Example", "Arguments": "Args", "Shapes": "Shape", "Notes": "Note", "Fields": "Attributes"}

HEADING = re.compile(rf"^({'|'.join((*SECTIONS, *PLURALS))}):$")
ENTRY = re.compile(r"^(?P<names>\*{0,2}\w[\w.]*(?:, \*{0,2}\w[\w.]*)*)(?: \([^)]*\))?:(?: (?P<text>.*))?$")
"""The first line of an entry, such as `graph: A graph.` or `batch, image (int): Nominal sizes.`"""


@dataclass(frozen=True)
class Docstring:
    """A docstring in parts. Paragraphs keep their line breaks, as Markdown does."""

    summary: str = ""
    """The first paragraph, on one line."""
    body: str = ""
    """The paragraphs between the summary and the first section."""
    sections: Mapping[str, str] = field(default_factory=dict)

    def entries(self, section: str) -> dict[str, str]:
        """The entries of a section by name, each on one line; empty if the section is prose.

        >>> parse("A.\\n\\nArgs:\\n    x: One\\n        number.\\n    y, z: Others.\\n").entries("Args")
        {'x': 'One number.', 'y': 'Others.', 'z': 'Others.'}
        """
        entries: dict[str, str] = {}
        names: list[str] = []
        for line in self.sections.get(section, "").splitlines():
            first = ENTRY.match(line)
            if first:
                names = [name.lstrip("*") for name in first["names"].split(", ")]
                entries |= dict.fromkeys(names, first["text"] or "")
            elif line.strip():
                entries |= {name: f"{entries[name]} {line.strip()}".strip() for name in names}
        return entries


def parse(text: str | None) -> Docstring:
    """The parts of a docstring. A doctest outside of any section counts as its example.

    >>> found = parse("A number.\\n\\nIt is large.\\n\\n>>> 1 + 1\\n2\\n\\nRaises:\\n    TypeError: Never.\\n")
    >>> found.summary, found.body, found.sections
    ('A number.', 'It is large.', {'Example': '>>> 1 + 1\\n2', 'Raises': 'TypeError: Never.'})
    """
    parts: dict[str, list[str]] = {"": []}
    current = ""
    for line in cleandoc(text or "").splitlines():
        heading = HEADING.match(line)
        if heading:
            current = PLURALS.get(heading[1], heading[1])
        elif line and not line.startswith(" ") and current:
            current = ""
        if not heading:
            parts.setdefault(current, []).append(line)
    prose, loose = _apart("\n".join(parts.pop("")))
    sections = {name: dedent("\n".join(lines)).strip("\n") for name, lines in parts.items()}
    if loose:
        sections = {"Example": "\n\n".join(filter(None, (loose, sections.pop("Example", "")))), **sections}
    summary, _, body = prose.strip().partition("\n\n")
    return Docstring(summary.replace("\n", " "), body.strip(), sections)


def _apart(prose: str) -> tuple[str, str]:
    """Paragraphs of text, and those that are doctests."""
    paragraphs = [part.strip("\n") for part in re.split(r"\n{2,}", prose) if part.strip()]
    texts = [part for part in paragraphs if not part.lstrip().startswith(">>>")]
    tests = [part for part in paragraphs if part.lstrip().startswith(">>>")]
    return "\n\n".join(texts), "\n\n".join(tests)
