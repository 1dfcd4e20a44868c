"""Program to Python source that calls torch alone: two functions, `fold` for what depends on cores alone, and `run`.

The source is straight-line and readable; its variables are its own. A spec's names appear only in comments, so that no
file can write code. Shapes of data axes are taken from the inputs, so that one source serves every batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from tnmars.plan.network import BATCH, TOKENS, Labels
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


@dataclass(frozen=True)
class Frame:
    """What is around the contraction: how inputs are padded and the result cut, and the options of a convolution."""

    inputs: tuple[str, ...] = ("x",)
    pad: int = 0
    """Zeros added to the flat input axis, axis 1."""
    cut: int = 0
    """Entries of the flat output axis, axis 1, to keep; 0 for all."""
    has_bias: bool = False
    spatial: int = 0
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    padding: tuple[int, ...] | str = ()
    unfold: tuple[int, ...] = ()
    """The kernel whose patches are taken from the input before the contraction; empty for none."""
    subsample: bool = False
    """Whether stride and padding act on the input itself, because no core has the taps (all of size 1)."""
    strides: tuple[tuple[str, int, int], ...] = ()
    """For looked-up modes: label, the stride of its digit in the row number, and its size."""
    columns: bool = False
    """Whether the index has a column for each mode rather than one row number."""
    dense: str = ""
    """The torch function that a dense weight is given to, such as `F.linear`; empty where there is none."""
    is_transposed: bool = False
    """Whether the dense weight lies with its two axes swapped."""


def emit(program: Program, frame: Frame) -> str:
    """The source of a program."""
    return _Writer(program, frame).source()


def core_names(program: Program) -> tuple[str, ...]:
    """The state-dict names of the cores in the order in which `fold` takes them."""
    return tuple(name for instruction in program.fold if isinstance(instruction, Fetch) for name in instruction.cores)


@dataclass
class _Writer:
    program: Program
    frame: Frame
    sizes: Mapping[str, int] = field(init=False)
    lengths: dict[str, str] = field(default_factory=dict)
    """The expression for the length of a data axis at this point of the program."""
    axes: dict[Name, Groups] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes = dict(self.program.sizes)

    @cached_property
    def fused(self) -> Name:
        """The last product or convolution, where the bias can be added by it; empty where it cannot."""
        if not self.frame.has_bias or self.frame.cut or self.frame.dense or not self.program.run:
            return ""
        made = {instruction.out: instruction for instruction in self.program.run}
        last = made.get(self.program.result)
        wanted = last.axes if last else ()
        if isinstance(last, Arrange) and last.source in made and _flat(last.axes) == _flat(made[last.source].axes):
            last = made[last.source]
        if isinstance(last, Matmul):
            is_plain = all(len(self._axes_of(name)) == 2 for name in last.reads)
            return last.out if is_plain and last.axes == wanted[:2] and len(wanted) == 2 else ""
        return last.out if isinstance(last, Conv) and last.axes[:2] == wanted[:2] else ""

    def _axes_of(self, name: Name) -> Groups:
        return self.program.axes()[name]

    def source(self) -> str:
        cores = core_names(self.program)
        weights = [f"w{at}" for at in range(len(cores))]
        self.names = dict(zip(cores, weights, strict=True))
        bonds = gate_names(self.program)
        gates = [f"g{at}" for at in range(len(bonds))]
        self.gates = dict(zip(bonds, gates, strict=True))
        parts = list(self.program.parts)
        lines = ["import torch", "import torch.nn.functional as F", "", ""]
        told = [f"# {given}: {name}" for given, name in zip([*weights, *gates], [*cores, *bonds], strict=True)]
        fold = self._function("fold", [*weights, *gates], self.program.fold, told, "")
        lines += [*fold[:-1], f"    return {_tuple(map(self._of, parts))}"]
        lines += ["", ""]
        self.aliases.clear()  # in `run`, a folded core is an argument like any other part
        lines += self._function("run", [*self._arguments(), *parts], self.program.run, self._opening(), self._closing())
        return "\n".join(lines) + "\n"

    def _arguments(self) -> list[str]:
        given = ["index"] if self.frame.strides else [f"x{at}" for at in range(len(self.frame.inputs))]
        return [*given, *(["bias"] if self.frame.has_bias else [])]

    def _function(
        self, name: str, arguments: Sequence[str], body: Sequence[Instruction], opening: list[str], result: str
    ) -> list[str]:
        lines = [f"def {name}({', '.join(arguments)}):"]
        lines += [f"    {line}" for line in opening]
        for at, instruction in enumerate(body):
            self.axes[instruction.out] = instruction.axes
            last = body[at + 1 :]
            for line in self._instruction(instruction):
                lines.append(f"    {line}")
            done = self._finished(instruction, last, arguments)
            if done:
                lines.append(f"    del {', '.join(done)}")
        if name == "run":
            return [*lines, *(f"    {line}" for line in self._closing_lines()), f"    return {result}"]
        return [*lines, f"    return {result}"]

    def _finished(self, instruction: Instruction, after: Sequence[Instruction], arguments: Sequence[str]) -> list[str]:
        """Values that are not needed any more: large intermediates need not wait for the end of the function."""
        if isinstance(instruction, (Fetch, Receive)):
            return []
        later = {name for entry in after for name in entry.reads} | {self.program.result, *self.program.parts}
        mine = [name for name in dict.fromkeys(instruction.reads) if name not in later and name not in arguments]
        return [name for name in mine if name not in self.aliases]

    aliases: dict[Name, str] = field(default_factory=dict)

    def _of(self, name: Name) -> str:
        return self.aliases.get(name, name)

    def _instruction(self, instruction: Instruction) -> list[str]:
        comment = f"  # [{', '.join(self._extent(group) for group in instruction.axes)}]"
        if isinstance(instruction, Fetch):
            comment = f"  # {' '.join(instruction.cores)}"
            shape = f".reshape({self._shape(instruction.axes)})" if instruction.has_ones else ""
            if len(instruction.cores) == 1 and not shape:
                self.aliases[instruction.out] = self.names[instruction.cores[0]]
                return []
            if len(instruction.cores) == 1:
                return [f"{instruction.out} = {self.names[instruction.cores[0]]}{shape}{comment}"]
            stacked = _tuple(self.names[core] for core in instruction.cores)
            return [f"{instruction.out} = torch.stack({stacked}){shape}{comment}"]
        if isinstance(instruction, Receive):
            self.aliases[instruction.out] = f"x{self.frame.inputs.index(instruction.name)}"
            return self._measure(self.aliases[instruction.out], instruction.axes)
        lines = self._index(instruction.labels) if isinstance(instruction, Rows) else []
        lines.append(f"{instruction.out} = {self._expression(instruction)}{comment}")
        if isinstance(instruction, Conv) and instruction.spatial:
            lines += self._remeasure(instruction.out, instruction.axes)
        return lines

    def _remeasure(self, name: str, axes: Groups) -> list[str]:
        """A convolution changes the lengths of the spatial axes."""
        found = [f"{name}_{at}" for at in range(2, len(axes))]
        self.lengths.update({axes[at][0]: f"{name}_{at}" for at in range(2, len(axes))})
        return [f"{', '.join(found)}{',' if len(found) == 1 else ''} = {name}.shape[2:]"]

    def _measure(self, name: str, axes: Groups) -> list[str]:
        """Notes the lengths of data axes that stand alone on an axis."""
        for at, group in enumerate(axes):
            if len(group) == 1 and group[0] in self.program.dynamic:
                self.lengths[group[0]] = f"{name}.shape[{at}]"
        return []

    def _expression(self, instruction: Instruction) -> str:
        if isinstance(instruction, Arrange):
            return self._arrange(self._of(instruction.source), self.axes[instruction.source], instruction.axes)
        if isinstance(instruction, Matmul):
            left, right = self._of(instruction.left), self._of(instruction.right)
            ranks = (len(self.axes[instruction.left]), len(self.axes[instruction.right]))
            if ranks == (2, 3):  # torch.matmul would fold the batch, which is slow in the backward pass
                return f"torch.bmm({left}.expand({right}.shape[0], -1, -1), {right})"
            if instruction.out == self.fused:
                return f"torch.addmm(bias, {left}, {right})"
            return f"torch.{'mm' if ranks == (2, 2) else 'bmm'}({left}, {right})"
        if isinstance(instruction, Scale):
            return self._scale(instruction)
        if isinstance(instruction, Times):
            return f"{self._of(instruction.left)} * {self._of(instruction.right)}"
        if isinstance(instruction, Plus):
            return f"{self._of(instruction.left)} + {self._of(instruction.right)}"
        if isinstance(instruction, Total):
            return f"{self._of(instruction.source)}.sum({_tuple(map(str, instruction.dims))})"
        if isinstance(instruction, Rows):
            return f"F.embedding(row, {self._of(instruction.source)})"
        if isinstance(instruction, Weight):
            return self._weight(instruction)
        if isinstance(instruction, Kernel):
            rows = prod(self.sizes[label] for label in instruction.axes[0])
            shape = ", ".join(map(str, (rows, -1, *instruction.taps)))
            return f"{self._of(instruction.source)}.reshape({shape})"
        assert isinstance(instruction, Conv)
        return self._conv(instruction)

    def _scale(self, instruction: Scale) -> str:
        """A core times its gates; several are multiplied with each other first, so that the core is scaled once."""
        gates = " * ".join(self._gate(label, names, instruction.axes) for label, names in instruction.gates)
        gates = f"({gates})" if len(instruction.gates) > 1 else gates
        return f"{self._of(instruction.source)} * {gates}"

    def _gate(self, label: str, names: Sequence[str], axes: Groups) -> str:
        """One bond's gate as it is broadcast over a core; over stacked cores, along their axis too."""
        shape = [str(self.sizes[label]) if axis == (label,) else "1" for axis in axes]
        if len(names) > 1:
            shape[0] = str(len(names))
            return f"torch.stack({_tuple(self.gates[name] for name in names)}).reshape({', '.join(shape)})"
        gate = self.gates[names[0]]
        return gate if shape and axes[-1] == (label,) else f"{gate}.reshape({', '.join(shape) or '()'})"

    def _weight(self, instruction: Weight) -> str:
        text = self._of(instruction.source)
        full = [prod(self.sizes[label] for label in group) for group in instruction.axes]
        if tuple(full) != instruction.keep:
            cut = [f":{keep}" if keep != size else ":" for keep, size in zip(instruction.keep, full, strict=True)]
            text += f"[{', '.join(cut)}]"
        return (
            text
            if instruction.keep == instruction.shape
            else f"{text}.reshape({', '.join(map(str, instruction.shape))})"
        )

    def _conv(self, instruction: Conv) -> str:
        source, weight = self._of(instruction.source), self._of(instruction.weight)
        groups = f", groups={instruction.groups}" if instruction.groups > 1 else ""
        bias = ", bias" if instruction.out == self.fused else ""
        if not instruction.spatial and not groups and not bias:  # a product is as fast as a pointwise convolution
            return f"torch.bmm({weight}.expand({source}.shape[0], -1, -1), {source})"
        if not instruction.spatial:
            unit = "" if groups else ".unsqueeze(-1)"
            return f"F.conv1d({source}, {weight}{unit}{bias}{groups})"
        return f"F.conv{self.frame.spatial}d({source}, {weight}{bias}{self._options(instruction.spatial)}{groups})"

    def _options(self, acting: Sequence[int]) -> str:
        """The options of a convolution on the spatial axes that act in it."""
        options = ""
        for key, values, off in (("stride", self.frame.stride, 1), ("dilation", self.frame.dilation, 1)):
            used = [value if axis in acting else off for axis, value in enumerate(values)]
            options += f", {key}={_tuple(map(str, used))}" if any(value != off for value in used) else ""
        if isinstance(self.frame.padding, str):
            return f"{options}, padding='same'"
        used = [value if axis in acting else 0 for axis, value in enumerate(self.frame.padding)]
        return options + (f", padding={_tuple(map(str, used))}" if any(used) else "")

    def _arrange(self, source: str, have: Groups, want: Groups) -> str:
        """The expression for a value seen with other axes."""
        order = tuple(label for group in have for label in group)
        wanted = tuple(label for group in want for label in group)
        if order == wanted:
            return f"{source}.reshape({self._shape(want)})"
        blocks = _blocks(order, wanted)
        target = sorted(range(len(blocks)), key=lambda at: wanted.index(blocks[at][0]))
        split = tuple(blocks)
        text = source if split == have else f"{source}.reshape({self._shape(split)})"
        text += ".t()" if len(blocks) == 2 else f".permute({', '.join(map(str, target))})"
        moved = tuple(blocks[at] for at in target)
        return text if moved == want else f"{text}.reshape({self._shape(want)})"

    def _shape(self, groups: Groups) -> str:
        return ", ".join(self._extents(groups)) or "()"

    def _extents(self, groups: Groups) -> list[str]:
        """The length of each axis; one of those that hold data axes is left to torch: the batch, which may be empty."""
        found = []
        data = [at for at, group in enumerate(groups) if self._is_data(group)]
        open_axis = next((at for at in data if BATCH in groups[at]), data[0] if data else None)
        if any(label.startswith("#") for label in self.program.dynamic):
            open_axis = None  # several data axes may be empty at once, and then torch cannot tell
        for at, group in enumerate(groups):
            if at == open_axis:
                found.append("-1")
            else:
                found.append(self._length(group))
        return found

    def _is_data(self, group: Labels) -> bool:
        return any(label in self.program.dynamic for label in group)

    def _length(self, group: Labels) -> str:
        fixed = prod(self.sizes[label] for label in group if label not in self.program.dynamic)
        factors = [self.lengths[label] for label in group if label in self.program.dynamic]
        return " * ".join([*factors, *([str(fixed)] if fixed != 1 or not factors else [])])

    def _extent(self, group: Labels) -> str:
        """An axis as a comment shows it."""
        fixed = prod(self.sizes[label] for label in group if label not in self.program.dynamic)
        data = [label.lstrip("@#") for label in group if label in self.program.dynamic]
        return " ".join([*data, *([str(fixed)] if fixed != 1 or not data else [])])

    def _index(self, labels: Labels) -> list[str]:
        """The row number in the table of some looked-up modes; neighbouring modes are one digit of the index."""
        position = {label: at for at, (label, _, _) in enumerate(self.frame.strides)}
        digits: list[tuple[int, int, int]] = []  # first position, stride and size
        for label in labels:
            _, stride, size = self.frame.strides[position[label]]
            is_next = bool(digits) and digits[-1][1] == stride * size and not self.frame.columns
            if is_next:
                digits[-1] = (digits[-1][0], stride, digits[-1][2] * size)
            else:
                digits.append((position[label], stride, size))
        terms = []
        weight = 1
        for first, stride, size in reversed(digits):
            text = f"index[:, {first}]" if self.frame.columns else self._digit(first, stride, size)
            terms.append(f"({text}) * {weight}" if weight != 1 else f"({text})" if " " in text else text)
            weight *= size
        return [f"row = {' + '.join(reversed(terms))}"]

    @staticmethod
    def _digit(first: int, stride: int, size: int) -> str:
        text = f"index // {stride}" if stride != 1 else "index"
        return f"{text} % {size}" if first else text

    def _opening(self) -> list[str]:
        lines = []
        if self.frame.strides:
            self.lengths[TOKENS] = "index.shape[0]"
        if self.frame.unfold:
            lines += self._unfold()
        if self.frame.subsample:
            lines += self._subsample()
        if self.frame.pad:
            zeros = "0, 0, " * (self.frame.spatial or 0)
            lines.append(f"x0 = F.pad(x0, ({zeros}0, {self.frame.pad}))")
        return lines

    def _subsample(self) -> list[str]:
        """The positions that a kernel of size 1 sees."""
        lines = []
        if not isinstance(self.frame.padding, str) and any(self.frame.padding):
            sides = _tuple(str(side) for side in reversed(self.frame.padding) for _ in range(2))
            lines.append(f"x0 = F.pad(x0, {sides})")
        if any(stride != 1 for stride in self.frame.stride):
            lines.append(f"x0 = x0[:, :, {', '.join(f'::{stride}' for stride in self.frame.stride)}]")
        return lines

    def _unfold(self) -> list[str]:
        """Patches of the input as channels, in torch's order: channel slowest, then the taps."""
        taps = self.frame.unfold
        padding = self.frame.padding
        if padding == "same":
            total = [step * (size - 1) for step, size in zip(self.frame.dilation, taps, strict=True)]
            sides = [(all_ // 2, all_ - all_ // 2) for all_ in total]
        else:
            sides = [(int(side), int(side)) for side in padding]
        lines = []
        if any(any(side) for side in sides):
            flat = [str(value) for side in reversed(sides) for value in side]
            lines.append(f"x0 = F.pad(x0, {_tuple(flat)})")
        first = 2
        for axis, (size, stride, step) in enumerate(zip(taps, self.frame.stride, self.frame.dilation, strict=True)):
            reach = step * (size - 1) + 1
            lines.append(f"x0 = x0.unfold({first + axis}, {reach}, {stride})[..., ::{step}]")
        count = len(taps)
        order = [0, 1, *range(2 + count, 2 + 2 * count), *range(2, 2 + count)]
        shape = ", ".join(f"x0.shape[{2 + axis}]" for axis in range(count))
        channels = f"x0.shape[1] * {prod(taps)}"
        lines.append(f"x0 = x0.permute({', '.join(map(str, order))}).reshape(x0.shape[0], {channels}, {shape})")
        return lines

    def _closing_lines(self) -> list[str]:
        result = self._of(self.program.result)
        lines = []
        if self.frame.cut:
            lines.append(f"y = {result}[:, :{self.frame.cut}]")
        return lines

    def _closing(self) -> str:
        if self.frame.dense:
            return self._dense()
        result = "y" if self.frame.cut else self._of(self.program.result)
        if not self.frame.has_bias or self.fused:
            return result
        return f"{result} + bias" + (f".reshape(-1{', 1' * self.frame.spatial})" if self.frame.spatial else "")

    def _dense(self) -> str:
        weight = self._of(self.program.result) + (".t()" if self.frame.is_transposed else "")
        if self.frame.strides:
            return f"F.embedding(index, {weight})"
        bias = ", bias" if self.frame.has_bias else ", None"
        options = self._options(range(self.frame.spatial)) if self.frame.spatial else ""
        return f"{self.frame.dense}(x0, {weight}{bias}{options})"


def gate_names(program: Program) -> tuple[str, ...]:
    """The qualified names of the bonds whose gates `fold` takes after the cores, in that order."""
    scales = [instruction for instruction in program.fold if isinstance(instruction, Scale)]
    return tuple(name for scale in scales for _, names in scale.gates for name in names)


def _flat(axes: Groups) -> Labels:
    return tuple(label for group in axes for label in group)


def _tuple(parts: Iterable[str]) -> str:
    listed = list(parts)
    return f"({', '.join(listed)}{',' if len(listed) == 1 else ''})"


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
