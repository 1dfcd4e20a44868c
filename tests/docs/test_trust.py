"""docs/trust.md: each promise names tests that hold it, and those tests exist."""

from __future__ import annotations

import ast
import re

from kit import ROOT

PAGE = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
NAMED = re.findall(r"^\* `(tests/[\w/]+\.py)::(\w+)`$", PAGE, re.MULTILINE)


def missing(named: list[tuple[str, str]]) -> list[str]:
    """The tests that a page names and that do not exist."""
    wrong = []
    for file, name in named:
        path = ROOT / file
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
        if name not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
            wrong.append(f"{file}::{name}")
    return wrong


def test_every_test_that_is_named_exists() -> None:
    assert len(NAMED) > 25
    assert missing(NAMED) == []
    assert missing([("tests/test_files.py", "test_no_such"), ("tests/no.py", "test_x")]) == [
        "tests/test_files.py::test_no_such",
        "tests/no.py::test_x",
    ]


def test_every_promise_names_a_test() -> None:
    """A promise is a paragraph that begins in bold; what follows it, up to the next one, has a test."""
    promises = re.split(r"^(?=\*\*|## )", PAGE, flags=re.MULTILINE)[1:]
    bold = [part for part in promises if part.startswith("**")]
    assert len(bold) > 10
    assert [part.splitlines()[0] for part in bold if "* `tests/" not in part] == []


def test_every_bullet_is_a_test() -> None:
    assert re.findall(r"^\* ", PAGE, re.MULTILINE) == ["* "] * len(NAMED)


def test_the_page_is_linked() -> None:
    assert "docs/trust.md" in (ROOT / "README.md").read_text(encoding="utf-8")
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert "(trust.md)" in index and "\ntrust\n" in index
