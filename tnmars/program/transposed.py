"""The instruction for a transposed convolution, whose kernel lies as torch has it: inputs, then outputs and taps."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tnmars.plan import prices
from tnmars.plan.cost import CostModel
from tnmars.plan.network import Labels
from tnmars.plan.steps import flat, shape, volume
from tnmars.program.base import Instruction, Site, Sizes, Work, names
from tnmars.program.instructions import Conv, Kernel


@dataclass(frozen=True)
class ConvTranspose(Conv):
    """A transposed convolution of `source` with `weight` in `groups` groups over the taps of `spatial` axes."""

    def taps_of(self, read: tuple[Instruction, ...]) -> Labels:
        made = [label for label in self.axes[1] if label not in read[0].axes[1]]
        return read[1].axes[1][len(made) :]

    def _groups(self, read: tuple[Instruction, ...]) -> Labels:
        return tuple(label for label in read[0].axes[1] if label in self.axes[1])

    def holds(self, read: tuple[Instruction, ...], sizes: Sizes) -> bool:
        """The groups' labels come first on image and kernel, then those that are summed; the rest are outputs, taps."""
        source, kernel = read
        if not isinstance(kernel, Kernel) or len(source.axes) < 3 or not self.spatial:
            return False
        lead, inside, *places = source.axes
        rows, made = kernel.axes
        groups = self._groups(read)
        taps = self.taps_of(read)
        return (
            self.axes == (lead, (*groups, *made[: len(made) - len(taps)]), *places)
            and inside == rows
            and inside[: len(groups)] == groups
            and self.groups == volume(groups, sizes)
            and volume(taps, sizes) == prod(kernel.taps)
            and all(count == 1 or axis in self.spatial for axis, count in enumerate(kernel.taps))
            and len(kernel.taps) == len(places)
        )

    def work(self, site: Site) -> Work:
        macs = site.entries(0) * volume(site.read[1].axes[1], site.before)
        return Work(macs=macs, written=prod(self.extents(site.after)))

    def seconds(self, site: Site, model: CostModel, grad: bool) -> float:
        rows, inside = shape(site.read[1].axes, site.before)
        channels = min(rows, volume(self.axes[1], site.after)) // self.groups
        out, is_grouped = prod(self.extents(site.after)), self.groups > 1
        return prices.transposed(
            model, out, site.entries(0), rows * inside, inside, channels, grad=grad, is_grouped=is_grouped
        )

    def words(self, read: tuple[Instruction, ...], taken: frozenset[str] = frozenset()) -> str:
        summed = [label for label in read[1].axes[0] if label not in self.axes[1]]
        inside = names((*summed, *self.taps_of(read)), taken) or "nothing"
        made = names(flat(self.axes), taken) or "1"
        return f"{made}  <- convolve over {inside}, transposed, taps of axes {list(self.spatial)}"
