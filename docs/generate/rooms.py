"""The rooms of the house: the folders of the package, and what they import from each other.

A folder is a room, and its title is the first words of its docstring. The few modules at the top are grouped here. No
two rooms import from each other, or the functions below raise.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import tnmars

PACKAGE = Path(tnmars.__file__).parent

TOP = {
    "errors": "ground",
    "files": "ground",
    "text": "ground",
    "weight": "declare",
    "families": "declare",
    "dsl": "declare",
    "spec": "declare",
}
"""The room of a module at the top, or of a folder that shares its room with modules; others are rooms of their own."""
TITLES = {"ground": "Errors, files and text", "declare": "Declaring a graph", "compiler": "Compiling"}


@dataclass(frozen=True)
class Room:
    """A group of modules; a name that ends in `/` is a folder with all that is in it."""

    name: str
    title: str
    modules: tuple[str, ...]


@cache
def rooms() -> tuple[Room, ...]:
    """The rooms, each with its folder and its modules at the top."""
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.iterdir()):
        if path.is_dir() and (path / "__init__.py").exists():
            found.setdefault(room_of(path.name), []).append(f"{path.name}/")
        elif path.suffix == ".py" and not path.stem.startswith("__"):
            found.setdefault(room_of(path.stem), []).append(path.stem)
    return tuple(Room(name, TITLES.get(name) or _title(name), tuple(names)) for name, names in found.items())


def _title(folder: str) -> str:
    text = ast.get_docstring(ast.parse((PACKAGE / folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return text.partition(":")[0].partition(".")[0]


def room_of(module: str) -> str:
    """The room that a module is in."""
    top = module.partition(".")[0]
    return "cli" if top == "__main__" else TOP.get(top, top)


def modules() -> dict[str, Path]:
    """The files of the package by module, without the package's own `__init__`."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    del found[""]
    return found


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of ours that a file imports, late ones too, but not those for type checking alone."""
    found = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            ours = name.removeprefix("tnmars.") if name.startswith("tnmars.") else ""
            found |= set([module for module in (ours, ours.rpartition(".")[0]) if module in known][:1])
    return found


@cache
def uses() -> dict[str, frozenset[str]]:
    """For each room the rooms that it imports from. Raises `CycleError` where two import from each other."""
    known = modules()
    found: dict[str, set[str]] = {room.name: set() for room in rooms()}
    for module, path in known.items():
        own = room_of(module)
        found[own] |= {room_of(other) for other in imports(path, known)} - {own}
    TopologicalSorter(found).prepare()
    return {room: frozenset(others) for room, others in found.items()}


def arrows() -> set[tuple[str, str]]:
    """The imports that do not follow from others: from a room to one that imports from it."""
    known = uses()

    def below(room: str) -> set[str]:
        return set(known[room]).union(*(below(other) for other in known[room]))

    return {
        (other, room)
        for room, others in known.items()
        for other in others
        if not any(other in below(between) for between in others if between != other)
    }
