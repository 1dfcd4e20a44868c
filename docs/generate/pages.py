"""Which pages are generated, and what they hold now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import api_page
import architecture_page
import cli_page
import compress_page
import files_page
import picture
import readme_page
import results_page
import shrink_page
import spec_page

from tnmars import draw, load

DOCS = Path(__file__).parent.parent
PAGES: dict[str, Callable[[], str]] = {
    "reference/spec.md": spec_page.text,
    "reference/cli.md": cli_page.text,
    "reference/files.md": files_page.text,
    "reference/python.md": api_page.text,
    **api_page.pages(),
    "architecture.md": architecture_page.text,
    "images/modules.svg": picture.text,
    "images/tt_linear.svg": lambda: _drawn("tt_linear"),
    "images/pruned_linear.svg": lambda: _drawn("pruned_linear"),
    "results.md": results_page.text,
    "trained_model.md": compress_page.text,
    "shrink.md": shrink_page.text,
    "../README.md": readme_page.text,
}
"""For each file, by its place in the docs, the function that returns its text."""


def _drawn(name: str) -> str:
    """The picture of a spec. The pruned one knows the ranks it was pruned from, so both have one scale."""
    return draw.svg(load(DOCS.parent / "specs" / f"{name}.yaml"))


def stale() -> dict[str, str]:
    """The text of every page that is not as its function returns it."""
    made = {name: make() for name, make in PAGES.items()}
    return {name: text for name, text in made.items() if _written(name) != text}


def _written(name: str) -> str:
    path = DOCS / name
    return path.read_text(encoding="utf-8") if path.exists() else ""
