"""Program to program: the gates of bonds multiplied in, each exactly once.

A gate goes to the smallest core that carries its bond, the first in the graph's order on a tie. A core that carries
several is scaled by their product, so that each core is multiplied once. Planning knows nothing about gates.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod

from tnmars.graph import Graph
from tnmars.program.base import Instruction, Name
from tnmars.program.instructions import Fetch, Scale
from tnmars.program.program import Program


@lru_cache(maxsize=512)
def homes(graph: Graph) -> dict[str, tuple[tuple[str, str], ...]]:
    """For each core that scales, its bonds: as (qualified name, name of the gate among the graph's bonds)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for term in graph.terms:
        sizes = {core.name: prod(graph.shape(term, core)) for core in term.cores}
        bonds = {edge.name for edge in term.bonds}
        for bond, ends in term.ends().items():
            if bond in bonds:
                home = min(ends, key=sizes.__getitem__)
                pair = (graph.qualified(term, bond), graph.bond_name(term, bond))
                found.setdefault(graph.qualified(term, home), []).append(pair)
    return {core: tuple(held) for core, held in found.items()}


def masked(program: Program, graph: Graph) -> Program:
    """The program with every bond's gate multiplied into a core as soon as it is fetched."""
    where = homes(graph)
    fold: list[Instruction] = []
    for instruction in program.fold:
        if not isinstance(instruction, Fetch) or instruction.cores[0] not in where:
            fold.append(instruction)
            continue
        raw = f"{instruction.out}_raw"
        fold += [replace(instruction, out=raw), _scale(instruction, raw, where)]
    return replace(program, fold=tuple(fold))


def _scale(fetch: Fetch, raw: Name, where: dict[str, tuple[tuple[str, str], ...]]) -> Scale:
    """The scaling of a core, or of equal cores of several terms, whose bonds are labeled as the first term's."""
    labels = {label for axis in fetch.axes for label in axis}
    gates = []
    for at, (first, _) in enumerate(where[fetch.cores[0]]):
        names = tuple(where[core][at][1] for core in fetch.cores)
        gates.append((first if first in labels else "", names))
    return Scale(fetch.out, fetch.axes, raw, tuple(gates))
