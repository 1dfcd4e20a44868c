"""The spatial arithmetic of a convolution: how far its kernel reaches and how long its output is, by torch's formula.

A transposed convolution has a window too, with which each input position writes to the output.

Everything that needs the length of an output axis asks here: the forward pass, the planner and the counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """The window that a convolution moves over its input, one entry for each spatial axis.

    `padding` is `"same"`, or the number of entries added on each side; `border` says which, as torch's `padding_mode`.
    A transposed convolution instead cuts `padding` entries off each side of its output, and adds `extra` at its end.

    >>> window = Window(kernel=(3, 5), stride=(2, 1), dilation=(1, 2), padding=(1, 0))
    >>> window.reach(1), window.out_length(32, 0), window.out_length(32, 1)
    (9, 16, 24)
    """

    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    padding: tuple[int, ...] | str = ()
    border: str = "zeros"
    is_transposed: bool = False
    extra: tuple[int, ...] = ()

    @classmethod
    def of(cls, kernel: tuple[int, ...], options: Mapping[str, object], *, is_transposed: bool = False) -> Window:
        """The window of a kernel under a layer's canonical options."""
        padding = options.get("padding", 0)
        return cls(
            kernel,
            _each(options.get("stride", 1), len(kernel)),
            _each(options.get("dilation", 1), len(kernel)),
            "same" if padding == "same" else _each(padding, len(kernel)),
            str(options.get("padding_mode", "zeros")),
            is_transposed,
            _each(options.get("output_padding", 0), len(kernel)) if is_transposed else (),
        )

    @property
    def ndim(self) -> int:
        """The number of spatial axes; 0 for a layer that is not a convolution."""
        return len(self.kernel)

    def reach(self, axis: int) -> int:
        """The number of input positions that the kernel spans, from its first tap to its last."""
        return self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def sides(self, axis: int) -> tuple[int, int]:
        """The entries added before and after the input. For `"same"`, torch puts the odd one after it."""
        if isinstance(self.padding, str):
            total = self.reach(axis) - 1
            return total // 2, total - total // 2
        return self.padding[axis], self.padding[axis]

    def out_length(self, length: int, axis: int) -> int:
        """The number of output positions for an input of this length; 0 if the kernel does not fit.

        >>> up = Window(kernel=(3,), stride=(2,), dilation=(1,), padding=(1,), is_transposed=True, extra=(1,))
        >>> up.out_length(8, 0), up.least_length(0)
        (16, 1)
        """
        if length < 1:
            return 0
        if self.is_transposed:
            return max(0, (length - 1) * self.stride[axis] + self._written(axis))
        room = length + sum(self.sides(axis)) - self.reach(axis)
        return max(0, room // self.stride[axis] + 1)

    def least_length(self, axis: int) -> int:
        """The shortest input that has an output.

        >>> Window(kernel=(3,), stride=(2,), dilation=(2,), padding=(1,)).least_length(0)
        3
        """
        if self.is_transposed:
            return max(1, 1 - (self._written(axis) - 1) // self.stride[axis])
        side = max(self.sides(axis))
        needed = {"reflect": side + 1, "circular": side}.get(self.border, 1)  # what the border is made of
        return max(1, needed, self.reach(axis) - sum(self.sides(axis)))

    def _written(self, axis: int) -> int:
        """The number of output positions of one input position, which padding may make negative."""
        return self.reach(axis) - sum(self.sides(axis)) + self.extra[axis]

    def padded(self) -> tuple[tuple[int, int], ...]:
        """The entries before and after each axis that are added first, because a convolution adds zeros alone."""
        if self.border == "zeros":
            return ()
        sides = tuple(self.sides(axis) for axis in range(self.ndim))
        return sides if any(map(any, sides)) else ()


def _each(value: object, count: int) -> tuple[int, ...]:
    """A setting for every axis, from one number for all or one for each."""
    if isinstance(value, tuple):
        return value
    assert isinstance(value, int), "the rules refuse anything else"
    return (value,) * count
