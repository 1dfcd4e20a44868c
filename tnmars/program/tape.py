"""The tape of a training step: the forward pass of a program line by line, and the backward pass that is added to it.

It knows how values are named, which of them need a gradient, how gradients are added up, and what the backward pass
takes from the forward pass. How an instruction passes its gradient on is in `tnmars.program.backward`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from tnmars.plan.steps import Groups, flat, runs, volume
from tnmars.program.base import Instruction, Name
from tnmars.program.emit import WRITE, Writer, arranged, permuted
from tnmars.program.form import Frame
from tnmars.program.framing import listed
from tnmars.program.instructions import Arrange, Fetch, Matmul, Plus, Receive, Times, Weight
from tnmars.program.program import Program
from tnmars.program.slots import Line, Slots, assign, home_of, read_by

LARGE = 1 << 18
"""A value with at least this many entries is written into a kept buffer, because fresh memory is slow."""
ROOM = 1 << 24
"""The most entries of all kept buffers together; what does not fit is made as usual."""
WIDE = 1 << 14
"""The gradient of a factor with at least this many entries, which many matrices share, is added up one by one."""


@dataclass(frozen=True)
class Step:
    """The source of a training step: functions `forward`, `backward` and `shapes`."""

    source: str
    saved: tuple[int, ...]
    """The arguments that the backward pass takes again, or whose memory it reads, by position."""
    rest: tuple[int, ...]
    """Other arguments that gradients depend on, through values that the forward pass has made from them."""
    slots: tuple[int, ...]
    """The entries of the kept buffers, at the lengths that the program was made for."""


def input_names(frame: Frame) -> list[str]:
    """What the inputs are called in the source."""
    return [f"x{at}" for at in range(len(frame.inputs))]


@dataclass
class Tape:
    """Writes both passes. Values of the program have their own names, and `d_v1` is the gradient of `v1`."""

    program: Program
    frame: Frame
    needed: frozenset[str]
    is_summed: bool
    forth: list[Line] = field(default_factory=list)
    back: list[Line] = field(default_factory=list)
    slopes: dict[Name, str] = field(default_factory=dict)
    """The variable that holds the gradient of a value so far."""
    own: set[str] = field(default_factory=set)
    """Gradients in memory of their own, which may be added to in place."""
    found: dict[str, str] = field(default_factory=dict)
    """The gradients of the arguments."""
    sums: dict[Name, str] = field(default_factory=dict)
    """For chunks, the variable that the gradient of a value is added to."""
    first: dict[Name, Name] = field(default_factory=dict)
    """For a value that receives an input, the first one that does: every term has its own."""

    def __post_init__(self) -> None:
        self.writer = Writer(self.program, self.frame)
        self.inputs = input_names(self.frame)
        bias = ["bias"] if self.frame.has_bias else []
        self.arguments = [*self.inputs, *bias, *self.writer.arguments.values()]
        self.sloped: set[Name] = set()
        self._forward()

    def step(self) -> Step:
        """The source of both passes, once every gradient is passed on."""
        given = set(self.arguments)
        made = given | {line.out for line in self.forth}
        read = dict.fromkeys(name for line in self.back for name in read_by(line.text))
        used = [name for name in read if name in made]
        held = [name for name in used if name not in given]
        homes = home_of([*self.forth, *self.back])
        direct = {*(name for name in used if name in given), *(homes.get(name, name) for name in held)}
        saved = [name for name in self.arguments if name in direct]
        slots = Slots(ROOM)
        forth = assign(self.forth, (), {"y", *held}, slots, LARGE)
        back = assign(self.back, held, set(self.found.values()), slots, LARGE)
        lines = ["import torch", "import torch.nn.functional as F", "", ""]
        lines += _function("forward", [*self.arguments, "kept"], [*forth, f"return y, [{', '.join(held)}]"])
        opening = [f"{listed(held)} = held", "held.clear()"] if held else []
        sums = list(self.sums.values())
        opening += [f"{listed(sums)} = sums"] if sums else []
        sloped = self.inputs if self.is_summed else [name for name in self.arguments if name != "bias"]
        ending = [self.found.get(name, "None") for name in sloped]
        taken = ["dy", "held", *saved, *(["sums"] if self.is_summed else []), "kept"]
        lines += ["", "", *_function("backward", taken, [*opening, *back, f"return {listed(ending)}"])]
        shapes = [f"({slot}, {listed(shape)})," for slot, shape in slots.views]
        numbers = [f"{line.out} = {line.text}" for line in self.forth if line.out in self._lengths]
        lines += ["", "", *_function("shapes", self.inputs, [*numbers, "return (", *shapes, ")"])]
        rest = self._sources(used) - set(saved)
        return Step("\n".join(lines) + "\n", self._places(saved), self._places(rest), tuple(slots.entries))

    def _places(self, names: Collection[str]) -> tuple[int, ...]:
        return tuple(at for at, name in enumerate(self.arguments) if name in names)

    def _sources(self, names: Iterable[str]) -> set[str]:
        """The arguments that values of the forward pass are made from. Lengths of axes do not count."""
        made: dict[str, set[str]] = {name: {name} for name in self.arguments}
        for line in self.forth:
            read = [] if line.out in self._lengths else read_by(line.text)
            made[line.out] = {source for name in read for source in made.get(name, ())}
        return {source for name in names for source in made[name]}

    def _entries(self, axes: Groups) -> int:
        return volume(flat(axes), self.writer.sizes)

    def _room(self, axes: Groups) -> tuple[tuple[str, ...], int]:
        return tuple(map(self.writer.length, axes)), self._entries(axes)

    # --- forward ------------------------------------------------------------------------------------------------------

    def _forward(self) -> None:
        writer = self.writer
        for entry in self.program.run:
            if isinstance(entry, Receive):
                WRITE[Receive](writer, entry)
        self._lengths: dict[str, str] = {}
        for at, (label, text) in enumerate(writer.lengths.items()):  # the backward pass may not have the inputs
            self._lengths[f"n{at}"] = text
            writer.lengths[label] = f"n{at}"
            self.forth.append(Line(f"n{at}", text))
        if self.frame.pad:
            self.forth.append(Line("p0", f"F.pad(x0, (0, {self.frame.pad}))"))
        for entry in self.program.instructions:
            self._run(entry)
        self._close()

    def _run(self, entry: Instruction) -> None:
        writer = self.writer
        if isinstance(entry, Receive):
            place = self.frame.inputs.index(entry.name)
            writer.aliases[entry.out] = "p0" if self.frame.pad else f"x{place}"
            same = (other.out for other in self.program.run if isinstance(other, Receive) and other.name == entry.name)
            self.first[entry.out] = next(same)
            if f"x{place}" in self.needed:
                self.sloped.add(entry.out)
            return
        given = [writer.arguments["core", name] for name in entry.takes_cores]
        given += [writer.arguments["gate", name] for name in entry.takes_gates]
        if self.needed.intersection(given) or self.sloped.intersection(entry.reads):
            self.sloped.add(entry.out)
            if self.is_summed and isinstance(entry, Fetch):
                self.sums[entry.out] = f"sum{given[0][1:]}"
        written = WRITE[type(entry)](writer, entry)
        if isinstance(written, list):  # a core
            for line in written:
                name, text = line.partition("  #")[0].split(" = ", 1)
                source = given[0] if len(given) == 1 else ""
                self.forth.append(Line(name, text, view_of=source))
            return
        room = self._room(entry.axes)
        if isinstance(entry, Arrange):
            text, into, source = self._arranged(writer.of(entry.source), writer.axes(entry.source), entry.axes)
            self.forth.append(Line(entry.out, text, into, *room, view_of=source))
        else:
            source = writer.of(entry.reads[0]) if isinstance(entry, Weight) else ""
            self.forth.append(Line(entry.out, written, self._into(entry, written), *room, view_of=source))

    def _into(self, entry: Instruction, text: str) -> str:
        """How a value is written into a tensor; empty if it is not."""
        if isinstance(entry, Matmul) and text.startswith(("torch.mm(", "torch.bmm(")):
            return f"{text[:-1]}, out={{}})"
        if isinstance(entry, (Times, Plus)):
            call = "mul" if isinstance(entry, Times) else "add"
            return f"torch.{call}({self.writer.of(entry.left)}, {self.writer.of(entry.right)}, out={{}})"
        return ""

    def _arranged(self, source: str, have: Groups, wanted: Groups) -> tuple[str, str, str]:
        """A value with other axes: the expression, how it is written into a tensor, and what it may share memory with.

        What is not a view is copied in any case: `reshape` would share memory where a data axis has length 1.
        """
        if runs(flat(have), [group for group in wanted if group], self.writer.sizes):
            return arranged(self.writer, source, have, wanted), "", source
        text, moved = permuted(self.writer, source, have, wanted)
        copy = f"{text}.clone(memory_format=torch.contiguous_format).view({self.writer.shape(wanted)})"
        return copy, f"{{}}.view({self.writer.shape(moved)}).copy_({text})", ""

    def _close(self) -> None:
        frame, result = self.frame, self.program.result
        text = self.writer.of(result)
        bias = "bias" if frame.has_bias else "None"
        if frame.dense:
            weight = f"{text}.t()" if frame.is_transposed else text
            self.forth.append(Line("y", f"{frame.dense}(x0, {weight}, {bias})"))
            return
        text += f"[:, :{frame.cut}]" if frame.cut else ""
        if frame.has_bias and not self.writer.fused:
            self.forth.append(Line("y", f"{text} + bias"))
        else:
            self.forth.append(Line("y", text, view_of=self.writer.of(result)))

    # --- backward -----------------------------------------------------------------------------------------------------

    def line(
        self, out: str, text: str, into: str = "", room: tuple[tuple[str, ...], int] = ((), 0), view_of: str = ""
    ) -> str:
        """Adds a line to the backward pass, and gives the name of its value."""
        self.back.append(Line(out, text, into, *room, view_of=view_of))
        return out

    def add(
        self, name: Name, text: str, into: str = "", view_of: str = "", product: tuple[str, str] = ("", "")
    ) -> None:
        """Adds a part to the gradient of a value: an expression, or a product, which torch adds in the same call.

        A product is the name of torch's function and its operands.
        """
        if name not in self.sloped:
            return
        name = self.first.get(name, name)
        call, operands = product
        before = self.sums.get(name) or self.slopes.get(name)
        if before is None:
            self.slopes[name] = self.line(f"d_{name}", text, into, self._room(self.writer.axes(name)), view_of)
            return
        if name in self.sums or before in self.own:
            text = f"{before}.{call}_({operands})" if call else f"{before}.add_({text})"
            view_of = before
        else:
            text = f"torch.{call}({before}, {operands})" if call else f"{before} + {text}"
            view_of = ""
        if name in self.sums:
            self.line("", text)
            return
        self.slopes[name] = self.line(f"{before}_", text, view_of=view_of)
        self.own.add(self.slopes[name])

    def add_product(self, name: Name, left: str, right: str, kind: str) -> None:
        """Adds `left @ right` to the gradient of a value: one product, or a stack of them, which `addbmm` sums."""
        if name not in self.sloped:
            return
        operands = f"{left}, {right}"
        if kind == "addbmm":
            shape = ", ".join(map(self.writer.length, self.writer.axes(name)))
            if self._entries(self.writer.axes(name)) < WIDE:
                self.add(name, f"torch.bmm({operands}).sum(0)")
            else:
                self.add(name, f"dy.new_zeros({shape}).addbmm_({operands})", product=("addbmm", operands))
        elif kind == "addmm" and self._is_turned(name):  # as autograd does: the gradient lies like the value
            turned = f"torch.mm({_turn(right)}, {_turn(left)})"
            self.add(name, f"{turned}.t()", product=(kind, operands))
        else:
            text = f"torch.{'mm' if kind == 'addmm' else 'bmm'}({operands})"
            self.add(name, text, f"{text[:-1]}, out={{}})", product=(kind, operands))

    def _is_turned(self, name: Name) -> bool:
        """Whether a matrix lies in memory with its two axes swapped."""
        entry = self.program.made[name]
        if not isinstance(entry, Arrange) or len(entry.axes) != 2:
            return False
        text, moved = permuted(self.writer, "", self.writer.axes(entry.source), entry.axes)
        return moved == entry.axes and text.endswith(".t()")

    def arrange(self, name: Name, slope: str, have: Groups) -> None:
        """Adds a gradient with other axes to that of a value."""
        if name not in self.sloped:
            return
        text, into, source = self._arranged(slope, have, self.writer.axes(name))
        self.add(name, text, into, source)


def _turn(text: str) -> str:
    return text[: -len(".t()")] if text.endswith(".t()") else f"{text}.t()"


def _function(name: str, arguments: Sequence[str], body: Sequence[str]) -> list[str]:
    return [f"def {name}({', '.join(arguments)}):", *(f"    {line}" for line in body)]
