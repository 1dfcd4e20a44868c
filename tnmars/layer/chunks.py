"""A batch in chunks: a function of rows runs on a few of them at a time, so that its intermediates are small.

Small intermediates stay in the caches and in memory that the process already has, which is faster than one pass over
the whole batch. A training step keeps them for its backward pass. Where that would be too much, it keeps only those of
the first rows and recomputes the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from tnmars.layer.torch_state import add_all_, is_plain

Run = Callable[..., Tensor]


def in_chunks(run: Run, size: int, rows: Tensor, more: tuple[Tensor, ...], keep: int = 0) -> Tensor:
    """`run(rows, *more)`, computed `size` rows at a time; its result has a row for each.

    With gradients, intermediates are kept for the first `keep` rows only; 0 keeps all.
    """
    if is_plain():
        if not (torch.is_grad_enabled() and any(value.requires_grad for value in (rows, *more))):
            return _filled(run, size, rows, more)
        is_remade = 0 < keep < rows.shape[0] and not rows.is_meta
        if is_remade and not torch.is_autocast_enabled(rows.device.type):
            output: Tensor = _Remade.apply(run, size, keep, rows, *more)  # type: ignore[no-untyped-call]
            return output
    return torch.cat([run(piece, *more) for piece in torch.split(rows, size)])


def _filled(run: Run, size: int, rows: Tensor, more: tuple[Tensor, ...]) -> Tensor:
    pieces = torch.split(rows, size)
    first = run(pieces[0], *more)
    output = first.new_empty((rows.shape[0], *first.shape[1:]))
    output[:size] = first
    for at, piece in enumerate(pieces[1:], 1):
        output[at * size : (at + 1) * size] = run(piece, *more)
    return output


class _Remade(torch.autograd.Function):
    """Chunks each with a graph of its own: built in the forward pass for the first rows, in the backward for others."""

    @staticmethod
    def forward(ctx: Any, run: Run, size: int, keep: int, rows: Tensor, *more: Tensor) -> Tensor:
        ctx.run, ctx.size = run, size
        ctx.save_for_backward(rows, *more)
        ctx.given = _leaves(more, ctx.needs_input_grad[4:])
        ctx.kept = []

        def piece_of(piece: Tensor, *_: Tensor) -> Tensor:
            if len(ctx.kept) * size >= keep:
                return run(piece, *more)
            (leaf,) = _leaves((piece,), ctx.needs_input_grad[3:4])
            with torch.enable_grad():
                made = run(leaf, *ctx.given)
            ctx.kept.append((leaf, get_gradient_edge(made)))
            return made.detach()

        return _filled(piece_of, size, rows, more)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = gradients
        rows, *more = ctx.saved_tensors
        needed = ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():  # gradients of gradients are requested
            made = torch.cat([ctx.run(piece, *more) for piece in torch.split(rows, ctx.size)])
            leaves = [value for value, is_needed in zip((rows, *more), needed, strict=True) if is_needed]
            slopes = iter(torch.autograd.grad(made, leaves, slope, create_graph=True))
            return (None, None, None, *(next(slopes) if is_needed else None for is_needed in needed))
        return (None, None, None, *_slopes(ctx, slope, rows, needed))


def _leaves(values: tuple[Tensor, ...], needed: tuple[bool, ...]) -> tuple[Tensor, ...]:
    return tuple(value.detach().requires_grad_(is_needed) for value, is_needed in zip(values, needed, strict=True))


def _slopes(ctx: Any, slope: Tensor, rows: Tensor, needed: tuple[bool, ...]) -> list[Tensor | None]:
    """The gradients of the rows and of all else, added up over the chunks."""
    leaves = [value for value in ctx.given if value.requires_grad]
    sums: list[Tensor] = []
    inner = torch.empty_like(rows) if needed[0] else None
    kept, ctx.kept = ctx.kept, []  # a second backward pass recomputes all of them
    for at, (piece, part) in enumerate(zip(torch.split(rows, ctx.size), torch.split(slope, ctx.size), strict=True)):
        if at < len(kept):
            (leaf, made), kept[at] = kept[at], None
        else:
            (leaf,) = _leaves((piece,), needed[:1])
            with torch.enable_grad():
                made = ctx.run(leaf, *ctx.given)
        slopes = torch.autograd.grad([made], [*leaves, *([leaf] if inner is not None else [])], [part])
        del made
        if inner is not None:
            inner[at * ctx.size : (at + 1) * ctx.size] = slopes[-1]
        if sums:
            add_all_(sums, slopes[: len(leaves)])
        else:
            sums = [value.contiguous() for value in slopes[: len(leaves)]]
    given = iter(sums)
    return [inner, *(next(given) if is_needed else None for is_needed in needed[1:])]
