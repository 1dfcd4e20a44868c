"""The Gauss-Newton matrix of a network over all entries of its tensor, from contractions of the network with itself.

The block of two cores is the network without the first, times the network without the second, summed over all modes
that neither of the two has. It costs what a contraction of cores costs, and nothing that grows with the whole tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from tnmars.fitting.decomposition import Labels, contract, labels
from tnmars.graph import Graph


def gram(graph: Graph, cores: Mapping[str, Tensor]) -> Tensor:
    """The matrix of inner products of the derivatives of the tensor, cores in the graph's order, entries row-major."""
    terms = labels(graph)
    places = [(term, name) for term in terms for name in term]
    sizes = [cores[name].numel() for _, name in places]
    total = sum(sizes)
    found = next(iter(cores.values())).new_zeros(total, total)
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    for a, (first_term, first) in enumerate(places):
        for b in range(a, len(places)):
            second_term, second = places[b]
            block = _block(first_term, first, second_term, second, cores)
            rows, columns = slice(starts[a], starts[a] + sizes[a]), slice(starts[b], starts[b] + sizes[b])
            found[rows, columns] = block
            if a != b:
                found[columns, rows] = block.T
    return found


def _block(
    left_term: Mapping[str, Labels],
    left: str,
    right_term: Mapping[str, Labels],
    right: str,
    cores: Mapping[str, Tensor],
) -> Tensor:
    """The inner products of the derivatives by two cores. Bonds of the second copy get labels of their own."""
    second = {name: tuple(_primed(label) for label in found) for name, found in right_term.items()}
    ours, theirs = left_term[left], second[right]
    operands = [(found, cores[name]) for name, found in left_term.items() if name != left]
    operands += [(found, cores[name]) for name, found in second.items() if name != right]
    shared = tuple(label for label in ours if label in theirs)
    ours_only = tuple(label for label in ours if label not in shared)
    theirs_only = tuple(label for label in theirs if label not in shared)
    sizes = dict(zip(ours, cores[left].shape, strict=True)) | dict(zip(theirs, cores[right].shape, strict=True))
    present = {label for found, _ in operands for label in found}
    absent = [label for label in (*ours_only, *theirs_only, *shared) if label not in present]
    like = cores[left]
    operands += [((label,), like.new_ones(sizes[label])) for label in absent]
    if not operands:
        operands = [((), like.new_ones(()))]
    value = contract(
        [found for found, _ in operands], (*ours_only, *theirs_only, *shared), [number for _, number in operands]
    )
    count = prod(sizes[label] for label in shared)
    value = value.reshape(*(sizes[label] for label in (*ours_only, *theirs_only)), count)
    value = torch.diag_embed(value) if shared else value
    axes = [("l", label) for label in ours_only] + [("r", label) for label in theirs_only]
    if shared:
        sides = [sizes[label] for label in shared]
        value = value.reshape(*(sizes[label] for _, label in axes), *sides, *sides)
        axes += [("l", label) for label in shared] + [("r", label) for label in shared]
    else:
        value = value.reshape([sizes[label] for _, label in axes])
    order = [axes.index(("l", label)) for label in ours] + [axes.index(("r", label)) for label in theirs]
    return value.permute(order).reshape(cores[left].numel(), cores[right].numel())


def _primed(label: str) -> str:
    return f"{label}'" if label.startswith(":") else label
