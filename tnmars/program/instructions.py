"""The instructions of a program. The class of each is its row of the table: it has all that is known about it.

A new instruction is a class here, with the methods of `tnmars.program.base.Instruction` that differ, and a
function in `tnmars.program.emit` that writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

from tnmars.graph.window import Window
from tnmars.plan import prices
from tnmars.plan.cost import CostModel
from tnmars.plan.network import TOKENS, Labels
from tnmars.plan.steps import flat, runs, shape, volume
from tnmars.program.base import Instruction, Name, Site, Sizes, Work, names


@dataclass(frozen=True)
class Fetch(Instruction):
    """A core, or equal cores stacked, without axes of size 1; the diagonal of axes whose label is `repeated`."""

    cores: tuple[str, ...]
    has_ones: bool = False
    conj: bool = field(default=False, metadata={"is_later": True})
    """Whether its complex conjugate is taken."""
    repeated: Labels = field(default=(), metadata={"is_later": True})

    is_leaf = True
    is_shown = False

    @property
    def takes_cores(self) -> tuple[str, ...]:
        return self.cores

    def seconds(self, site: Site, model: CostModel, grad: bool) -> float:
        return 0.0 if len(self.cores) == 1 else prices.stack(model, prod(self.extents(site.after)), grad=grad)

    def detail(self) -> str:
        words = " ".join(self.cores) + (" conj" if self.conj else "")
        return words + (f", diagonal of [{', '.join(self.repeated)}]" if self.repeated else "")


@dataclass(frozen=True)
class Scale(Instruction):
    """A fetched core times the gates of some of its bonds; over stacked cores, each term's own."""

    source: Name
    gates: tuple[tuple[str, tuple[str, ...]], ...]
    """For each bond its label, empty if the core has dropped it because its size is 1, and the gate of each term."""

    operands = ("source",)

    @property
    def takes_gates(self) -> tuple[str, ...]:
        return tuple(name for _, names in self.gates for name in names)

    def holds(self, read: tuple[Instruction, ...], sizes: Sizes) -> bool:
        """Each bond's gates occur once, one for each of the stacked cores; a bond of size 1 may have no axis."""
        core, labels = read[0], [(label,) for label, _ in self.gates if label]
        if not isinstance(core, Fetch) or self.axes != core.axes:
            return False
        on_axes = {*labels} <= {*core.axes} and len({*labels}) == len(labels)
        return on_axes and all(len(names) == len(core.cores) for _, names in self.gates)

    def work(self, site: Site) -> Work:
        out = prod(self.extents(site.after))
        return Work(elementwise=out, written=out)

    def seconds(self, site: Site, model: CostModel, grad: bool) -> float:
        out = prod(self.extents(site.after))
        return prices.elementwise(model, out, out, grad=grad)

    def detail(self) -> str:
        return f"{self.source} by {' '.join(self.takes_gates)}"


@dataclass(frozen=True)
class Receive(Instruction):
    """An input of the layer, already split into its modes."""

    name: str

    is_leaf = True
    needs_input = True
    is_shown = False

    @property
    def takes_inputs(self) -> tuple[str, ...]:
        return (self.name,)

    def detail(self) -> str:
        return self.name


@dataclass(frozen=True)
class Arrange(Instruction):
    """A value with its labels in another order or grouped into other axes: a view if possible."""

    source: Name

    operands = ("source",)
    is_shown = False

    def holds(self, read: tuple[Instruction, ...], sizes: Sizes) -> bool:
        return sorted(flat(self.axes)) == sorted(flat(read[0].axes))

    def seconds(self, site: Site, model: CostModel, grad: bool) -> float:
        order, groups = flat(site.read[0].axes), tuple(group for group in self.axes if group)
        moved = prices.arrange(model, order, groups, site.after, grad=grad)
        call = model.view_call * (2 if grad else 1) if prices.is_view(order, groups, site.after) else 0.0
        return call + moved

    def is_copy(self, read: tuple[Instruction, ...], sizes: Sizes) -> bool:
        return not runs(flat(read[0].axes), [group for group in self.axes if group], sizes)


@dataclass(frozen=True)
class Matmul(Instruction):
    """A matrix product over the last axis of `left` and the one before the last of `right`."""

    left: Name
    right: Name

    operands = ("left", "right")
    may_sum = True
    counts_grad = True

    def holds(self, read: tuple[Instruction, ...], sizes: Sizes) -> bool:
        left, right = read[0].axes, read[1].axes
        if not 2 <= len(left) <= len(right) <= 3:
            return False
        lead = right[:-2]
        return left[:-2] in ((), lead) and left[-1] == right[-2] and self.axes == (*lead, left[-2], right[-1])

    def work(self, site: Site) -> Work:
        out = prod(self.extents(site.after))
        return Work(macs=out * volume(site.read[0].axes[-1], site.before), written=out)

    def seconds(self, site: Site, model: CostModel, grad: bool) -> float:
        left, right = (entry.extents(site.before) for entry in site.read)
        price = prices.spread_product if len(left) < len(right) else prices.product
        return price(model, prod(right[:-2]), left[-2], right[-1], left[-1], grad=grad)

    def words(self, read: tuple[Instruction, ...], taken: frozenset[str] = frozenset()) -> str:
        return f"{names(flat(self.axes), taken) or '1'}  <- sum over {names(read[0].axes[-1], taken) or 'nothing'}"


@dataclass(frozen=True)
class Elementwise(Instruction):
    """An operation on two values, entry by entry."""

    left: Name
    right: Name

    operands = ("left", "right")

    def work(self, site: Site) -> Work:
        out = prod(self.extents(site.after))
        return Work(elementwise=out, written=out)

    def seconds(self, site: Site, model: CostModel, grad: bool) -> float:
        read = site.entries(0) + site.entries(1)
        return prices.elementwise(model, prod(self.extents(site.after)), read, grad=grad)


@dataclass(frozen=True)
class Times(Elementwise):
    """An elementwise product with broadcasting."""

    def holds(self, read: tuple[Instruction, ...], sizes: Sizes) -> bool:
        left, right = read[0].axes, read[1].axes
        if not len(self.axes) == len(left) == len(right):
            return False
        return all(
            axis == (one or two) and (one == two or not one or not two)
            for axis, one, two in zip(self.axes, left, right, strict=True)
        )


@dataclass(frozen=True)
class Plus(Elementwise):
    """The sum of two values."""

    def holds(self, read: tuple[Instruction, ...], sizes: Sizes) -> bool:
        return self.axes == read[0].axes == read[1].axes


@dataclass(frozen=True)
class Total(Instruction):
    """A value summed over some of its axes."""

    source: Name
    dims: tuple[int, ...]

    operands = ("source",)
    may_sum = True

    def holds(self, read: tuple[Instruction, ...], sizes: Sizes) -> bool:
        source = read[0].axes
        left = tuple(axis for at, axis in enumerate(source) if at not in self.dims)
        return self.axes == left and len(left) + len(self.dims) == len(source)

    def work(self, site: Site) -> Work:
        return Work(elementwise=site.entries(0), written=prod(self.extents(site.after)))

    def seconds(self, site: Site, model: CostModel, grad: bool) -> float:
        return prices.total(model, site.entries(0), prod(self.extents(site.after)), grad=grad)


@dataclass(frozen=True)
class Rows(Instruction):
    """Rows of a table, at the index that the modes `labels` make up."""

    source: Name
    labels: Labels

    operands = ("source",)
    needs_input = True

    @property
    def looks_up(self) -> Labels:
        return self.labels

    def holds(self, read: tuple[Instruction, ...], sizes: Sizes) -> bool:
        table = read[0].axes
        return table[:1] == (self.labels,) and self.axes == ((TOKENS,), *table[1:])

    def summed(self, read: tuple[Instruction, ...]) -> Labels:
        return tuple(label for label in super().summed(read) if label not in self.labels)

    def work(self, site: Site) -> Work:
        return Work(written=prod(self.extents(site.after)))

    def seconds(self, site: Site, model: CostModel, grad: bool) -> float:
        return prices.gather(model, prod(self.extents(site.after)), grad=grad)


@dataclass(frozen=True)
class Weight(Instruction):
    """The dense weight in torch's layout, from a value with one axis for each of its parts: padding cut off."""

    source: Name
    keep: tuple[int, ...]
    """The real length of each axis of the source."""
    shape: tuple[int, ...]

    operands = ("source",)
    is_shown = False

    def holds(self, read: tuple[Instruction, ...], sizes: Sizes) -> bool:
        lengths = shape(self.axes, sizes)
        is_kept = len(self.keep) == len(lengths) and all(map(int.__le__, self.keep, lengths))
        return self.axes == read[0].axes and is_kept and prod(self.keep) == prod(self.shape)

    def extents(self, sizes: Sizes) -> tuple[int, ...]:
        return self.shape


@dataclass(frozen=True)
class Kernel(Instruction):
    """A matrix as the weight of a convolution: its second axis split into channels and taps along each spatial axis."""

    source: Name
    taps: tuple[int, ...]

    operands = ("source",)
    is_shown = False

    def holds(self, read: tuple[Instruction, ...], sizes: Sizes) -> bool:
        is_matrix = self.axes == read[0].axes and len(self.axes) == 2
        return is_matrix and volume(self.axes[1], sizes) % prod(self.taps) == 0


@dataclass(frozen=True)
class Repeat(Instruction):
    """A matrix repeated along labels that it does not have, which come first on its rows: one kernel for all groups."""

    source: Name
    labels: Labels

    operands = ("source",)

    def holds(self, read: tuple[Instruction, ...], sizes: Sizes) -> bool:
        rows, *rest = read[0].axes
        is_new = not set(self.labels) & set(flat(read[0].axes))
        return is_new and len(read[0].axes) == 2 and self.axes == ((*self.labels, *rows), *rest)

    def work(self, site: Site) -> Work:
        return Work(written=prod(self.extents(site.after)))

    def seconds(self, site: Site, model: CostModel, grad: bool) -> float:
        return prices.stack(model, prod(self.extents(site.after)), grad=grad)

    def detail(self) -> str:
        return f"{self.source} along {' '.join(self.labels)}"


@dataclass(frozen=True)
class Conv(Instruction):
    """A convolution of `source` with `weight` in `groups` groups; the options of `spatial` axes act here."""

    source: Name
    weight: Name
    groups: int
    spatial: tuple[int, ...]
    """The spatial axes whose taps are summed here, or none: then it is pointwise."""

    operands = ("source", "weight")
    may_sum = True

    def _groups(self, read: tuple[Instruction, ...]) -> Labels:
        """The labels of channels that are kept: they are on the image and on the rows of the kernel."""
        return tuple(label for label in read[1].axes[0] if label in read[0].axes[1])

    def holds(self, read: tuple[Instruction, ...], sizes: Sizes) -> bool:
        """The groups' labels come first on both, then those that are summed; the rest of the kernel are taps."""
        source, kernel = read
        if not isinstance(kernel, Kernel) or len(source.axes) < 3:
            return False
        lead, inside, *places = source.axes
        columns, summed = kernel.axes
        groups = tuple(label for label in inside if label not in summed)
        depth, taps = summed[: len(inside) - len(groups)], summed[len(inside) - len(groups) :]
        return (
            self.axes == (lead, columns, *places)
            and inside == (*groups, *depth)
            and columns[: len(groups)] == groups
            and self.groups == volume(groups, sizes)
            and volume(taps, sizes) == prod(kernel.taps)
            and all(count == 1 or axis in self.spatial for axis, count in enumerate(kernel.taps))
            and (not self.spatial or len(kernel.taps) == len(places))
        )

    def taps_of(self, read: tuple[Instruction, ...]) -> Labels:
        """The kernel modes that are summed here."""
        return tuple(label for label in read[1].axes[1] if label not in read[0].axes[1])

    def lengths(self, read: tuple[Instruction, ...], window: Window, sizes: Sizes) -> dict[str, int]:
        places = [self.axes[2 + axis] for axis in self.spatial]
        return {
            label: window.out_length(sizes[label], axis) for axis, (label,) in zip(self.spatial, places, strict=True)
        }

    def work(self, site: Site) -> Work:
        out = prod(self.extents(site.after))
        return Work(macs=out * volume(site.read[1].axes[1], site.before), written=out)

    def seconds(self, site: Site, model: CostModel, grad: bool) -> float:
        rows, inside = shape(site.read[1].axes, site.before)
        depth = volume(site.read[0].axes[1], site.before) // self.groups
        if not self.spatial and self.groups == 1:
            images, _, *places = self.extents(site.after)
            return prices.pointwise(model, images, rows, prod(places), depth, grad=grad)
        out, channels = prod(self.extents(site.after)), min(depth, rows // self.groups)
        return prices.convolution(
            model, out, site.entries(0), rows * inside, inside, channels, grad=grad, is_grouped=self.groups > 1
        )

    def resized(self, read: tuple[Instruction, ...], sizes: Sizes) -> Instruction:
        return replace(self, groups=volume(self._groups(read), sizes))

    def detail(self) -> str:
        return f"{super().detail()} groups={self.groups} axes={list(self.spatial)}"

    def words(self, read: tuple[Instruction, ...], taken: frozenset[str] = frozenset()) -> str:
        acting = f", taps of axes {list(self.spatial)}" if self.spatial else ""
        inside = names(read[1].axes[1], taken) or "nothing"
        return f"{names(flat(self.axes), taken) or '1'}  <- convolve over {inside}{acting}"
