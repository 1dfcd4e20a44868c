"""tnmars: a compiler from tensor-network graphs to PyTorch modules, with automatic rank selection.

Public names are loaded on first use, so that reading and checking graphs starts without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Builder": "dsl",
    "Core": "graph",
    "Count": "counts",
    "Edge": "graph",
    "Graph": "graph",
    "GraphError": "errors",
    "Operand": "graph",
    "Problem": "errors",
    "Role": "graph",
    "SpecError": "errors",
    "Term": "graph",
    "TnmarsError": "errors",
    "count": "counts",
    "dump": "spec",
    "factor": "modes",
    "factor_up": "modes",
    "load": "spec",
    "loads": "spec",
    "network": "dsl",
    "save_spec": "spec",
}
_MODULES = ("draw", "families", "lint", "spec", "topology")

__all__ = [
    "Builder",
    "Core",
    "Count",
    "Edge",
    "Graph",
    "GraphError",
    "Operand",
    "Problem",
    "Role",
    "SpecError",
    "Term",
    "TnmarsError",
    "__version__",
    "count",
    "draw",
    "dump",
    "factor",
    "factor_up",
    "families",
    "lint",
    "load",
    "loads",
    "network",
    "save_spec",
    "spec",
    "topology",
]

if TYPE_CHECKING:
    from tnmars import draw, families, lint, spec, topology
    from tnmars.counts import Count, count
    from tnmars.dsl import Builder, network
    from tnmars.errors import GraphError, Problem, SpecError, TnmarsError
    from tnmars.graph import Core, Edge, Graph, Operand, Role, Term
    from tnmars.modes import factor, factor_up
    from tnmars.spec import dump, load, loads, save_spec


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"tnmars.{name}")
    if name in _HOME:
        return getattr(import_module(f"tnmars.{_HOME[name]}"), name)
    raise AttributeError(f"module 'tnmars' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
