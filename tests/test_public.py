"""The public names: the list that loads them is the list that type checkers see, and no module hides a name of it."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import tnmars

SOURCE = Path(tnmars.__file__).read_text(encoding="utf-8")


def declared(source: str) -> dict[str, str]:
    """The names that type checkers see, each with the dotted name of what it stands for."""
    blocks = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_type_checkers_see_the_names_that_are_loaded() -> None:
    loaded = {name: f"tnmars.{module}.{name}" for name, module in tnmars._HOME.items()}
    loaded |= {name: f"tnmars.{module}" for name, module in tnmars._MODULES.items()}
    assert declared(SOURCE) == loaded


def test_a_name_that_only_one_list_has_is_seen() -> None:
    """A test of the test."""
    assert "load" in declared(SOURCE)
    less = SOURCE.replace("    from tnmars.spec import load as load\n", "")
    assert declared(SOURCE).keys() - declared(less).keys() == {"load"}


def test_no_name_stands_in_the_list_twice() -> None:
    names = [name for names in tnmars._PUBLIC.values() for name in names.split()]
    assert len(names) == len({*names, *tnmars._MODULES}) - len(tnmars._MODULES)


@pytest.mark.parametrize("name", sorted(set(tnmars.__all__) - {"__version__"}))
def test_a_public_name_is_what_its_module_has(name: str) -> None:
    if name in tnmars._MODULES:
        assert getattr(tnmars, name) is import_module(f"tnmars.{tnmars._MODULES[name]}")
    else:
        assert getattr(tnmars, name) is getattr(import_module(f"tnmars.{tnmars._HOME[name]}"), name)


EVERYTHING = """
import pkgutil, types
from importlib import import_module
import tnmars
for module in pkgutil.walk_packages(tnmars.__path__, "tnmars."):
    if not module.name.endswith("__main__"):
        try:
            import_module(module.name)
        except ImportError as problem:
            assert "tnmars" not in (problem.name or ""), problem  # a library that is not installed
hidden = [name for name in tnmars._HOME if isinstance(getattr(tnmars, name), types.ModuleType)]
assert not hidden, hidden
"""


def test_no_module_hides_a_public_name() -> None:
    """In a fresh interpreter that imports every module, because an import puts a module's name into its package."""
    subprocess.run([sys.executable, "-c", EVERYTHING], check=True)
