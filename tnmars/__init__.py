"""tnmars: a compiler from tensor-network graphs to PyTorch modules, with automatic rank selection.

Public names are loaded on first use, so that reading and checking graphs starts without torch.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as in typing, whose import takes longer than all else before a command can be interrupted
if TYPE_CHECKING:
    import typing

__version__ = "0.1.0"

_PUBLIC = {
    "compiler": "compile",
    "decomposing.canonical": "Canonical canonical",
    "decomposing.decompose": "Decomposed decompose",
    "decomposing.metric": "Metric",
    "dsl": "Builder network",
    "errors": "CheckpointError GraphError PatternError Problem ShapeError SpecError TnmarsError",
    "fitting": "FitWarning Fitted fit",
    "graph": "Core Edge Graph Operand Role Term",
    "graph.counts": "Count count",
    "graph.factor": "factor factor_up",
    "layer.module": "TNModule",
    "models.adapters": "adapter_ merge_adapters_ print_trainable_parameters",
    "models.back": "as_torch_ to_dense_",
    "models.compression": "CompressionWarning compress_ plan_compression",
    "models.constructors": "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d Embedding Linear",
    "models.ensemble": "ensemble",
    "models.from_dense": "from_dense",
    "models.gated": "gate_",
    "models.matching": "match_",
    "models.one_tensor": "tie_",
    "models.parametrize": "parametrize_",
    "models.plan": "CompressionPlan",
    "models.recurrent": "GRU LSTM",
    "models.suggesting": "Suggestion Suggestions suggest",
    "notation.equation": "einsum",
    "plan.cost": "CostModel",
    "pruning.prune_model": "keep prune prune_",
    "pruning.shut_slices": "ShutSlices",
    "pruning.widening": "widen_",
    "reporting": "report",
    "reporting.summary": "summary",
    "searching.search": "search_ranks",
    "searching.value": "RankSearch Trial",
    "select": "Annealed Ard Fixed GaussianGates Mars Selector",
    "ship.export": "export_onnx",
    "ship.freezing": "cached freeze",
    "ship.source": "write_source",
    "shrinking.curve": "Curve Point load_curve",
    "shrinking.rule": "ShrinkWarning",
    "shrinking.settings": "Staircase",
    "shrinking.shrink": "shrink",
    "shrinking.stage": "Stage",
    "shrinking.stages": "Stages",
    "spec": "dump load loads save_spec",
    "store.checkpoint": "load_checkpoint save_checkpoint",
    "store.adapters": "load_adapters_ save_adapters",
    "store.model": "load_into save",
    "training.estimators": "gate_gradient_",
    "training.joined": "sampled",
    "training.objective": "expected param_groups penalty",
    "training.schedule": "MaskSchedule",
}
"""The public names of each module."""
_MODULES = {name: name for name in ("draw", "families", "integrations", "interchange", "spec")}
_MODULES |= {"lint": "graph.lint", "topology": "graph.topology"}
"""The modules that are public names themselves."""
_HOME = {name: module for module, names in _PUBLIC.items() for name in names.split()}

__all__ = ["__version__", *_HOME, *_MODULES]

if TYPE_CHECKING:  # the same list again, for type checkers; a test compares the two
    from tnmars import draw as draw
    from tnmars import families as families
    from tnmars import integrations as integrations
    from tnmars import interchange as interchange
    from tnmars import spec as spec
    from tnmars.compiler import compile as compile
    from tnmars.decomposing.canonical import Canonical as Canonical
    from tnmars.decomposing.canonical import canonical as canonical
    from tnmars.decomposing.decompose import Decomposed as Decomposed
    from tnmars.decomposing.decompose import decompose as decompose
    from tnmars.decomposing.metric import Metric as Metric
    from tnmars.dsl import Builder as Builder
    from tnmars.dsl import network as network
    from tnmars.errors import CheckpointError as CheckpointError
    from tnmars.errors import GraphError as GraphError
    from tnmars.errors import PatternError as PatternError
    from tnmars.errors import Problem as Problem
    from tnmars.errors import ShapeError as ShapeError
    from tnmars.errors import SpecError as SpecError
    from tnmars.errors import TnmarsError as TnmarsError
    from tnmars.fitting import Fitted as Fitted
    from tnmars.fitting import FitWarning as FitWarning
    from tnmars.fitting import fit as fit
    from tnmars.graph import Core as Core
    from tnmars.graph import Edge as Edge
    from tnmars.graph import Graph as Graph
    from tnmars.graph import Operand as Operand
    from tnmars.graph import Role as Role
    from tnmars.graph import Term as Term
    from tnmars.graph import lint as lint
    from tnmars.graph import topology as topology
    from tnmars.graph.counts import Count as Count
    from tnmars.graph.counts import count as count
    from tnmars.graph.factor import factor as factor
    from tnmars.graph.factor import factor_up as factor_up
    from tnmars.layer.module import TNModule as TNModule
    from tnmars.models.adapters import adapter_ as adapter_
    from tnmars.models.adapters import merge_adapters_ as merge_adapters_
    from tnmars.models.adapters import print_trainable_parameters as print_trainable_parameters
    from tnmars.models.back import as_torch_ as as_torch_
    from tnmars.models.back import to_dense_ as to_dense_
    from tnmars.models.compression import CompressionWarning as CompressionWarning
    from tnmars.models.compression import compress_ as compress_
    from tnmars.models.compression import plan_compression as plan_compression
    from tnmars.models.constructors import Conv1d as Conv1d
    from tnmars.models.constructors import Conv2d as Conv2d
    from tnmars.models.constructors import Conv3d as Conv3d
    from tnmars.models.constructors import ConvTranspose1d as ConvTranspose1d
    from tnmars.models.constructors import ConvTranspose2d as ConvTranspose2d
    from tnmars.models.constructors import ConvTranspose3d as ConvTranspose3d
    from tnmars.models.constructors import Embedding as Embedding
    from tnmars.models.constructors import Linear as Linear
    from tnmars.models.ensemble import ensemble as ensemble
    from tnmars.models.from_dense import from_dense as from_dense
    from tnmars.models.gated import gate_ as gate_
    from tnmars.models.matching import match_ as match_
    from tnmars.models.one_tensor import tie_ as tie_
    from tnmars.models.parametrize import parametrize_ as parametrize_
    from tnmars.models.plan import CompressionPlan as CompressionPlan
    from tnmars.models.recurrent import GRU as GRU
    from tnmars.models.recurrent import LSTM as LSTM
    from tnmars.models.suggesting import Suggestion as Suggestion
    from tnmars.models.suggesting import Suggestions as Suggestions
    from tnmars.models.suggesting import suggest as suggest
    from tnmars.notation.equation import einsum as einsum
    from tnmars.plan.cost import CostModel as CostModel
    from tnmars.pruning.prune_model import keep as keep
    from tnmars.pruning.prune_model import prune as prune
    from tnmars.pruning.prune_model import prune_ as prune_
    from tnmars.pruning.shut_slices import ShutSlices as ShutSlices
    from tnmars.pruning.widening import widen_ as widen_
    from tnmars.reporting import report as report
    from tnmars.reporting.summary import summary as summary
    from tnmars.searching.search import search_ranks as search_ranks
    from tnmars.searching.value import RankSearch as RankSearch
    from tnmars.searching.value import Trial as Trial
    from tnmars.select import Annealed as Annealed
    from tnmars.select import Ard as Ard
    from tnmars.select import Fixed as Fixed
    from tnmars.select import GaussianGates as GaussianGates
    from tnmars.select import Mars as Mars
    from tnmars.select import Selector as Selector
    from tnmars.ship.export import export_onnx as export_onnx
    from tnmars.ship.freezing import cached as cached
    from tnmars.ship.freezing import freeze as freeze
    from tnmars.ship.source import write_source as write_source
    from tnmars.shrinking.curve import Curve as Curve
    from tnmars.shrinking.curve import Point as Point
    from tnmars.shrinking.curve import load_curve as load_curve
    from tnmars.shrinking.rule import ShrinkWarning as ShrinkWarning
    from tnmars.shrinking.settings import Staircase as Staircase
    from tnmars.shrinking.shrink import shrink as shrink
    from tnmars.shrinking.stage import Stage as Stage
    from tnmars.shrinking.stages import Stages as Stages
    from tnmars.spec import dump as dump
    from tnmars.spec import load as load
    from tnmars.spec import loads as loads
    from tnmars.spec import save_spec as save_spec
    from tnmars.store.adapters import load_adapters_ as load_adapters_
    from tnmars.store.adapters import save_adapters as save_adapters
    from tnmars.store.checkpoint import load_checkpoint as load_checkpoint
    from tnmars.store.checkpoint import save_checkpoint as save_checkpoint
    from tnmars.store.model import load_into as load_into
    from tnmars.store.model import save as save
    from tnmars.training.estimators import gate_gradient_ as gate_gradient_
    from tnmars.training.joined import sampled as sampled
    from tnmars.training.objective import expected as expected
    from tnmars.training.objective import param_groups as param_groups
    from tnmars.training.objective import penalty as penalty
    from tnmars.training.schedule import MaskSchedule as MaskSchedule


def __getattr__(name: str) -> typing.Any:
    if name in _MODULES:
        return import_module(f"tnmars.{_MODULES[name]}")
    if name in _HOME:
        return getattr(import_module(f"tnmars.{_HOME[name]}"), name)
    raise AttributeError(f"module 'tnmars' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
