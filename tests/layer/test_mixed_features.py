"""What one core in several places, conjugates, traces and planned steps do together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tnmars
from tnmars.program import backward


def test_a_norm_has_one_set_of_cores() -> None:
    """<psi|psi> of a state of two sites: cores and their conjugates are the same numbers."""
    graph = tnmars.network(
        "map",
        "A[i,r] B[r,j] C*=A[k,s] D*=B[s,l]",
        bonds={"r": 3, "s": 3},
        inputs={"i": 2, "j": 4},
        outputs={"k": 2, "l": 4},
        arguments={"x": "batch i j"},
        result="batch k l",
    )
    layer = tnmars.compile(graph, dtype=torch.complex128)
    assert sum(value.numel() for value in layer.parameters()) == 2 * 3 + 3 * 4
    a, b = (layer.cores.get(name).detach().numpy() for name in ("A", "B"))
    state = np.einsum("ir,rj->ij", a, b)
    x = torch.randn(5, 2, 4, dtype=torch.complex128)
    expected = np.einsum("nij,ij,kl->nkl", x.numpy(), state, state.conj())
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradients_of_a_tied_conjugate_are_those_of_autograd(dtype: torch.dtype) -> None:
    graph = tnmars.network(
        "linear", "A[i,r] B[r,s] C*=A[o,s]", bonds={"r": 3, "s": 3}, inputs={"i": 4}, outputs={"o": 4}
    )
    layer = tnmars.compile(graph, dtype=dtype, bias=False, batch=6)
    x = torch.randn(6, 4, dtype=dtype)
    layer(x).abs().square().sum().backward()
    a, b = (layer.cores.get(name).detach().clone().requires_grad_() for name in ("A", "B"))
    torch.einsum("ni,ir,rs,os->no", x, a, b, a.conj()).abs().square().sum().backward()
    for value, name in ((a, "A"), (b, "B")):
        torch.testing.assert_close(layer.cores.get(name).grad, value.grad, rtol=1e-10, atol=1e-10)


def test_a_trace_has_no_planned_step() -> None:
    graph = tnmars.network("linear", "A[i,r,r,s] B[s,o]", bonds={"r": 3, "s": 2}, inputs={"i": 4}, outputs={"o": 4})
    layer = tnmars.compile(graph, batch=6)
    form = layer.plan("train", 6)
    assert not backward.has_step(form.program, form.frame)
