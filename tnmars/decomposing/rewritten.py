"""Cores that follow a rewrite of their graph: entries that are kept, zeros that are added, products of merged cores."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from tnmars.graph.rewrite import NEW, Piece, Rewrite, Source
from tnmars.layer.numbers import wide


def cores_after(rewrite: Rewrite, cores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The cores of the graph after a rewrite, from those before."""
    return {piece.name: core_after(piece, cores) for piece in rewrite.pieces}


def core_after(piece: Piece, cores: Mapping[str, Tensor]) -> Tensor:
    """One core: entries taken from a core before, or the product of several, computed in float64 or complex128."""
    if piece.is_part:
        return part_after(piece, cores[piece.sources[0].name])
    taken = [_taken(source, cores[source.name]) for source in piece.sources]
    pairs = list(zip(piece.sources, taken, strict=True))
    sizes = {edge: size for source, value in pairs for edge, size in zip(source.edges, value.shape, strict=True)}
    letters = {edge: at for at, edge in enumerate(edge for edge, size in sizes.items() if size > 1)}
    operands: list[object] = []
    for source, value in pairs:  # torch.einsum has 52 letters; of hundreds of edges, all but a few have size 1
        solid = [edge for edge in source.edges if edge in letters]
        given = wide(value).reshape([sizes[edge] for edge in solid])
        operands += [given.conj() if source.conj else given, [letters[edge] for edge in solid]]
    merged: Tensor = torch.einsum(*operands, [letters[edge] for edge in piece.edges if edge in letters])
    return merged.resolve_conj().to(taken[0].dtype).reshape([sizes[edge] for edge in piece.edges]).contiguous()


def part_after(piece: Piece, value: Tensor) -> Tensor:
    """What is left of a value that has the shape of a piece's only source; removed axes have size 1."""
    (source,) = piece.sources
    taken = _taken(source, value)
    sizes = dict(zip(source.edges, taken.shape, strict=True))
    left = [edge for edge in source.edges if edge in piece.edges]
    assert left == list(piece.edges), "a rewrite keeps the order of a core's edges"
    assert prod(sizes[edge] for edge in source.edges if edge not in piece.edges) == 1
    return taken.reshape([sizes[edge] for edge in piece.edges]).contiguous()


def _taken(source: Source, value: Tensor) -> Tensor:
    for axis, indices in enumerate(source.taken):
        if indices is None or len(indices) == value.shape[axis]:
            continue
        places = torch.tensor(indices, device=value.device, dtype=torch.long)
        value = value.index_select(axis, places.clamp(min=0))
        if NEW in indices:
            value = value.index_fill(axis, (places == NEW).nonzero().reshape(-1), 0)
    return value
