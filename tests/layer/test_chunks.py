"""A batch in chunks: the same values and gradients as in one piece, whatever is kept for the backward pass."""

from __future__ import annotations

import pytest
import torch
from kit import square
from torch import Tensor
from torch.autograd import forward_ad

import tnmars
from tnmars.layer.chunks import in_chunks


def run(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.mm(torch.mm(rows, weight).sin(), weight.t()) + bias


def problem(*, has_slope: bool = True) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    rows, weight, bias = (torch.randn(*s, generator=draw, dtype=torch.float64) for s in ((11, 4), (4, 3), (4,)))
    return rows.requires_grad_(has_slope), (weight.requires_grad_(), bias.requires_grad_())


@pytest.mark.parametrize("keep", [0, 3, 6, 20])
@pytest.mark.parametrize("has_slope", [True, False])
def test_values_and_gradients_are_those_of_one_piece(keep: int, has_slope: bool) -> None:
    rows, more = problem(has_slope=has_slope)
    leaves = [value for value in (rows, *more) if value.requires_grad]
    wanted, found = run(rows, *more), in_chunks(run, 3, rows, more, keep)
    assert torch.allclose(found, wanted)
    slope = torch.randn_like(wanted)
    truth = torch.autograd.grad(wanted, leaves, slope)
    for _ in range(2):  # the second time nothing is kept any more
        for one, two in zip(torch.autograd.grad(found, leaves, slope, retain_graph=True), truth, strict=True):
            assert torch.allclose(one, two)
    with torch.no_grad():
        assert torch.allclose(in_chunks(run, 3, rows, more, keep), wanted)


def test_gradients_of_gradients() -> None:
    rows, more = problem()
    assert torch.autograd.gradgradcheck(lambda *given: in_chunks(run, 3, given[0], given[1:], 6), (rows, *more))


def test_under_vmap_and_grad_of_torch_func() -> None:
    rows, more = problem()
    weights = torch.stack([more[0], 2 * more[0]]).detach()
    found = torch.func.vmap(lambda weight: in_chunks(run, 3, rows.detach(), (weight, more[1].detach()), 6))(weights)
    assert torch.allclose(found[1], run(rows, weights[1], more[1]))
    slope = torch.func.grad(lambda weight: in_chunks(run, 3, rows, (weight, more[1]), 6).sum())(weights[0])
    assert torch.allclose(slope, torch.autograd.grad(run(rows, *more).sum(), more[0])[0])


def test_what_is_not_kept_is_made_again() -> None:
    rows, more = problem()
    seen: list[int] = []

    def watched(piece: Tensor, *rest: Tensor) -> Tensor:
        seen.append(piece.shape[0])
        return run(piece, *rest)

    found = in_chunks(watched, 3, rows, more, 6)
    assert seen == [3, 3, 3, 2]
    found.sum().backward()
    assert seen[4:] == [3, 2]


def test_shapes_on_the_meta_device() -> None:
    """Where there is no autocast to ask for."""
    rows, more = problem()
    found = in_chunks(run, 3, rows.to("meta"), tuple(value.to("meta") for value in more), 6)
    assert found.is_meta
    assert found.shape == rows.shape


def test_a_large_batch_without_any_gradient() -> None:
    layer = tnmars.compile(square(5), batch=8192).requires_grad_(False).eval()
    x = torch.randn(8192, 1024)
    wanted = torch.nn.functional.linear(x, layer.dense(), layer.bias)
    assert torch.allclose(layer(x), wanted, atol=1e-4)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, x)))
    assert torch.allclose(found.tangent, wanted - layer.bias, atol=1e-4)
