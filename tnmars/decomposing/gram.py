"""The Gauss-Newton matrix of a network over all entries of its tensor, from contractions of the network with itself.

The block of two cores is the network without the first core times the network without the second, summed over all modes
that neither core has. The cost is that of contracting cores; it does not grow with the size of the full tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from tnmars.decomposing.tensors import Labels, contract, labels
from tnmars.graph import Graph


def gram(graph: Graph, cores: Mapping[str, Tensor]) -> Tensor:
    """The inner products of the tensor's derivatives by all entries: cores in the graph's order, entries row-major."""
    terms = labels(graph)
    places = [(term, name) for term in terms for name in term]
    sizes = [cores[name].numel() for _, name in places]
    total = sum(sizes)
    matrix = next(iter(cores.values())).new_zeros(total, total)
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    for a, (first_term, first) in enumerate(places):
        for b in range(a, len(places)):
            second_term, second = places[b]
            block = _block(first_term, first, second_term, second, cores)
            rows, columns = slice(starts[a], starts[a] + sizes[a]), slice(starts[b], starts[b] + sizes[b])
            matrix[rows, columns] = block
            if a != b:
                matrix[columns, rows] = block.mH
    return matrix


def _block(
    left_term: Mapping[str, Labels],
    left: str,
    right_term: Mapping[str, Labels],
    right: str,
    cores: Mapping[str, Tensor],
) -> Tensor:
    """The inner products of the derivatives by two cores, the first one conjugate.

    Bonds of the second copy get labels of their own.
    """
    second = {name: tuple(_primed(label) for label in axes) for name, axes in right_term.items()}
    ours, theirs = left_term[left], second[right]
    operands = [(axes, cores[name].conj()) for name, axes in left_term.items() if name != left]
    operands += [(axes, cores[name]) for name, axes in second.items() if name != right]
    shared = tuple(label for label in ours if label in theirs)
    ours_only = tuple(label for label in ours if label not in shared)
    theirs_only = tuple(label for label in theirs if label not in shared)
    sizes = dict(zip(ours, cores[left].shape, strict=True)) | dict(zip(theirs, cores[right].shape, strict=True))
    present = {label for axes, _ in operands for label in axes}
    absent = [label for label in (*ours_only, *theirs_only, *shared) if label not in present]
    like = cores[left]
    operands += [((label,), like.new_ones(sizes[label])) for label in absent]
    if not operands:
        operands = [((), like.new_ones(()))]
    value = contract(
        [axes for axes, _ in operands], (*ours_only, *theirs_only, *shared), [values for _, values in operands]
    )
    count = prod(sizes[label] for label in shared)
    value = value.reshape(*(sizes[label] for label in (*ours_only, *theirs_only)), count)
    value = torch.diag_embed(value) if shared else value
    present_order = [("l", label) for label in ours_only] + [("r", label) for label in theirs_only]
    if shared:
        sides = [sizes[label] for label in shared]
        value = value.reshape(*(sizes[label] for _, label in present_order), *sides, *sides)
        present_order += [("l", label) for label in shared] + [("r", label) for label in shared]
    else:
        value = value.reshape([sizes[label] for _, label in present_order])
    order = [present_order.index(("l", label)) for label in ours]
    order += [present_order.index(("r", label)) for label in theirs]
    return value.permute(order).reshape(cores[left].numel(), cores[right].numel())


def _primed(label: str) -> str:
    return f"{label}'" if label.startswith(":") else label
