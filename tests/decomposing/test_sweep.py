"""Trees: sweeps with and without a metric against closed forms in numpy and one naive einsum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EXACT, normal, second_moment
from strategies import cases, graphs

from tnmars import Graph, families, network
from tnmars.decomposing.decompose import decompose
from tnmars.decomposing.metric import Metric
from tnmars.decomposing.spectra import spectra

LAYERS = ("linear", "conv", "embedding")


def closed_form(weight: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, rank: int) -> tuple[np.ndarray, float]:
    """The best weight of a rank and its loss, from the eigenvectors of G^1/2 W C W' G^1/2."""
    values, vectors = np.linalg.eigh(outputs)
    values = np.maximum(values, 1e-6 * values[-1])
    root, inverse = (vectors * values**0.5) @ vectors.T, (vectors / values**0.5) @ vectors.T
    found, top = np.linalg.eigh(root @ weight @ inputs @ weight.T @ root)
    top = top[:, -rank:]
    return inverse @ top @ top.T @ root @ weight, float(found[:-rank].sum() / found.sum()) ** 0.5


@pytest.mark.parametrize("samples", [10, 200])
@pytest.mark.parametrize(("rows", "columns"), [(20, 30), (30, 20), (24, 24)])
@pytest.mark.parametrize("has_outputs", [False, True])
@pytest.mark.parametrize("has_inputs", [False, True])
def test_low_rank_in_a_metric_is_the_closed_form(
    samples: int, rows: int, columns: int, has_outputs: bool, has_inputs: bool
) -> None:
    weight, inputs = normal(rows, columns), second_moment(columns, samples, 3)
    outputs = second_moment(rows, samples, 5) if has_outputs else torch.eye(rows, dtype=torch.float64)
    metric = Metric(
        inputs=inputs if has_inputs else None,
        responses=None if has_inputs else weight @ inputs @ weight.T,
        outputs=outputs if has_outputs else None,
    )
    graph = families.lowrank("linear", inputs=(columns,), outputs=(rows,), rank=5)
    found = decompose(weight, graph, metric=metric)
    expected, loss = closed_form(weight.numpy(), inputs.numpy(), outputs.numpy(), 5)
    assert np.linalg.norm(oracle.rebuilt(found).numpy() - expected) <= EXACT * np.linalg.norm(expected)
    assert found.metric_error == pytest.approx(loss, rel=1e-9)
    assert found.bound == pytest.approx(loss, rel=1e-9)
    full = decompose(weight, graph, ranks=40, metric=metric)
    assert full.ranks == {"r": min(rows, columns)}
    assert oracle.error(oracle.rebuilt(full), weight) < EXACT


def test_spectra_of_a_metric_are_what_a_cut_loses() -> None:
    graph = network("conv", "A[i,r] K[r,h,s] B[s,o]", inputs={"i": 6}, outputs={"o": 5}, kernel={"h": 3}, bonds=2)
    weight, inputs = normal(5, 6, 3), second_moment(18, 40)
    found = spectra(weight, graph, Metric(inputs=inputs))
    flat = weight.reshape(5, 18).numpy()
    expected = np.linalg.eigvalsh(flat @ inputs.numpy() @ flat.T)[::-1]
    np.testing.assert_allclose(found["s"].numpy(), expected, rtol=1e-9)
    assert len(found["r"]) == 6
    cut = decompose(weight, graph, ranks={"r": 6, "s": 3}, metric=Metric(inputs=inputs))
    assert cut.metric_error == pytest.approx((expected[3:].sum() / expected.sum()) ** 0.5, rel=1e-9)


@settings(max_examples=cases(400))
@given(graphs((*LAYERS, "tensor", "map"), trees_only=True, shared=False, hyperedges=False, terms=1), st.integers(0, 99))
def test_a_forest_is_found_again_at_its_own_ranks(graph: Graph, seed: int) -> None:
    cores = {name: value.detach() for name, value in oracle.problem(graph, 2, seed).cores.items()}
    weight = oracle.dense(replace(graph, options=()), oracle.whole(graph, cores))
    found = decompose(weight, graph)
    if not graph.padding:  # the planted weight is not zero where there is padding
        assert oracle.error(oracle.rebuilt(found), weight) < EXACT
    assert found.bound is not None and found.error <= found.bound + EXACT
