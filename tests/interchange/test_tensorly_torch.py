"""Layers of tensorly-torch: outputs, gradients and numbers there and back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tnmars
from tnmars.interchange import from_tensorly_torch, to_tensorly_torch

tltorch = pytest.importorskip("tltorch", reason="tensorly-torch is not installed")


def linear(form: str, **more: object) -> nn.Module:
    return tltorch.FactorizedLinear((4, 5), (3, 6), factorization=form, rank=0.5, dtype=torch.float64, **more)


def conv(form: str) -> nn.Module:
    how = "reconstructed" if form == "dense" else "factorized"
    given = dict(stride=2, padding=(1, 0), bias=True, implementation=how, dtype=torch.float64)
    made = tltorch.FactorizedConv(5, 6, (3, 2), factorization=form, rank=0.6, **given)
    made.reset_parameters(0.5)
    made.bias.data.normal_()
    return made


def table(form: str) -> nn.Module:
    return tltorch.FactorizedEmbedding(
        24, 12, auto_tensorize=False, tensorized_num_embeddings=(4, 6), tensorized_embedding_dim=(3, 4),
        factorization=form, rank=5, dtype=torch.float64,
    )  # fmt: skip


CASES = {
    **{f"linear-{form}": (linear, form) for form in ("cp", "tucker", "blocktt", "dense")},
    **{f"conv-{form}": (conv, form) for form in ("cp", "tucker", "tt", "dense")},
    **{f"table-{form}": (table, form) for form in ("cp", "tucker", "blocktt")},
}


def inputs(case: str) -> torch.Tensor:
    if case.startswith("table"):
        return torch.tensor([0, 5, 23, 5])
    shape = (7, 20) if case.startswith("linear") else (3, 5, 8, 9)
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("case", CASES)
def test_there_and_back(case: str) -> None:
    make, form = CASES[case]
    theirs = make(form)
    ours = from_tensorly_torch(theirs)
    x = inputs(case)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-12)
    assert ours.graph.kind == {"linear": "linear", "conv": "conv", "table": "embedding"}[case.partition("-")[0]]
    if form == "dense":
        return  # one core: no factorization of theirs
    back = to_tensorly_torch(ours)
    assert type(back) is type(theirs)
    assert type(back.weight) is type(theirs.weight)
    torch.testing.assert_close(back(x), theirs(x), rtol=0, atol=1e-12)
    for one, other in zip(back.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)


def test_gradients_are_the_same() -> None:
    theirs = linear("tucker")
    ours = from_tensorly_torch(theirs)
    x = torch.randn(7, 20, dtype=torch.float64)
    ours(x).square().sum().backward()
    theirs(x).square().sum().backward()
    torch.testing.assert_close(ours.cores.get("G").grad, theirs.weight.core.grad, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours.bias.grad, theirs.bias.grad, rtol=1e-10, atol=1e-12)


def test_weights_of_cp_that_are_not_one_are_kept() -> None:
    theirs = linear("cp")
    theirs.weight.weights.data.normal_()
    ours = from_tensorly_torch(theirs)
    assert "weights" in ours.graph.cores
    x = torch.randn(7, 20, dtype=torch.float64)
    torch.testing.assert_close(to_tensorly_torch(ours)(x), theirs(x), rtol=0, atol=1e-12)


def test_a_pruned_layer_can_go_back() -> None:
    """What tnmars adds: ranks are chosen here, and the small layer is theirs again."""
    ours = from_tensorly_torch(linear("blocktt"))
    small = tnmars.from_dense(nn.Linear(20, 18).double(), ours.graph, ranks=2)
    back = to_tensorly_torch(small)
    x = torch.randn(7, 20, dtype=torch.float64)
    torch.testing.assert_close(back(x), small(x), rtol=0, atol=1e-12)
    assert back.weight.rank == (1, 2, 1)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(tnmars.TnmarsError, match="one weight serves several layers"):
        from_tensorly_torch(linear("cp", n_layers=2))
    with pytest.raises(tnmars.TnmarsError, match="Linear is not known"):
        from_tensorly_torch(nn.Linear(3, 4))
    with pytest.raises(tnmars.TnmarsError, match="tensorly-torch has nothing for linear"):
        to_tensorly_torch(tnmars.Linear(64, 64, family="tr", rank=2))
