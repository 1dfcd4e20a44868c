"""A batch in chunks: a function of rows is run on a few of them at a time, so that what it makes in between is small.

Small intermediates stay in the caches and in memory that the process has already, which is faster than one pass over
the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def in_chunks(run: Callable[..., Tensor], size: int, rows: Tensor, more: tuple[Tensor, ...]) -> Tensor:
    """`run(rows, *more)`, computed `size` rows at a time; its result has a row for each."""
    pieces = torch.split(rows, size)
    if torch.is_grad_enabled() or torch._C._functorch.peek_interpreter_stack() is not None:
        return torch.cat([run(piece, *more) for piece in pieces])
    first = run(pieces[0], *more)
    found = first.new_empty((rows.shape[0], *first.shape[1:]))
    found[:size] = first
    for at, piece in enumerate(pieces[1:], 1):
        found[at * size : (at + 1) * size] = run(piece, *more)
    return found
