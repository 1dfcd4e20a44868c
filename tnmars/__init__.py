"""tnmars: a compiler from tensor-network graphs to PyTorch modules, with automatic rank selection.

Public names are loaded on first use, so that reading and checking graphs starts without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "export_onnx": "export",
    "write_source": "export",
    "ShutSlices": "dropping",
    "CheckpointError": "errors",
    "summary": "summaries",
    "report": "reporting",
    "load_checkpoint": "checkpoint",
    "save_checkpoint": "checkpoint",
    "load_into": "store",
    "save": "store",
    "keep": "pruning",
    "prune_": "pruning",
    "prune": "pruning",
    "param_groups": "objective",
    "expected": "objective",
    "penalty": "objective",
    "MaskSchedule": "schedule",
    "Selector": "select",
    "Annealed": "select",
    "FitWarning": "fitting",
    "Fitted": "fitting",
    "fit": "fitting",
    "Fixed": "select",
    "GaussianGates": "select",
    "Mars": "select",
    "freeze": "frozen",
    "compile": "compiler",
    "cached": "frozen",
    "TNModule": "module",
    "ShapeError": "errors",
    "CostModel": "plan.cost",
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
    "Annealed",
    "Builder",
    "CheckpointError",
    "Core",
    "CostModel",
    "Count",
    "Edge",
    "FitWarning",
    "Fitted",
    "Fixed",
    "GaussianGates",
    "Graph",
    "GraphError",
    "Mars",
    "MaskSchedule",
    "Operand",
    "Problem",
    "Role",
    "Selector",
    "ShapeError",
    "ShutSlices",
    "SpecError",
    "TNModule",
    "Term",
    "TnmarsError",
    "__version__",
    "cached",
    "compile",
    "count",
    "draw",
    "dump",
    "expected",
    "export_onnx",
    "factor",
    "factor_up",
    "families",
    "fit",
    "freeze",
    "keep",
    "lint",
    "load",
    "load_checkpoint",
    "load_into",
    "loads",
    "network",
    "param_groups",
    "penalty",
    "prune",
    "prune_",
    "report",
    "save",
    "save_checkpoint",
    "save_spec",
    "spec",
    "summary",
    "topology",
    "write_source",
]

if TYPE_CHECKING:
    from tnmars import draw, families, lint, spec, topology
    from tnmars.checkpoint import load_checkpoint, save_checkpoint
    from tnmars.compiler import compile
    from tnmars.counts import Count, count
    from tnmars.dropping import ShutSlices
    from tnmars.dsl import Builder, network
    from tnmars.errors import CheckpointError, GraphError, Problem, ShapeError, SpecError, TnmarsError
    from tnmars.export import export_onnx, write_source
    from tnmars.fitting import Fitted, FitWarning, fit
    from tnmars.frozen import cached, freeze
    from tnmars.graph import Core, Edge, Graph, Operand, Role, Term
    from tnmars.modes import factor, factor_up
    from tnmars.module import TNModule
    from tnmars.objective import expected, param_groups, penalty
    from tnmars.plan.cost import CostModel
    from tnmars.pruning import keep, prune, prune_
    from tnmars.reporting import report
    from tnmars.schedule import MaskSchedule
    from tnmars.select import Annealed, Fixed, GaussianGates, Mars, Selector
    from tnmars.spec import dump, load, loads, save_spec
    from tnmars.store import load_into, save
    from tnmars.summaries import summary


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"tnmars.{name}")
    if name in _HOME:
        return getattr(import_module(f"tnmars.{_HOME[name]}"), name)
    raise AttributeError(f"module 'tnmars' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
