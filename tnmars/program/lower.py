"""Plan to program: steps become instructions, each value once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from tnmars.plan.network import Network
from tnmars.plan.steps import Convolve, Gather, Groups, Load, Multiply, Product, Spread, Step, Sum, volume
from tnmars.program.base import Instruction, Name
from tnmars.program.instructions import (
    Arrange,
    Conv,
    Fetch,
    Kernel,
    Matmul,
    Plus,
    Receive,
    Repeat,
    Rows,
    Times,
    Total,
    Weight,
)
from tnmars.program.program import Program
from tnmars.program.transposed import ConvTranspose

Lowered = Generator[Step, Name, Name]
"""The instructions of a step in the making: yields its operands, is sent their names, and returns its own."""


@dataclass
class Lowering:
    """Turns steps into instructions, each value once."""

    network: Network
    prefix: str = ""
    made: list[Instruction] = field(default_factory=list)
    fixed: set[Name] = field(default_factory=set)
    _values: dict[object, Name] = field(default_factory=dict)
    _names: dict[int, Name] = field(default_factory=dict)
    _made_axes: dict[Name, Groups] = field(default_factory=dict)

    def lower(self, step: Step) -> Name:
        """The name of the value of a step, whose instructions are added unless they are there already.

        A step may be as deep as a graph has cores. So each is lowered by a generator, which yields an operand and is
        sent its name, and this loop takes the place of recursion. Every step has leaves of its own, so it is known by
        its identity.
        """
        open_steps: list[tuple[Step, Lowered]] = [(step, LOWER[type(step)](self, step))]
        name: Name | None = None
        while open_steps:
            current, lowered = open_steps[-1]
            try:
                operand = next(lowered) if name is None else lowered.send(name)
            except StopIteration as end:
                open_steps.pop()
                name = self._names[id(current)] = end.value
                continue
            name = self._names.get(id(operand))
            if name is None:
                open_steps.append((operand, LOWER[type(operand)](self, operand)))
        assert name is not None
        return name

    def arrange(self, source: Name, axes: Groups) -> Name:
        """The value with these axes: itself if it has them already."""
        if self._axes(source) == axes:
            return source
        key = (source, axes)
        if key not in self._values:
            self._values[key] = self._add(Arrange(self._next(), axes, source))
        return self._values[key]

    def _load(self, step: Load) -> Lowered:
        yield from ()
        leaf = self.network.leaves[step.leaf]
        axes = tuple((label,) for label in step.order)
        if leaf.is_core:
            return self._add(Fetch(self._next(), axes, leaf.names, leaf.has_ones, leaf.conj, leaf.repeated))
        return self._add(Receive(self._next(), leaf.axes, leaf.names[0]))

    def _product(self, step: Product) -> Lowered:
        lead = (step.batch,) if step.batch else ()
        left = self.arrange((yield step.left), (*lead, step.rows, step.depth))
        right = self.arrange((yield step.right), (*lead, step.depth, step.columns))
        return self._add(Matmul(self._next(), (*lead, step.rows, step.columns), left, right))

    def _spread(self, step: Spread) -> Lowered:
        left = self.arrange((yield step.left), (step.rows, step.depth))
        right = self.arrange((yield step.right), (step.lead, step.depth, step.columns))
        return self._add(Matmul(self._next(), (step.lead, step.rows, step.columns), left, right))

    def _multiply(self, step: Multiply) -> Lowered:
        """Neighboring labels that the same operands have share an axis."""
        extra = tuple(label for label in step.right.order if label not in step.left.order)
        order = (*step.left.order, *extra)
        states = {label: (label in step.left.order, label in step.right.order, label in step.summed) for label in order}
        axes = [tuple(run) for _, run in groupby(order, key=states.__getitem__)]
        left = self.arrange((yield step.left), tuple(axis if states[axis[0]][0] else () for axis in axes))
        right = self.arrange((yield step.right), tuple(axis if states[axis[0]][1] else () for axis in axes))
        name = self._add(Times(self._next(), tuple(axes), left, right))
        dims = tuple(at for at, axis in enumerate(axes) if axis[0] in step.summed)
        if not dims:
            return name
        return self._add(Total(self._next(), tuple(axis for at, axis in enumerate(axes) if at not in dims), name, dims))

    def _convolve(self, step: Convolve) -> Lowered:
        channels = (*step.batch, *step.columns)
        if step.taps or (len(step.before) > 1 and not step.rest):  # spatial axes stay apart: channels_last is kept
            inside: Groups = tuple((label,) for label in step.before)
            kernel = tuple(size if axis in step.axes else 1 for axis, size in enumerate(self.network.kernel))
        else:
            inside = ((*step.rest, *step.before),)
            kernel = (1,) if step.batch else ()
        rows, columns = channels, (*step.depth, *step.taps)
        is_upward = self.network.is_transposed and bool(step.taps)
        if is_upward:
            rows, columns = (*step.batch, *step.depth), (*step.columns, *step.taps)
        flat = self.arrange((yield step.left), (rows[len(step.repeated) :], columns))
        if step.repeated:
            flat = self._add(Repeat(self._next(), (rows, columns), flat, step.repeated))
        weight = self._add(Kernel(self._next(), (rows, columns), flat, kernel))
        source = self.arrange((yield step.right), (step.lead, (*step.batch, *step.depth), *inside))
        count = volume(step.batch, self.network.size)
        kind = ConvTranspose if is_upward else Conv
        return self._add(kind(self._next(), (step.lead, channels, *inside), source, weight, count, step.axes))

    def _sum(self, step: Sum) -> Lowered:
        source = self.arrange((yield step.source), tuple((label,) for label in step.source.order))
        dims = tuple(at for at, label in enumerate(step.source.order) if label in step.summed)
        return self._add(Total(self._next(), tuple((label,) for label in step.order), source, dims))

    def _gather(self, step: Gather) -> Lowered:
        rest = tuple(label for label in step.source.order if label not in step.rows)
        table = self.arrange((yield step.source), (step.rows, rest))
        return self._add(Rows(self._next(), ((step.token,), rest), table, step.rows))

    def _axes(self, name: Name) -> Groups:
        return self._made_axes[name]

    def _next(self) -> Name:
        return f"{self.prefix}v{len(self.made)}"

    def _add(self, instruction: Instruction) -> Name:
        self.made.append(instruction)
        self._made_axes[instruction.out] = instruction.axes
        if not instruction.needs_input and self.fixed.issuperset(instruction.reads):
            self.fixed.add(instruction.out)
        return instruction.out


LOWER: dict[type, Callable[[Lowering, Any], Lowered]] = {
    Load: Lowering._load,
    Product: Lowering._product,
    Spread: Lowering._spread,
    Multiply: Lowering._multiply,
    Sum: Lowering._sum,
    Gather: Lowering._gather,
    Convolve: Lowering._convolve,
}
"""How each kind of step becomes instructions."""


def lower(
    networks: Sequence[Network],
    steps: Sequence[Step],
    axes: Groups,
    weight: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
) -> Program:
    """The program of a sum of contractions, with these axes; of a dense weight, cut and shaped as `weight` says."""
    made: list[Instruction] = []
    fixed: set[Name] = set()
    total: Name | None = None
    for at, (network, step) in enumerate(zip(networks, steps, strict=True)):
        lowering = Lowering(network, f"{chr(97 + at % 26)}{at // 26 or ''}" if len(networks) > 1 else "")
        name = lowering.arrange(lowering.lower(step), axes)
        made += lowering.made
        fixed |= lowering.fixed
        if total is not None:
            both = Plus(f"s{at}", axes, total, name)
            made.append(both)
            fixed |= {both.out} if total in fixed and name in fixed else set()
            name = both.out
        total = name
    assert total is not None
    if weight[1]:
        last = Weight("w", axes, total, *weight)
        made.append(last)
        fixed.add(last.out)
        total = last.out
    first = networks[0]
    return Program(
        tuple(instruction for instruction in made if instruction.out in fixed),
        tuple(instruction for instruction in made if instruction.out not in fixed),
        total,
        tuple(sorted({pair for network in networks for pair in network.sizes})),
        first.dynamic,
    )
