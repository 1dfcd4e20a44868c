"""The tests themselves: each of them can fail, and each lies in the folder of its room."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from kit import ROOT

import tnmars

TESTS = ROOT / "tests"
FILES = sorted(path for path in TESTS.rglob("test_*.py"))
SHARED = [TESTS / "kit.py", TESTS / "oracle.py"]
CHECKS = ("pytest.raises", "pytest.fail", "pytest.warns", "exec")
"""Calls that fail by themselves; beside these, every function of a library whose name begins with `assert_`."""


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def fails_by_itself(node: ast.AST) -> bool:
    """Whether a statement or a call can make a test fail."""
    if isinstance(node, (ast.Assert, ast.Raise)):
        return True
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    if name in CHECKS or name.rpartition(".")[2].startswith("assert_"):
        return True
    if name == "subprocess.run":
        return any(word.arg == "check" and ast.unparse(word.value) == "True" for word in node.keywords)
    return name == "warnings.simplefilter" and bool(node.args) and ast.unparse(node.args[0]) == "'error'"


def checking(tree: ast.Module, known: frozenset[str] = frozenset()) -> set[str]:
    """The names of functions that can fail, by themselves or through one that they call by its name."""
    found = set(known)
    calls = {}
    for function in functions(tree):
        inside = list(ast.walk(function))
        calls[function.name] = {ast.unparse(node.func) for node in inside if isinstance(node, ast.Call)}
        if any(map(fails_by_itself, inside)):
            found.add(function.name)
    while more := {name for name, called in calls.items() if name not in found and called & found}:
        found |= more
    return found


@cache
def shared() -> frozenset[str]:
    return frozenset().union(*(checking(ast.parse(path.read_text(encoding="utf-8"))) for path in SHARED))


def cannot_fail(source: str, known: frozenset[str] = frozenset()) -> list[str]:
    """The tests of a file that assert nothing."""
    tree = ast.parse(source)
    good = checking(tree, known)
    return [function.name for function in functions(tree) if function.name[:5] == "test_" and function.name not in good]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_every_test_can_fail(path: Path) -> None:
    assert cannot_fail(path.read_text(encoding="utf-8"), shared()) == []


@pytest.mark.parametrize(
    ("body", "can_fail"),
    [
        ("f()", False),
        ("subprocess.run(x, check=False)", False),
        ("assert f()", True),
        ("helper()", True),
        ("through()", True),
        ("torch.testing.assert_close(a, b)", True),
        ("with pytest.raises(ValueError): f()", True),
        ("subprocess.run(x, check=True)", True),
    ],
)
def test_a_test_without_an_assertion_is_seen(body: str, can_fail: bool) -> None:
    """A test of the test."""
    source = f"def helper():\n    assert x\ndef through():\n    helper()\ndef test_it():\n    {body}\n"
    assert (cannot_fail(source) == []) is can_fail


def test_every_folder_is_a_room() -> None:
    rooms = {path.name for path in Path(tnmars.__file__).parent.iterdir() if path.is_dir()}
    folders = {path.parent.relative_to(TESTS).as_posix() for path in FILES} - {"."}
    assert folders - rooms <= {"attacks", "bench", "docs"}
    assert rooms - {"__pycache__"} - folders <= {"bench"}
