"""Complex tensors: ranks by elimination, by gates and by a target, with unknown entries and conjugate cores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from complex_oracle import error
from torch import Tensor

import tnmars


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed))


def planted(seed: int = 0) -> Tensor:
    clean = torch.einsum(
        "ir,jr,kr->ijk", normal(7, 2, seed=seed), normal(6, 2, seed=seed + 1), normal(5, 2, seed=seed + 2)
    )
    return clean + 0.01 * normal(7, 6, 5, seed=seed + 3)


@pytest.mark.parametrize("text", ["A[i,r] B[j,r] C[k,r]", "A[i,r] B*[j,r] C[k,r]"])
def test_the_planted_rank_is_found(text: str) -> None:
    graph = tnmars.network("tensor", text, free={"i": 7, "j": 6, "k": 5}, bonds=4)
    target = planted()
    fitted = tnmars.fit(graph, target)
    assert fitted.ranks == {"r": 2}
    assert fitted.layer.dtype is torch.complex128
    assert fitted.layer.graph.conjugated == graph.conjugated
    assert error(fitted.layer(), target) < 0.02


def test_unknown_entries_are_completed() -> None:
    graph = tnmars.network("tensor", "A[i,r] B[j,r] C[k,r]", free={"i": 7, "j": 6, "k": 5}, bonds=3)
    target = planted(7)
    holes = torch.rand(target.shape, generator=torch.Generator().manual_seed(1)) < 0.2
    known = target.masked_fill(holes, complex("nan"))
    fitted = tnmars.fit(graph, known.to(torch.complex64))
    assert fitted.ranks == {"r": 2}
    assert fitted.layer.dtype is torch.complex64
    assert error(fitted.layer().detach()[holes], target[holes]) < 0.1


def test_a_matrix_is_cut_at_its_noise() -> None:
    clean = normal(20, 3) @ normal(3, 24, seed=1)
    target = (clean + 0.05 * normal(20, 24, seed=2)).numpy()
    fitted = tnmars.fit(tnmars.families.lowrank("tensor", free=(20, 24), rank=8), target)
    assert fitted.ranks == {"r": 3}
    left, values, right = np.linalg.svd(target)
    wanted = (left[:, :3] * values[:3]) @ right[:3]
    assert error(fitted.layer(), torch.from_numpy(wanted)) < 1e-6


@pytest.mark.parametrize("aim", [{"error": 0.05}, {"parameters": 40}, {"ranks": 2}])
def test_targets_decide_the_ranks(aim: dict[str, object]) -> None:
    graph = tnmars.network("tensor", "A[i,r] B[j,r] C[k,r]", free={"i": 7, "j": 6, "k": 5}, bonds=4)
    fitted = tnmars.fit(graph, planted(), **aim)
    assert fitted.ranks == {"r": 2}
    assert fitted.error < 0.05


def test_gates_are_trained() -> None:
    graph = tnmars.families.lowrank("tensor", free=(10, 12), rank=5)
    target = normal(10, 2) @ normal(2, 12, seed=1)
    fitted = tnmars.fit(graph, target, selector=tnmars.Annealed(), steps=300)
    assert fitted.ranks == {"r": 2}
    assert error(fitted.layer(), target) < 1e-4


def test_a_real_layer_is_refused() -> None:
    graph = tnmars.families.lowrank("tensor", free=(10, 12), rank=5)
    with pytest.raises(tnmars.TnmarsError, match=r"dtype is torch.float32, but the tensor has complex numbers\."):
        tnmars.fit(graph, normal(10, 12), dtype=torch.float32)
