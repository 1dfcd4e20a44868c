"""Contractions of a graph by plain torch: chains of two-operand `torch.einsum`, on opt_einsum's path, found once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import opt_einsum
import torch
from torch import Tensor

from tnmars.graph import Graph

Labels = tuple[str, ...]
BATCH = "@batch"
SEARCHED = 13
"""With more operands, a random search for a path is good enough; with fewer, the best one is found."""


def pairwise(labels: Sequence[Labels], sizes: Mapping[str, int], output: Labels) -> Callable[[list[Tensor]], Tensor]:
    """A contraction as a chain of two-operand einsums, on the path with the fewest operations."""
    numbers = {label: at for at, label in enumerate(dict.fromkeys(label for group in labels for label in group))}
    equation = ",".join("".join(opt_einsum.get_symbol(numbers[label]) for label in group) for group in labels)
    equation += "->" + "".join(opt_einsum.get_symbol(numbers[label]) for label in output)
    shapes = [tuple(sizes[label] for label in group) for group in labels]
    search = "dp" if len(labels) <= SEARCHED else "random-greedy"
    path, _ = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize=search)
    steps = list(_steps(list(labels), [pair for step in path for pair in _pairs(step)], output))

    def run(values: list[Tensor]) -> Tensor:
        held = list(values)
        for one, two, step in steps:
            right, left = held.pop(max(one, two)), held.pop(min(one, two))
            held.append(torch.einsum(step, left, right))
        return held[0]

    return run


def _pairs(step: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The steps of a path in pairs: a step with several operands becomes several steps, each on the last result."""
    if len(step) < 3:
        yield step
        return
    assert len(step) == 3, "the search for paths contracts at most three at once"
    low, middle, high = sorted(step)
    yield middle, high
    yield low, -1


def _steps(held: list[Labels], path: list[tuple[int, ...]], output: Labels) -> Iterator[tuple[int, int, str]]:
    for at, pair in enumerate(path):
        if len(pair) == 1:
            continue
        places = [place % len(held) for place in pair]
        right, left = held.pop(max(places)), held.pop(min(places))
        rest = {label for group in held for label in group} | set(output)
        kept = tuple(label for label in dict.fromkeys((*left, *right)) if label in rest)
        if at == len(path) - 1:
            kept = output
        letters = {label: opt_einsum.get_symbol(number) for number, label in enumerate(dict.fromkeys((*left, *right)))}
        texts = ["".join(letters[label] for label in group) for group in (left, right, kept)]
        yield max(places), min(places), f"{texts[0]},{texts[1]}->{texts[2]}"
        held.append(kept)


def contraction(
    graph: Graph, extra: Sequence[Labels], sizes: Mapping[str, int], output: Labels, taken: Sequence[str] = ()
) -> Callable[[Mapping[str, Tensor], list[Tensor]], Tensor]:
    """The sum of the terms of a graph, contracted with other operands.

    Modes that are `taken` by an index are no longer axes of their cores: these have the batch first instead.
    """
    runs = []
    for term in graph.terms:
        names = [graph.qualified(term, core.name) for core in term.cores]
        labels = [*extra, *(_labels(core.edges, taken) for core in term.cores)]
        is_lone = len(labels) == 1
        contract = pairwise([*labels, ()] if is_lone else labels, {**graph.sizes(term), **sizes}, output)
        runs.append((names, contract, is_lone))

    def run(cores: Mapping[str, Tensor], inputs: list[Tensor]) -> Tensor:
        totals = []
        for names, contract, is_lone in runs:
            operands = [*inputs, *(cores[name if name in cores else graph.nodes[name]] for name in names)]
            totals.append(contract([*operands, operands[0].new_ones(())] if is_lone else operands))
        total = totals[0]
        for more in totals[1:]:
            total = total + more
        return total

    return run


def _labels(edges: Labels, taken: Sequence[str]) -> Labels:
    kept = tuple(edge for edge in edges if edge not in taken)
    return kept if len(kept) == len(edges) else (BATCH, *kept)
