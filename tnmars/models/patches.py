"""The inputs of each output position of a convolution, also of a transposed one, as rows."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from tnmars.models.torch_layers import DenseLayer


def patches(x: Tensor, layer: DenseLayer) -> Tensor:
    """The inputs of each output position of a convolution, as rows in the order of the flattened weight.

    With groups, a row for each of them.
    """
    ndim = len(layer.kernel)
    stride, dilation, padding = (layer.options[name] for name in ("stride", "dilation", "padding"))
    if layer.is_transposed:
        # the same as a convolution over the input with zeros between its entries, with the taps in reverse
        x, stride, padding = _spread(x, layer), (1,) * ndim, (0,) * ndim
    if isinstance(padding, str):
        reach = [step * (size - 1) for step, size in zip(dilation, layer.kernel, strict=True)]
        sides = [(span // 2, span - span // 2) if padding == "same" else (0, 0) for span in reach]
    else:
        sides = [(size, size) for size in padding]
    border = layer.options.get("padding_mode", "zeros")
    mode = "constant" if border == "zeros" else border
    if any(map(any, sides)):
        x = functional.pad(x, [size for side in reversed(sides) for size in side], mode=mode)
    for axis in range(ndim):
        reach_ = dilation[axis] * (layer.kernel[axis] - 1) + 1
        x = x.unfold(2 + axis, reach_, stride[axis])[..., :: dilation[axis]]
    if layer.is_transposed:
        x = x.flip([-1 - axis for axis in range(ndim)])
    moved = x.movedim(1, 1 + ndim)  # batch, positions, channel, taps
    return moved.reshape(-1, layer.width)


def _spread(x: Tensor, layer: DenseLayer) -> Tensor:
    """The input of a transposed convolution with zeros between and around its entries, as far as its output goes."""
    places = [(length - 1) * stride + 1 for length, stride in zip(x.shape[2:], layer.options["stride"], strict=True)]
    wide = x.new_zeros(*x.shape[:2], *places)
    where = (slice(None), slice(None), *(slice(None, None, stride) for stride in layer.options["stride"]))
    wide[where] = x
    sides = []
    for axis, size in enumerate(layer.kernel):
        room = layer.options["dilation"][axis] * (size - 1) - layer.options["padding"][axis]
        sides += [room + layer.options["output_padding"][axis], room]
    return functional.pad(wide, sides[::-1])
