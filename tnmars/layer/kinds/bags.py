"""Bags of tokens: sums, means and maxima of rows, as `torch.nn.EmbeddingBag` gives them. It uses no graph and no table.

Bags are the rows of a two-dimensional index, or the parts of a flat one that start at the offsets. Tokens of the
padding row are in no bag; an empty bag gives zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from tnmars.errors import ShapeError
from tnmars.layer.torch_state import is_traced


def check(index: Tensor, offsets: Tensor | None, weights: Tensor | None, mode: str) -> None:
    """Raises `ShapeError` if index, offsets and weights do not fit together. Values are not checked."""
    shape = tuple(index.shape)
    if index.dim() not in (1, 2) or (index.dim() == 1 and offsets is None):
        fix = "for a flat index, give offsets: where each bag starts"
        raise ShapeError(f"index has shape {shape}, but must be (bags, tokens); {fix}.")
    if offsets is not None and index.dim() == 2:
        raise ShapeError(
            f"index has shape {shape}, one bag in each row, and takes no offsets; these go with a flat one."
        )
    if offsets is not None and (offsets.dim() != 1 or offsets.dtype not in (torch.int64, torch.int32)):
        found = f"shape {tuple(offsets.shape)} and dtype {offsets.dtype}"
        raise ShapeError(f"offsets have {found}, but must be a list of int64 or int32: where each bag starts.")
    if weights is not None and mode != "sum":
        raise ShapeError(f"per_sample_weights are for mode 'sum', but the layer has mode '{mode}'.")
    if weights is not None and weights.shape != index.shape:
        raise ShapeError(f"per_sample_weights have shape {tuple(weights.shape)}, but must have that of index, {shape}.")


def check_offsets(offsets: Tensor, count: int) -> None:
    """Raises `ShapeError` if offsets do not cut a flat index of `count` tokens into bags."""
    if offsets.numel() == 0:
        if count:
            raise ShapeError(f"offsets are empty, but index has {count:,} tokens; the first bag starts at 0.")
        return
    if offsets[0] != 0:
        raise ShapeError(f"offsets start with {int(offsets[0])}, but the first bag starts at 0.")
    if (offsets.diff() < 0).any():
        raise ShapeError("offsets fall somewhere, but each bag starts where the one before it ends, or later.")
    if offsets[-1] > count:
        raise ShapeError(f"offsets end with {int(offsets[-1])}, but index has {count:,} tokens.")


def check_last(offsets: Tensor, count: int) -> None:
    """Raises `ShapeError` if offsets do not end with the number of tokens, as `include_last_offset` says."""
    if offsets.shape[0] == 0:
        raise ShapeError("offsets are empty, but the layer has include_last_offset: the last is the number of tokens.")
    if not is_traced(offsets) and offsets.device.type == "cpu" and int(offsets[-1]) != count:
        last = int(offsets[-1])
        raise ShapeError(
            f"offsets end with {last}, but include_last_offset says that they end with {count:,}, the tokens."
        )


def starts(index: Tensor, offsets: Tensor | None) -> Tensor:
    """Where each bag starts in the flat index."""
    if offsets is not None:
        return offsets.long()
    return torch.arange(index.shape[0], device=index.device) * index.shape[1]


def without(skip: int, tokens: Tensor, first: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tokens, starts of bags and weights without the tokens of a row."""
    kept = tokens.ne(skip)
    before = functional.pad(kept.cumsum(0), (1, 0))
    return tokens[kept], before[first], None if weights is None else weights[kept]


def pooled(rows: Tensor, place: Tensor, first: Tensor, mode: str, weights: Tensor | None) -> Tensor:
    """The sum, mean or maximum over each bag of the rows at some places."""
    given = None if weights is None else weights.to(rows.dtype)
    return functional.embedding_bag(place, rows, first, mode=mode, per_sample_weights=given)


def spread(
    rows: Tensor, index: Tensor, first: Tensor, mode: str, weights: Tensor | None, kept: Tensor | None
) -> Tensor:
    """The sum, mean or maximum over each bag, from a row for each token of the index, of those that are `kept`.

    Shapes do not depend on values here, so that it can be traced, and mapped over.
    """
    if mode == "max":
        return _largest(rows, index, first, kept)
    if kept is not None:
        rows = rows.masked_fill(kept.logical_not().unsqueeze(-1), 0.0)
    if weights is not None:
        rows = rows * weights.to(rows.dtype).unsqueeze(-1)
    total = _added(rows, index, first)
    if mode == "sum":
        return total
    real = rows.real  # of a real tensor it is the tensor itself; counts are compared, which complex numbers cannot be
    counted = real.new_ones(rows.shape[0], 1) if kept is None else kept.to(real.dtype).unsqueeze(-1)
    return total / _added(counted, index, first).clamp_min(1.0)


def _added(rows: Tensor, index: Tensor, first: Tensor) -> Tensor:
    """The sums of rows over bags."""
    if index.dim() == 2:
        return rows.reshape(*index.shape, rows.shape[1]).sum(1)
    bag = torch.searchsorted(first, torch.arange(rows.shape[0], device=rows.device), right=True) - 1
    return rows.new_zeros(first.shape[0], rows.shape[1]).index_add(0, bag, rows)


def _largest(rows: Tensor, index: Tensor, first: Tensor, kept: Tensor | None) -> Tensor:
    """The largest entries of the rows of each bag; zeros for an empty one."""
    if rows.is_complex():
        raise ShapeError("bags by 'max' need numbers that have an order, but these are complex: take 'sum' or 'mean'.")
    if kept is not None:
        rows = rows.masked_fill(kept.logical_not().unsqueeze(-1), -torch.inf)
    if index.dim() == 2 and index.shape[1]:
        most = rows.reshape(*index.shape, rows.shape[1]).amax(1)
    else:
        bag = torch.searchsorted(first, torch.arange(rows.shape[0], device=rows.device), right=True) - 1
        most = rows.new_full((first.shape[0], rows.shape[1]), -torch.inf)
        most = most.scatter_reduce(0, bag.unsqueeze(-1).expand_as(rows), rows, "amax")
    return most.masked_fill(most.eq(-torch.inf), 0.0)
