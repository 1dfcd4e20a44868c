"""The frame around a contraction as source: patches, padding, digits of an index, the bias, torch's own layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from tnmars.plan.steps import Labels
from tnmars.program.form import Frame


def listed(parts: Iterable[str]) -> str:
    """Expressions as the source of a tuple."""
    entries = list(parts)
    return f"({', '.join(entries)}{',' if len(entries) == 1 else ''})"


def arguments(frame: Frame) -> list[str]:
    """What `run` takes before the folded parts."""
    given = ["index"] if frame.strides else [f"x{at}" for at in range(len(frame.inputs))]
    return [*given, *(["bias"] if frame.has_bias else [])]


def opening(frame: Frame) -> list[str]:
    """What is done to the input before the contraction."""
    lines = []
    if frame.around:
        lines.append(f"x0 = F.pad(x0, {_pads(frame.around)}, mode={frame.border!r})")
    if frame.unfold:
        lines += _unfold(frame)
    if frame.subsample:
        lines += _spread(frame) if frame.is_upward else _subsample(frame)
    if frame.pad:
        zeros = "0, 0, " * frame.spatial
        lines.append(f"x0 = F.pad(x0, ({zeros}0, {frame.pad}))")
    return lines


def _subsample(frame: Frame) -> list[str]:
    """The positions that a kernel of size 1 sees."""
    lines = []
    if not isinstance(frame.padding, str) and any(frame.padding):
        sides = listed(str(side) for side in reversed(frame.padding) for _ in range(2))
        lines.append(f"x0 = F.pad(x0, {sides})")
    if any(stride != 1 for stride in frame.stride):
        lines.append(f"x0 = x0[:, :, {', '.join(f'::{stride}' for stride in frame.stride)}]")
    return lines


def _spread(frame: Frame) -> list[str]:
    """The positions that a kernel of size 1 of a transposed convolution writes to; zeros between and around them."""
    lines = []
    for axis, stride in enumerate(frame.stride):
        if stride != 1:
            zeros = "0, 0, " * (frame.spatial - axis - 1)
            row = f"F.pad(x0.unsqueeze({3 + axis}), ({zeros}0, {stride - 1}))"
            lines.append(f"x0 = {row}.flatten({2 + axis}, {3 + axis})")
    assert not isinstance(frame.padding, str)
    sides = [
        (-cut, extra - cut - stride + 1)
        for cut, extra, stride in zip(frame.padding, frame.output_padding, frame.stride, strict=True)
    ]
    return [*lines, f"x0 = F.pad(x0, {_pads(sides)})"] if any(map(any, sides)) else lines


def _pads(sides: Sequence[tuple[int, int]]) -> str:
    """The entries before and after each axis as `F.pad` takes them, the last axis first."""
    return listed(str(value) for side in reversed(sides) for value in side)


def _unfold(frame: Frame) -> list[str]:
    """Patches of the input as channels, in torch's order: channel slowest, then the taps."""
    window = frame.window(frame.unfold)
    sides = [window.sides(axis) for axis in range(window.ndim)]
    lines = []
    if any(any(side) for side in sides):
        lines.append(f"x0 = F.pad(x0, {_pads(sides)})")
    for axis in range(window.ndim):
        reach, stride, step = window.reach(axis), window.stride[axis], window.dilation[axis]
        lines.append(f"x0 = x0.unfold({2 + axis}, {reach}, {stride})[..., ::{step}]")
    count = window.ndim
    order = [0, 1, *range(2 + count, 2 + 2 * count), *range(2, 2 + count)]
    shape = ", ".join(f"x0.shape[{2 + axis}]" for axis in range(count))
    channels = f"x0.shape[1] * {prod(frame.unfold)}"
    lines.append(f"x0 = x0.permute({', '.join(map(str, order))}).reshape(x0.shape[0], {channels}, {shape})")
    return lines


def options(frame: Frame, acting: Sequence[int]) -> str:
    """The options of a convolution on the spatial axes that act in it."""
    text = ""
    for key, values, off in (("stride", frame.stride, 1), ("dilation", frame.dilation, 1)):
        used = [value if axis in acting else off for axis, value in enumerate(values)]
        text += f", {key}={listed(map(str, used))}" if any(value != off for value in used) else ""
    if isinstance(frame.padding, str):
        return f"{text}, padding='same'"
    for key, values in (("padding", frame.padding), ("output_padding", frame.output_padding)):
        used = [value if axis in acting else 0 for axis, value in enumerate(values)]
        text += f", {key}={listed(map(str, used))}" if any(used) else ""
    return text


def row_number(frame: Frame, labels: Labels) -> str:
    """The row in the table of some looked-up modes; neighboring modes are one digit of the index."""
    position = {label: at for at, (label, _, _) in enumerate(frame.strides)}
    digits: list[tuple[int, int, int]] = []  # first position, stride and size
    for label in labels:
        _, stride, size = frame.strides[position[label]]
        is_next = bool(digits) and digits[-1][1] == stride * size and not frame.columns
        if is_next:
            digits[-1] = (digits[-1][0], stride, digits[-1][2] * size)
        else:
            digits.append((position[label], stride, size))
    terms = []
    weight = 1
    for first, stride, size in reversed(digits):
        text = f"index[:, {first}]" if frame.columns else _digit(first, stride, size)
        terms.append(f"({text}) * {weight}" if weight != 1 else f"({text})" if " " in text else text)
        weight *= size
    return " + ".join(reversed(terms))


def _digit(first: int, stride: int, size: int) -> str:
    text = f"index // {stride}" if stride != 1 else "index"
    return f"{text} % {size}" if first else text


def closing(frame: Frame, result: str, *, has_added_bias: bool) -> list[str]:
    """The end of `run`: the result is cut, given its bias or, if it is a dense weight, passed to torch's layer."""
    if frame.dense:
        weight = result + (".t()" if frame.is_transposed else "")
        bias = ", bias" if frame.has_bias else ", None"
        given = options(frame, range(frame.spatial)) if frame.spatial else ""
        given += f", groups={frame.groups}" if frame.groups > 1 else ""
        return [f"return {frame.dense}(x0, {weight}{bias}{given})"]
    lines = []
    if frame.cut:
        lines.append(f"y = {result}[:, :{frame.cut}]")
        result = "y"
    if frame.has_bias and not has_added_bias:
        result += " + bias" + (f".reshape(-1{', 1' * frame.spatial})" if frame.spatial else "")
    return [*lines, f"return {result}"]
