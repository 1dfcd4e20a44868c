"""Complex weights: singular values, alternating least squares with conjugates, canonical forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from complex_oracle import dense, error, problem, whole
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EVERY
from strategies import cases, conjugates, graphs
from torch import Tensor, nn

import tnmars
from tnmars.decomposing.als import Goal, alternated
from tnmars.decomposing.spectra import spectra
from tnmars.decomposing.tensors import Decomposition
from tnmars.graph import Graph


def weight_of(graph: Graph, seed: int = 0) -> Tensor:
    """The weight of some random cores."""
    return dense(graph, whole(graph, problem(graph, 1, seed).cores)).detach()


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(5))


@settings(max_examples=cases(200))
@given(
    graphs(("tensor", "map"), trees_only=True, terms=1, shared=False, grouped=False).flatmap(conjugates),
    st.integers(0, 9),
)
def test_a_tree_gives_back_a_weight_of_its_ranks(graph: Graph, seed: int) -> None:
    weight = weight_of(graph, seed)
    found = tnmars.decompose(weight, graph)
    assert found.error < 1e-7
    assert found.graph.conjugated == graph.conjugated
    assert error(dense(found.graph, whole(found.graph, dict(found.cores))), weight) < 1e-7


@pytest.mark.parametrize("shape", [(6, 9), (9, 6)])
def test_the_error_is_that_of_the_singular_values(shape: tuple[int, int]) -> None:
    weight = random(*shape)
    graph = tnmars.families.lowrank("linear", inputs=(shape[1],), outputs=(shape[0],), rank=3)
    singular = np.linalg.svd(weight.numpy(), compute_uv=False)
    wanted = float(np.sqrt((singular[3:] ** 2).sum() / (singular**2).sum()))
    assert tnmars.decompose(weight, graph).error == pytest.approx(wanted, rel=1e-10)
    (found,) = spectra(weight, graph).values()
    np.testing.assert_allclose(found.numpy(), singular**2, rtol=1e-10)


@pytest.mark.parametrize(
    "text",
    [
        "A[i,r] B[j,r] C[k,r]",
        "A[t,i,r] B[r,j,s] C[s,k,t]",
        "A[t,i,r] B*[r,j,s] C[s,k,t]",
        "A[i,r] B[j,r] C[k,r] + D[i,s] E*[s,j,k]",
    ],
)
def test_graphs_with_cycles_and_sums_are_found_by_least_squares(text: str) -> None:
    graph = tnmars.network("tensor", text, free={"i": 4, "j": 3, "k": 4}, bonds=2)
    weight = weight_of(graph, 3)
    found = tnmars.decompose(weight, graph, seed=1)
    assert found.error < 1e-5
    assert error(whole(found.graph, dict(found.cores)), weight) < 1e-4


def test_a_single_step_of_least_squares_is_numpys() -> None:
    graph = tnmars.network("tensor", "A[i,r] B[j,r] C[k,r]", free={"i": 4, "j": 3, "k": 5}, bonds=2)
    start = {name: value.detach() for name, value in problem(graph, 1, 1).cores.items()}
    target = random(4, 3, 5)
    found, loss = alternated(Decomposition(graph, start, {"r": "r"}), Goal(graph, target), 1)
    cores = {name: value.numpy() for name, value in start.items()}
    norms = {name: np.linalg.norm(value) / value.size**0.5 for name, value in cores.items()}
    common = np.prod(list(norms.values())) ** (1 / 3)
    cores = {name: value * common / norms[name] for name, value in cores.items()}
    for name, axes in (("A", "ijk"), ("B", "jik"), ("C", "kij")):
        one, two = (other for other in "ABC" if other != name)
        around = np.einsum("ar,br->abr", cores[one], cores[two]).reshape(-1, 2)
        unfolded = np.einsum(f"ijk->{axes}", target.numpy()).reshape(cores[name].shape[0], -1)
        cores[name] = np.linalg.lstsq(around, unfolded.T, rcond=None)[0].T
    for name, value in cores.items():
        np.testing.assert_allclose(found.cores[name].numpy(), value, rtol=1e-5, atol=1e-6)
    made = np.einsum("ir,jr,kr->ijk", *cores.values())
    assert loss == pytest.approx(np.linalg.norm(made - target.numpy()) ** 2, rel=1e-6)


@settings(max_examples=cases(200))
@given(graphs(bonded=True).flatmap(conjugates), st.integers(0, 9))
def test_canonical_forms_have_the_same_weight(graph: Graph, seed: int) -> None:
    cores = {name: value.detach() for name, value in problem(graph, 1, seed).cores.items()}
    form = tnmars.canonical(graph, cores)
    assert error(whole(graph, dict(form.cores)), whole(graph, cores)) < 1e-6
    assert not any(value.is_complex() for value in form.weights.values())


def test_canonical_weights_of_a_tree_are_singular_values() -> None:
    graph = tnmars.families.tt("tensor", free=(3, 4, 5), ranks=(3, 4))
    cores = {name: value.detach() for name, value in problem(graph, 1, 2).cores.items()}
    tensor = whole(graph, cores).numpy()
    found = tnmars.canonical(graph, cores).weights
    np.testing.assert_allclose(found["r1"], np.linalg.svd(tensor.reshape(3, -1), compute_uv=False), rtol=1e-9)
    np.testing.assert_allclose(found["r2"], np.linalg.svd(tensor.reshape(12, -1), compute_uv=False)[:4], rtol=1e-9)


@pytest.mark.parametrize("cyclic", [False, True])
def test_pruning_by_rank_and_energy(cyclic: bool) -> None:
    family = tnmars.families.tr if cyclic else tnmars.families.tt
    graph = family("linear", inputs=(3, 4), outputs=(2, 3), rank=3)
    layer = tnmars.compile(graph, dtype=torch.complex128, warn=False)
    small = tnmars.prune(layer, ranks=2)
    assert {bond.size for bond in small.graph.bonds.values()} <= {2}
    assert small.dtype is torch.complex128
    assert error(tnmars.prune(layer, energy=1.0).dense(), layer.dense()) < 1e-6


def test_torchs_complex_layers_are_decomposed_at_full_rank() -> None:
    for made, x in (
        (nn.Linear(8, 6, dtype=torch.complex64), torch.randn(3, 8, dtype=torch.complex64)),
        (nn.Conv2d(4, 6, 3, padding=1, dtype=torch.complex64), torch.randn(2, 4, 5, 5, dtype=torch.complex64)),
        (nn.Embedding(12, 6, dtype=torch.complex64), torch.tensor([[1, 2], [11, 0]])),
    ):
        layer = tnmars.from_dense(made, "lowrank", error=1e-7)
        assert layer.dtype is torch.complex64
        with torch.no_grad():  # torch's table has no complex gradient
            assert error(layer(x), made(x)) < 1e-4


def test_a_metric_is_refused_by_name() -> None:
    graph = tnmars.families.lowrank("linear", inputs=(4,), outputs=(3,), rank=2)
    with pytest.raises(tnmars.TnmarsError, match=r"type torch.complex128, but a metric is for real weights\."):
        tnmars.decompose(random(3, 4), graph, metric=tnmars.Metric(inputs=torch.eye(4)))
    with pytest.raises(tnmars.TnmarsError, match=r"inputs of the metric has type torch.complex64"):
        tnmars.Metric(inputs=torch.eye(4, dtype=torch.complex64))


FULL = {name: graph for name, graph in EVERY.items() if not graph.padding}
"""Graphs whose weight of zeros and cores is not cut: padding would have ranks of its own."""


@pytest.mark.parametrize("graph", FULL.values(), ids=FULL)
def test_every_kind_is_decomposed(graph: Graph) -> None:
    weight = weight_of(graph, 4)
    assert tnmars.decompose(weight, graph, starts=4).error < 1e-5
