"""What one step costs in seconds, from its extents: one function per kind of step, with its backward pass if requested.

The search over memory layouts prices steps with these functions before they are instructions, and the instructions of
a finished program price themselves with the same ones. So a plan is chosen by the figures that are reported for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tnmars.plan.cost import CostModel
from tnmars.plan.steps import Groups, Labels, flat, last_run, runs, volume


def product(model: CostModel, batch: int, rows: int, columns: int, depth: int, *, grad: bool) -> float:
    """`batch` matrix products of rows x depth with depth x columns."""
    return model.product(batch, rows, columns, depth, grad=grad)


def spread_product(model: CostModel, batch: int, rows: int, columns: int, depth: int, *, grad: bool) -> float:
    """One matrix times every matrix of a batch. Its gradient is made for each member of the batch, then summed."""
    cost = model.product(batch, rows, columns, depth, grad=grad)
    made = batch * rows * depth
    return cost + model.elementwise(2 * made, made) if grad else cost


def elementwise(model: CostModel, out: int, read: int, *, grad: bool) -> float:
    """A broadcast product or sum that makes `out` numbers and reads `read`."""
    return (3 if grad else 1) * model.elementwise(out + read, out)


def total(model: CostModel, source: int, out: int, *, grad: bool) -> float:
    """A sum over some axes of `source` numbers."""
    return (3 if grad else 1) * model.elementwise(source, out)


def stack(model: CostModel, out: int, *, grad: bool) -> float:
    """Equal tensors copied into one of `out` numbers."""
    return (3 if grad else 1) * model.elementwise(2 * out, out)


def gather(model: CostModel, out: int, *, grad: bool) -> float:
    """Rows of a table, `out` numbers in all. Their gradients are scattered, which is slower."""
    return (4 if grad else 1) * model.gather(out)


def convolution(
    model: CostModel,
    out: int,
    source: int,
    weight: int,
    inside: int,
    channels: int,
    *,
    grad: bool,
    is_grouped: bool = False,
) -> float:
    """A convolution that makes `out` numbers from `source`, each a sum over `inside` products.

    `weight` is the number of entries of the kernel, `channels` the smaller number of channels of one group.
    """
    share = model.grouped if is_grouped and channels > 1 else 1.0
    return (3 if grad else 1) * share * model.conv(out * inside, out + source + weight, max(1, channels))


def transposed(
    model: CostModel,
    out: int,
    source: int,
    weight: int,
    inside: int,
    channels: int,
    *,
    grad: bool,
    is_grouped: bool = False,
) -> float:
    """A transposed convolution, of whose `source` entries each is multiplied with `inside` of the kernel.

    It is the backward pass of a convolution from its output to its input, with the same products.
    """
    return convolution(model, source, out, weight, inside, channels, grad=grad, is_grouped=is_grouped)


def pointwise(model: CostModel, batch: int, rows: int, pixels: int, depth: int, *, grad: bool) -> float:
    """A convolution without taps and groups: for each image, a matrix times its pixels. It runs as such a product."""
    return spread_product(model, batch, rows, pixels, depth, grad=grad)


def is_view(order: Labels, groups: Groups, sizes: Mapping[str, int]) -> bool:
    """Whether a tensor that lies in memory in this order can be used with these axes without a copy."""
    if not runs(order, groups, sizes):
        return False
    if len(groups) < 3:
        return True
    solid = [label for label in order if sizes[label] != 1]  # a batch of matrices: the batch may not lie innermost
    return not solid or solid[-1] not in groups[0]


def arrange(model: CostModel, order: Labels, groups: Groups, sizes: Mapping[str, int], *, grad: bool) -> float:
    """What moves in memory when a tensor in this order is used with these axes; 0 for a view."""
    count = volume(order, sizes)
    wanted = flat(groups)
    if not is_view(order, groups, sizes):
        return (2 if grad else 1) * model.copy(count, *last_run(order, wanted, sizes))
    if not grad or len(groups) < 3 or _solid(order, sizes) == _solid(wanted, sizes):
        return 0.0
    # a turned view into a batch of matrices: their gradients come in the other order and are copied back
    return model.copy(count, *last_run(wanted, order, sizes))


def _solid(labels: Labels, sizes: Mapping[str, int]) -> Labels:
    """The labels that are longer than 1."""
    return tuple(label for label in labels if sizes[label] != 1)
