"""What a program does, exactly: counts of multiply-adds and bytes for given sizes.

The counts are those of the emitted code: matrix products and convolutions as `torch.utils.flop_counter` counts them
(there, two operations make one multiply-add), elementwise steps apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from tnmars.plan.network import BATCH, Labels, spatial
from tnmars.plan.steps import Groups
from tnmars.program.candidates import Form
from tnmars.program.emit import Frame
from tnmars.program.instructions import (
    Conv,
    Instruction,
    Kernel,
    Matmul,
    Name,
    Plus,
    Program,
    Rows,
    Scale,
    Times,
    Total,
    Weight,
)


@dataclass(frozen=True)
class Effort:
    """Multiply-adds of products and convolutions, elementwise operations, and numbers written."""

    macs: int = 0
    elementwise: int = 0
    written: int = 0

    def __add__(self, more: Effort) -> Effort:
        return Effort(self.macs + more.macs, self.elementwise + more.elementwise, self.written + more.written)


@dataclass(frozen=True)
class Measured:
    """One instruction and its effort."""

    instruction: Instruction
    shape: tuple[int, ...]
    effort: Effort


def measure(form: Form, lengths: Mapping[str, int] | None = None) -> list[Measured]:
    """Every instruction of a form with its effort; data axes have the given lengths, else those it was made for."""
    sizes = {**dict(form.program.sizes), **(lengths or {})}
    axes = form.program.axes()
    found = []
    if form.frame.unfold or form.frame.subsample:
        for axis in range(form.frame.spatial):
            taps = form.frame.unfold[axis] if form.frame.unfold else 1
            sizes[spatial(axis)] = _out_length(sizes[spatial(axis)], taps, form.frame, axis)
    changed: dict[Name, dict[str, int]] = {}
    for instruction in form.program.instructions:
        # a value has the lengths that convolutions before it left; those of another term start from the image again
        own = {label: length for name in instruction.reads for label, length in changed[name].items()}
        if isinstance(instruction, Conv) and instruction.spatial:
            own |= _convolved(instruction, form.frame, {**sizes, **own}, form.program)
        changed[instruction.out] = own
        here = {**sizes, **own}
        found.append(Measured(instruction, _shape(instruction, here), _effort(instruction, axes, here)))
    if form.frame.dense:
        found.append(_dense(form, sizes))
    return found


def _shape(instruction: Instruction, sizes: Mapping[str, int]) -> tuple[int, ...]:
    if isinstance(instruction, Weight):
        return instruction.shape
    return tuple(prod(sizes[label] for label in group) for group in instruction.axes)


def _volume(groups: Groups | Labels, sizes: Mapping[str, int]) -> int:
    return prod(prod(sizes[label] for label in (group if isinstance(group, tuple) else (group,))) for group in groups)


def _effort(instruction: Instruction, axes: Mapping[Name, Groups], sizes: Mapping[str, int]) -> Effort:
    out = prod(_shape(instruction, sizes))
    if isinstance(instruction, Matmul):
        return Effort(macs=out * _volume(axes[instruction.left][-1], sizes), written=out)
    if isinstance(instruction, Conv):
        inside = _volume(axes[instruction.weight][1], sizes)
        return Effort(macs=out * inside, written=out)
    if isinstance(instruction, (Times, Scale)):
        return Effort(elementwise=out, written=out)
    if isinstance(instruction, Total):
        return Effort(elementwise=_volume(axes[instruction.source], sizes), written=out)
    if isinstance(instruction, Plus):
        return Effort(elementwise=out, written=out)
    return Effort(written=out if isinstance(instruction, Rows) else 0)


def _convolved(instruction: Conv, frame: Frame, sizes: Mapping[str, int], program: Program) -> dict[str, int]:
    """The lengths of the spatial axes that act in a convolution, after it."""
    kernel = next(entry for entry in program.instructions if entry.out == instruction.weight)
    assert isinstance(kernel, Kernel)
    found = {}
    for axis in instruction.spatial:
        (label,) = instruction.axes[2 + axis]
        found[label] = _out_length(sizes[label], kernel.taps[axis], frame, axis)
    return found


def _out_length(length: int, taps: int, frame: Frame, axis: int) -> int:
    reach = frame.dilation[axis] * (taps - 1)
    if isinstance(frame.padding, str):
        return length
    return (length + 2 * frame.padding[axis] - reach - 1) // frame.stride[axis] + 1


def _dense(form: Form, sizes: Mapping[str, int]) -> Measured:
    """The call of torch's own layer at the end."""
    weight = form.program.instructions[-1]
    assert isinstance(weight, Weight)
    shape = weight.shape[::-1] if form.frame.is_transposed else weight.shape
    lengths = [_out_length(sizes[spatial(a)], shape[2 + a], form.frame, a) for a in range(form.frame.spatial)]
    out = (sizes[BATCH], shape[0], *lengths)
    return Measured(replace(weight, out="y", axes=()), out, Effort(macs=prod(out) * prod(shape[1:]), written=prod(out)))


def total(measured: list[Measured]) -> Effort:
    """The effort of all instructions together."""
    return sum((entry.effort for entry in measured), Effort())
