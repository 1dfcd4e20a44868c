"""How long a program takes, by the cost model: each instruction by itself, and all together.

The search in `tnmars.plan.layout` uses the same costs step by step; here they are for a finished program, also for one
whose folded part was made smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tnmars.plan.cost import CostModel
from tnmars.plan.network import BATCH, spatial
from tnmars.plan.steps import Groups, last_run, runs
from tnmars.program.candidates import Form
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
    Times,
    Total,
    Weight,
)


def estimate(form: Form, model: CostModel, *, grad: bool = False, folded: bool = False, batch: int = 0) -> float:
    """Seconds for a form at the sizes it was made for; `folded` leaves out what is done once.

    A form that cuts the batch into chunks was made for one of them: `batch` says how many rows there are in all.
    """
    sizes = dict(form.program.sizes)
    axes = form.program.axes()
    once = 0.0 if folded else sum(_cost(entry, axes, sizes, model, grad) for entry in form.program.fold)
    still = standing(form.program)
    once += sum(_cost(entry, axes, sizes, model, grad) for entry in still)
    each = sum(_cost(entry, axes, sizes, model, grad) for entry in form.program.run if entry not in still)
    if form.frame.dense:
        each += _dense(form, sizes, model, grad)
    each += opening(form, model)
    pieces = -(-batch // form.chunk) if form.chunk else 1
    if grad and form.keep:
        again = sum(_cost(entry, axes, sizes, model, False) for entry in form.program.run if entry not in still)
        each += again * max(0.0, 1 - form.keep / max(batch, 1))
    return once + pieces * each + (_joining(form, model, pieces, grad) if pieces > 1 else 0.0)


def opening(form: Form, model: CostModel) -> float:
    """What it costs to take patches of the input; no gradient of them is reckoned with, as for any input."""
    taken = patches(form)
    return model.copy(taken, dict(form.program.sizes)[spatial(form.frame.spatial - 1)], True) if taken else 0.0


def patches(form: Form) -> int:
    """How many numbers the patches of the input have; 0 where none are taken."""
    if not form.frame.unfold:
        return 0
    sizes = dict(form.program.sizes)
    given = next(entry for entry in form.program.run if isinstance(entry, Receive))
    return prod(sizes[label] for group in given.axes for label in group)


def _joining(form: Form, model: CostModel, pieces: int, grad: bool) -> float:
    """Results of chunks put together; in the backward pass, the gradients of parts added up."""
    sizes, axes = dict(form.program.sizes), form.program.axes()

    def numbers(name: Name) -> int:
        return prod(sizes[label] for group in axes[name] for label in group)

    out = pieces * numbers(form.program.result)
    cost = pieces * model.view_call + model.elementwise(2 * out, out)
    if grad:
        cost += pieces * sum(model.elementwise(3 * numbers(part), 0) for part in form.program.parts)
        # what the chunks make is kept for the backward pass: small as each may be, together it is new memory
        made = (numbers(entry.out) for entry in form.program.run if not isinstance(entry, (Receive, Arrange)))
        kept = model.item * pieces * sum(made)
        cost += kept / model.fresh_rate if kept > model.fresh_bytes else 0.0
    return cost


def _cost(
    instruction: Instruction, axes: Mapping[Name, Groups], sizes: Mapping[str, int], model: CostModel, grad: bool
) -> float:
    cost = _work(instruction, axes, sizes, model, grad)
    is_counted = isinstance(instruction, Matmul) or not instruction.reads
    return cost + model.grad_call if grad and not is_counted else cost


def _work(
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
        cost = model.product(batch, rows, columns, depth, grad=grad)
        if grad and len(left) < len(right):
            cost += model.elementwise(2 * batch * rows * depth, batch * rows * depth)
        return cost
    if isinstance(instruction, Arrange):
        return _arrange(axes[instruction.source], instruction.axes, sizes, model, grad)
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


def _arrange(have: Groups, want: Groups, sizes: Mapping[str, int], model: CostModel, grad: bool) -> float:
    order = tuple(label for group in have for label in group)
    wanted = tuple(label for group in want for label in group)
    count = prod(sizes[label] for label in order)
    if not runs(order, [group for group in want if group], sizes):
        return model.copy(count, *last_run(order, wanted, sizes)) * (2 if grad else 1)
    if grad and len(want) == 3 and order != wanted:  # gradients of a batch of matrices are copied back into order
        return 2 * model.view_call + model.copy(count, *last_run(wanted, order, sizes))
    return model.view_call * (2 if grad else 1)


def _dense(form: Form, sizes: Mapping[str, int], model: CostModel, grad: bool) -> float:
    weight = form.program.instructions[-1]
    assert isinstance(weight, Weight)
    shape = weight.shape[::-1] if form.frame.is_transposed else weight.shape
    if not form.frame.spatial:
        return model.product(1, sizes[BATCH], shape[0], shape[1], grad=grad)
    pixels = sizes[BATCH] * prod(sizes[spatial(axis)] for axis in range(form.frame.spatial))
    return model.conv(pixels * prod(shape), pixels * (shape[0] + shape[1]), min(shape[:2])) * (3 if grad else 1)


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


def standing(program: Program) -> tuple[Instruction, ...]:
    """What is done on every run though it depends on no input: with chunks of a batch, once for all of them."""
    ready = {instruction.out for instruction in program.fold}
    found = []
    for instruction in program.run:
        if instruction.reads and not isinstance(instruction, Rows) and ready.issuperset(instruction.reads):
            ready.add(instruction.out)
            found.append(instruction)
    return tuple(found)


def staged(program: Program) -> Program:
    """The program once its folded parts are there: these take the place of cores, and what stands is folded."""
    axes = program.axes()
    still = standing(program)
    given = tuple(Fetch(part, axes[part], (part,)) for part in program.parts)
    return replace(program, fold=(*given, *still), run=tuple(entry for entry in program.run if entry not in still))
