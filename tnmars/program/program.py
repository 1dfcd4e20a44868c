"""A program: flat instructions in the order in which they run, the part that depends on cores alone first.

`verify` checks that a program is consistent. `refold`, `standing` and `staged` move work between what is done once for
given cores, once for a batch, and for every chunk of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tnmars.plan.steps import Groups, flat, volume
from tnmars.program.base import Instruction, Name, Sizes
from tnmars.program.instructions import Fetch


@dataclass(frozen=True)
class Program:
    """Instructions that run once for given cores, those that run for every input, and the value at the end."""

    fold: tuple[Instruction, ...]
    run: tuple[Instruction, ...]
    result: Name
    sizes: tuple[tuple[str, int], ...]
    """The size of every label. Those of data axes are nominal, and spatial axes have the length of the input."""
    dynamic: frozenset[str]

    @cached_property
    def _hash(self) -> int:
        return hash((self.fold, self.run, self.result, self.sizes, self.dynamic))

    def __hash__(self) -> int:
        return self._hash  # programs are keys of caches, and have many instructions

    @cached_property
    def parts(self) -> tuple[Name, ...]:
        """The folded values that `run` (or the result) needs, in the order in which they are made."""
        used = {name for instruction in self.run for name in instruction.reads} | {self.result}
        return tuple(instruction.out for instruction in self.fold if instruction.out in used)

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        return (*self.fold, *self.run)

    @cached_property
    def made(self) -> Mapping[Name, Instruction]:
        """The instruction that makes each value."""
        return {instruction.out: instruction for instruction in self.instructions}

    def read_by(self, instruction: Instruction) -> tuple[Instruction, ...]:
        """The instructions that make what another reads."""
        return tuple(self.made[name] for name in instruction.reads)

    def axes(self) -> dict[Name, Groups]:
        """The axes of every value."""
        return {name: instruction.axes for name, instruction in self.made.items()}

    @property
    def cores(self) -> tuple[str, ...]:
        """The state-dict names of the cores in the order in which they are fetched."""
        return tuple(name for entry in self.fold for name in entry.takes_cores)

    @property
    def gates(self) -> tuple[str, ...]:
        """The qualified names of the bonds whose gates are multiplied in, in order."""
        return tuple(dict.fromkeys(name for entry in self.fold for name in entry.takes_gates))

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: what is cached differs between processes, as hashes do."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def __str__(self) -> str:
        lines = [line for title, part in (("fold", self.fold), ("run", self.run)) for line in _section(title, part)]
        return "\n".join([*lines, f"  -> {self.result}"])


def _section(title: str, part: Sequence[Instruction]) -> list[str]:
    return [f"{title}:", *(f"  {instruction}" for instruction in part)] if part else []


def verify(program: Program) -> None:
    """Checks that every instruction reads values that exist, and that its labels and sizes follow from what it reads.

    What cores and inputs hold is taken as given. Raises `AssertionError`, because that is a bug in tnmars, not a
    mistake of the user.
    """
    sizes = dict(program.sizes)
    made: dict[Name, Instruction] = {}
    for instruction in program.instructions:
        assert instruction.out not in made, f"{instruction.out} is made twice"
        for name in instruction.reads:
            assert name in made, f"{instruction.out} reads {name} before it is made"
        labels = flat(instruction.axes)
        assert len(set(labels)) == len(labels), f"{instruction.out} has a label twice"
        assert all(label in sizes for label in labels), f"{instruction.out} has a label without a size"
        assert instruction.holds(tuple(made[name] for name in instruction.reads), sizes), str(instruction)
        made[instruction.out] = instruction
    assert program.result in made, f"{program.result} is not made"
    assert not any(entry.is_leaf and not entry.needs_input for entry in program.run), (
        "a core is fetched for every input"
    )
    assert not any(entry.needs_input for entry in program.fold), "an input is read before there is one"


def homes(program: Program, sizes: Sizes) -> dict[Name, Name]:
    """For each value, the one whose memory it lies in: its own, or, if it is a view, that of another."""
    home: dict[Name, Name] = {}
    for instruction in program.instructions:
        is_copy = not instruction.reads or instruction.is_copy(program.read_by(instruction), sizes)
        home[instruction.out] = instruction.out if is_copy else home[instruction.reads[0]]
    return home


def refold(program: Program, limit: float) -> Program:
    """The program with less folded, so that its folded parts hold at most `limit` numbers.

    The largest part that is made from others is made on every run instead, until the rest fits. Cores stay folded: a
    program that folds nothing else ships only them.
    """
    sizes = dict(program.sizes)
    while True:
        entries = {part: volume(flat(program.made[part].axes), sizes) for part in program.parts}
        movable = [part for part in program.parts if program.made[part].reads]
        if sum(entries.values()) <= limit or not movable:
            return program
        largest = max(movable, key=entries.__getitem__)
        fold = tuple(instruction for instruction in program.fold if instruction.out != largest)
        program = replace(program, fold=fold, run=(program.made[largest], *program.run))


def standing(program: Program) -> tuple[Instruction, ...]:
    """What is done on every run although it depends on no input: with chunks of a batch, once for all of them."""
    ready = {instruction.out for instruction in program.fold}
    still = []
    for instruction in program.run:
        if instruction.reads and not instruction.needs_input and ready.issuperset(instruction.reads):
            ready.add(instruction.out)
            still.append(instruction)
    return tuple(still)


def staged(program: Program) -> Program:
    """The program once its folded parts exist: they take the place of cores, and what stands is folded."""
    still = standing(program)
    given = tuple(Fetch(part, program.made[part].axes, (part,)) for part in program.parts)
    return replace(program, fold=(*given, *still), run=tuple(entry for entry in program.run if entry not in still))
