"""Program to Python source that calls torch alone: two functions, `fold` for what depends on cores alone, and `run`.

The source is straight-line and readable; its variables are its own. A spec's names appear only in comments, so that no
file can write code. Shapes of data axes are taken from the inputs, so that one source serves every batch. `WRITE` has
one function per instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from tnmars.plan.network import BATCH, TOKENS, Labels
from tnmars.plan.steps import Groups, flat, volume
from tnmars.program import framing
from tnmars.program.base import Instruction, Name
from tnmars.program.form import Frame
from tnmars.program.framing import listed
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
    Scale,
    Times,
    Total,
    Weight,
)
from tnmars.program.program import Program
from tnmars.program.transposed import ConvTranspose


@lru_cache(maxsize=4096)
def emit(program: Program, frame: Frame) -> str:
    """The source of a program."""
    return Writer(program, frame).source()


@dataclass
class Writer:
    """Writes the source of one program."""

    program: Program
    frame: Frame
    lengths: dict[str, str] = field(default_factory=dict)
    """The expression for the length of a data axis at this point of the program."""
    aliases: dict[Name, str] = field(default_factory=dict)
    """The variable of a value that is an argument as it comes."""

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        return dict(self.program.sizes)

    @cached_property
    def arguments(self) -> Mapping[tuple[str, str], str]:
        """The argument of `fold` for each core, and for the gates of each bond."""
        cores, gates = self.program.cores, self.program.gates
        names = [*(f"w{at}" for at in range(len(cores))), *(f"g{at}" for at in range(len(gates)))]
        return dict(zip([*(("core", name) for name in cores), *(("gate", name) for name in gates)], names, strict=True))

    @cached_property
    def fused(self) -> Name:
        """The last product or convolution, if it can add the bias; empty if it cannot."""
        if not self.frame.has_bias or self.frame.cut or self.frame.dense or not self.program.run:
            return ""
        made = {instruction.out: instruction for instruction in self.program.run}
        last = made.get(self.program.result)
        wanted = last.axes if last else ()
        if isinstance(last, Arrange) and last.source in made and flat(last.axes) == flat(made[last.source].axes):
            last = made[last.source]
        if isinstance(last, Matmul):
            is_plain = all(len(entry.axes) == 2 for entry in self.program.read_by(last))
            return last.out if is_plain and last.axes == wanted[:2] and len(wanted) == 2 else ""
        return last.out if isinstance(last, Conv) and last.axes[:2] == wanted[:2] else ""

    def source(self) -> str:
        """The complete source."""
        names = [f"# {argument}: {name}" for (_, name), argument in self.arguments.items()]
        fold = self._body(self.program.fold, set(self.arguments.values()))
        parts = self.program.parts
        ready = listed(map(self.of, parts))
        self.aliases.clear()  # in `run`, a folded core is an argument like any other part
        if self.frame.strides:
            self.lengths[TOKENS] = "index.shape[0]"
        given = [*framing.arguments(self.frame), *parts]
        opening = framing.opening(self.frame)
        run = self._body(self.program.run, set(given))
        closing = framing.closing(self.frame, self.of(self.program.result), has_added_bias=bool(self.fused))
        lines = ["import torch", "import torch.nn.functional as F", "", ""]
        lines += _function("fold", list(self.arguments.values()), [*names, *fold, f"return {ready}"])
        lines += ["", "", *_function("run", given, [*opening, *run, *closing])]
        return "\n".join(lines) + "\n"

    def _body(self, instructions: Sequence[Instruction], given: set[str]) -> list[str]:
        lines: list[str] = []
        held = {self.program.result, *self.program.parts, *given}
        last = {name: at for at, instruction in enumerate(instructions) for name in instruction.reads}
        for at, instruction in enumerate(instructions):
            lines += self._lines(instruction)
            # large intermediates need not wait for the end of the function
            read = dict.fromkeys(instruction.reads)
            done = [name for name in read if last[name] == at and name not in held and name not in self.aliases]
            lines += [f"del {', '.join(done)}"] if done else []
        return lines

    def _lines(self, instruction: Instruction) -> list[str]:
        written = WRITE[type(instruction)](self, instruction)
        if isinstance(written, list):
            return written
        comment = f"  # [{', '.join(self.shown(group) for group in instruction.axes)}]"
        return [f"{instruction.out} = {written}{comment}"]

    def of(self, name: Name) -> str:
        """The variable that holds a value."""
        return self.aliases.get(name, name)

    def axes(self, name: Name) -> Groups:
        """The axes of a value."""
        return self.program.made[name].axes

    def shape(self, groups: Groups) -> str:
        """The arguments of a reshape; one axis that holds data is left to torch: the batch, which may be empty."""
        data = [at for at, group in enumerate(groups) if any(label in self.program.dynamic for label in group)]
        open_axis = next((at for at in data if BATCH in groups[at]), data[0] if data else None)
        if any(label.startswith("#") for label in self.program.dynamic):
            open_axis = None  # several data axes may be empty at once, and then torch cannot tell
        return ", ".join("-1" if at == open_axis else self.length(group) for at, group in enumerate(groups)) or "()"

    def length(self, group: Labels) -> str:
        """The expression for the length of an axis."""
        fixed = volume([label for label in group if label not in self.program.dynamic], self.sizes)
        factors = [self.lengths[label] for label in group if label in self.program.dynamic]
        return " * ".join([*factors, *([str(fixed)] if fixed != 1 or not factors else [])])

    def shown(self, group: Labels) -> str:
        """An axis as a comment shows it."""
        fixed = volume([label for label in group if label not in self.program.dynamic], self.sizes)
        data = [label.lstrip("@#") for label in group if label in self.program.dynamic]
        return " ".join([*data, *([str(fixed)] if fixed != 1 or not data else [])])


def _function(name: str, arguments: Sequence[str], body: Sequence[str]) -> list[str]:
    return [f"def {name}({', '.join(arguments)}):", *(f"    {line}" for line in body)]


def _fetch(writer: Writer, entry: Fetch) -> list[str]:
    weights = [writer.arguments["core", core] for core in entry.cores]
    given = tuple((label,) for label in entry.repeated) or entry.axes
    shape = f".reshape({writer.shape(given)})" if entry.has_ones else ""
    shape += _diagonals(entry.repeated) + (
        ".conj_physical()" if entry.conj else ""
    )  # optimizers take no lazy conjugates as gradients
    comment = f"  # {' '.join(entry.cores)}"
    if len(weights) > 1:
        return [f"{entry.out} = torch.stack({listed(weights)}){shape}{comment}"]
    if shape:
        return [f"{entry.out} = {weights[0]}{shape}{comment}"]
    writer.aliases[entry.out] = weights[0]
    return []


def _diagonals(labels: Labels) -> str:
    """The calls that leave one axis for each label, where it first is.

    >>> _diagonals(("r", "i", "r"))
    '.diagonal(0, 0, 2).movedim(-1, 0)'
    """
    left, calls = list(labels), ""
    for label in dict.fromkeys(labels):
        while left.count(label) > 1:
            first = left.index(label)
            second = left.index(label, first + 1)
            calls += f".diagonal(0, {first}, {second}).movedim(-1, {first})"
            del left[second]
    return calls


def _receive(writer: Writer, entry: Receive) -> list[str]:
    """Takes an input, and notes the lengths of data axes that stand alone on an axis."""
    name = writer.aliases[entry.out] = f"x{writer.frame.inputs.index(entry.name)}"
    for at, group in enumerate(entry.axes):
        if len(group) == 1 and group[0] in writer.program.dynamic:
            writer.lengths[group[0]] = f"{name}.shape[{at}]"
    return []


def _scale(writer: Writer, entry: Scale) -> str:
    """A core times its gates; several are multiplied with each other first, so that the core is scaled once."""
    gates = " * ".join(gate_text(writer, label, names, entry.axes) for label, names in entry.gates)
    gates = f"({gates})" if len(entry.gates) > 1 else gates
    return f"{writer.of(entry.source)} * {gates}"


def gate_text(writer: Writer, label: str, names: Sequence[str], axes: Groups) -> str:
    """One bond's gate as it is broadcast over a core; over stacked cores, along their axis too."""
    shape = [str(writer.sizes[label]) if axis == (label,) else "1" for axis in axes]
    gates = [writer.arguments["gate", name] for name in names]
    if len(gates) > 1:
        shape[0] = str(len(gates))
        return f"torch.stack({listed(gates)}).reshape({', '.join(shape)})"
    return gates[0] if shape and axes[-1] == (label,) else f"{gates[0]}.reshape({', '.join(shape) or '()'})"


def _arrange(writer: Writer, entry: Arrange) -> str:
    return arranged(writer, writer.of(entry.source), writer.axes(entry.source), entry.axes)


def arranged(writer: Writer, source: str, have: Groups, wanted: Groups) -> str:
    """The expression for a value with other axes."""
    text, moved = permuted(writer, source, have, wanted)
    return text if moved == wanted else f"{text}.reshape({writer.shape(wanted)})"


def permuted(writer: Writer, source: str, have: Groups, wanted: Groups) -> tuple[str, Groups]:
    """The expression for a value whose labels are in the order of the wanted axes, and the axes that it has then."""
    blocks = _blocks(flat(have), flat(wanted))
    if len(blocks) < 2:
        return source, have
    target = sorted(range(len(blocks)), key=lambda at: flat(wanted).index(blocks[at][0]))
    split = tuple(blocks)
    text = source if split == have else f"{source}.reshape({writer.shape(split)})"
    text += ".t()" if len(blocks) == 2 else f".permute({', '.join(map(str, target))})"
    return text, tuple(blocks[at] for at in target)


def _blocks(order: Labels, wanted: Labels) -> list[Labels]:
    """The longest runs of `order` that stay together in `wanted`."""
    place = {label: at for at, label in enumerate(wanted)}
    blocks: list[Labels] = []
    for label in order:
        if blocks and place[label] == place[blocks[-1][-1]] + 1:
            blocks[-1] = (*blocks[-1], label)
        else:
            blocks.append((label,))
    return blocks


def _matmul(writer: Writer, entry: Matmul) -> str:
    left, right = writer.of(entry.left), writer.of(entry.right)
    ndims = (len(writer.axes(entry.left)), len(writer.axes(entry.right)))
    if ndims == (2, 3):  # torch.matmul would fold the batch, which is slow in the backward pass
        return f"torch.bmm({left}.expand({right}.shape[0], -1, -1), {right})"
    if entry.out == writer.fused:
        return f"torch.addmm(bias, {left}, {right})"
    return f"torch.{'mm' if ndims == (2, 2) else 'bmm'}({left}, {right})"


def _times(writer: Writer, entry: Times) -> str:
    return f"{writer.of(entry.left)} * {writer.of(entry.right)}"


def _plus(writer: Writer, entry: Plus) -> str:
    return f"{writer.of(entry.left)} + {writer.of(entry.right)}"


def _total(writer: Writer, entry: Total) -> str:
    return f"{writer.of(entry.source)}.sum({listed(map(str, entry.dims))})"


def _rows(writer: Writer, entry: Rows) -> list[str]:
    comment = f"  # [{', '.join(writer.shown(group) for group in entry.axes)}]"
    row = f"row = {framing.row_number(writer.frame, entry.labels)}"
    # not F.embedding, which has no gradient for complex tables and a slower one for others
    return [row, f"{entry.out} = {writer.of(entry.source)}.index_select(0, row){comment}"]


def _weight(writer: Writer, entry: Weight) -> str:
    text = writer.of(entry.source)
    full = [volume(group, writer.sizes) for group in entry.axes]
    if tuple(full) != entry.keep:
        cut = [f":{keep}" if keep != size else ":" for keep, size in zip(entry.keep, full, strict=True)]
        text += f"[{', '.join(cut)}]"
    return text if entry.keep == entry.shape else f"{text}.reshape({', '.join(map(str, entry.shape))})"


def _repeat(writer: Writer, entry: Repeat) -> str:
    count, (rows, inside) = volume(entry.labels, writer.sizes), entry.axes
    shape = f"{volume(rows, writer.sizes)}, {volume(inside, writer.sizes)}"
    return f"{writer.of(entry.source)}.expand({count}, -1, -1).reshape({shape})"


def _kernel(writer: Writer, entry: Kernel) -> str:
    shape = ", ".join(map(str, (volume(entry.axes[0], writer.sizes), -1, *entry.taps)))
    return f"{writer.of(entry.source)}.reshape({shape})"


def _conv(writer: Writer, entry: Conv) -> str | list[str]:
    source, weight = writer.of(entry.source), writer.of(entry.weight)
    groups = f", groups={entry.groups}" if entry.groups > 1 else ""
    bias = ", bias" if entry.out == writer.fused else ""
    if not entry.spatial and len(entry.axes) > 3:  # not as a product, which would not keep channels_last
        return f"F.conv{len(entry.axes) - 2}d({source}, {weight}{bias}{groups})"
    if not entry.spatial and not groups and not bias:  # a product is as fast as a pointwise convolution
        return f"torch.bmm({weight}.expand({source}.shape[0], -1, -1), {source})"
    if not entry.spatial:
        unit = "" if groups else ".unsqueeze(-1)"
        return f"F.conv1d({source}, {weight}{unit}{bias}{groups})"
    options = framing.options(writer.frame, entry.spatial)
    comment = f"  # [{', '.join(writer.shown(group) for group in entry.axes)}]"
    name = "conv_transpose" if isinstance(entry, ConvTranspose) else "conv"
    call = f"{entry.out} = F.{name}{writer.frame.spatial}d({source}, {weight}{bias}{options}{groups}){comment}"
    lengths = {entry.axes[at][0]: f"{entry.out}_{at}" for at in range(2, len(entry.axes))}
    writer.lengths.update(lengths)  # a convolution changes the lengths of the spatial axes
    names = ", ".join(lengths.values()) + ("," if len(lengths) == 1 else "")
    return [call, f"{names} = {entry.out}.shape[2:]"]


WRITE: dict[type[Instruction], Callable[[Writer, Any], str | list[str]]] = {
    Fetch: _fetch,
    Scale: _scale,
    Receive: _receive,
    Arrange: _arrange,
    Matmul: _matmul,
    Times: _times,
    Plus: _plus,
    Total: _total,
    Rows: _rows,
    Weight: _weight,
    Kernel: _kernel,
    Repeat: _repeat,
    Conv: _conv,
    ConvTranspose: _conv,
}
"""How each instruction is written: as an expression, or as complete lines."""
