"""The graph: what it is, its rules, rewrites, counts, cuts, lint and differences."""

from tnmars.graph.graph import MAIN, Graph, Json
from tnmars.graph.kinds import Role
from tnmars.graph.parts import Axis, Core, Edge, Operand, Term
from tnmars.graph.window import Window

__all__ = ["MAIN", "Axis", "Core", "Edge", "Graph", "Json", "Operand", "Role", "Term", "Window"]
