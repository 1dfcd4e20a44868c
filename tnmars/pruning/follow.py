"""Numbers that follow a rewrite of their graph: cores, logits of gates, and the state of an optimiser for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import prod

import torch
from torch import Tensor, nn

from tnmars.errors import TnmarsError
from tnmars.graph.rewrite import Piece, Rewrite, Source


def cores_after(rewrite: Rewrite, cores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The cores of the graph after a rewrite, from those before."""
    return {piece.name: core_after(piece, cores) for piece in rewrite.pieces}


def core_after(piece: Piece, cores: Mapping[str, Tensor]) -> Tensor:
    """One core: entries taken from a core before, or the product of several, in float64."""
    if piece.is_part:
        return part_after(piece, cores[piece.sources[0].name])
    taken = [_taken(source, cores[source.name]) for source in piece.sources]
    letters = {edge: at for at, edge in enumerate(dict.fromkeys(e for source in piece.sources for e in source.edges))}
    operands: list[object] = []
    for source, value in zip(piece.sources, taken, strict=True):
        operands += [value.double(), [letters[edge] for edge in source.edges]]
    merged: Tensor = torch.einsum(*operands, [letters[edge] for edge in piece.edges])
    return merged.to(taken[0].dtype).contiguous()


def part_after(piece: Piece, value: Tensor) -> Tensor:
    """What is left of a value that has the shape of a piece's only source; axes that go have size 1."""
    (source,) = piece.sources
    found = _taken(source, value)
    sizes = dict(zip(source.edges, found.shape, strict=True))
    left = [edge for edge in source.edges if edge in piece.edges]
    assert left == list(piece.edges), "a rewrite keeps the order of a core's edges"
    assert prod(sizes[edge] for edge in source.edges if edge not in piece.edges) == 1
    return found.reshape([sizes[edge] for edge in piece.edges]).contiguous()


def _taken(source: Source, value: Tensor) -> Tensor:
    for axis, indices in enumerate(source.taken):
        if indices is not None and len(indices) != value.shape[axis]:
            value = value.index_select(axis, torch.tensor(indices, device=value.device, dtype=torch.long))
    return value


def vectors_after(rewrite: Rewrite, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Vectors over bonds, such as logits, after a rewrite."""
    was = dict(rewrite.bonds)
    return {now: vectors[was[now]][list(indices)].contiguous() for now, indices in rewrite.taken if was[now] in vectors}


Change = tuple["nn.Parameter | None", Callable[[Tensor], Tensor]]
"""What comes in the place of a parameter, if anything, and what is left of a value of the parameter's shape."""


def check_state(optimizer: torch.optim.Optimizer, changed: Collection[nn.Parameter]) -> None:
    """Raises where an optimiser keeps something for a parameter that cannot follow a cut entry by entry."""
    for parameter in changed:
        for key, value in optimizer.state.get(parameter, {}).items():
            if torch.is_tensor(value):
                fits = value.dim() == 0 or value.shape == parameter.shape
            else:
                fits = value is None or isinstance(value, (bool, int, float))
            if not fits:
                raise TnmarsError(
                    f"{type(optimizer).__name__} keeps '{key}', which has not the shape of its parameter and cannot "
                    "follow a cut. Nothing was changed.\n  Make a new optimiser after the cut: prune_(model)."
                )


def replace_in_(optimizer: torch.optim.Optimizer, changes: Mapping[nn.Parameter, Change]) -> None:
    """Puts new parameters in the place of old ones in an optimiser's groups, with what is left of their state."""
    for group in optimizer.param_groups:
        kept: list[nn.Parameter] = []
        for old in group["params"]:
            if old not in changes:
                kept.append(old)
                continue
            new, follow = changes[old]
            state = optimizer.state.pop(old, None)
            if new is None:
                continue
            if all(new is not other for other in kept):
                kept.append(new)
            if state is not None:
                optimizer.state[new] = {
                    key: follow(value) if torch.is_tensor(value) and value.shape == old.shape else value
                    for key, value in state.items()
                }
        group["params"] = kept
