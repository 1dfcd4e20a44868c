"""A form: a program, the frame around it, and its estimated cost. Its lengths, work and time, from the table.

Stride, padding, dilation and chunks act here and nowhere else: `sites` gives the length of every axis at every
instruction, and `measure` and `estimate` are loops over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from tnmars.graph import Graph
from tnmars.graph.kinds import Role
from tnmars.graph.window import Window
from tnmars.plan.cost import CostModel
from tnmars.plan.network import BATCH, spatial
from tnmars.plan.steps import flat, volume
from tnmars.program.base import Instruction, Name, Site, Sizes, Work
from tnmars.program.dense_call import Dense, dense_call
from tnmars.program.instructions import Conv, Kernel, Plus, Receive, Weight
from tnmars.program.program import Program, homes, standing


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
    """The torch function that a dense weight is given to, such as `F.linear`; empty if there is none."""
    is_transposed: bool = False
    """Whether the dense weight lies with its two axes swapped."""
    border: str = field(default="zeros", metadata={"is_later": True})
    """What is around the input; other than zeros it is added at the start, and convolutions have no padding."""
    around: tuple[tuple[int, int], ...] = field(default=(), metadata={"is_later": True})
    """The entries before and after each spatial axis that are added at the start, if they are not zeros."""
    groups: int = field(default=1, metadata={"is_later": True})
    """The groups of torch's own layer with the dense weight. Those of a program are among its instructions."""

    is_upward: bool = field(default=False, metadata={"is_later": True})
    """Whether the convolution is a transposed one: padding is cut off its output."""
    output_padding: tuple[int, ...] = field(default=(), metadata={"is_later": True})
    """Entries that a transposed convolution adds at the end of each spatial axis."""

    def window(self, kernel: tuple[int, ...]) -> Window:
        """The window of a kernel under the frame's options."""
        options = (self.stride, self.dilation, self.padding)
        return Window(kernel, *options, is_transposed=self.is_upward, extra=self.output_padding)

    def opened(self, sizes: Sizes) -> dict[str, int]:
        """The lengths of the spatial axes where the contraction begins, if the frame changes them."""
        found = {spatial(axis): sizes[spatial(axis)] + sum(sides) for axis, sides in enumerate(self.around)}
        if not self.unfold and not self.subsample:
            return found
        sizes, window = {**sizes, **found}, self.window(self.unfold or (1,) * self.spatial)
        return {spatial(axis): window.out_length(sizes[spatial(axis)], axis) for axis in range(self.spatial)}

    def as_dense(self, *, groups: int = 1, is_transposed: bool = False) -> Frame:
        """The frame around torch's own layer with a dense weight."""
        name = "conv_transpose" if self.is_upward else "conv"
        function = f"F.{name}{self.spatial}d" if self.spatial else "F.linear"
        own = replace(self, dense=function, groups=groups, is_transposed=is_transposed)
        return replace(own, unfold=(), subsample=False, pad=0, cut=0)


def layer_frame(graph: Graph) -> Frame:
    """What is around the contraction of a layer that takes inputs."""
    window = graph.window
    pads = {role: room - real for role, (room, real) in graph.padding.items()}
    has_patches, has_taps = bool(graph.of_role(Role.PATCH)), bool(graph.of_role(Role.KERNEL))
    return Frame(
        inputs=tuple(operand.name for operand in graph.inputs) or ("x",),
        pad=pads.get(Role.IN, 0) or pads.get(Role.PATCH, 0),
        cut=graph.out_features if pads.get(Role.OUT) else 0,
        has_bias=graph.has_bias,
        spatial=window.ndim,
        stride=window.stride,
        dilation=window.dilation,
        padding=(0,) * window.ndim if window.padded() else window.padding,
        border=window.border if window.padded() else "zeros",
        around=window.padded(),
        unfold=graph.kernel_size if has_patches else (),
        subsample=bool(window.ndim) and not has_patches and not has_taps,
        is_upward=window.is_transposed,
        output_padding=window.extra,
    )


def lookup_frame(graph: Graph) -> Frame:
    """What is around the rows of a table: digits of a row number, or a column of the index for each mode."""
    rows = [*graph.of_role(Role.LOOKUP), *graph.of_role(Role.FREE)]
    strides = tuple(
        (mode.name, prod(after.size for after in rows[at + 1 :]), mode.size) for at, mode in enumerate(rows)
    )
    cut = graph.out_features if Role.OUT in graph.padding else 0
    return Frame(inputs=(), cut=cut, strides=strides, columns=not graph.of_role(Role.LOOKUP))


def frames(graph: Graph) -> tuple[Frame, ...]:
    """Every frame that a form of the graph may have."""
    if graph.is_lookup:
        return (lookup_frame(graph),)
    frame = layer_frame(graph)
    if not graph.has_torch_layer:
        return (frame,)
    turned = () if frame.spatial else (frame.as_dense(is_transposed=True),)
    return (frame, frame.as_dense(groups=graph.groups), *turned)


@dataclass(frozen=True)
class Form:
    """One way to compute a layer."""

    name: str
    program: Program
    frame: Frame
    cost: float
    """Estimated seconds, for the batch and the weighing it was made for."""
    chunk: int = 0
    """Rows of the batch that are computed at a time; 0 for all."""
    keep: int = 0
    """With chunks, the number of rows whose intermediates a training step keeps; 0 for all. Others are recomputed."""
    is_planned: bool = field(default=False, metadata={"is_later": True})
    """Whether a training step has its own backward pass, with buffers that are kept (`tnmars.program.backward`)."""

    @property
    def shipped(self) -> int:
        """The number of entries of the folded parts."""
        sizes = dict(self.program.sizes)
        return sum(volume(flat(self.program.made[part].axes), sizes) for part in self.program.parts)

    def pieces(self, batch: int) -> int:
        """The number of chunks that a batch is computed in."""
        return -(-batch // self.chunk) if self.chunk else 1

    @property
    def dense_call(self) -> Dense | None:
        """The call of torch's own layer at the end, if the form makes the dense weight."""
        if not self.frame.dense:
            return None
        weight = self.program.made[self.program.result]
        assert isinstance(weight, Weight)
        shape = weight.shape[::-1] if self.frame.is_transposed else weight.shape
        return dense_call(shape, self.frame.groups, is_upward=self.frame.is_upward)

    def sites(self, lengths: Sizes | None = None) -> list[tuple[Instruction, Site]]:
        """Every instruction with the lengths around it, the dense call included.

        Data axes have the given lengths, else those that the form was made for: with chunks, those of one chunk.
        """
        sizes = {**dict(self.program.sizes), **(lengths or {})}
        sizes |= self.frame.opened(sizes)
        changed: dict[Name, dict[str, int]] = {}
        sites: list[tuple[Instruction, Site]] = []
        for instruction in self.program.instructions:
            read = self.program.read_by(instruction)
            # a value has the lengths that convolutions before it left; those of another term start from the image
            before = {label: length for entry in read for label, length in changed[entry.out].items()}
            here = {**sizes, **before} if before else sizes
            taps = next((entry.taps for entry in read if isinstance(entry, Kernel)), ())
            after = before | instruction.lengths(read, self.frame.window(taps), here)
            changed[instruction.out] = after
            sites.append((instruction, Site(read, here, {**sizes, **after} if after else sizes)))
        if self.dense_call:
            window = self.frame.window(self.dense_call.weight_shape[2:])
            after = self.dense_call.lengths((), window, sizes)
            sites.append((self.dense_call, Site((), sizes, {**sizes, **after})))
        return sites

    def patches(self) -> int:
        """The number of entries of the patches that are taken from the input; 0 if there are none."""
        if not self.frame.unfold:
            return 0
        sizes = dict(self.program.sizes)
        sizes |= self.frame.opened(sizes)
        given = next(entry for entry in self.program.run if entry.is_leaf)
        return volume(flat(given.axes), sizes)


@dataclass(frozen=True)
class Measured:
    """One instruction with its shape and its exact work."""

    instruction: Instruction
    read: tuple[Instruction, ...]
    shape: tuple[int, ...]
    work: Work


def measure(form: Form, lengths: Mapping[str, int] | None = None, *, batch: int | None = None) -> list[Measured]:
    """Every instruction of a form with its work, as `torch.utils.flop_counter` counts it on the emitted code.

    For the lengths that the form was made for, or the given ones. A form in chunks was made for one of them; with
    `batch` it is measured for all rows of a batch together.
    """
    given = {**({BATCH: batch} if batch is not None and form.chunk else {}), **(lengths or {})}
    return [
        Measured(instruction, site.read, instruction.extents(site.after), instruction.work(site))
        for instruction, site in form.sites(given)
    ]


def total(measured: list[Measured]) -> Work:
    """The work of all instructions together."""
    return sum((entry.work for entry in measured), Work())


def estimate(form: Form, model: CostModel, *, grad: bool = False, folded: bool = False, batch: int = 0) -> float:
    """Seconds for a form at the lengths it was made for; `folded` leaves out what is done once for given cores.

    A form in chunks was made for one of them: `batch` is the number of rows in all.
    """
    ready = {entry.out for entry in form.program.fold}
    still = {entry.out for entry in standing(form.program)}
    once = each = again = 0.0
    for instruction, site in form.sites():
        cost = seconds_of(instruction, site, model, grad)
        if instruction.out in ready:
            once += 0.0 if folded else cost
        elif instruction.out in still:
            once += cost
        else:
            each += cost
            again += seconds_of(instruction, site, model, False) if grad and form.keep else 0.0
    if form.frame.unfold:
        innermost = form.frame.opened(dict(form.program.sizes))[spatial(form.frame.spatial - 1)]
        each += model.copy(form.patches(), innermost, True)  # the gradient of the input is not counted
    if form.keep:
        each += again * max(0.0, 1 - form.keep / max(batch, 1))
    pieces = form.pieces(batch)
    return once + pieces * each + (_joining(form, model, pieces, grad) if pieces > 1 else 0.0)


def seconds_of(instruction: Instruction, site: Site, model: CostModel, grad: bool) -> float:
    """Seconds for one instruction, with its backward pass and what autograd adds if gradients are needed."""
    cost = instruction.seconds(site, model, grad)
    has_call = grad and bool(instruction.reads) and not instruction.counts_grad
    return cost + model.grad_call if has_call else cost


def _joining(form: Form, model: CostModel, pieces: int, grad: bool) -> float:
    """Results of chunks put together; in the backward pass, the gradients of parts added up."""
    sizes, made = dict(form.program.sizes), form.program.made

    def entries(name: Name) -> int:
        return volume(flat(made[name].axes), sizes)

    out = pieces * entries(form.program.result)
    cost = pieces * model.view_call + model.elementwise(2 * out, out)
    if grad:
        cost += pieces * sum(model.elementwise(3 * entries(part), 0) for part in form.program.parts)
        # what the chunks make is kept for the backward pass: small as each may be, together it is new memory
        kept = model.bytes * pieces * sum(entries(entry.out) for entry in form.program.run if entry.is_shown)
        cost += kept / model.fresh_rate if kept > model.fresh_bytes else 0.0
    return cost


def keeps_layout(form: Form) -> bool:
    """Whether a convolution whose images lie in channels_last computes in that layout and gives its output in it.

    Then every step from input to output is torch's own convolution, or a sum. Other steps need the channels apart.
    """
    if form.frame.dense or form.frame.unfold:
        return bool(form.frame.dense)
    kept: set[Name] = set()
    for entry in form.program.run:
        is_whole = len(entry.axes) == 2 + form.frame.spatial
        if is_whole and (isinstance(entry, Receive) or (isinstance(entry, Conv) and entry.source in kept)):
            kept.add(entry.out)
        if isinstance(entry, Plus) and {entry.left, entry.right} <= kept:
            kept.add(entry.out)
    return form.program.result in kept


def has_weight(graph: Graph, form: Form) -> bool:
    """Whether a form uses the dense weight: torch's own layer does the rest, or rows are taken from the whole table."""
    return bool(form.frame.dense) or (graph.is_lookup and len(form.program.parts) == 1)


def peak(form: Form) -> int:
    """The most numbers that a program holds at once, inputs and cores aside, at the lengths it was made for."""
    sites = form.sites()
    program = form.program
    sizes = dict(program.sizes)
    home = homes(program, sizes)
    steps = program.instructions
    last = {home[name]: at for at, instruction in enumerate(steps) for name in instruction.reads}
    last[home[program.result]] = len(steps)
    inputs = {entry.out for entry in steps if entry.is_leaf and entry.needs_input}
    seen = max((at for at, entry in enumerate(steps) if inputs & set(entry.reads)), default=-1)
    patches = most = form.patches()
    freed: dict[int, int] = {}
    """The number of entries whose last reader each step is."""
    live = 0
    for at, (instruction, site) in enumerate(sites[: len(steps)]):
        if instruction.reads and home[instruction.out] == instruction.out:
            entries = volume(flat(instruction.axes), site.after)
            end = max(at, last.get(instruction.out, 0))
            freed[end] = freed.get(end, 0) + entries
            live += entries
        most = max(most, live + (patches if at <= seen else 0))
        live -= freed.get(at, 0)
    return most
