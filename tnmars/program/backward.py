"""Program to the source of a training step: a forward pass that says what it keeps, and the backward pass by hand.

Autograd runs the gradient of every operation by itself. Here the whole backward pass is one straight function: products
are added to what is there already, sums over a shared factor make no large intermediate, each value is freed after its
last use, and large values that live within one pass are written into buffers that the caller keeps between steps.
`RULES` has one function per instruction that has a rule. Programs with others have no planned step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

from tnmars.plan.steps import volume
from tnmars.program.base import Instruction
from tnmars.program.emit import gate_text
from tnmars.program.form import Form, Frame
from tnmars.program.framing import listed
from tnmars.program.instructions import Arrange, Fetch, Matmul, Plus, Receive, Scale, Times, Total, Weight
from tnmars.program.program import Program, staged
from tnmars.program.tape import Step, Tape, input_names


def has_step(program: Program, frame: Frame) -> bool:
    """Whether there is a planned training step: for linear layers and maps, whose steps all have a rule."""
    is_flat = not (frame.spatial or frame.strides)
    last = program.made[program.result]
    is_made = bool(frame.dense) or isinstance(last, (Arrange, Matmul, Plus, Times, Total))
    return is_flat and is_made and all(type(entry) in RULES for entry in program.instructions)


def covered(form: Form, program: Program) -> Program:
    """The part of a program that the step does itself: all of it, or what is done for every chunk of a batch."""
    return staged(staged(program)) if form.chunk else program


def kept_bytes(form: Form, item: int = 4) -> int:
    """The bytes of the buffers that a form with a planned step keeps, if the input gets a gradient or not."""
    if not form.is_planned:
        return 0
    program = covered(form, form.program)
    names = [*input_names(form.frame), *(f"w{at}" for at in range(len(program.cores)))]
    steps = [
        training_step(program, form.frame, frozenset(needed), bool(form.chunk))
        for needed in (names, names[len(input_names(form.frame)) :])
    ]
    return item * max(sum(step.slots) for step in steps)


@lru_cache(maxsize=1024)
def training_step(program: Program, frame: Frame, needed: frozenset[str], is_summed: bool = False) -> Step:
    """The source of a step that gives gradients to the arguments of `needed`.

    They are `x0`, ... for inputs, `w0`, ... for cores and `g0`, ... for gates. The gradient of the bias is left to the
    caller. `forward(*inputs, bias, *cores, *gates, kept)` returns the output and a list of what `backward` needs.
    `backward(slope, held, *saved, kept)` empties that list and returns the gradients, None where none is needed. With
    `is_summed`, for chunks of a batch, it also takes `sums`, one tensor for each core, before `kept`: gradients of
    cores are added to these.
    """
    tape = Tape(program, frame, needed, is_summed)
    _pass_on(tape)
    return tape.step()


def _pass_on(tape: Tape) -> None:
    """Writes the backward pass, from the gradient of the output on."""
    frame, result = tape.frame, tape.program.result
    if frame.dense:
        _dense(tape)
    elif result in tape.sloped:
        full = volume(tape.program.made[result].axes[1], tape.writer.sizes) if frame.cut else 0
        tape.slopes[result] = "dy"
        if frame.cut:
            tape.slopes[result] = tape.line("d_y", f"F.pad(dy, (0, {full - frame.cut}))")
    for entry in reversed(tape.program.instructions):
        if entry.out in tape.slopes:
            RULES[type(entry)](tape, entry, tape.slopes.pop(entry.out))


def _dense(tape: Tape) -> None:
    """The gradients of torch's own layer with the dense weight."""
    result, weight = tape.program.result, tape.writer.of(tape.program.result)
    made = tape.program.made[result]
    assert isinstance(made, Weight)
    if "x0" in tape.needed:
        turned = f"{weight}.t()" if tape.frame.is_transposed else weight
        tape.found["x0"] = tape.line("d_x0", f"torch.mm(dy, {turned})")
    if result in tape.sloped:
        sides = ("x0.t()", "dy") if tape.frame.is_transposed else ("dy.t()", "x0")
        text, room = f"torch.mm({', '.join(sides)}", (tuple(map(str, made.shape)), prod(made.shape))
        tape.slopes[result] = tape.line(f"d_{result}", f"{text})", f"{text}, out={{}})", room)


def _fetch(tape: Tape, entry: Fetch, slope: str) -> None:
    for at, core in enumerate(entry.cores):
        weight = tape.writer.arguments["core", core]
        text = f"{slope}[{at}]" if len(entry.cores) > 1 else slope
        text += f".reshape({weight}.shape)" if entry.has_ones else ""
        if weight in tape.needed:
            tape.found[weight] = text if text == slope else tape.line(f"d_{weight}", text, view_of=slope)


def _receive(tape: Tape, entry: Receive, slope: str) -> None:
    name = f"x{tape.frame.inputs.index(entry.name)}"
    if tape.frame.pad:
        slope = tape.line(f"d_{name}", f"{slope}[:, :-{tape.frame.pad}]", view_of=slope)
    tape.found[name] = slope


def _scale(tape: Tape, entry: Scale, slope: str) -> None:
    """A core gets the gradient times its gates; a gate, the gradient times core and other gates, summed."""
    writer, axes = tape.writer, entry.axes
    factors = [gate_text(writer, label, names, axes) for label, names in entry.gates]
    tape.add(entry.source, " * ".join([slope, *(f"({text})" for text in factors)]))
    whole = ""
    for at, (label, names) in enumerate(entry.gates):
        gates = [writer.arguments["gate", name] for name in names]
        if not tape.needed.intersection(gates):
            continue
        whole = whole or tape.line(f"t_{entry.out}", f"{slope} * {writer.of(entry.source)}")
        others = "".join(f" * ({text})" for place, text in enumerate(factors) if place != at)
        own = {0} if len(gates) > 1 else set()
        own |= {place for place, axis in enumerate(axes) if label and axis == (label,)}
        dims = [place for place in range(len(axes)) if place not in own]
        text = f"({whole}{others})" + (f".sum({listed(map(str, dims))})" if dims else "")
        shape = f"{len(gates)}, -1" if len(gates) > 1 else "-1"
        part = tape.line(f"t{at}_{entry.out}", f"{text}.reshape({shape})")
        for place, gate in enumerate(gates):
            if gate in tape.needed:
                text = f"{part}[{place}]" if len(gates) > 1 else part
                tape.found[gate] = tape.line(f"d_{gate}", text, view_of=part)


def _arrange(tape: Tape, entry: Arrange, slope: str) -> None:
    tape.arrange(entry.source, slope, entry.axes)


def _matmul(tape: Tape, entry: Matmul, slope: str) -> None:
    left, right = tape.writer.of(entry.left), tape.writer.of(entry.right)
    ndims = len(tape.writer.axes(entry.left)), len(tape.writer.axes(entry.right))
    if ndims == (2, 2):
        tape.add_product(entry.left, slope, f"{right}.t()", "addmm")
        tape.add_product(entry.right, f"{left}.t()", slope, "addmm")
    elif ndims == (3, 3):
        tape.add_product(entry.left, slope, f"{right}.mT", "baddbmm")
        tape.add_product(entry.right, f"{left}.mT", slope, "baddbmm")
    else:
        tape.add_product(entry.left, slope, f"{right}.mT", "addbmm")
        tape.add_product(entry.right, f"{left}.t().expand({slope}.shape[0], -1, -1)", slope, "baddbmm")


def _times(tape: Tape, entry: Times, slope: str) -> None:
    for name, other in ((entry.left, entry.right), (entry.right, entry.left)):
        axes = tape.writer.axes(name)
        dims = [str(at) for at, (own, axis) in enumerate(zip(axes, entry.axes, strict=True)) if axis and not own]
        operands = f"{slope}, {tape.writer.of(other)}"
        if dims:
            tape.add(name, f"torch.mul({operands}).sum({listed(dims)}, keepdim=True)")
        else:
            tape.add(name, f"torch.mul({operands})", f"torch.mul({operands}, out={{}})", product=("addcmul", operands))


def _plus(tape: Tape, entry: Plus, slope: str) -> None:
    for name in entry.reads:
        tape.add(name, slope, view_of=slope)


def _total(tape: Tape, entry: Total, slope: str) -> None:
    axes = tape.writer.axes(entry.source)
    text = slope + "".join(f".unsqueeze({at})" for at in sorted(entry.dims))
    shape = ", ".join(tape.writer.length(axis) if at in entry.dims else "-1" for at, axis in enumerate(axes))
    tape.add(entry.source, f"{text}.expand({shape})", view_of=slope)


def _weight(tape: Tape, entry: Weight, slope: str) -> None:
    text = slope if entry.keep == entry.shape else f"{slope}.reshape({', '.join(map(str, entry.keep))})"
    full = [volume(group, tape.writer.sizes) for group in entry.axes]
    if tuple(full) == entry.keep:
        tape.add(entry.source, text, view_of=slope)
        return
    sides = [part for size, keep in zip(full[::-1], entry.keep[::-1], strict=True) for part in ("0", str(size - keep))]
    tape.add(entry.source, f"F.pad({text}, {listed(sides)})")


RULES: dict[type[Instruction], Callable[[Tape, Any, str], None]] = {
    Fetch: _fetch,
    Scale: _scale,
    Receive: _receive,
    Arrange: _arrange,
    Matmul: _matmul,
    Times: _times,
    Plus: _plus,
    Total: _total,
    Weight: _weight,
}
"""How a gradient is passed on to what an instruction reads."""
