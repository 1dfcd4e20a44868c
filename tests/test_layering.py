"""The layers of the package: a room imports only from rooms above it, and torch only below the line.

The table is the layout of the style guide. The modules of a room may import each other, but not in a circle.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tnmars

PACKAGE = Path(tnmars.__file__).parent

TORCH_LINE = "------- torch is allowed below this line -------"
ROOMS = f"""
errors
arguments
files
text
graph
weight
families
spec
dsl
notation
draw
plan
program
{TORCH_LINE}
select
layer
timing
training
decomposing
pruning
compiler
models
interchange
store
ship
fitting
searching
reporting
shrinking
integrations
experiments
bench
cli
__main__
""".strip().splitlines()
"""One line per room: a folder, or a module at the top. A room imports only from rooms above it."""

THIRD_PARTY = {
    "yaml": {"spec"},
    "networkx": {"graph", "draw"},
    "matplotlib": {"draw"},
    "opt_einsum": {"plan"},
    "cotengra": {"plan"},
}
"""Which rooms above the line may import a library; torch and numpy: none of them."""
TOP = 9
"""How many modules may stand at the top level of the package."""

HEAVY = ("torch", "numpy", "networkx", "opt_einsum", "rich", "hypothesis")
FOREIGN = ("tensorly", "tltorch", "tednet", "quimb", "transformers", "accelerate", "lightning", "torchao")
"""Libraries that are imported only when an object of theirs is made or read."""


def room(module: str) -> str:
    """The room that a module is in."""
    found = module.partition(".")[0]
    assert found in ROOMS, f"tnmars.{found} is new: add it to ROOMS in {Path(__file__).name}, below all that it imports"
    return found


def modules() -> dict[str, Path]:
    """Every module but the package's own `__init__`, which holds no logic."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = path
    return found


def imports(path: Path, names: dict[str, Path], source: str | None = None) -> set[str]:
    """The modules that a file imports, anywhere in it but for type checking alone; ours without the package's name."""
    tree = ast.parse(source if source is not None else path.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module
            base = node.module.removeprefix("tnmars").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".removeprefix(".")
                inside = node.module.split(".")[0] == "tnmars"
                found.add(f"tnmars.{inner if inner in names else base}" if inside else node.module)
    return {name.removeprefix("tnmars.") if name.startswith("tnmars.") else f"{name} (library)" for name in found} - {
        "tnmars (library)",
        "",
    }


MODULES = modules()


def complaints(module: str, imported: set[str]) -> list[str]:
    """What a module imports against the table."""
    own = room(module)
    free = ROOMS.index(own) > ROOMS.index(TORCH_LINE)
    found = []
    for name in sorted(imported):
        if not name.endswith(" (library)"):
            if ROOMS.index(room(name)) > ROOMS.index(own):
                found.append(f"{module} imports {name}, which stands below it")
            continue
        library = name.removesuffix(" (library)").partition(".")[0]
        if library in ("torch", "numpy") and not free:
            found.append(f"{module} imports {library}, which is allowed below the line only")
        if library in THIRD_PARTY and own not in THIRD_PARTY[library] and not free:
            found.append(f"{module} imports {library}, which is for {', '.join(sorted(THIRD_PARTY[library]))}")
        if library not in (*sys.stdlib_module_names, *THIRD_PARTY, "torch", "numpy", "safetensors", "click", "rich"):
            found.append(f"{module} imports {library}, which is no dependency")
    return found


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_above(module: str) -> None:
    assert complaints(module, imports(MODULES[module], MODULES)) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    packages = {name for name in MODULES if any(other.startswith(f"{name}.") for other in MODULES)}
    known = {
        name: {other for other in imports(path, MODULES) if other in MODULES and other not in packages}
        for name, path in MODULES.items()
        if name not in packages
    }
    try:
        order = list(TopologicalSorter(known).static_order())
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")
    assert "graph.graph" in order


def test_the_table_holds_no_module_that_is_gone() -> None:
    held = {room(name) for name in MODULES}
    assert [line for line in ROOMS if line != TORCH_LINE and line not in held] == []


def test_few_modules_stand_at_the_top() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= TOP


def test_the_search_for_imports_can_fail() -> None:
    """A test of the test: imports of every form are seen, late ones too, and those for types are not."""
    source = (
        "import torch.nn\nfrom tnmars import draw, families\nfrom tnmars.cli import graphs\n"
        "def f():\n    import networkx\nif TYPE_CHECKING:\n    from tnmars.graph import lint\n"
    )
    found = imports(Path("x.py"), MODULES, source)
    assert found == {"torch.nn (library)", "draw", "families", "cli.graphs", "networkx (library)"}
    assert complaints("spec.reader", found) == [
        "spec.reader imports cli.graphs, which stands below it",
        "spec.reader imports draw, which stands below it",
        "spec.reader imports networkx, which is for draw, graph",
        "spec.reader imports torch, which is allowed below the line only",
    ]
    with pytest.raises(AssertionError, match=r"tnmars\.nonsense is new: add it to ROOMS"):
        room("nonsense")


# --- a fresh interpreter ---------------------------------------------------------------------------------------------


def loaded(code: str) -> list[str]:
    """The heavy libraries that are loaded once some code has run in a fresh interpreter."""
    probe = f"import sys\n{code}\nprint(*[name for name in {(*HEAVY, *FOREIGN)!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def _above_the_line() -> list[str]:
    line = ROOMS.index(TORCH_LINE)
    return [name for name in MODULES if ROOMS.index(room(name)) < line]


def test_the_torch_free_half_loads_nothing_heavy() -> None:
    code = "\n".join(f"import tnmars.{name}" for name in _above_the_line())
    assert loaded(code) == []


def test_the_package_itself_loads_nothing_heavy() -> None:
    assert loaded("import tnmars") == []
    assert (
        loaded("import tnmars\ntnmars.load, tnmars.network, tnmars.families.tt, tnmars.Graph, tnmars.lint.lint") == []
    )
    assert loaded("from tnmars.cli import cli") == []


def test_no_foreign_library_is_loaded_before_it_is_needed() -> None:
    every = "\n".join(f"import tnmars.{name}" for name in MODULES if room(name) in ("interchange", "integrations"))
    assert not set(loaded(every)) & set(FOREIGN)


def test_the_probe_can_fail() -> None:
    """A test of the test: what is loaded is seen."""
    assert "networkx" in loaded("import networkx")
    assert "numpy" in loaded("import numpy")
