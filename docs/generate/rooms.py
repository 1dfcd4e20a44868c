"""The rooms of the house: the folders of the package, their files, and what they import from each other.

A folder is a room, and its docstring says what it is for. Modules at the top level are rooms too; those that belong
together are drawn as one group. No two rooms import from each other, or `uses` raises.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import tnmars

PACKAGE = Path(tnmars.__file__).parent

ORDER = (
    *("errors", "arguments", "files", "text", "graph", "weight", "families", "spec", "dsl", "notation", "draw", "plan"),
    *("program", "select", "layer", "timing", "training", "decomposing", "pruning", "compiler", "models"),
    *("interchange", "store", "ship", "fitting", "searching", "reporting", "shrinking", "integrations", "experiments"),
    *("bench", "cli"),
)
"""The rooms in the order of tests/test_layering.py: each imports only from those before it."""
GROUPS = {
    "ground": ("errors", "arguments", "files", "text"),
    "declare": ("weight", "families", "dsl", "notation", "spec"),
    "compiler": ("compiler",),
}
"""Rooms that are drawn as one, by the name of their group; every other folder is drawn by itself."""
TITLES = {"ground": "Errors, files and text", "declare": "Declaring a graph", "compiler": "Compiling"}


@dataclass(frozen=True)
class Room:
    """A folder of the package, or a module at its top level."""

    name: str
    meaning: str
    """The first paragraph of its docstring."""
    files: tuple[str, ...] = ()
    """The modules of a folder, such as `graph` or `kinds/base`; empty for a module."""

    @property
    def is_folder(self) -> bool:
        return (PACKAGE / self.name).is_dir()

    @property
    def label(self) -> str:
        """How the room is written: `graph/`, `families.py`."""
        return f"{self.name}/" if self.is_folder else f"{self.name}.py"


@dataclass(frozen=True)
class Group:
    """The rooms that are drawn as one."""

    name: str
    title: str
    rooms: tuple[Room, ...]


@cache
def rooms() -> dict[str, Room]:
    """Every room by name."""
    found = {}
    for path in sorted(PACKAGE.iterdir()):
        if (path / "__init__.py").exists():
            inner = (entry for entry in path.rglob("*.py") if not entry.stem.startswith("__"))
            files = tuple(sorted(entry.relative_to(path).with_suffix("").as_posix() for entry in inner))
            found[path.name] = Room(path.name, first_paragraph(path / "__init__.py"), files)
        elif path.suffix == ".py" and not path.stem.startswith("__"):
            found[path.stem] = Room(path.stem, first_paragraph(path))
    return found


def first_paragraph(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n\n")[0].replace("\n", " ")


def in_order() -> list[Room]:
    """The rooms, each after those that it may import from. Raises `LookupError` for one that is not in `ORDER`."""
    known = rooms()
    for name in sorted(known.keys() - set(ORDER)):
        raise LookupError(f"'{name}' is new: add it to ORDER in {Path(__file__).name}, below all that it imports")
    return [known[name] for name in ORDER if name in known]


@cache
def groups() -> tuple[Group, ...]:
    """What is drawn as one: the groups above, and every other room by itself."""
    known = rooms()
    names = {name: tuple(room for room in members if room in known) for name, members in GROUPS.items()}
    names |= {name: (name,) for name in known if name not in {room for members in names.values() for room in members}}
    return tuple(
        Group(name, TITLES.get(name) or _title(known[members[0]]), tuple(known[room] for room in members))
        for name, members in names.items()
    )


def _title(room: Room) -> str:
    """The words of a docstring before its first colon or full stop."""
    return room.meaning.partition(":")[0].partition(".")[0]


def room_of(module: str) -> str:
    """The room that a module is in."""
    top = module.partition(".")[0]
    return "cli" if top == "__main__" else top


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
    found: dict[str, set[str]] = {room: set() for room in rooms()}
    for module, path in known.items():
        own = room_of(module)
        found[own] |= {room_of(other) for other in imports(path, known)} - {own}
    TopologicalSorter(found).prepare()
    return {room: frozenset(others) for room, others in found.items()}
