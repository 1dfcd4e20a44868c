"""What open slices cost: expected parameters and multiply-adds of a graph, as functions of its bonds' expected sizes.

Sizes may be any numbers that multiply and add, so the same function gives exact counts for integers and
differentiable expectations for tensors. The gates of different bonds are independent, so the expectation of a product
of sizes is the product of the expectations. Of a bond that is on a core twice, by a trace or by ties, the square of the
expectation is taken, which leaves out the variance of its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

from tnmars.graph import Graph, Term
from tnmars.graph.rewrite import drop_ones, prune
from tnmars.plan.layout import Weighing
from tnmars.plan.network import groups, term_label
from tnmars.plan.steps import flat
from tnmars.program.candidates import weight_forms
from tnmars.program.choice import Planner
from tnmars.program.form import Form, measure, total

Monomial = tuple[int, tuple[str, ...]]
"""A factor, and the bonds whose sizes are multiplied with it."""


@lru_cache(maxsize=512)
def parameter_terms(graph: Graph) -> tuple[Monomial, ...]:
    """The number of entries of the cores, as a polynomial in the sizes of the bonds."""
    found: dict[tuple[str, ...], int] = {}
    modes = {mode.name: mode.size for mode in graph.modes}
    for term in graph.terms:
        for core in (core for core in term.cores if not core.tied):
            bonds = tuple(graph.bond_name(term, edge) for edge in core.edges if edge not in modes)
            found[bonds] = found.get(bonds, 0) + prod(modes[edge] for edge in core.edges if edge in modes)
    return tuple((factor, bonds) for bonds, factor in found.items())


@lru_cache(maxsize=512)
def mac_terms(graph: Graph, form: Form, batch: int) -> tuple[Monomial, ...]:
    """The multiply-adds of a form for a batch, as a polynomial in the sizes of the bonds; stacked terms one by one."""
    found: dict[tuple[str, ...], int] = {}
    every = [(term, bond) for term in graph.terms for bond in term.bonds]
    sizes = {graph.qualified(term, bond.name): bond.size for term, bond in every}
    names = {graph.qualified(term, bond.name): graph.bond_name(term, bond.name) for term, bond in every}
    stacks = {term_label(terms): terms for terms in groups(graph)}
    for entry in measure(form, batch=batch):
        if not entry.work.macs:
            continue
        labels = (*flat(entry.instruction.axes), *entry.instruction.summed(entry.read))
        used = [label for label in labels if label in sizes]
        factor = entry.work.macs // prod(sizes[label] for label in used)
        stack = next((stacks[label] for label in labels if label in stacks and len(stacks[label]) > 1), ())
        for term in stack or (None,):
            bonds = tuple(names[label if term is None else _of_term(graph, label, term)] for label in used)
            found[bonds] = found.get(bonds, 0) + factor // max(len(stack), 1)
    return tuple((factor, bonds) for bonds, factor in found.items())


def _of_term(graph: Graph, label: str, term: Term) -> str:
    """The bond of a term that a stack labels by its first term."""
    return graph.qualified(term, label.rpartition(".")[2])


def pruned_macs(planner: Planner, sizes: Mapping[str, int], *, is_rebuilt: bool = False) -> int:
    """The multiply-adds for the nominal batch once the graph's bonds are cut to these sizes, and it is re-planned.

    With `is_rebuilt`, those that make the dense weight. A term with an empty bond is gone. Cores are not merged.
    """
    graph = drop_ones(prune(planner.graph, {name: tuple(range(size)) for name, size in sizes.items()}).graph).graph
    if not graph.terms:
        return 0
    if is_rebuilt:
        return total(measure(weight_forms(graph, Weighing(planner.model), planner.optimizer)[0], batch=1)).macs
    form = replace(planner, graph=graph, decide=None).plan("infer", planner.nominal)
    return total(measure(form, batch=planner.nominal)).macs


def evaluate(terms: Sequence[Monomial], sizes: Mapping[str, Any]) -> Any:
    """The value of a polynomial for given sizes of the bonds: integers, or tensors.

    >>> evaluate([(3, ("r",)), (5, ("r", "s"))], {"r": 2, "s": 4})
    46
    """
    total: Any = 0
    for factor, bonds in terms:
        value: Any = factor
        for bond in bonds:
            value = value * sizes[bond]
        total = total + value
    return total
