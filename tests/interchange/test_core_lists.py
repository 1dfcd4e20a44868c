"""Lists of cores, as tt-pytorch has them: its full tensor is a product of reshaped cores, computed here by hand."""

from __future__ import annotations

import pytest
import torch

import tnmars
from tnmars.interchange import from_core_list, to_core_list
from tnmars.interchange.labelled import library


def full(cores: list[torch.Tensor]) -> torch.Tensor:
    """As tt-pytorch's `TensorTrain.full`: product after product, then rows before columns."""
    result = cores[0]
    for core in cores[1:]:
        result = result.reshape(-1, core.shape[0]) @ core.reshape(core.shape[0], -1)
    if cores[0].dim() == 3:
        return result.reshape([core.shape[1] for core in cores])
    sizes = [size for core in cores for size in core.shape[1:3]]
    order = [*range(0, len(sizes), 2), *range(1, len(sizes), 2)]
    rows = torch.Size(core.shape[1] for core in cores).numel()
    return result.reshape(sizes).permute(order).reshape(rows, -1)


def cores(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


MATRIX = ((1, 4, 3, 2), (2, 5, 2, 3), (3, 2, 6, 1))


class TensorTrain:
    """What tt-pytorch's class has."""

    def __init__(self, tt_cores: list[torch.Tensor]):
        self.tt_cores = tt_cores


def test_a_tensor() -> None:
    given = cores((1, 4, 2), (2, 5, 3), (3, 6, 1))
    layer = from_core_list(given)
    torch.testing.assert_close(layer.dense(), full(given), rtol=0, atol=1e-12)
    assert all(torch.equal(one, other) for one, other in zip(to_core_list(layer), given, strict=True))


def test_a_linear_layer_multiplies_by_the_matrix() -> None:
    given, bias = cores(*MATRIX), torch.randn(36, dtype=torch.float64)
    layer = from_core_list(TensorTrain(given), bias=bias)
    x = torch.randn(7, 40, dtype=torch.float64)
    torch.testing.assert_close(layer(x), x @ full(given) + bias, rtol=0, atol=1e-11)
    assert all(torch.equal(one, other) for one, other in zip(to_core_list(layer), given, strict=True))


def test_a_table_looks_rows_up() -> None:
    given = cores(*MATRIX)
    layer = from_core_list(given, kind="embedding")
    rows = torch.tensor([0, 17, 39])
    torch.testing.assert_close(layer(rows), full(given)[rows], rtol=0, atol=1e-12)
    assert all(torch.equal(one, other) for one, other in zip(to_core_list(layer), given, strict=True))


def test_numbers_that_are_fixed_stay_fixed() -> None:
    fixed = [torch.nn.Parameter(core, requires_grad=False) for core in cores(*MATRIX)]
    assert not any(core.requires_grad for core in from_core_list(fixed).cores.parameters())
    assert all(core.requires_grad for core in from_core_list(cores(*MATRIX)).cores.parameters())


def test_mistakes() -> None:
    with pytest.raises(tnmars.ShapeError, match="outer axis of size 2"):
        from_core_list(cores((2, 4, 2), (2, 5, 1)))
    with pytest.raises(tnmars.ShapeError, match="axis 'r1' has size 3, but 2 before"):
        from_core_list(cores((1, 4, 2), (3, 5, 1)))
    with pytest.raises(tnmars.TnmarsError, match="all of them must have 3 axes, or all 4"):
        from_core_list(cores((4, 2), (2, 5)))
    with pytest.raises(tnmars.TnmarsError, match="kind is 'conv'"):
        from_core_list(cores(*MATRIX), kind="conv")
    with pytest.raises(tnmars.TnmarsError, match="bias is given, but a layer of kind 'embedding' has none"):
        from_core_list(cores(*MATRIX), kind="embedding", bias=torch.zeros(18))
    with pytest.raises(tnmars.ShapeError, match=r"bias has shape \(3,\), but must be"):
        from_core_list(cores(*MATRIX), bias=torch.zeros(3))
    with pytest.raises(tnmars.TnmarsError, match="a list of cores has nothing for linear"):
        to_core_list(tnmars.Linear(64, 64, family="tr", rank=2))
    padded = tnmars.families.tt("linear", inputs=(2, 3), outputs=(4, 5), rank=2, features={"in": 5})
    with pytest.raises(tnmars.TnmarsError, match="the layer has padding"):
        to_core_list(tnmars.compile(padded))


def test_a_library_that_is_missing_is_named() -> None:
    with pytest.raises(tnmars.TnmarsError) as error:
        library("no_such_library", "interchange")
    assert str(error.value) == "no_such_library is not installed.\n  Install it: pip install 'tnmars[interchange]'."
