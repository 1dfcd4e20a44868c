"""Networks of quimb: graph and arrays there and back, contracted by quimb itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from strategies import cases, graphs

import tnmars
from tnmars.interchange import from_quimb, to_quimb

qtn = pytest.importorskip("quimb.tensor", reason="quimb is not installed")


def full(network: object, order: tuple[str, ...]) -> np.ndarray:
    """The tensor of a network, by quimb."""
    made = network.contract(output_inds=order)  # type: ignore[attr-defined]
    return np.asarray(made.transpose(*order).data if hasattr(made, "inds") else made)


def networks() -> dict[str, object]:
    return {
        "chain": qtn.MPS_rand_state(5, 3, dtype="float64", seed=0),
        "ring": qtn.MPS_rand_state(5, 3, cyclic=True, dtype="float64", seed=0),
        "operator": qtn.MPO_rand(4, 3, dtype="float64", seed=0),
        "grid": qtn.PEPS.rand(2, 3, 2, dtype="float64", seed=0),
        "any": qtn.TN_rand_reg(8, 3, 2, phys_dim=2, dtype="float64", seed=0),
    }


@pytest.mark.parametrize("name", ["chain", "ring", "operator", "grid", "any"])
def test_there_and_back(name: str) -> None:
    network = networks()[name]
    order = tuple(network.outer_inds())
    layer = from_quimb(network)
    expected = full(network, order)
    np.testing.assert_allclose(layer.dense().detach().numpy(), expected, rtol=0, atol=1e-12 * abs(expected).max())
    back = to_quimb(layer)
    assert {tensor.shape for tensor in back.tensors} == {tensor.shape for tensor in network.tensors}
    for one, other in zip(back.tensors, network.tensors, strict=True):
        np.testing.assert_array_equal(np.asarray(one.data), other.data)


def test_an_operator_is_a_linear_layer() -> None:
    network = qtn.MPO_rand(4, 3, dtype="float64", seed=0)
    upper, lower = (tuple(make(at) for at in range(4)) for make in (network.upper_ind, network.lower_ind))
    layer = from_quimb(network, inputs=lower, outputs=upper)
    x = torch.randn(6, 16, dtype=torch.float64)
    expected = x.numpy() @ network.to_dense(lower, upper)
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, atol=1e-12)


@given(graphs(kinds=("tensor",)))
@settings(max_examples=cases(200))
def test_any_graph_of_one_term(graph: tnmars.Graph) -> None:
    """Hyperedges, shared modes and unconnected parts included."""
    layer = tnmars.compile(graph, dtype=torch.float64)
    if len(graph.terms) != 1:
        with pytest.raises(tnmars.TnmarsError, match="one product"):
            to_quimb(layer)
        return
    order = tuple(mode.name for mode in graph.modes)
    network = to_quimb(layer)
    expected = layer.dense().detach().numpy()
    np.testing.assert_allclose(full(network, order), expected, rtol=1e-12, atol=1e-12 * max(1, abs(expected).max()))
    again = from_quimb(network, outputs=order)
    (one,), (other,) = again.graph.terms, graph.terms
    assert (one.cores, one.bond_sizes, again.graph.modes) == (other.cores, other.bond_sizes, graph.modes)
    assert all(torch.equal(again.cores.get(name), layer.cores.get(name)) for name in graph.cores)


def test_names_that_are_no_identifiers_and_scales() -> None:
    a = qtn.Tensor(np.ones((2, 3)), inds=("x-1", "0"), tags=["A B"])
    b = qtn.Tensor(np.ones((3, 2)), inds=("0", "x_1"), tags=["B"])
    network = a & b
    network.exponent = 2.0
    layer = from_quimb(network)
    assert layer.graph.dense_shape == (2, 2)
    assert torch.equal(layer.dense(), torch.full((2, 2), 300.0, dtype=torch.float64))


def test_mistakes() -> None:
    network = networks()["chain"]
    with pytest.raises(tnmars.TnmarsError, match="'k9' is not an index of the network"):
        from_quimb(network, inputs=["k9"])
    with pytest.raises(tnmars.TnmarsError, match="neither an input nor an output"):
        from_quimb(network, inputs=["k0"], outputs=["k1"])
    with pytest.raises(tnmars.TnmarsError, match="int is not a TensorNetwork"):
        from_quimb(3)
