"""How long a program takes, by the cost model: each instruction by itself, and all together.

The search in `tnmars.plan.layout` uses the same costs step by step; here they are for a finished program, also for one
whose folded part was made smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tnmars.forms import Form
from tnmars.plan.cost import CostModel
from tnmars.plan.network import BATCH, spatial
from tnmars.plan.steps import Groups, last_run, runs
from tnmars.program import (
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
    Times,
    Total,
    Weight,
)


def estimate(form: Form, model: CostModel, *, grad: bool = False, folded: bool = False) -> float:
    """Seconds for a form at the sizes it was made for; `folded` leaves out what is done once."""
    sizes = dict(form.program.sizes)
    axes = form.program.axes()
    body = form.program.run if folded else form.program.instructions
    cost = sum(_cost(instruction, axes, sizes, model, grad) for instruction in body)
    if form.frame.dense:
        cost += _dense(form, sizes, model) * (3 if grad else 1)
    return cost


def _cost(
    instruction: Instruction, axes: Mapping[Name, Groups], sizes: Mapping[str, int], model: CostModel, grad: bool
) -> float:
    def extent(group: tuple[str, ...]) -> int:
        return prod(sizes[label] for label in group)

    out = prod(map(extent, instruction.axes))
    times = 3 if grad else 1
    if isinstance(instruction, Matmul):
        left, right = axes[instruction.left], axes[instruction.right]
        batch = prod(map(extent, right[:-2]))
        rows, depth, columns = extent(left[-2]), extent(left[-1]), extent(right[-1])
        cost = times * model.matmul(batch, rows, columns, depth)
        if grad and len(left) < len(right):
            cost += model.elementwise(2 * batch * rows * depth, batch * rows * depth)
        return cost
    if isinstance(instruction, Arrange):
        return _arrange(axes[instruction.source], instruction.axes, sizes, model) * (2 if grad else 1)
    if isinstance(instruction, (Times, Plus)):
        read = prod(map(extent, axes[instruction.left])) + prod(map(extent, axes[instruction.right]))
        return times * model.elementwise(out + read, out)
    if isinstance(instruction, Total):
        return times * model.elementwise(prod(map(extent, axes[instruction.source])), out)
    if isinstance(instruction, Rows):
        return (4 if grad else 1) * model.gather(out)
    if isinstance(instruction, Conv):
        weight, source = axes[instruction.weight], axes[instruction.source]
        inside = extent(weight[1])
        moved = out + prod(map(extent, source)) + extent(weight[0]) * inside
        narrow = min(inside, extent(weight[0]) // instruction.groups)
        return times * model.conv(out * inside, moved, max(1, narrow))
    if isinstance(instruction, Fetch) and len(instruction.cores) > 1:
        return times * model.elementwise(2 * out, out)
    assert isinstance(instruction, (Fetch, Receive, Kernel, Weight))
    return 0.0


def _arrange(have: Groups, want: Groups, sizes: Mapping[str, int], model: CostModel) -> float:
    order = tuple(label for group in have for label in group)
    if runs(order, [group for group in want if group], sizes):
        return model.view_call
    wanted = tuple(label for group in want for label in group)
    return model.copy(prod(sizes[label] for label in order), *last_run(order, wanted, sizes))


def _dense(form: Form, sizes: Mapping[str, int], model: CostModel) -> float:
    weight = form.program.instructions[-1]
    assert isinstance(weight, Weight)
    shape = weight.shape[::-1] if form.frame.is_transposed else weight.shape
    if not form.frame.spatial:
        return model.matmul(1, sizes[BATCH], shape[0], shape[1])
    pixels = sizes[BATCH] * prod(sizes[spatial(axis)] for axis in range(form.frame.spatial))
    return model.conv(pixels * prod(shape), pixels * (shape[0] + shape[1]), min(shape[:2]))


def refold(program: Program, limit: float) -> Program:
    """The program with less folded, so that its folded parts hold at most `limit` numbers.

    The largest part that is made from others is made anew on every run, until the rest fits. Cores stay folded: a
    program that folds nothing else ships just them.
    """
    sizes = dict(program.sizes)
    while True:
        axes = program.axes()
        extents = {part: prod(sizes[label] for group in axes[part] for label in group) for part in program.parts}
        if sum(extents.values()) <= limit:
            return program
        made = {instruction.out: instruction for instruction in program.fold}
        movable = [part for part in program.parts if made[part].reads]
        if not movable:
            return program
        largest = max(movable, key=lambda part: extents[part])
        fold = tuple(instruction for instruction in program.fold if instruction.out != largest)
        program = replace(program, fold=fold, run=(made[largest], *program.run))
