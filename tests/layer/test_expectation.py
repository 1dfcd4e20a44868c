"""Norms and expectation values of complex matrix product states, written with conjugate cores.

The operator on two sites is the input of a map; for the norm it is the identity. Against numpy on the whole state, and
against quimb where it is installed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import tnmars
from tnmars.graph import Graph
from tnmars.graph.rewrite import unconjugated

SITES, BOND = 5, 3


def sandwich(sites: int = SITES, bond: int = BOND) -> Graph:
    """<psi|O|psi> for an operator O on the first two sites: cores A of the state and conjugates B of a second one."""
    cores, bonds = [], {}
    for at in range(sites):
        for letter, star, leg in (("A", "", "k"), ("B", "*", "b")):
            lower = letter.lower()
            edges = [f"{lower}_{at - 1}"] if at else []
            edges += [f"{leg}{at}" if at < 2 else f"p{at}"]
            edges += [f"{lower}_{at}"] if at < sites - 1 else []
            cores.append(f"{letter}{at}{star}[{', '.join(edges)}]")
            bonds |= {f"{lower}_{at}": bond} if at < sites - 1 else {}
        bonds |= {f"p{at}": 2} if at >= 2 else {}
    modes = {"b0": 2, "b1": 2, "k0": 2, "k1": 2}
    arguments = {"operator": "n (b0 b1) (k0 k1)"}
    return tnmars.network("map", " ".join(cores), inputs=modes, bonds=bonds, arguments=arguments, result="n")


def states(sites: int = SITES, bond: int = BOND) -> list[np.ndarray]:
    """The cores of a complex state: (left, physical, right), without the ends of size 1."""
    random = np.random.default_rng(7)
    found = []
    for at in range(sites):
        shape = [bond] * (at > 0) + [2] + [bond] * (at < sites - 1)
        found.append(random.normal(size=shape) + 1j * random.normal(size=shape))
    return found


def operators() -> np.ndarray:
    """The identity, sigma_y on both sites (complex, not symmetric), and an operator that is not Hermitian."""
    y = np.array([[0, -1j], [1j, 0]])
    random = np.random.default_rng(3)
    other = random.normal(size=(4, 4)) + 1j * random.normal(size=(4, 4))
    return np.stack([np.eye(4), np.kron(y, y), other])


def whole(cores: list[np.ndarray]) -> np.ndarray:
    """The state as a vector, one axis per site."""
    state = cores[0]
    for core in cores[1:]:
        state = np.tensordot(state, core, axes=1)
    return state


@torch.no_grad()
def layer_of(cores: list[np.ndarray], dtype: torch.dtype = torch.complex128) -> tnmars.TNModule:
    layer = tnmars.compile(sandwich(), dtype=dtype, warn=False)
    for at, core in enumerate(cores):
        for letter in "AB":
            layer.cores.get(f"{letter}{at}").copy_(torch.from_numpy(core))
    return layer


def expected(cores: list[np.ndarray], values: np.ndarray) -> np.ndarray:
    state = whole(cores).reshape(4, -1)
    return np.array([np.vdot(state, value @ state) for value in values])


def test_values_are_numpys_on_the_whole_state() -> None:
    cores, values = states(), operators()
    found = layer_of(cores)(torch.from_numpy(values)).detach().numpy()
    wanted = expected(cores, values)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert abs(found[0].imag) < 1e-9 * found[0].real  # a norm is real and positive
    assert abs(found[1].imag) < 1e-9 * found[0].real  # and so is the value of a Hermitian operator
    assert abs(wanted[2].imag) > 1e-3 * wanted[0].real


def test_without_conjugates_the_norm_is_another_number() -> None:
    cores = states()
    graph = unconjugated(sandwich())
    layer = tnmars.compile(graph, dtype=torch.complex128, warn=False)
    with torch.no_grad():
        for name in graph.cores:
            layer.cores.get(name).copy_(torch.from_numpy(cores[int(name[1:])]))
    found = layer(torch.from_numpy(operators()[:1])).detach().numpy()
    state = whole(cores).reshape(-1)
    np.testing.assert_allclose(found, [state @ state], rtol=1e-12)


def test_gradients_of_a_norm_are_twice_the_state() -> None:
    """Under torch's convention the gradient of <psi|psi> by psi is 2 psi; half of it comes by each set of cores."""
    cores = states()
    layer = layer_of(cores)
    identity = torch.eye(4, dtype=torch.complex128)[None]
    parameters = [layer.cores.get(f"{letter}{at}") for at in range(SITES) for letter in "AB"]
    found = torch.autograd.grad(layer(identity).real.sum(), parameters)
    leaves = [torch.from_numpy(core).requires_grad_() for core in cores]
    state: Tensor = leaves[0]
    for leaf in leaves[1:]:
        state = torch.tensordot(state, leaf, dims=1)
    wanted = torch.autograd.grad(state.abs().square().sum(), leaves)
    for at, value in enumerate(wanted):
        torch.testing.assert_close(found[2 * at] + found[2 * at + 1], value, rtol=1e-10, atol=1e-10)


def test_frozen_and_pruned_it_is_the_same() -> None:
    cores, values = states(), torch.from_numpy(operators())
    layer = layer_of(cores).eval()
    frozen = tnmars.freeze(layer)
    torch.testing.assert_close(frozen(values), layer(values), rtol=1e-12, atol=1e-9)
    small = tnmars.prune(layer, ranks=2)
    assert max(bond.size for bond in small.graph.bonds.values()) == 2
    assert small.graph.conjugated


def test_values_are_quimbs() -> None:
    qtn = pytest.importorskip("quimb.tensor", reason="quimb is not installed")
    cores, values = states(), operators()
    state = qtn.MatrixProductState(cores, shape="lpr")
    found = layer_of(cores)(torch.from_numpy(values)).detach().numpy()
    assert found[0].real == pytest.approx(float((state.H & state).contract().real), rel=1e-12)
    for value, one in zip(values, found, strict=True):
        with_operator = state.gate(value, (0, 1))
        np.testing.assert_allclose(one, (state.H & with_operator).contract(), rtol=1e-11)


def test_quimb_gives_and_takes_complex_states() -> None:
    qtn = pytest.importorskip("quimb.tensor", reason="quimb is not installed")
    state = qtn.MPS_rand_state(5, 3, dtype="complex128", seed=0)
    order = tuple(state.outer_inds())
    layer = tnmars.interchange.from_quimb(state)
    assert layer.dtype is torch.complex128
    wanted = np.asarray(state.contract(output_inds=order).data)
    np.testing.assert_allclose(layer.dense().detach().numpy(), wanted, rtol=0, atol=1e-13)
    names = tuple(mode.name for mode in layer.graph.modes)
    back = tnmars.interchange.to_quimb(layer).contract(output_inds=names)
    np.testing.assert_allclose(np.asarray(back.data), wanted, rtol=0, atol=1e-13)
    sandwiched = tnmars.interchange.to_quimb(layer_of(states()))
    outer = ("b0", "b1", "k0", "k1")
    made = sandwiched.contract(output_inds=outer).transpose(*outer).data
    np.testing.assert_allclose(np.asarray(made), layer_of(states()).dense().detach().numpy(), rtol=1e-10)
