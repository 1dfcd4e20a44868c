"""Tensors of tensorly: the same numbers there and back, by tensorly's own full tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tnmars
from tnmars.interchange import from_tensorly, to_tensorly

tl = pytest.importorskip("tensorly", reason="tensorly is not installed")
random = pytest.importorskip("tensorly.random", reason="tensorly is not installed")

NUMPY = dict(random_state=0)


@pytest.fixture(autouse=True)
def numpy_backend() -> object:
    before = tl.get_backend()
    tl.set_backend("numpy")
    yield
    tl.set_backend(before)


def tensors() -> dict[str, object]:
    tl.set_backend("numpy")
    made = {
        "CPTensor": random.random_cp((4, 5, 6), 3, **NUMPY),
        "TuckerTensor": random.random_tucker((4, 5, 6), (2, 3, 4), **NUMPY),
        "TTTensor": random.random_tt((4, 5, 6, 3), (1, 2, 4, 2, 1), **NUMPY),
        "TRTensor": random.random_tr((4, 5, 6), (2, 3, 4, 2), **NUMPY),
        "TTMatrix": random.random_tt_matrix((4, 5, 6, 3, 2, 2), (1, 2, 3, 1), **NUMPY),
    }
    weighed = random.random_cp((4, 5, 6), 3, **NUMPY)
    weighed.weights = np.array([2.0, -1.0, 0.5])
    return {**made, "weights": weighed}


def arrays(value: object) -> list[np.ndarray]:
    """All numbers of a tensor."""
    held = [getattr(value, name) for name in ("weights", "core") if getattr(value, name, None) is not None]
    return [np.asarray(array) for array in (*held, *value.factors)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["CPTensor", "TuckerTensor", "TTTensor", "TRTensor", "TTMatrix", "weights"])
def test_there_and_back(name: str) -> None:
    value = tensors()[name]
    layer = from_tensorly(value)
    full = value.to_matrix() if name == "TTMatrix" else value.to_tensor()
    assert layer.dtype == torch.float64
    np.testing.assert_allclose(layer.dense().detach().numpy(), full, rtol=0, atol=1e-12)
    back = to_tensorly(layer)
    assert type(back) is type(value)
    for one, other in zip(arrays(back), arrays(value), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_pruned_bond_of_size_one_is_there_again() -> None:
    layer = from_tensorly(tensors()["TTTensor"])
    graph = tnmars.families.tt("tensor", free=(4, 5, 6, 3), ranks=(2, 1, 2))
    from tnmars.graph.rewrite import drop_ones

    assert drop_ones(graph).graph.terms[0].bond_sizes == {"r1": 2, "r3": 2}
    small = tnmars.compile(drop_ones(graph).graph, dtype=torch.float64)
    value = to_tensorly(small, "TTTensor")
    assert tuple(value.rank) == (1, 2, 1, 2, 1)
    np.testing.assert_allclose(value.to_tensor(), small.dense().detach().numpy(), atol=1e-12)
    assert layer.graph.bonds["r2"].size == 4


@pytest.mark.parametrize(
    ("kind", "outputs", "shape"), [("linear", 1, (4, 30)), ("linear", 2, (20, 6)), ("conv", 1, None)]
)
def test_a_tensor_can_be_the_weight_of_a_layer(kind: str, outputs: int, shape: tuple[int, ...] | None) -> None:
    value = tensors()["TuckerTensor"]
    layer = from_tensorly(value, kind=kind, outputs=outputs)
    full = value.to_tensor()
    dense = layer.dense().detach().numpy()
    assert dense.shape == (shape or (4, 5, 6))
    np.testing.assert_allclose(dense, full.reshape(dense.shape), atol=1e-12)
    np.testing.assert_allclose(to_tensorly(layer).to_tensor(), full, atol=1e-12)


def test_a_matrix_can_be_a_table() -> None:
    value = tensors()["TTMatrix"]
    table = from_tensorly(value, kind="embedding")
    rows = torch.tensor([0, 7, 119])
    np.testing.assert_allclose(table(rows).detach().numpy(), value.to_matrix()[rows.numpy()], atol=1e-12)
    assert type(to_tensorly(table)).__name__ == "TTMatrix"


def test_arrays_are_of_the_backend() -> None:
    tl.set_backend("pytorch")
    value = random.random_cp((4, 5, 6), 3)
    layer = from_tensorly(value)
    assert layer.dtype == value.factors[0].dtype
    assert isinstance(to_tensorly(layer).factors[0], torch.Tensor)


def test_graphs_that_tensorly_does_not_have() -> None:
    layer = tnmars.compile(tnmars.families.complete("tensor", free=(4, 5, 6, 3), rank=2))
    with pytest.raises(tnmars.TnmarsError, match="tensorly has nothing for tensor with cores G1"):
        to_tensorly(layer)
    with pytest.raises(tnmars.TnmarsError, match="list is not known"):
        from_tensorly([1, 2])
    gated = tnmars.compile(tnmars.families.tt("tensor", free=(4, 5), rank=2), selector=tnmars.Mars())
    with pytest.raises(tnmars.TnmarsError, match="the layer has gates"):
        to_tensorly(gated)
    complex_ = random.random_cp((4, 5), 2, **NUMPY)
    complex_.factors[0] = complex_.factors[0] * 1j
    with pytest.raises(tnmars.TnmarsError, match="the arrays are of several types"):
        from_tensorly(complex_)
