"""Plan to program: flat, typed instructions in the order in which they run, a verifier and a printer.

An instruction names the values it reads and says, for each axis of its result, which labels it holds. The part that
depends on cores alone comes first, so that inference can run it once. Nothing here calls torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import prod

from tnmars.plan.network import Labels, Network
from tnmars.plan.steps import Convolve, Gather, Groups, Load, Multiply, Product, Spread, Step, Sum

Name = str


@dataclass(frozen=True)
class Instruction:
    """What every instruction has: the value it makes and the labels on each of its axes."""

    out: Name
    axes: Groups

    @property
    def reads(self) -> tuple[Name, ...]:
        return ()


@dataclass(frozen=True)
class Fetch(Instruction):
    """A core, or equal cores of several terms stacked along the first axis; without its axes of size 1."""

    cores: tuple[str, ...]
    has_ones: bool = False


@dataclass(frozen=True)
class Scale(Instruction):
    """A fetched core times the gates of some of its bonds; over stacked cores, each term's own."""

    source: Name
    gates: tuple[tuple[str, tuple[str, ...]], ...]
    """For each bond its label, empty where the core has dropped it because its size is 1, and the gate of each term."""

    @property
    def reads(self) -> tuple[Name, ...]:
        return (self.source,)


@dataclass(frozen=True)
class Receive(Instruction):
    """An input of the layer, already split into its modes."""

    name: str


@dataclass(frozen=True)
class Arrange(Instruction):
    """A value with its labels in another order or otherwise grouped into axes: a view where it can be."""

    source: Name

    @property
    def reads(self) -> tuple[Name, ...]:
        return (self.source,)


@dataclass(frozen=True)
class Matmul(Instruction):
    """A matrix product over the last axis of `left` and the one before the last of `right`."""

    left: Name
    right: Name

    @property
    def reads(self) -> tuple[Name, ...]:
        return (self.left, self.right)


@dataclass(frozen=True)
class Times(Instruction):
    """An elementwise product with broadcasting."""

    left: Name
    right: Name

    @property
    def reads(self) -> tuple[Name, ...]:
        return (self.left, self.right)


@dataclass(frozen=True)
class Total(Instruction):
    """A value summed over some of its axes."""

    source: Name
    dims: tuple[int, ...]

    @property
    def reads(self) -> tuple[Name, ...]:
        return (self.source,)


@dataclass(frozen=True)
class Plus(Instruction):
    """The sum of two values."""

    left: Name
    right: Name

    @property
    def reads(self) -> tuple[Name, ...]:
        return (self.left, self.right)


@dataclass(frozen=True)
class Rows(Instruction):
    """Rows of a table, at the index that the modes `labels` make up."""

    source: Name
    labels: Labels

    @property
    def reads(self) -> tuple[Name, ...]:
        return (self.source,)


@dataclass(frozen=True)
class Weight(Instruction):
    """The dense weight in torch's layout, from a value with one axis for each of its parts: padding cut off."""

    source: Name
    keep: tuple[int, ...]
    """The real length of each axis of the source."""
    shape: tuple[int, ...]

    @property
    def reads(self) -> tuple[Name, ...]:
        return (self.source,)


@dataclass(frozen=True)
class Kernel(Instruction):
    """A matrix as the weight of a convolution: its second axis split into channels and taps along each spatial axis."""

    source: Name
    taps: tuple[int, ...]

    @property
    def reads(self) -> tuple[Name, ...]:
        return (self.source,)


@dataclass(frozen=True)
class Conv(Instruction):
    """A convolution of `source` with `weight` in `groups` groups; the options of `spatial` axes act here."""

    source: Name
    weight: Name
    groups: int
    spatial: tuple[int, ...]
    """The spatial axes whose taps are summed here, or none: then it is pointwise."""

    @property
    def reads(self) -> tuple[Name, ...]:
        return (self.source, self.weight)


@dataclass(frozen=True)
class Program:
    """Instructions that run once for given cores, those that run for every input, and the value at the end."""

    fold: tuple[Instruction, ...]
    run: tuple[Instruction, ...]
    result: Name
    sizes: tuple[tuple[str, int], ...]
    dynamic: frozenset[str]

    @property
    def parts(self) -> tuple[Name, ...]:
        """The folded values that `run` (or the result) needs, in the order in which they are made."""
        made = {instruction.out for instruction in self.fold}
        used = {name for instruction in self.run for name in instruction.reads} | {self.result}
        return tuple(instruction.out for instruction in self.fold if instruction.out in made & used)

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        return (*self.fold, *self.run)

    def axes(self) -> dict[Name, Groups]:
        return {instruction.out: instruction.axes for instruction in self.instructions}

    def __str__(self) -> str:
        lines = [line for title, part in (("fold", self.fold), ("run", self.run)) for line in _section(title, part)]
        return "\n".join([*lines, f"  -> {self.result}"])


def _section(title: str, part: Sequence[Instruction]) -> list[str]:
    return [f"{title}:", *(f"  {describe(instruction)}" for instruction in part)] if part else []


def describe(instruction: Instruction) -> str:
    """An instruction on one line: value, axes, operation, operands."""
    axes = ", ".join("·".join(group) or "1" for group in instruction.axes)
    what = " ".join(instruction.reads)
    if isinstance(instruction, Fetch):
        what = " ".join(instruction.cores)
    elif isinstance(instruction, Receive):
        what = instruction.name
    elif isinstance(instruction, Scale):
        what += " by " + " ".join(name for _, names in instruction.gates for name in names)
    elif isinstance(instruction, Conv):
        what += f" groups={instruction.groups} axes={list(instruction.spatial)}"
    return f"{instruction.out:<4} [{axes}] = {type(instruction).__name__.lower()} {what}"


@dataclass
class Lowering:
    """Turns steps into instructions, each value once."""

    network: Network
    prefix: str = ""
    made: list[Instruction] = field(default_factory=list)
    fixed: set[Name] = field(default_factory=set)
    _values: dict[object, Name] = field(default_factory=dict)

    def lower(self, step: Step) -> Name:
        """The name of the value of a step, whose instructions are added where they are not there yet."""
        if step in self._values:
            return self._values[step]
        if isinstance(step, Load):
            name = self._load(step)
        elif isinstance(step, Product):
            name = self._product(step)
        elif isinstance(step, Spread):
            name = self._spread(step)
        elif isinstance(step, Multiply):
            name = self._multiply(step)
        elif isinstance(step, Sum):
            source = self.arrange(self.lower(step.source), tuple((label,) for label in step.source.order))
            dims = tuple(at for at, label in enumerate(step.source.order) if label in step.summed)
            name = self._add(Total(self._next(), tuple((label,) for label in step.order), source, dims))
        elif isinstance(step, Gather):
            rest = tuple(label for label in step.source.order if label not in step.rows)
            table = self.arrange(self.lower(step.source), (step.rows, rest))
            name = self._add(Rows(self._next(), ((step.token,), rest), table, step.rows), fixed=False)
        else:
            name = self._convolve(step)
        self._values[step] = name
        return name

    def arrange(self, source: Name, axes: Groups) -> Name:
        """The value with these axes: itself where it has them already."""
        if self._axes(source) == axes:
            return source
        key = (source, axes)
        if key not in self._values:
            self._values[key] = self._add(Arrange(self._next(), axes, source))
        return self._values[key]

    def _load(self, step: Load) -> Name:
        leaf = self.network.leaves[step.leaf]
        axes = tuple((label,) for label in step.order)
        if leaf.is_core:
            return self._add(Fetch(self._next(), axes, leaf.names, leaf.has_ones), fixed=True)
        return self._add(Receive(self._next(), leaf.axes, leaf.names[0]), fixed=False)

    def _product(self, step: Product) -> Name:
        lead = (step.batch,) if step.batch else ()
        left = self.arrange(self.lower(step.left), (*lead, step.rows, step.depth))
        right = self.arrange(self.lower(step.right), (*lead, step.depth, step.columns))
        return self._add(Matmul(self._next(), (*lead, step.rows, step.columns), left, right))

    def _spread(self, step: Spread) -> Name:
        left = self.arrange(self.lower(step.left), (step.rows, step.depth))
        right = self.arrange(self.lower(step.right), (step.lead, step.depth, step.columns))
        return self._add(Matmul(self._next(), (step.lead, step.rows, step.columns), left, right))

    def _multiply(self, step: Multiply) -> Name:
        """Neighbouring labels that both operands have, or lack, alike share an axis."""
        extra = tuple(label for label in step.right.order if label not in step.left.order)
        order = (*step.left.order, *extra)
        states = {label: (label in step.left.order, label in step.right.order, label in step.summed) for label in order}
        axes = [tuple(run) for _, run in groupby(order, key=states.__getitem__)]
        left = self.arrange(self.lower(step.left), tuple(axis if states[axis[0]][0] else () for axis in axes))
        right = self.arrange(self.lower(step.right), tuple(axis if states[axis[0]][1] else () for axis in axes))
        name = self._add(Times(self._next(), tuple(axes), left, right))
        dims = tuple(at for at, axis in enumerate(axes) if axis[0] in step.summed)
        if not dims:
            return name
        return self._add(Total(self._next(), tuple(axis for at, axis in enumerate(axes) if at not in dims), name, dims))

    def _convolve(self, step: Convolve) -> Name:
        channels = (*step.batch, *step.columns)
        if step.taps:
            inside: Groups = tuple((label,) for label in step.before)
            kernel = tuple(size if axis in step.axes else 1 for axis, size in enumerate(self.network.kernel))
        else:
            inside = ((*step.rest, *step.before),)
            kernel = (1,) if step.batch else ()
        flat = self.arrange(self.lower(step.left), (channels, (*step.depth, *step.taps)))
        weight = self._add(Kernel(self._next(), (channels, (*step.depth, *step.taps)), flat, kernel))
        source = self.arrange(self.lower(step.right), (step.lead, (*step.batch, *step.depth), *inside))
        count = prod(self.network.size[label] for label in step.batch)
        return self._add(Conv(self._next(), (step.lead, channels, *inside), source, weight, count, step.axes))

    def _axes(self, name: Name) -> Groups:
        return next(instruction.axes for instruction in reversed(self.made) if instruction.out == name)

    def _next(self) -> Name:
        return f"{self.prefix}v{len(self.made)}"

    def _add(self, instruction: Instruction, fixed: bool | None = None) -> Name:
        self.made.append(instruction)
        if fixed if fixed is not None else all(name in self.fixed for name in instruction.reads):
            self.fixed.add(instruction.out)
        return instruction.out


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
