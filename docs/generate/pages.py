"""Which pages are generated, and what they hold now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import api_page
import architecture_page
import cli_page
import files_page
import picture
import readme_page
import results_page
import spec_page

DOCS = Path(__file__).parent.parent
PAGES: dict[str, Callable[[], str]] = {
    "reference/spec.md": spec_page.text,
    "reference/cli.md": cli_page.text,
    "reference/files.md": files_page.text,
    "reference/python.md": api_page.text,
    **api_page.pages(),
    "architecture.md": architecture_page.text,
    "images/modules.svg": picture.text,
    "results.md": results_page.text,
    "../README.md": readme_page.text,
}
"""For each file, by its place in the docs, the function that returns its text."""


def stale() -> dict[str, str]:
    """The text of every page that is not as its function returns it."""
    made = {name: make() for name, make in PAGES.items()}
    return {name: text for name, text in made.items() if _written(name) != text}


def _written(name: str) -> str:
    path = DOCS / name
    return path.read_text(encoding="utf-8") if path.exists() else ""
