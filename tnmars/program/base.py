"""What is known about an instruction: when it is valid, what it sums, its exact work, its time, its description.

An instruction names the values it reads and says which labels each axis of its result holds. Everything that looks at
programs asks these methods: verifier, counter, estimator, explainer, expected sizes, open slices and audit. Only
`tnmars.program.emit` knows how an instruction is written in torch. The instructions themselves are in
`tnmars.program.instructions`. Nothing here calls torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tnmars.graph.window import Window
from tnmars.plan.cost import CostModel
from tnmars.plan.steps import Groups, Labels, flat, shape, volume

Name = str
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Work:
    """Exact counts: multiply-adds of products and convolutions, elementwise operations, and numbers written."""

    macs: int = 0
    elementwise: int = 0
    written: int = 0

    def __add__(self, more: Work) -> Work:
        return Work(self.macs + more.macs, self.elementwise + more.elementwise, self.written + more.written)


@dataclass(frozen=True)
class Site:
    """Where an instruction stands: the instructions that it reads, and the length of every label before and after it.

    The two differ for a convolution: its stride and padding change the lengths of spatial axes.
    """

    read: tuple[Instruction, ...]
    before: Sizes
    after: Sizes

    def entries(self, operand: int) -> int:
        """The number of entries of an operand."""
        return volume(flat(self.read[operand].axes), self.before)


@dataclass(frozen=True)
class Instruction:
    """What every instruction has: the value it makes and the labels on each of its axes."""

    out: Name
    axes: Groups

    operands: ClassVar[tuple[str, ...]] = ()
    """The fields that name the values it reads."""
    is_leaf: ClassVar[bool] = False
    """Whether it brings something in from outside: a core or an input."""
    needs_input: ClassVar[bool] = False
    """Whether it takes part of the layer's input, so that it cannot be done once for given cores."""
    may_sum: ClassVar[bool] = False
    """Whether labels of its operands may be summed."""
    is_shown: ClassVar[bool] = True
    """Whether `tnmars plan` lists it as a step; views and leaves are not listed."""
    counts_grad: ClassVar[bool] = False
    """Whether its time under gradients already holds the fixed cost that autograd adds to a step."""

    @property
    def reads(self) -> tuple[Name, ...]:
        return tuple(getattr(self, name) for name in self.operands)

    @property
    def takes_cores(self) -> tuple[str, ...]:
        """The state-dict names of the cores that it brings in."""
        return ()

    @property
    def takes_gates(self) -> tuple[str, ...]:
        """The qualified names of the bonds whose gates it multiplies in."""
        return ()

    @property
    def takes_inputs(self) -> tuple[str, ...]:
        """The names of the layer's inputs that it brings in."""
        return ()

    @property
    def looks_up(self) -> Labels:
        """The modes that it replaces by rows at an index."""
        return ()

    @classmethod
    def word(cls) -> str:
        """What it is called in print and in files."""
        return cls.__name__.lower()

    def holds(self, read: tuple[Instruction, ...], sizes: Sizes) -> bool:
        """Whether it is valid: its labels and sizes follow from what it reads."""
        return True

    def summed(self, read: tuple[Instruction, ...]) -> Labels:
        """The labels that it sums: those that an operand has and the result lacks."""
        own = flat(self.axes)
        return tuple(dict.fromkeys(label for entry in read for label in flat(entry.axes) if label not in own))

    def extents(self, sizes: Sizes) -> tuple[int, ...]:
        """The shape of its result."""
        return shape(self.axes, sizes)

    def lengths(self, read: tuple[Instruction, ...], window: Window, sizes: Sizes) -> dict[str, int]:
        """The lengths of data axes that it changes, given those before it."""
        return {}

    def work(self, site: Site) -> Work:
        """Its exact counts."""
        return Work()

    def seconds(self, site: Site, model: CostModel, grad: bool) -> float:
        """Its estimated time, with its backward pass if gradients are needed."""
        return 0.0

    def resized(self, read: tuple[Instruction, ...], sizes: Sizes) -> Instruction:
        """The same instruction for other sizes of its labels."""
        return self

    def is_copy(self, read: tuple[Instruction, ...], sizes: Sizes) -> bool:
        """Whether its result has memory of its own, rather than being a view of its first operand."""
        return True

    def detail(self) -> str:
        """What it works on, for the program's listing."""
        return " ".join(self.reads)

    def words(self, read: tuple[Instruction, ...], taken: frozenset[str] = frozenset()) -> str:
        """What it does, in the user's own names: what is left, and what is summed. Edges have the names `taken`."""
        return f"{names(flat(self.axes), taken) or '1'}  <- {self.word()}"

    def __str__(self) -> str:
        axes = ", ".join("·".join(group) or "1" for group in self.axes)
        return f"{self.out:<4} [{axes}] = {self.word()} {self.detail()}"


LONG_NAMES = {"@@b": "batch", "@@n": "tokens"}
"""What data axes are called if an edge has their usual name."""


def names(labels: Labels, taken: frozenset[str] = frozenset()) -> str:
    """Labels as the user wrote them, without the marks of data axes and terms; distinct from edges of that name.

    >>> names(("@@b", "r")), names(("@@b", "b"), taken=frozenset(["b"]))
    ('b r', 'batch b')
    """
    plain = [(label, label.lstrip("@#")) for label in labels]
    return " ".join(
        LONG_NAMES.get(label, f"axis_{name}") if label != name and name in taken else name for label, name in plain
    )
