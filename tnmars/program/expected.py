"""What open slices cost: expected parameters and multiply-adds of a graph, as functions of its bonds' expected sizes.

Sizes may be any numbers that multiply and add, so the same function gives exact counts for whole numbers and
differentiable expectations for tensors. The gates of different bonds are independent, so the expectation of a product
of sizes is the product of the expectations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from tnmars.graph import Graph
from tnmars.plan.network import groups, term_label
from tnmars.plan.steps import Groups
from tnmars.program.candidates import Form
from tnmars.program.instructions import Conv, Instruction, Matmul, Name
from tnmars.program.measure import measure

Monomial = tuple[int, tuple[str, ...]]
"""A factor, and the bonds whose sizes are multiplied with it."""


@lru_cache(maxsize=512)
def parameter_terms(graph: Graph) -> tuple[Monomial, ...]:
    """The number of entries of the cores, as a polynomial in the sizes of the bonds."""
    found: dict[tuple[str, ...], int] = {}
    modes = {mode.name: mode.size for mode in graph.modes}
    for term in graph.terms:
        for core in term.cores:
            bonds = tuple(graph.qualified(term, edge) for edge in core.edges if edge not in modes)
            found[bonds] = found.get(bonds, 0) + prod(modes[edge] for edge in core.edges if edge in modes)
    return tuple((factor, bonds) for bonds, factor in found.items())


@lru_cache(maxsize=512)
def mac_terms(graph: Graph, form: Form) -> tuple[Monomial, ...]:
    """The multiply-adds of a form, as a polynomial in the sizes of the bonds; stacked terms are counted one by one."""
    found: dict[tuple[str, ...], int] = {}
    sizes = {name: bond.size for name, bond in graph.bonds.items()}
    stacks = {term_label(terms): tuple(term.name for term in terms) for terms in groups(graph)}
    axes = form.program.axes()
    for entry in measure(form):
        if not entry.effort.macs:
            continue
        labels = _labels(entry.instruction, axes)
        used = [label for label in labels if label in sizes]
        factor = entry.effort.macs // prod(sizes[label] for label in used)
        stack = next((stacks[label] for label in labels if label in stacks and len(stacks[label]) > 1), ())
        for name in stack or ("",):
            bonds = tuple(f"{name}.{label.partition('.')[2]}" if name else label for label in used)
            found[bonds] = found.get(bonds, 0) + factor // max(len(stack), 1)
    return tuple((factor, bonds) for bonds, factor in found.items())


def _labels(instruction: Instruction, axes: Mapping[Name, Groups]) -> list[str]:
    """What a product or a convolution runs over: the labels of its result and those that it sums."""
    inside: tuple[str, ...] = ()
    if isinstance(instruction, Matmul):
        inside = axes[instruction.left][-1]
    elif isinstance(instruction, Conv):
        inside = axes[instruction.weight][1]
    return [*(label for axis in instruction.axes for label in axis), *inside]


def evaluate(terms: Sequence[Monomial], sizes: Mapping[str, Any]) -> Any:
    """The value of a polynomial for given sizes of the bonds: whole numbers, or tensors.

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
