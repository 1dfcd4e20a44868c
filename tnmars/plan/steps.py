"""The steps of a plan: an expression tree whose nodes are tensors in memory, each with the order of its labels.

A step says how its operands are grouped into axes; whether that needs a copy follows from the order in which they lie
in memory. What a label stands for is not known here, but kernel modes and looked-up modes have steps of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

Labels = tuple[str, ...]
Groups = tuple[Labels, ...]


@dataclass(frozen=True)
class Load:
    """A leaf of the network as it comes."""

    leaf: int
    order: Labels

    @property
    def operands(self) -> tuple[Step, ...]:
        return ()


@dataclass(frozen=True)
class Product:
    """A matrix product, batched over `batch`: `left` as (batch, rows, depth), `right` as (batch, depth, columns)."""

    left: Step
    right: Step
    batch: Labels
    rows: Labels
    depth: Labels
    columns: Labels

    @cached_property
    def order(self) -> Labels:
        return (*self.batch, *self.rows, *self.columns)

    @property
    def operands(self) -> tuple[Step, ...]:
        return (self.left, self.right)


@dataclass(frozen=True)
class Spread:
    """One matrix, `left` as (rows, depth), times every matrix of `right` as (lead, depth, columns)."""

    left: Step
    right: Step
    lead: Labels
    rows: Labels
    depth: Labels
    columns: Labels

    @cached_property
    def order(self) -> Labels:
        return (*self.lead, *self.rows, *self.columns)

    @property
    def operands(self) -> tuple[Step, ...]:
        return (self.left, self.right)


@dataclass(frozen=True)
class Multiply:
    """An elementwise product, `right` broadcast along `left`, whose labels come first; then `summed` are summed."""

    left: Step
    right: Step
    summed: Labels = ()

    @cached_property
    def order(self) -> Labels:
        extra = tuple(label for label in self.right.order if label not in self.left.order)
        return tuple(label for label in (*self.left.order, *extra) if label not in self.summed)

    @property
    def operands(self) -> tuple[Step, ...]:
        return (self.left, self.right)


@dataclass(frozen=True)
class Sum:
    """A tensor with some labels summed."""

    source: Step
    summed: Labels

    @cached_property
    def order(self) -> Labels:
        return tuple(label for label in self.source.order if label not in self.summed)

    @property
    def operands(self) -> tuple[Step, ...]:
        return (self.source,)


@dataclass(frozen=True)
class Gather:
    """Rows of a table: the modes `rows` are replaced by the label of the tokens."""

    source: Step
    rows: Labels
    token: str

    @cached_property
    def order(self) -> Labels:
        return (self.token, *(label for label in self.source.order if label not in self.rows))

    @property
    def operands(self) -> tuple[Step, ...]:
        return (self.source,)


@dataclass(frozen=True)
class Convolve:
    """A convolution of `right`, as (lead, batch depth, rest, spatial), with `left`, as (batch columns, depth, taps).

    `batch` labels become groups; those that `left` does not have are `repeated`: every group has the same kernel.
    `axes` are the spatial axes whose taps are summed here; without any it is pointwise, and only then may there be
    labels (`rest`) between the channels and the spatial axes.
    """

    left: Step
    right: Step
    lead: Labels
    batch: Labels
    depth: Labels
    columns: Labels
    rest: Labels
    before: Labels
    """The labels of the spatial axes of the input, and below of the output."""
    after: Labels
    taps: Labels
    """Kernel modes, in declared order."""
    axes: tuple[int, ...]
    repeated: Labels = ()

    @cached_property
    def order(self) -> Labels:
        return (*self.lead, *self.batch, *self.columns, *self.rest, *self.after)

    @property
    def operands(self) -> tuple[Step, ...]:
        return (self.left, self.right)


Step = Load | Product | Spread | Multiply | Sum | Gather | Convolve


def runs(order: Labels, groups: Sequence[Labels], sizes: Mapping[str, int]) -> bool:
    """Whether each group lies in memory as one run, so that grouping axes is a view. Labels of size 1 do not count."""
    solid = [label for label in order if sizes[label] != 1]
    place = {label: at for at, label in enumerate(solid)}
    for group in groups:
        at = [place[label] for label in group if sizes[label] != 1]
        if any(second != first + 1 for first, second in pairwise(at)):
            return False
    return True


def last_run(order: Labels, wanted: Labels, sizes: Mapping[str, int]) -> tuple[int, bool]:
    """The length of the innermost loop of a copy into another order, and whether it jumps in the source.

    Labels that stay side by side are one axis.
    """
    length = 1
    after: str | None = None
    for label in reversed(wanted):
        if sizes[label] == 1:
            continue
        if after is not None:
            place = order.index(label)
            following = next((other for other in order[place + 1 :] if sizes[other] != 1), None)
            if following != after:
                break
        length *= sizes[label]
        after = label
    ends = [next((label for label in reversed(labels) if sizes[label] != 1), "") for labels in (order, wanted)]
    return length, ends[0] != ends[1]


def volume(labels: Sequence[str], sizes: Mapping[str, int]) -> int:
    """The number of entries of a tensor with these labels."""
    return prod(sizes[label] for label in labels)


def flat(axes: Groups) -> Labels:
    """The labels of grouped axes, in order.

    >>> flat((("a", "b"), (), ("c",)))
    ('a', 'b', 'c')
    """
    return tuple(label for axis in axes for label in axis)


def shape(axes: Groups, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The length of each of some grouped axes.

    >>> shape((("a", "b"), ()), {"a": 2, "b": 3})
    (6, 1)
    """
    return tuple(volume(axis, sizes) for axis in axes)
