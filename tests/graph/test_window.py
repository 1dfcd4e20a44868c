"""The lengths of a convolution's output against torch's own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases
from torch.nn import functional

from tnmars import families
from tnmars.graph import Window

CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def torch_lengths(
    image: Sequence[int], kernel: Sequence[int], stride: object, padding: object, dilation: object
) -> list[int]:
    """The output lengths of torch's own convolution; 0s where torch refuses the image."""
    run = CONVOLUTIONS[len(kernel)]
    try:
        found = run(
            torch.empty(1, 1, *image, device="meta"),
            torch.empty(1, 1, *kernel, device="meta"),
            stride=stride,
            padding=padding,
            dilation=dilation,
        )
    except RuntimeError:
        return [0] * len(kernel)
    return list(found.shape[2:])


def window(kernel: Sequence[int], **options: object) -> Window:
    """The window of a graph with these options."""
    return families.lowrank("conv", inputs=(2,), outputs=(2,), kernel=tuple(kernel), rank=1, options=options).window


@pytest.mark.parametrize("padding", [0, 1, 3, "same", "valid"])
def test_one_axis_is_as_long_as_torchs(padding: int | str) -> None:
    fitting = refused = 0
    for length, taps, stride, dilation in product((1, 2, 7, 8), (1, 2, 3, 5), (1, 2, 3, 4), (1, 2, 3)):
        if padding == "same" and stride > 1:
            continue
        found = window([taps], stride=stride, padding=padding, dilation=dilation).out_length(length, 0)
        assert [found] == torch_lengths([length], [taps], stride, padding, dilation)
        fitting += found > 0
        refused += found == 0
    assert fitting
    assert refused or padding in (3, "same")


@settings(max_examples=cases(500))
@given(st.data())
def test_several_axes_are_as_long_as_torchs(data: st.DataObject) -> None:
    ndim = data.draw(st.integers(1, 3))

    def each(least: int, most: int) -> list[int]:
        return data.draw(st.lists(st.integers(least, most), min_size=ndim, max_size=ndim))

    kernel, stride, dilation, padding = each(1, 4), each(1, 4), each(1, 3), each(0, 3)
    image = [24 + extra for extra in each(0, 9)]
    shape = window(kernel, stride=stride, padding=padding, dilation=dilation)
    assert [shape.out_length(length, axis) for axis, length in enumerate(image)] == torch_lengths(
        image, kernel, stride, padding, dilation
    )


def test_an_empty_image_has_no_output() -> None:
    assert window([3], padding="same").out_length(0, 0) == 0
    assert window([1], padding=4).out_length(0, 0) == 0


@pytest.mark.parametrize(("taps", "dilation"), [(2, 1), (3, 1), (4, 3), (1, 5)])
def test_same_padding_puts_its_zeros_where_torch_does(taps: int, dilation: int) -> None:
    before, after = window([taps], padding="same", dilation=dilation).sides(0)
    x, weight = torch.randn(1, 1, 11), torch.randn(1, 1, taps)
    by_hand = functional.conv1d(functional.pad(x, (before, after)), weight, dilation=dilation)
    torch.testing.assert_close(by_hand, functional.conv1d(x, weight, padding="same", dilation=dilation))


def test_the_reach_is_that_of_the_last_tap() -> None:
    assert [window([1, 3, 4], dilation=(5, 2, 3)).reach(axis) for axis in range(3)] == [1, 5, 10]


def test_only_convolutions_have_a_window() -> None:
    assert families.lowrank("linear", inputs=(2,), outputs=(2,), rank=1).window == Window()
    assert window([3, 5], stride=2) == Window((3, 5), (2, 2), (1, 1), (0, 0))
    assert (window([3, 5]).ndim, Window().ndim) == (2, 0)
