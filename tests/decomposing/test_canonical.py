"""Canonical forms: the weight stays, weights are singular values on trees, and slices are sorted."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EXACT
from strategies import cases, graphs
from torch import Tensor

import tnmars
from tnmars import Graph, ShapeError, TnmarsError, families, network
from tnmars.decomposing.canonical import Canonical, canonical
from tnmars.decomposing.unfolding import below


def drawn(graph: Graph, seed: int, rank_loss: bool = False) -> dict[str, Tensor]:
    """Normal cores; with `rank_loss` the last slice of each bond is a copy of its first, or zero."""
    cores = {name: value.detach().clone() for name, value in oracle.problem(graph, 1, seed).cores.items()}
    if rank_loss:
        for name, value in cores.items():
            for axis, bond in enumerate(graph.bonds_of(name)):
                if bond and value.shape[axis] > 1:
                    value.select(axis, -1).copy_(value.select(axis, 0) if seed % 2 else 0.0 * value.select(axis, 0))
    return cores


def whole(graph: Graph, cores: dict[str, Tensor]) -> np.ndarray:
    return oracle.tensor(graph, {name: core.numpy() for name, core in cores.items()}, optimize=True)


def off(graph: Graph, cores: dict[str, Tensor], form: Canonical) -> float:
    """The distance of the weights, relative to that of the terms one by one, which may cancel."""
    before, after = whole(graph, cores), whole(graph, dict(form.cores))
    size = max(np.linalg.norm(before), 1.0)
    return float(np.linalg.norm(after - before) / size)


@settings(max_examples=cases(500))
@given(graphs(trees_only=True, shared=False, hyperedges=False, terms=1, max_cores=6), st.integers(0, 99), st.booleans())
def test_a_tree_keeps_its_weight_and_gets_its_singular_values(graph: Graph, seed: int, rank_loss: bool) -> None:
    cores = drawn(graph, seed, rank_loss)
    form = canonical(graph, cores)
    assert off(graph, cores, form) < EXACT
    (term,) = graph.terms
    values, axes = whole(graph, cores), [mode.name for mode in graph.modes]
    for bond, inside in below(graph, term).items():
        order = [axes.index(name) for name in (*inside, *(name for name in axes if name not in inside))]
        rows = int(np.prod([values.shape[at] for at in order[: len(inside)]]))
        exact = np.linalg.svd(values.transpose(order).reshape(rows, -1), compute_uv=False)
        weights = form.weights[bond].numpy()
        size = min(len(exact), len(weights))
        np.testing.assert_allclose(weights[:size], exact[:size], atol=1e-9 * max(exact[0], 1.0))
        assert np.all(np.diff(weights) <= 1e-12 * max(weights[0], 1.0))


@settings(max_examples=cases(300))
@given(graphs(terms=3, max_cores=5), st.integers(0, 99), st.booleans())
def test_any_graph_keeps_its_weight(graph: Graph, seed: int, rank_loss: bool) -> None:
    cores = drawn(graph, seed, rank_loss)
    form = canonical(graph, cores)
    assert off(graph, cores, form) < 1e-6
    for name, bond in graph.bonds.items():
        weights = form.weights[name]
        assert len(weights) == bond.size and bool(torch.isfinite(weights).all())
        assert bool((weights.diff() <= 1e-9 * weights[0].clamp(min=1.0)).all())
    assert {name: tuple(core.shape) for name, core in form.cores.items()} == dict(graph.cores)


def test_slices_of_a_hyperedge_have_equal_norms_on_all_ends() -> None:
    graph = families.cp("tensor", free=(4, 5, 6), rank=3)
    cores = drawn(graph, 0)
    form = canonical(graph, cores)
    norms = torch.stack([core.norm(dim=0) for core in form.cores.values()])
    torch.testing.assert_close(norms, norms[:1].expand(3, -1))
    torch.testing.assert_close(norms.prod(0), form.weights["r"])
    exact = torch.stack([core.norm(dim=0) for core in cores.values()]).prod(0).sort(descending=True)[0]
    torch.testing.assert_close(form.weights["r"], exact)


def test_cutting_a_ring_in_canonical_form_loses_less_than_cutting_it_as_it_is() -> None:
    graph = families.tr("tensor", free=(5, 5, 5, 5), ranks=(4, 4, 4, 4))
    small = families.tr("tensor", free=(5, 5, 5, 5), ranks=(3, 3, 3, 3))
    lost = {"as it is": 0.0, "canonical": 0.0}
    for seed in range(5):
        cores = {}
        for name, value in drawn(small, seed).items():
            wide = 0.01 * torch.randn(graph.cores[name], generator=torch.Generator().manual_seed(seed)).double()
            wide[tuple(slice(size) for size in value.shape)] += value
            for axis, bond in enumerate(graph.bonds_of(name)):
                if bond:  # slices are mixed, so that none is small
                    turn = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(9)).double())[0]
                    wide = torch.tensordot(wide, turn, dims=([axis], [0])).movedim(-1, axis)
            cores[name] = wide
        full = whole(graph, cores)
        for what, form in (("as it is", cores), ("canonical", canonical(graph, cores).cores)):
            cut = {name: value[tuple(slice(s) for s in small.cores[name])] for name, value in form.items()}
            lost[what] += float(np.linalg.norm(whole(small, cut) - full) / np.linalg.norm(full))
    assert lost["canonical"] < 0.2 * lost["as it is"]


def test_wrong_cores_are_refused() -> None:
    graph = network("linear", "A[i,r] B[r,o]", inputs={"i": 4}, outputs={"o": 3}, bonds=2)
    good = drawn(graph, 0)
    with pytest.raises(TnmarsError, match="core 'B' is missing"):
        tnmars.canonical(graph, {"A": good["A"]})
    with pytest.raises(ShapeError, match=r"core 'A' has shape \(2, 4\), but must have \(4, 2\)"):
        tnmars.canonical(graph, {"A": good["A"].T, "B": good["B"]})
    with pytest.raises(TnmarsError, match="core 'A' has entries that are NaN"):
        tnmars.canonical(graph, {"A": good["A"] * torch.nan, "B": good["B"]})
