"""Planned training steps: forward and backward pass as one function of autograd, with buffers that are kept.

The plain program takes over wherever this one function would not do: while torch traces or transforms, under autocast,
with tensor subclasses or hooks on saved tensors, and for gradients of gradients. Buffers are checked out for one pass
and given back at its end. What lives between forward and backward pass is never in one, so calls may overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from tnmars.graph import Graph
from tnmars.layer.emitted import functions
from tnmars.layer.torch_state import is_autocasting, is_batched, is_plain, is_undisturbed, keeps_graph, sees_saved
from tnmars.program.backward import covered, training_step
from tnmars.program.emit import Writer
from tnmars.program.form import Form
from tnmars.program.framing import arguments
from tnmars.program.gating import masked

PLAIN = (Tensor, nn.Parameter)
Given = tuple[Tensor, ...]
Kept = tuple[Tensor, ...]


class Buffers:
    """Memory for the large values of one pass. At most one set is kept, and none is in use twice."""

    def __init__(self) -> None:
        self._free: list[tuple[object, Kept]] = []

    def take(self, key: object, make: Callable[[], Kept]) -> Kept:
        """A set of buffers that nothing else uses."""
        try:
            known, kept = self._free.pop()
        except IndexError:
            return make()
        return kept if known == key else make()

    def give(self, key: object, kept: Kept) -> None:
        """Keeps a set for later, instead of the one before."""
        self._free[:] = [(key, kept)]

    @property
    def nbytes(self) -> int:
        """The bytes that are kept now."""
        held = {part.untyped_storage().data_ptr(): part.untyped_storage() for _, kept in self._free for part in kept}
        return sum(storage.nbytes() for storage in held.values())


@dataclass(frozen=True)
class Passes:
    """The emitted functions for some needed gradients."""

    needs: tuple[bool, ...]
    forward: Callable[..., tuple[Tensor, list[Any]]]
    backward: Callable[..., tuple[Tensor | None, ...]]
    shapes: Callable[..., tuple[tuple[int, tuple[int, ...]], ...]]
    saved: tuple[int, ...]
    """The arguments that `backward` takes."""
    rest: tuple[int, ...]
    """Other arguments whose values matter for gradients of gradients."""
    has_buffers: bool

    def buffers(self, shapes: Sequence[tuple[int, ...]], like: Tensor) -> Kept:
        """New buffers for inputs of these shapes."""
        views = self.shapes(*map(_Shaped, shapes))
        sizes: dict[int, int] = {}
        for slot, shape in views:
            sizes[slot] = max(sizes.get(slot, 0), prod(shape))
        flat = {slot: like.new_empty(size) for slot, size in sizes.items()}
        return tuple(flat[slot][: prod(shape)].view(shape) for slot, shape in views)


@dataclass(frozen=True)
class _Shaped:
    """Stands for an input of which only the shape is asked."""

    shape: tuple[int, ...]


class Planned:
    """The training step of a form. Its arguments are inputs, bias, cores and gates; with chunks, parts for the last."""

    def __init__(self, form: Form, gated: Graph | None, plain: Callable[..., Tensor]):
        program = form.program if gated is None else masked(form.program, gated)
        self.program = covered(form, program)
        self.frame, self.chunk, self.keep = form.frame, form.chunk, form.keep
        self.plain = plain
        """The same without a planned backward pass, as a function of all arguments."""
        self.buffers = Buffers()
        before = arguments(form.frame)
        self.names = (*before, *Writer(self.program, form.frame).arguments.values())
        self.inputs = len(form.frame.inputs)
        self.bias = before.index("bias") if form.frame.has_bias else -1
        self._made: dict[tuple[bool, ...], Passes] = {}

    def __call__(self, given: Given) -> Tensor | None:
        """The output; None if the plain program has to compute it."""
        if not (torch.is_grad_enabled() and is_undisturbed()) or is_autocasting() or sees_saved():
            return None
        dtype = given[0].dtype
        is_sloped = False
        for value in given:
            if type(value) not in PLAIN or value.dtype is not dtype or not value.is_cpu:
                return None
            is_sloped = is_sloped or value.requires_grad
        if not is_sloped or not dtype.is_floating_point or not all(value.numel() for value in given[: self.inputs]):
            return None
        kind = _Chunks if self.chunk else _Whole
        output: Tensor = kind.apply(self, *given)  # type: ignore[no-untyped-call]
        return output

    def passes(self, needs: tuple[bool, ...]) -> Passes:
        """The functions that give gradients to some of the arguments."""
        made = self._made.get(needs)
        if made is None:
            needed = frozenset(name for name, is_needed in zip(self.names, needs, strict=True) if is_needed)
            step = training_step(self.program, self.frame, needed - {"bias"}, bool(self.chunk))
            found = functions(step.source)
            rest = step.rest
            if self.keep:  # what is not kept is made again
                rest = tuple(at for at in range(len(needs)) if at not in step.saved)
            calls = found["forward"], found["backward"], found["shapes"]
            made = self._made[needs] = Passes(needs, *calls, step.saved, rest, bool(step.slots))
        return made

    def take(self, made: Passes, shapes: Sequence[tuple[int, ...]], like: Tensor) -> tuple[object, Kept]:
        """Buffers for a pass over inputs of these shapes, and the key to give them back with."""
        if not made.has_buffers:
            return None, ()
        key = (made.needs, like.dtype, tuple(shapes))
        return key, self.buffers.take(key, lambda: made.buffers(shapes, like))

    def give(self, key: object, kept: Kept) -> None:
        """Gives buffers back."""
        if kept:
            self.buffers.give(key, kept)


_KNOWN: WeakValueDictionary[tuple[Form, Graph | None], Planned] = WeakValueDictionary()


def planned_of(form: Form, gated: Graph | None, plain: Callable[..., Tensor]) -> Planned:
    """The training step of a form. Equal layers share it with its buffers, which are gone with the last of them."""
    found = _KNOWN.get((form, gated))
    if found is None:
        found = _KNOWN[form, gated] = Planned(form, gated, plain)
    return found


def _save(ctx: Any, planned: Planned, made: Passes, given: Given) -> None:
    """Arguments that the backward pass reads are saved, so that torch notices if they change before."""
    ctx.planned, ctx.made = planned, made
    ctx.save_for_backward(*(given[at] for at in made.saved))
    ctx.rest = [(given[at], given[at]._version) for at in made.rest]
    ctx.shapes = [value.shape for value in given]


def _is_ordinary(slope: Tensor) -> bool:
    """Whether a backward pass may write into buffers: not if it runs under vmap, or for a tensor subclass."""
    return type(slope) is Tensor and is_plain() and not is_batched(slope)


def _given(ctx: Any, slope: Tensor) -> Given:
    """All arguments. Those that no gradient depends on have no entries of their own."""
    values = dict(zip(ctx.made.saved, ctx.saved_tensors, strict=True))
    for at, (value, version) in zip(ctx.made.rest, ctx.rest, strict=True):
        if value._version != version:
            raise RuntimeError("a tensor that gradients of gradients depend on was modified by an inplace operation")
        values[at] = value
    blank = torch.zeros((), dtype=slope.dtype, device=slope.device, requires_grad=True)
    return tuple(values[at] if at in values else blank.expand(shape) for at, shape in enumerate(ctx.shapes))


def _repeated(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients by autograd over the plain program, themselves differentiable if gradients are enabled."""
    is_deep, needs = torch.is_grad_enabled(), ctx.made.needs
    with torch.enable_grad():
        # each is a value of its own: a core may be in two places, or in the history of an input
        given = [
            value if not is_needed else value.view_as(value) if value.requires_grad else _leaf(value)
            for value, is_needed in zip(_given(ctx, slope), needs, strict=True)
        ]
        leaves = [value for value, is_needed in zip(given, needs, strict=True) if is_needed]
        slopes = iter(torch.autograd.grad(ctx.planned.plain(*given), leaves, slope, create_graph=is_deep))
    return (None, *(next(slopes) if is_needed else None for is_needed in needs))


def _leaf(value: Tensor) -> Tensor:
    return value.detach().requires_grad_()


class _Whole(torch.autograd.Function):
    """A step over the whole batch at once."""

    @staticmethod
    def forward(ctx: Any, planned: Planned, *given: Tensor) -> Tensor:
        made = planned.passes(ctx.needs_input_grad[1:])
        key, kept = planned.take(made, [value.shape for value in given[: planned.inputs]], given[0])
        output, ctx.held = made.forward(*given, kept)
        planned.give(key, kept)
        _save(ctx, planned, made, given)
        return output

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        planned, made, (slope,) = ctx.planned, ctx.made, slopes
        saved = ctx.saved_tensors  # torch's own error if the graph is gone
        if torch.is_grad_enabled() or not _is_ordinary(slope):
            return _repeated(ctx, slope)
        held = list(ctx.held)
        if not keeps_graph():
            ctx.held.clear()
        key, kept = planned.take(made, ctx.shapes[: planned.inputs], slope)
        found = list(made.backward(slope, held, *saved, kept))
        planned.give(key, kept)
        if planned.bias >= 0:
            found.insert(planned.bias, slope.sum(0) if made.needs[planned.bias] else None)
        return (None, *found)


class _Chunks(torch.autograd.Function):
    """A step over chunks of the batch; gradients of the parts are added in place."""

    @staticmethod
    def forward(ctx: Any, planned: Planned, rows: Tensor, *more: Tensor) -> Tensor:
        made = planned.passes(ctx.needs_input_grad[1:])
        pieces = torch.split(rows, planned.chunk)
        ctx.held, output = [], None
        key, kept = planned.take(made, [pieces[0].shape], rows)
        for at, piece in enumerate(pieces):
            own = kept if piece.shape == pieces[0].shape else made.buffers([piece.shape], rows)
            result, held = made.forward(piece, *more, own)
            ctx.held.append(held if not planned.keep or at * planned.chunk < planned.keep else None)
            if output is None:
                output = result if len(pieces) == 1 else result.new_empty((rows.shape[0], *result.shape[1:]))
            if len(pieces) > 1:
                output[at * planned.chunk : (at + 1) * planned.chunk] = result
            del result, held
        planned.give(key, kept)
        _save(ctx, planned, made, (rows, *more))
        assert output is not None
        return output

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        planned, made, (slope,) = ctx.planned, ctx.made, slopes
        saved = ctx.saved_tensors
        if torch.is_grad_enabled() or not _is_ordinary(slope):
            return _repeated(ctx, slope)
        given = _given(ctx, slope) if planned.keep else saved
        parts = zip(ctx.shapes[1 + (planned.bias >= 0) :], made.needs[1 + (planned.bias >= 0) :], strict=True)
        sums = [slope.new_zeros(shape) if is_needed else None for shape, is_needed in parts]
        added = [value for value in sums if value is not None]
        inner = slope.new_empty(ctx.shapes[0]) if made.needs[0] else None
        size, is_last = planned.chunk, not keeps_graph()
        inside = ctx.shapes[0][1:]
        key, kept = planned.take(made, [(min(size, slope.shape[0]), *inside)], slope)
        for at, part in enumerate(torch.split(slope, size)):
            rows = slice(at * size, (at + 1) * size)
            own = kept if at == 0 or len(part) == size else made.buffers([(len(part), *inside)], slope)
            held = ctx.held[at]
            if held is None:
                _, held = made.forward(given[0][rows], *given[1:], own)
            elif is_last:
                ctx.held[at] = []
            else:
                held = list(held)
            taken = (value[rows] if place == 0 else value for place, value in zip(made.saved, saved, strict=True))
            (found,) = made.backward(part, held, *taken, added, own)
            if inner is not None:
                inner[rows] = found
            del found
        planned.give(key, kept)
        bias = [slope.sum(0) if made.needs[planned.bias] else None] if planned.bias >= 0 else []
        return (None, inner, *bias, *sums)
