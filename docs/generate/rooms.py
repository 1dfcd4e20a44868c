"""The rooms of the house: the modules of the package in a few groups, and what the groups import from each other.

Which modules share a room is said here; what rooms import from each other is read from the files. Every module is in
one room, and no two rooms import from each other, or the functions below raise.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import tnmars

PACKAGE = Path(tnmars.__file__).parent


@dataclass(frozen=True)
class Room:
    """A group of modules; a name that ends in `/` is a package with all that is in it."""

    name: str
    title: str
    modules: tuple[str, ...]


def _room(name: str, title: str, modules: str) -> Room:
    return Room(name, title, tuple(modules.split()))


ROOMS = (
    _room("ground", "Words and rules", "errors kinds parts options rules files flow"),
    _room("graph", "The graph", "graph rewrite counts topology lint difference"),
    _room("write", "Writing a graph", "spec/ dsl families frame modes"),
    _room("draw", "Drawings", "draw/"),
    _room("plan", "Plans", "plan/"),
    _room("program", "Programs", "program verify masking emit forms choice estimate audit measure plans explain"),
    _room("select", "Gates and selectors", "gates select/ masks"),
    _room("layer", "The layer", "module runnable faces bags opening scaling chunks init price sharded"),
    _room("compile", "Compiling", "compiler tuning calibrate"),
    _room("train", "Training", "objective schedule"),
    _room("prune", "Pruning", "pruning follow dropping"),
    _room("store", "Files and export", "store checkpoint container record optimizers jsonable cutting frozen export"),
    _room("fit", "Fitting a tensor", "fitting/"),
    _room("report", "Reports", "reporting/ summaries"),
    _room("bench", "Benchmark", "bench/"),
    _room("experiments", "Experiments", "experiments/"),
    _room("cli", "Command line", "cli/ __main__"),
)


def modules() -> dict[str, Path]:
    """The files of the package by module, without the package's own `__init__`."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    del found[""]
    return found


def room_of(module: str) -> str:
    """The room that a module is in. Raises `LookupError` where there is none, or more than one."""
    wanted = f"{module.partition('.')[0]}/" if (PACKAGE / module.partition(".")[0]).is_dir() else module
    found = [room.name for room in ROOMS if wanted in room.modules]
    if len(found) != 1:
        raise LookupError(f"tnmars.{module} is in {len(found)} rooms: put it into one in docs/generate/rooms.py")
    return found[0]


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
    found: dict[str, set[str]] = {room.name: set() for room in ROOMS}
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
