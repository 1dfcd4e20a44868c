"""What the terminal's drawings need from a term: its topology, and the texts of its edges."""

from __future__ import annotations

from dataclasses import dataclass

from tnmars.draw.canvas import CORE
from tnmars.draw.web import Web, web
from tnmars.graph import Graph, Role, Term

DOT, SHARED = "●", "*"
"""The marks of a hyperedge, and of a mode that several cores share."""

Token = tuple[str, str]
"""A text and its style."""


@dataclass(frozen=True)
class View:
    """A term with the size and role of every edge; vertices are numbered as in `web`."""

    web: Web
    sizes: dict[str, int]
    roles: dict[str, Role]
    modes: tuple[tuple[str, ...], ...]
    shared: frozenset[str]
    joins: dict[tuple[int, int], tuple[str, ...]]
    labels: tuple[str, ...]
    """Of the cores: their names, with a star for a conjugate, and what they are tied to."""

    def is_dot(self, vertex: int) -> bool:
        return vertex >= len(self.web.cores)

    def name(self, vertex: int) -> str:
        """A core's label, or a dot with the text of its bond."""
        if not self.is_dot(vertex):
            return self.labels[vertex]
        return f"{DOT} {self.tag(self.web.dots[vertex - len(self.web.cores)])}"

    def tag(self, edge: str) -> str:
        return f"{edge}:{self.sizes[edge]}"

    def tags(self, vertex: int) -> list[Token]:
        """The modes of a vertex, each in the style of its role."""
        modes = () if self.is_dot(vertex) else self.modes[vertex]
        marks = {mode: SHARED if mode in self.shared else "" for mode in modes}
        return [(self.tag(mode) + marks[mode], str(self.roles[mode])) for mode in modes]

    def token(self, vertex: int) -> Token:
        return self.name(vertex), CORE

    def between(self, one: int, other: int) -> str:
        """The texts of the bonds between two vertices; none for a line of a hyperedge, whose dot has it."""
        if self.is_dot(one) or self.is_dot(other):
            return ""
        return ",".join(map(self.tag, self.joins[one, other]))

    def stroke(self, one: int, other: int) -> str:
        """The character of a level line between two vertices: double for several bonds, broken for size 1."""
        bonds = self.joins[one, other]
        if len(bonds) > 1:
            return "═"
        return "╌" if self.sizes[bonds[0]] == 1 else "─"


def view(graph: Graph, term: Term) -> View:
    """The term as the terminal's drawings see it."""
    found = web(term)
    roles = {mode.name: mode.role for mode in graph.modes}
    joins: dict[tuple[int, int], tuple[str, ...]] = {}
    for bond, one, other in found.lines:
        for pair in ((one, other), (other, one)):
            joins[pair] = (*joins.get(pair, ()), bond)
    modes = tuple(tuple(edge for edge in core.edges if edge in roles) for core in term.cores)
    labels = tuple(core.label for core in term.cores)
    return View(found, graph.sizes(term), roles, modes, frozenset(graph.shared), joins, labels)
