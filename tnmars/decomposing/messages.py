"""Messages between the cores of one term: what the rest of the network looks like from a bond, as a matrix.

A core's message to a bond is the core contracted with its conjugate, through the messages that arrive at its other
bonds. On a tree that is exact after one pass. With cycles messages are iterated until they settle (belief
propagation). At a bond with several ends, the messages of all other ends are multiplied entry by entry.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tnmars.decomposing.tensors import Labels, contract

TURNS, STILL = 200, 1e-10
"""The maximum number of rounds, and the change of the messages below which they have settled."""
LEAST = 1e-10
"""Eigenvalues of a message are at least this share of the largest, so that gauges can be inverted."""

Messages = dict[tuple[str, str], Tensor]
"""For a core and a bond, the core's message to the bond; with trace 1."""


def settled(axes: Mapping[str, Labels], cores: Mapping[str, Tensor], ends: Mapping[str, list[str]]) -> Messages:
    """The messages of all cores to all their bonds, iterated until they settle."""
    sizes = {
        label: size for name in axes for label, size in zip(axes[name], cores[name].shape, strict=True) if label in ends
    }
    messages: Messages = {
        (core, bond): torch.eye(sizes[bond], dtype=cores[core].dtype) / sizes[bond]
        for bond, names in ends.items()
        for core in names
    }
    for turn in range(TURNS):
        change = 0.0
        for core, bond in messages:
            fresh = _message(axes[core], cores[core], core, bond, ends, messages)
            if turn > TURNS // 4:  # where messages circle, a mean settles
                fresh = 0.5 * (fresh + messages[core, bond])
            change = max(change, float((fresh - messages[core, bond]).abs().max()))
            messages[core, bond] = fresh
        if change < STILL:
            break
    return messages


def _message(
    own: Labels, value: Tensor, core: str, bond: str, ends: Mapping[str, list[str]], messages: Messages
) -> Tensor:
    operands: list[tuple[Labels, Tensor]] = [(own, value)]
    operands.append((tuple(f"{label}'" if label in ends else label for label in own), value.conj()))
    for label in own:
        if label in ends and label != bond:
            arriving = torch.stack([messages[other, label] for other in ends[label] if other != core]).prod(0)
            operands.append(((label, f"{label}'"), arriving))
    found = contract([each for each, _ in operands], (bond, f"{bond}'"), [each for _, each in operands])
    found = 0.5 * (found + found.mH)
    trace = float(found.diagonal().real.sum())
    if not trace > 0.0:
        return torch.eye(len(found), dtype=found.dtype) / len(found)
    return found / trace


def gauges(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Matrices P and Q with PQ = 1 for the two ends of a bond, and the weights of its slices, largest first.

    `first` and `second` are the messages of the two ends. After P and Q are multiplied in, both messages are diagonal
    and equal.
    """
    root, inverse = _roots(first.conj())  # of the core's columns, which the bond numbers
    other, _ = _roots(second)
    left, weights, _ = torch.linalg.svd(root @ other)
    forward = inverse @ left * weights.sqrt()
    return forward, torch.linalg.inv(forward), weights


def _roots(matrix: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(matrix)
    roots = values.clamp(min=LEAST * max(float(values[-1]), 1e-300)).sqrt()
    return (vectors * roots) @ vectors.mH, (vectors / roots) @ vectors.mH
