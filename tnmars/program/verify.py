"""A verifier of programs: every instruction reads what is there, and its labels and sizes follow from what it reads.

An `AssertionError` is a fault of the lowering, not of a user. What cores and inputs hold is taken as they say.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tnmars.plan.network import TOKENS, Labels
from tnmars.plan.steps import Groups
from tnmars.program.instructions import (
    Arrange,
    Conv,
    Fetch,
    Instruction,
    Kernel,
    Matmul,
    Name,
    Plus,
    Program,
    Receive,
    Rows,
    Scale,
    Times,
    Total,
    Weight,
)

Sizes = Mapping[str, int]


def verify(program: Program) -> None:
    """Checks a program step by step. Raises `AssertionError` where it does not hold together."""
    sizes = dict(program.sizes)
    made: dict[Name, Instruction] = {}
    for instruction in program.instructions:
        assert instruction.out not in made, f"{instruction.out} is made twice"
        for name in instruction.reads:
            assert name in made, f"{instruction.out} reads {name} before it is made"
        labels = _labels(instruction.axes)
        assert len(set(labels)) == len(labels), f"{instruction.out} has a label twice"
        assert all(label in sizes for label in labels), f"{instruction.out} has a label without a size"
        assert _is_right(instruction, [made[name] for name in instruction.reads], sizes), str(instruction)
        made[instruction.out] = instruction
    assert program.result in made, f"{program.result} is not made"
    assert all(not isinstance(instruction, Fetch) for instruction in program.run), "a core is fetched for every input"
    inputs = (Receive, Rows)
    assert all(not isinstance(instruction, inputs) for instruction in program.fold), "an input is read before there is"


def _labels(axes: Groups) -> list[str]:
    return sorted(label for group in axes for label in group)


def _is_right(instruction: Instruction, read: list[Instruction], sizes: Sizes) -> bool:
    out, axes = instruction.axes, [entry.axes for entry in read]
    if isinstance(instruction, Arrange):
        return _labels(out) == _labels(axes[0])
    if isinstance(instruction, Scale):
        return out == axes[0] and isinstance(read[0], Fetch) and _is_scaled(instruction, read[0])
    if isinstance(instruction, Matmul):
        return _is_product(out, *axes)
    if isinstance(instruction, Times):
        return _is_broadcast(out, *axes)
    if isinstance(instruction, Plus):
        return out == axes[0] == axes[1]
    if isinstance(instruction, Total):
        return out == tuple(axis for at, axis in enumerate(axes[0]) if at not in instruction.dims)
    if isinstance(instruction, Rows):
        return axes[0][:1] == (instruction.labels,) and out == ((TOKENS,), *axes[0][1:])
    if isinstance(instruction, Weight):
        lengths = [_size(axis, sizes) for axis in out]
        kept = len(instruction.keep) == len(lengths) and all(map(int.__le__, instruction.keep, lengths))
        return out == axes[0] and kept and prod(instruction.keep) == prod(instruction.shape)
    if isinstance(instruction, Kernel):
        return out == axes[0] and len(out) == 2 and _size(out[1], sizes) % prod(instruction.taps) == 0
    if isinstance(instruction, Conv):
        return _is_convolution(instruction, read[0], read[1], sizes)
    return isinstance(instruction, (Fetch, Receive))


def _is_scaled(instruction: Scale, core: Fetch) -> bool:
    """Each bond's gates are there once, one for each of the stacked cores; a bond of size 1 may have no axis."""
    names = [name for _, names in instruction.gates for name in names]
    on_axes = all(not label or (label,) in core.axes for label, _ in instruction.gates)
    return on_axes and len(set(names)) == len(names) == len(instruction.gates) * len(core.cores)


def _is_product(out: Groups, left: Groups, right: Groups) -> bool:
    if not 2 <= len(left) <= len(right) <= 3:
        return False
    lead = right[:-2]
    return left[:-2] in ((), lead) and left[-1] == right[-2] and out == (*lead, left[-2], right[-1])


def _is_broadcast(out: Groups, left: Groups, right: Groups) -> bool:
    if not len(out) == len(left) == len(right):
        return False
    return all(
        axis == (one or two) and (one == two or not one or not two)
        for axis, one, two in zip(out, left, right, strict=True)
    )


def _is_convolution(instruction: Conv, source: Instruction, kernel: Instruction, sizes: Sizes) -> bool:
    """The groups' labels come first on both, then those that are summed; what the kernel has beyond them are taps."""
    if not isinstance(kernel, Kernel) or len(source.axes) < 3:
        return False
    out, (lead, inside, *places) = instruction.axes, source.axes
    columns, summed = kernel.axes
    groups = tuple(label for label in inside if label not in summed)
    depth, taps = summed[: len(inside) - len(groups)], summed[len(inside) - len(groups) :]
    return (
        out == (lead, columns, *places)
        and inside == (*groups, *depth)
        and columns[: len(groups)] == groups
        and instruction.groups == _size(groups, sizes)
        and _size(taps, sizes) == prod(kernel.taps)
        and all(count == 1 or axis in instruction.spatial for axis, count in enumerate(kernel.taps))
        and (not instruction.spatial or len(kernel.taps) == len(places))
    )


def _size(axis: Labels, sizes: Sizes) -> int:
    return prod(sizes[label] for label in axis)
