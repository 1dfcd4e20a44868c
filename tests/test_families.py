"""The families: what each looks like as a graph, what its dense weight is, and what it refuses.

The weight of a graph is one float64 einsum over its cores; the textbook formula beside it is written out by hand for
each family, from index loops or matrices, and knows nothing of edges.
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from math import prod

import numpy as np
import pytest
from kit import ROOT

import tnmars
from tnmars import Graph, GraphError, count, families, network
from tnmars.families import FAMILIES, settings
from tnmars.graph import Role, Term
from tnmars.graph.kinds import KINDS
from tnmars.graph.topology import cycles, is_tree, parts

Cores = dict[str, np.ndarray]


def random_cores(graph: Graph) -> Cores:
    draw = np.random.default_rng(0)
    return {name: draw.standard_normal(shape) for name, shape in graph.cores.items()}


def weight(graph: Graph, cores: Cores) -> np.ndarray:
    """The dense weight with one axis per mode, in the order of the graph's modes."""
    summed = np.zeros(tuple(mode.size for mode in graph.modes))
    for term in graph.terms:
        label = {edge: at for at, edge in enumerate(graph.sizes(term))}
        operands: list[object] = []
        for core in term.cores:
            operands += [cores[graph.qualified(term, core.name)], [label[edge] for edge in core.edges]]
        summed += np.einsum(*operands, [label[mode.name] for mode in graph.modes])
    return summed


def only(graph: Graph) -> Term:
    (term,) = graph.terms
    return term


def text(graph: Graph) -> str:
    return str(only(graph))


def degrees(term: Term) -> list[int]:
    """How many bonds each core has, in the order of the cores."""
    bonds = {bond.name for bond in term.bonds}
    return [len(bonds.intersection(core.edges)) for core in term.cores]


def ends(term: Term) -> list[int]:
    """How many cores each bond joins, in the order of the bonds."""
    found = term.ends()
    return [len(found[bond.name]) for bond in term.bonds]


PAIR = {"inputs": (4, 6), "outputs": (3, 5)}
LINEAR = {"inputs": (2, 3, 4), "outputs": (3, 2, 5)}
FREE = {"free": (2, 3, 4, 5)}
CONV = {"inputs": (4, 6), "outputs": (3, 5), "kernel": {"kh": 2, "kw": 3}}


# --- tensor train ----------------------------------------------------------------------------------------------------


def test_train_is_a_path() -> None:
    term = only(families.tt("tensor", **FREE, rank=2))
    assert degrees(term) == [1, 2, 2, 1]
    assert ends(term) == [2, 2, 2]
    assert is_tree(term)


def test_train_puts_the_kth_modes_on_one_core() -> None:
    graph = families.tt("linear", **LINEAR, ranks=(2, 4))
    assert text(graph) == "G1[i1, o1, r1] G2[r1, i2, o2, r2] G3[r2, i3, o3]"
    assert count(graph).cores == 2 * 3 * 2 + 2 * 3 * 2 * 4 + 4 * 4 * 5


def test_train_weight() -> None:
    graph = families.tt("linear", **LINEAR, ranks=(2, 4))
    cores = random_cores(graph)
    expected = np.empty((2, 3, 4, 3, 2, 5))
    for a, b, c, x, y, z in np.ndindex(*expected.shape):
        expected[a, b, c, x, y, z] = cores["G1"][a, x] @ cores["G2"][:, b, y, :] @ cores["G3"][:, c, z]
    np.testing.assert_allclose(weight(graph, cores), expected)


def test_train_count_is_that_of_the_paper() -> None:
    n, m, r = (7, 4, 7, 4), (5, 5, 5, 5), (1, 4, 3, 4, 1)
    graph = families.tt("linear", inputs=n, outputs=m, ranks=r[1:-1])
    assert count(graph).cores == sum(r[k] * n[k] * m[k] * r[k + 1] for k in range(4)) == 880


def test_train_of_one_site_is_dense() -> None:
    graph = families.tt("linear", inputs=(6,), outputs=(5,))
    assert text(graph) == "G1[i1, o1]"
    assert graph == families.tt("linear", inputs=(6,), outputs=(5,), rank=3)


def test_train_with_kernel_modes_has_them_on_the_first_core() -> None:
    graph = families.tt("conv", **CONV, ranks=(5, 7))
    assert text(graph) == "G1[kh, kw, r1] G2[r1, i1, o1, r2] G3[r2, i2, o2]"


def test_train_with_patch_modes_is_the_proper_convolution() -> None:
    graph = families.tt("conv", patch=(2, 3, 3), outputs=(2, 2, 2), kernel_size=(3, 3), rank=4)
    assert text(graph) == "G1[p1, o1, r1] G2[r1, p2, o2, r2] G3[r2, p3, o3]"
    assert graph.dense_shape == (8, 2, 3, 3)


# --- naive train -----------------------------------------------------------------------------------------------------


def test_naive_train_has_a_core_per_mode() -> None:
    graph = families.tt_naive("conv", **CONV, rank=3)
    assert text(graph) == "G1[i1, r1] G2[r1, i2, r2] G3[r2, o1, r3] G4[r3, o2, r4] G5[r4, kh, r5] G6[r5, kw]"
    assert degrees(only(graph)) == [1, 2, 2, 2, 2, 1]


def test_naive_train_in_another_order() -> None:
    graph = families.tt_naive("conv", **CONV, order=("kernel", "out", "in"), rank=3)
    assert text(graph) == "G1[kh, r1] G2[r1, kw, r2] G3[r2, o1, r3] G4[r3, o2, r4] G5[r4, i1, r5] G6[r5, i2]"


def test_naive_train_weight() -> None:
    graph = families.tt_naive("linear", inputs=(2, 3), outputs=(4, 5), ranks=(2, 6, 3))
    cores = random_cores(graph)
    expected = np.empty((2, 3, 4, 5))
    for a, b, x, y in np.ndindex(*expected.shape):
        expected[a, b, x, y] = cores["G1"][a] @ cores["G2"][:, b] @ cores["G3"][:, x] @ cores["G4"][:, y]
    np.testing.assert_allclose(weight(graph, cores), expected)
    assert count(graph).cores == 2 * 2 + 2 * 3 * 6 + 6 * 4 * 3 + 3 * 5


# --- ring ------------------------------------------------------------------------------------------------------------


def test_ring_is_a_cycle() -> None:
    graph = families.tr("tensor", **FREE, rank=2)
    assert degrees(only(graph)) == [2, 2, 2, 2]
    assert ends(only(graph)) == [2, 2, 2, 2]
    assert cycles(graph, only(graph)) == (("r1", "r2", "r3", "r4"),)


def test_ring_weight() -> None:
    graph = families.tr("linear", **LINEAR, ranks=(2, 4, 3))
    assert text(graph) == "G1[r3, i1, o1, r1] G2[r1, i2, o2, r2] G3[r2, i3, o3, r3]"
    cores = random_cores(graph)
    expected = np.empty((2, 3, 4, 3, 2, 5))
    for a, b, c, x, y, z in np.ndindex(*expected.shape):
        expected[a, b, c, x, y, z] = np.trace(
            cores["G1"][:, a, x, :] @ cores["G2"][:, b, y, :] @ cores["G3"][:, c, z, :]
        )
    np.testing.assert_allclose(weight(graph, cores), expected)
    assert count(graph).cores == 3 * 2 * 3 * 2 + 2 * 3 * 2 * 4 + 4 * 4 * 5 * 3


def test_ring_of_two_has_two_bonds_between_its_cores() -> None:
    assert text(families.tr("tensor", free=(3, 4), rank=2)) == "G1[r2, n1, r1] G2[r1, n2, r2]"


def test_ring_with_kernel_modes_has_them_on_the_first_core() -> None:
    graph = families.tr("conv", **CONV, rank=3)
    assert text(graph) == "G1[r3, kh, kw, r1] G2[r1, i1, o1, r2] G3[r2, i2, o2, r3]"


# --- Tucker ----------------------------------------------------------------------------------------------------------


def test_tucker_is_a_star() -> None:
    term = only(families.tucker("tensor", **FREE, rank=2))
    assert degrees(term) == [4, 1, 1, 1, 1]
    assert ends(term) == [2, 2, 2, 2]
    assert is_tree(term)


def test_tucker_weight() -> None:
    graph = families.tucker("tensor", **FREE, ranks=(2, 3, 1, 4))
    cores = random_cores(graph)
    expected = cores["G"]
    for axis in range(4):  # the multilinear product, one factor at a time
        expected = np.moveaxis(np.tensordot(cores[f"U{axis + 1}"], expected, (1, axis)), 0, axis)
    np.testing.assert_allclose(weight(graph, cores), expected)
    assert count(graph).cores == 2 * 3 * 1 * 4 + 2 * 2 + 3 * 3 + 4 * 1 + 5 * 4


def test_tucker_has_a_factor_for_each_kernel_mode() -> None:
    graph = families.tucker("conv", inputs={"c": 4}, outputs={"o": 6}, kernel={"kh": 2, "kw": 3}, rank=2)
    assert text(graph) == "G[r1, r2, r3, r4] U1[c, r1] U2[kh, r2] U3[kw, r3] U4[o, r4]"


def test_tucker2_keeps_the_kernel_on_the_core() -> None:
    graph = families.tucker2("conv", inputs={"c": 4}, outputs={"o": 6}, kernel={"kh": 2, "kw": 3}, ranks=(3, 5))
    assert text(graph) == "G[r1, kh, kw, r2] U1[c, r1] U2[o, r2]"
    assert count(graph).cores == 4 * 3 + 3 * 2 * 3 * 5 + 6 * 5


def test_tucker2_weight() -> None:
    graph = families.tucker2("conv", inputs={"c": 4}, outputs={"o": 6}, kernel={"kh": 2, "kw": 3}, ranks=(3, 5))
    cores = random_cores(graph)
    expected = np.empty((4, 2, 3, 6))
    for row, column in np.ndindex(2, 3):  # at each tap, three matrices in a row
        expected[:, row, column, :] = cores["U1"] @ cores["G"][:, row, column, :] @ cores["U2"].T
    np.testing.assert_allclose(weight(graph, cores), expected)


def test_tucker2_without_a_kernel_is_tucker() -> None:
    assert families.tucker2("linear", **LINEAR, rank=2) == families.tucker("linear", **LINEAR, rank=2)


# --- CP --------------------------------------------------------------------------------------------------------------


def test_cp_is_one_hyperedge() -> None:
    term = only(families.cp("tensor", **FREE, rank=3))
    assert degrees(term) == [1, 1, 1, 1]
    assert ends(term) == [4]


def test_cp_weight() -> None:
    graph = families.cp("tensor", **FREE, rank=3)
    cores = random_cores(graph)
    expected = np.zeros((2, 3, 4, 5))
    for r in range(3):
        vectors = [cores[f"A{at}"][:, r] for at in (1, 2, 3, 4)]
        expected += np.multiply.outer(np.outer(vectors[0], vectors[1]), np.outer(vectors[2], vectors[3]))
    np.testing.assert_allclose(weight(graph, cores), expected)
    assert count(graph).cores == 3 * (2 + 3 + 4 + 5)


def test_cp_has_a_factor_for_each_kernel_mode() -> None:
    graph = families.cp("conv", inputs={"c": 4}, outputs={"o": 6}, kernel={"kh": 2, "kw": 3}, rank=5)
    assert text(graph) == "A1[c, r] A2[kh, r] A3[kw, r] A4[o, r]"


# --- block term ------------------------------------------------------------------------------------------------------


def test_block_terms_are_tucker_terms() -> None:
    graph = families.btd("linear", **LINEAR, terms=3, rank=2)
    one = only(families.tucker("linear", **LINEAR, rank=2))
    assert [term.name for term in graph.terms] == ["t1", "t2", "t3"]
    assert all((term.bonds, term.cores) == (one.bonds, one.cores) for term in graph.terms)


def test_block_term_weight() -> None:
    graph = families.btd("tensor", free=(3, 4, 5), ranks=[(2, 1, 3), (1, 2, 2)])
    cores = random_cores(graph)
    expected = sum(
        np.einsum("abc,xa,yb,zc->xyz", *(cores[f"{term}.{name}"] for name in ("G", "U1", "U2", "U3")))
        for term in ("t1", "t2")
    )
    np.testing.assert_allclose(weight(graph, cores), expected)
    assert count(graph).cores == (2 * 1 * 3 + 3 * 2 + 4 * 1 + 5 * 3) + (1 * 2 * 2 + 3 * 1 + 4 * 2 + 5 * 2)


def test_block_terms_by_ranks_in_each_form() -> None:
    expected = families.btd("tensor", free=(3, 4), ranks=[(2, 3), (2, 3)])
    assert families.btd("tensor", free=(3, 4), terms=2, ranks=(2, 3)) == expected
    assert families.btd("tensor", free=(3, 4), terms=2, ranks={"r2": 3, "r1": 2}) == expected
    assert families.btd("tensor", free=(3, 4), ranks=[{"r1": 2, "r2": 3}, (2, 3)]) == expected
    assert families.btd("tensor", free=(3, 4), terms=2, ranks=[(2, 3), (2, 3)]) == expected


# --- hierarchical Tucker ---------------------------------------------------------------------------------------------


def test_hierarchy_is_a_tree_with_the_sites_at_its_leaves() -> None:
    term = only(families.ht("tensor", **FREE, rank=2))
    assert is_tree(term)
    assert Counter(degrees(term)) == {1: 4, 2: 1, 3: 2}
    assert str(term) == "B1[b2, b3] B2[b2, r1, r2] B3[b3, r3, r4] U1[n1, r1] U2[n2, r2] U3[n3, r3] U4[n4, r4]"


def test_hierarchy_weight() -> None:
    ranks = {"b2": 2, "b3": 3, "r1": 2, "r2": 3, "r3": 4, "r4": 5}
    graph = families.ht("tensor", **FREE, ranks=ranks)
    cores = random_cores(graph)
    left = np.einsum("pab,xa,yb->pxy", cores["B2"], cores["U1"], cores["U2"])
    right = np.einsum("pab,xa,yb->pxy", cores["B3"], cores["U3"], cores["U4"])
    np.testing.assert_allclose(weight(graph, cores), np.einsum("pq,pwx,qyz->wxyz", cores["B1"], left, right))
    assert count(graph).cores == 2 * 3 + 2 * 2 * 3 + 3 * 4 * 5 + 2 * 2 + 3 * 3 + 4 * 4 + 5 * 5


def test_hierarchy_weight_by_a_tree_of_ones_own() -> None:
    graph = families.ht("tensor", free=(2, 3, 4), tree=[[3, 1], 2], rank=2)
    assert text(graph) == "B1[b2, r2] B2[b2, r3, r1] U1[n1, r1] U2[n2, r2] U3[n3, r3]"
    cores = random_cores(graph)
    pair = np.einsum("pab,za,xb->pzx", cores["B2"], cores["U3"], cores["U1"])
    np.testing.assert_allclose(weight(graph, cores), np.einsum("pq,pzx,yq->xyz", cores["B1"], pair, cores["U2"]))


def test_hierarchy_halves_sites_of_an_odd_number() -> None:
    graph = families.ht("tensor", free=(2, 2, 2, 2, 2), rank=2)
    assert graph == families.ht("tensor", free=(2, 2, 2, 2, 2), tree=[[[1, 2], 3], [4, 5]], rank=2)


def test_hierarchy_may_join_more_than_two() -> None:
    assert families.ht("tensor", free=(2, 3, 4), tree=[1, 2, 3], rank=2).terms[0].cores[0].edges == ("r1", "r2", "r3")


def test_hierarchy_with_kernel_modes_has_them_on_the_first_leaf() -> None:
    graph = families.ht("conv", **CONV, rank=3)
    assert [str(core) for core in only(graph).cores[2:]] == ["U1[kh, kw, r1]", "U2[i1, o1, r2]", "U3[i2, o2, r3]"]


# --- grids and complete graphs ---------------------------------------------------------------------------------------


def test_grid_joins_neighbours() -> None:
    term = only(families.peps("tensor", free=(2,) * 6, grid=(2, 3), rank=2))
    assert degrees(term) == [2, 3, 2, 2, 3, 2]
    assert {bond.name for bond in term.bonds} == {"r1_2", "r2_3", "r4_5", "r5_6", "r1_4", "r2_5", "r3_6"}


def test_grid_of_three_dimensions_is_a_cube() -> None:
    term = only(families.peps("tensor", free=(2,) * 8, grid=(2, 2, 2), rank=2))
    assert degrees(term) == [3] * 8
    assert len(term.bonds) == 12


def test_grid_of_one_row_is_a_train() -> None:
    for grid in ((4,), (1, 4), (4, 1)):
        graph = families.peps("tensor", **FREE, grid=grid, rank=2)
        assert degrees(only(graph)) == [1, 2, 2, 1]
        assert count(graph) == count(families.tt("tensor", **FREE, rank=2))


def test_grid_weight() -> None:
    graph = families.peps("tensor", free=(2, 3, 4, 2), grid=(2, 2), ranks={"r1_2": 2, "r1_3": 3, "r2_4": 4, "r3_4": 5})
    assert text(graph) == "G1[n1, r1_3, r1_2] G2[n2, r1_2, r2_4] G3[n3, r1_3, r3_4] G4[n4, r2_4, r3_4]"
    cores = random_cores(graph)
    expected = np.zeros((2, 3, 4, 2))
    for top, left, right, bottom in np.ndindex(2, 3, 4, 5):  # the explicit sum over all four bonds
        corners = (
            cores["G1"][:, left, top],
            cores["G2"][:, top, right],
            cores["G3"][:, left, bottom],
            cores["G4"][:, right, bottom],
        )
        expected += np.einsum("a,b,c,d->abcd", *corners)
    np.testing.assert_allclose(weight(graph, cores), expected)
    assert count(graph).cores == 2 * 2 * 3 + 3 * 2 * 4 + 4 * 3 * 5 + 2 * 4 * 5


def test_complete_joins_every_pair() -> None:
    term = only(families.complete("tensor", **FREE, rank=2))
    assert degrees(term) == [3, 3, 3, 3]
    assert [bond.name for bond in term.bonds] == ["r1_2", "r1_3", "r1_4", "r2_3", "r2_4", "r3_4"]
    assert ends(term) == [2] * 6


def test_complete_weight() -> None:
    graph = families.complete("tensor", free=(2, 3, 4), ranks=(2, 3, 4))
    cores = random_cores(graph)
    expected = np.zeros((2, 3, 4))
    for ab, ac, bc in np.ndindex(2, 3, 4):
        expected += np.einsum("x,y,z->xyz", cores["G1"][:, ab, ac], cores["G2"][:, ab, bc], cores["G3"][:, ac, bc])
    np.testing.assert_allclose(weight(graph, cores), expected)
    assert count(graph).cores == 2 * 2 * 3 + 3 * 2 * 4 + 4 * 3 * 4


@pytest.mark.parametrize(("name", "more"), [("peps", {"grid": (1, 3)}), ("complete", {})])
def test_joined_sites_have_the_kernel_modes_on_the_first_core(name: str, more: dict[str, object]) -> None:
    graph = FAMILIES[name]("conv", **CONV, **more, rank=2)
    assert [core.edges[:2] for core in only(graph).cores] == [("kh", "kw"), ("i1", "o1"), ("i2", "o2")]


# --- low rank and block train ----------------------------------------------------------------------------------------


def test_lowrank_weight() -> None:
    graph = families.lowrank("linear", inputs=(2, 3), outputs=(4, 5), rank=3)
    assert text(graph) == "A[i1, i2, r] B[r, o1, o2]"
    cores = random_cores(graph)
    product = cores["A"].reshape(6, 3) @ cores["B"].reshape(3, 20)
    np.testing.assert_allclose(weight(graph, cores), product.reshape(2, 3, 4, 5))
    assert count(graph).cores == (6 + 20) * 3


def test_lowrank_has_the_kernel_on_the_first_factor() -> None:
    assert text(families.lowrank("conv", **CONV, rank=3)) == "A[i1, i2, kh, kw, r] B[r, o1, o2]"


def test_lowrank_splits_a_tensor_in_the_middle() -> None:
    assert text(families.lowrank("tensor", free=(2, 3, 4, 5, 6), rank=3)) == "A[n1, n2, r] B[r, n3, n4, n5]"


def blocks(stack: np.ndarray) -> np.ndarray:
    """The block-diagonal matrix of a stack of matrices."""
    count, rows, columns = stack.shape
    found = np.zeros((count * rows, count * columns))
    for at, block in enumerate(stack):
        found[at * rows : (at + 1) * rows, at * columns : (at + 1) * columns] = block
    return found


def swap(first: int, second: int) -> np.ndarray:
    """The permutation that turns an axis of first x second, first slowest, into second x first."""
    order = np.arange(first * second).reshape(first, second).T.ravel()
    return np.eye(first * second)[order]


def test_block_train_of_rank_1_is_monarch() -> None:
    i1, i2, o1, o2 = 2, 3, 4, 5
    graph = families.btt("linear", inputs=(i1, i2), outputs=(o1, o2), rank=1)
    assert text(graph) == "G1[i1, o1, o2, r1] G2[r1, i1, i2, o2]"
    assert graph.shared == ("i1", "o2")
    cores = random_cores(graph)
    right = blocks(cores["G2"][0].transpose(0, 2, 1))  # for each i1 a matrix [o2, i2]
    left = blocks(cores["G1"][..., 0].transpose(2, 1, 0))  # for each o2 a matrix [o1, i1]
    matrix = swap(o2, o1) @ left @ swap(i1, o2) @ right  # [out, in]
    found = weight(graph, cores).reshape(i1 * i2, o1 * o2).T
    np.testing.assert_allclose(found, matrix)


def test_block_train_weight_is_a_sum_of_monarchs() -> None:
    sides = {"inputs": (2, 3), "outputs": (4, 5)}
    graph, one = families.btt("linear", **sides, rank=3), families.btt("linear", **sides, rank=1)
    cores = random_cores(graph)
    expected = sum(weight(one, {"G1": cores["G1"][..., r : r + 1], "G2": cores["G2"][r : r + 1]}) for r in range(3))
    np.testing.assert_allclose(weight(graph, cores), expected)
    assert count(graph).cores == 3 * (2 * 4 * 5 + 2 * 3 * 5)


def test_block_train_of_three() -> None:
    graph = families.btt("linear", inputs=(2, 3, 4), outputs=(3, 2, 5), ranks=(2, 3))
    assert text(graph) == "G1[i1, o1, o2, o3, r1] G2[r1, i1, i2, o2, o3, r2] G3[r2, i1, i2, i3, o3]"
    assert graph.shared == ("i1", "i2", "o2", "o3")
    cores = random_cores(graph)
    expected = np.empty((2, 3, 4, 3, 2, 5))
    for a, b, c, x, y, z in np.ndindex(*expected.shape):
        expected[a, b, c, x, y, z] = (
            cores["G1"][a, x, y, z, :] @ cores["G2"][:, a, b, y, z, :] @ cores["G3"][:, a, b, c, z]
        )
    np.testing.assert_allclose(weight(graph, cores), expected)


# --- every family with every kind ------------------------------------------------------------------------------------

MAP = {"arguments": {"x": "batch n i1", "y": "batch n i2"}, "result": "batch (o1 o2)"}
FRAMES = {
    "linear": {"inputs": (4, 6), "outputs": (3, 5)},
    "conv": CONV,
    "conv_transpose": CONV,
    "conv, patches": {"patch": (4, 6), "outputs": (3, 5), "kernel_size": (2, 3)},
    "conv, one kernel mode": {"inputs": (4, 6), "outputs": (3, 5), "kernel": {"k": 6}, "kernel_size": (2, 3)},
    "conv, pointwise": {"inputs": (4, 6), "outputs": (3, 5), "kernel_size": (1, 1)},
    "conv, 1-d": {"inputs": (4, 6), "outputs": (3, 5), "kernel": (3,)},
    "conv, 3-d": {"inputs": (4, 6), "outputs": (3, 5), "kernel": (3, 1, 2)},
    "embedding": {"lookup": (4, 6), "outputs": (3, 5), "vocab": 23},
    "tensor": {"free": (4, 6, 3)},
    "map": {"inputs": (4, 6), "outputs": (3, 5), **MAP},
}
MORE = {"btd": {"terms": 2}}
UNSUPPORTED = {("btt", "conv"), ("btt", "conv, one kernel mode"), ("btt", "conv, 1-d"), ("btt", "conv, 3-d")}
UNSUPPORTED |= {("btt", "tensor"), ("btt", "conv_transpose")}


def built(name: str, case: str) -> Graph:
    kind, given = case.partition(",")[0], FRAMES[case]
    more = MORE.get(name, {})
    if name == "peps":
        more = {"grid": (len(given["free"]) if "free" in given else 2 + ("kernel" in given),)}
    return FAMILIES[name](kind, **given, **more, rank=2, name="n")


@pytest.mark.parametrize("case", FRAMES)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_with_every_kind(name: str, case: str) -> None:
    if (name, case) in UNSUPPORTED:
        with pytest.raises(GraphError, match="btt"):
            built(name, case)
        return
    graph = built(name, case)
    assert graph.kind == case.partition(",")[0]
    assert graph.name == "n"
    for term in graph.terms:
        assert len(parts(term)) == 1
        assert {bond.size for bond in term.bonds} == {2}
    cores = random_cores(graph)
    assert np.abs(weight(graph, cores)).min() > 0
    assert tnmars.loads(tnmars.dump(graph)) == graph


def test_every_kind_is_tried() -> None:
    assert {case.partition(",")[0] for case in FRAMES} == set(KINDS)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_passes_on_features_options_and_name(name: str) -> None:
    more = {"grid": (2,)} if name == "peps" else MORE.get(name, {})
    given = {"features": {"in": 23, "out": 14}, "options": {"bias": False}, "name": "mine"}
    graph = FAMILIES[name]("linear", **PAIR, **given, **more, rank=2)
    assert graph.dense_shape == (14, 23)
    assert graph.options == (("bias", False),)
    assert graph.name == "mine"


def test_the_frame_is_passed_on() -> None:
    graph = families.cp(
        "conv",
        inputs={"c": 4},
        outputs={"o": 6},
        kernel={"k": 6},
        kernel_size=(2, 3),
        features={"in": 3},
        options={"stride": 2, "bias": False},
        rank=2,
        name="mine",
    )
    assert graph.dense_shape == (6, 3, 2, 3)
    assert graph.options == (("stride", 2), ("bias", False))
    assert graph.name == "mine"
    assert families.tt("embedding", lookup=(4, 5), outputs=(2, 2), vocab=17, rank=2).vocab == 17


# --- the same graph in other words -----------------------------------------------------------------------------------


def test_train_equals_the_spec_file_and_the_text() -> None:
    graph = families.tt("linear", inputs=(7, 4, 7, 4), outputs=(5, 5, 5, 5), rank=20)
    assert graph == tnmars.load(ROOT / "specs" / "tt_linear.yaml")
    assert graph == tnmars.load(ROOT / "specs" / "tt_linear_family.yaml")
    assert graph == network(
        "linear",
        "G1[i1,o1,r1] G2[r1,i2,o2,r2] G3[r2,i3,o3,r3] G4[r3,i4,o4]",
        inputs={"i1": 7, "i2": 4, "i3": 7, "i4": 4},
        outputs={"o1": 5, "o2": 5, "o3": 5, "o4": 5},
        bonds=20,
    )


def test_ring_equals_the_spec_file() -> None:
    graph = families.tr("linear", inputs=(8, 8, 8), outputs=(4, 8, 8), rank=6)
    assert graph == tnmars.load(ROOT / "specs" / "ring_linear.yaml")


def test_proper_convolution_equals_the_spec_file() -> None:
    sides = {"patch": (2, 3, 3, 4, 4), "outputs": (2,) * 5, "kernel_size": (3, 3)}
    graph = families.tt("conv", **sides, ranks=(4, 20, 20, 8), options={"padding": 1, "bias": False})
    assert graph == tnmars.load(ROOT / "specs" / "tt_conv_proper.yaml")


SHORTHANDS = [  # keys of a spec file beside the same in Python
    ("lowrank", {}),
    ("tt", {}),
    ("tt_naive", {"order": ["out", "in"]}),
    ("tr", {}),
    ("tucker", {}),
    ("tucker2", {}),
    ("cp", {}),
    ("btd", {"terms": 3}),
    ("ht", {"tree": [2, 1]}),
    ("peps", {"grid": [2, 1]}),
    ("complete", {}),
    ("btt", {}),
]


@pytest.mark.parametrize(("name", "more"), SHORTHANDS)
def test_shorthand_equals_the_function(name: str, more: dict[str, object]) -> None:
    lines = ["tnmars: 1", "kind: linear", f"family: {name}", "in: [4, 6]", "out: [3, 5]", "rank: 2"]
    lines += [f"{key}: {value}" for key, value in more.items()]
    graph = FAMILIES[name]("linear", inputs=(4, 6), outputs=(3, 5), rank=2, **more)
    assert tnmars.loads("\n".join(lines)) == graph


def test_every_family_has_its_shorthand_tried() -> None:
    assert [name for name, _ in SHORTHANDS] == list(FAMILIES)


# --- sizes of bonds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("peps", "btd")])
def test_ranks_in_order_and_by_name(name: str) -> None:
    make = FAMILIES[name]
    bonds = [bond.name for bond in only(make("linear", **LINEAR, rank=2)).bonds]
    sizes = [at + 2 for at in range(len(bonds))]
    graph = make("linear", **LINEAR, ranks=sizes)
    assert {name: bond.size for name, bond in graph.bonds.items()} == dict(zip(bonds, sizes, strict=True))
    named = dict(reversed(list(zip(bonds, sizes, strict=True))))
    assert make("linear", **LINEAR, ranks=named) == graph


def test_ranks_are_not_clipped() -> None:
    assert families.lowrank("linear", inputs=(2,), outputs=(3,), rank=50).bonds["r"].size == 50


def test_settings() -> None:
    assert settings("tt") == {"rank": False, "ranks": False}
    assert settings("peps") == {"grid": True, "rank": False, "ranks": False}
    assert settings("btd") == {"terms": False, "rank": False, "ranks": False}


def test_families_lists_every_public_function() -> None:
    own = inspect.getmembers(
        families, lambda value: inspect.isfunction(value) and value.__module__ == "tnmars.families"
    )
    public = {name for name, _ in own if not name.startswith("_")}
    assert public == {*FAMILIES, "known", "of_layer", "settings"}
    assert all(FAMILIES[name].__doc__ for name in FAMILIES)


# --- errors ----------------------------------------------------------------------------------------------------------

ERRORS: list[tuple[str, Callable[[], Graph], str]] = [
    (
        "order without a role",
        lambda: families.tt_naive("conv", **CONV, order=("in", "out"), rank=2),
        "order leaves out role 'kernel'.\n  List every role that has modes.",
    ),
    (
        "no number of terms",
        lambda: families.btd("linear", **PAIR, rank=2),
        "the number of terms is not given.\n  Give terms=4, or a list of ranks for each term.",
    ),
    (
        "no terms",
        lambda: families.btd("linear", **PAIR, terms=0, rank=2),
        "terms is 0, but must be a whole number of at least 1.\n  Write terms=4.",
    ),
    (
        "one list of ranks, no number of terms",
        lambda: families.btd("linear", **PAIR, ranks=(2, 2, 2, 2)),
        "the number of terms is not given.\n  Give terms=4, or a list of ranks for each term.",
    ),
    (
        "two numbers of terms",
        lambda: families.btd("tensor", free=(3, 4), terms=3, ranks=[(2, 3), (2, 3)]),
        "terms is 3, but ranks has 2 lists.\n  Leave one of the two out.",
    ),
    (
        "too many terms",
        lambda: families.btd("tensor", free=(3, 4), terms=2001, rank=2),
        "the graph would have about 10,005 bonds and cores, but must have at most 10,000.\n  Use fewer modes or terms.",
    ),
    (
        "a site twice in the tree",
        lambda: families.ht("tensor", **FREE, tree=[[1, 2], [1, 3]], rank=2),
        "tree has site 1 twice.\n  A tree nests the site numbers, each once, for example [[1, 2], [3, 4]].",
    ),
    (
        "a site that is none in the tree",
        lambda: families.ht("tensor", **FREE, tree=[[1, 2], [3, 5]], rank=2),
        "tree has site 5 of 4.\n  A tree nests the site numbers, each once, for example [[1, 2], [3, 4]].",
    ),
    (
        "sites counted from 0 in the tree",
        lambda: families.ht("tensor", **FREE, tree=[[0, 1], [2, 3]], rank=2),
        "tree has site 0 of 4.\n  A tree nests the site numbers, each once, for example [[1, 2], [3, 4]].",
    ),
    (
        "sites left out of the tree",
        lambda: families.ht("tensor", **FREE, tree=[1, 3], rank=2),
        "tree leaves out site 2, 4.\n  A tree nests the site numbers, each once, for example [[1, 2], [3, 4]].",
    ),
    (
        "a grid of the wrong size",
        lambda: families.peps("tensor", **FREE, grid=(2, 3), rank=2),
        (
            "grid is [2, 3], but must have one place for each of 4 sites.\n"
            "  A site is the k-th mode of every role; the sides of a grid are at least 1."
        ),
    ),
    (
        "too many pairs",
        lambda: families.complete("tensor", free=(2,) * 150, rank=2),
        "the graph would have about 11,250 bonds and cores, but must have at most 10,000.\n  Use fewer modes or terms.",
    ),
    (
        "more inputs than outputs",
        lambda: families.btt("linear", inputs=(4, 6), outputs=(3,), rank=2),
        (
            "btt pairs inputs with outputs: of 3 modes 2 are in, 1 out.\n"
            "  Give as many outputs as inputs, and no kernel, group or free modes."
        ),
    ),
    (
        "no outputs to pair",
        lambda: families.btt("tensor", **FREE, rank=2),
        (
            "btt pairs inputs with outputs: of 4 modes 0 are in, 0 out.\n"
            "  Give as many outputs as inputs, and no kernel, group or free modes."
        ),
    ),
    (
        "roles with different numbers of modes",
        lambda: families.tt("linear", inputs=(4, 6, 2), outputs=(3, 5), rank=2),
        (
            "the k-th modes of all roles share a core, but there are 3 in, 2 out.\n"
            "  Give every role the same number of modes; a mode may have size 1."
        ),
    ),
    (
        "a ring of one site",
        lambda: families.tr("linear", inputs=(4,), outputs=(3,), rank=2),
        (
            "this decomposition has 1 site, but must have at least 2.\n"
            "  A site is the k-th mode of every role: split the modes."
        ),
    ),
    (
        "rank and ranks",
        lambda: families.tt("linear", **PAIR, rank=2, ranks=(2,)),
        "both rank and ranks are given.\n  Give one: rank for all bonds, or ranks for each.",
    ),
    (
        "neither rank nor ranks",
        lambda: families.tt("linear", **PAIR),
        "neither rank nor ranks is given.\n  Give one: rank for all bonds, or ranks for each.",
    ),
    (
        "ranks for a bond that is none",
        lambda: families.tt("linear", **PAIR, ranks={"r1": 2, "r2": 2}),
        "ranks must name every bond and no other (not a bond: r2).\n  Bonds: r1.",
    ),
    (
        "ranks without a bond",
        lambda: families.tucker("tensor", **FREE, ranks={"r1": 2, "r2": 2, "r3": 2}),
        "ranks must name every bond and no other (missing: r4).\n  Bonds: r1, r2, r3, r4.",
    ),
    (
        "too few ranks",
        lambda: families.tr("tensor", **FREE, ranks=(2, 2, 2)),
        "ranks has 3 numbers for 4 bonds.\n  Bonds in order: r1, r2, r3, r4.",
    ),
    (
        "too many ranks",
        lambda: families.tucker("tensor", free=(3, 4), ranks=(2, 3, 4)),
        "ranks has 3 numbers for 2 bonds.\n  Bonds in order: r1, r2.",
    ),
    (
        "a rank of nothing",
        lambda: families.tt("linear", **PAIR, rank=0),
        "bond 'r1' has size 0.\n  A size must be a whole number from 1 to 2,147,483,647.",
    ),
    (
        "an unknown kind",
        lambda: families.tt("linera", **PAIR, rank=2),
        (
            "kind 'linera' is not known.\n"
            "  Kinds: linear, conv, conv_transpose, embedding, tensor, map. Did you mean 'linear'?"
        ),
    ),
]


@pytest.mark.parametrize(("make", "message"), [case[1:] for case in ERRORS], ids=[case[0] for case in ERRORS])
def test_errors(make: Callable[[], Graph], message: str) -> None:
    with pytest.raises(GraphError) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize("grid", [(-2, -2), (4, 0), ()])
def test_a_grid_has_sides(grid: tuple[int, ...]) -> None:
    with pytest.raises(GraphError, match="grid"):
        families.peps("tensor", **FREE, grid=grid, rank=2)


def test_error_of_a_shorthand_points_at_its_key() -> None:
    lines = ["tnmars: 1", "kind: tensor", "family: peps", "free: [2, 2, 2]", "rank: 2", "grid: [2, 2]"]
    with pytest.raises(tnmars.SpecError) as caught:
        tnmars.loads("\n".join(lines), source="p.yaml")
    assert str(caught.value).startswith("p.yaml:6:1: grid is [2, 2], but must have one place for each of 3 sites.")


# --- nobody else knows a family --------------------------------------------------------------------------------------


def mentions(source: str) -> Iterator[str]:
    """Where code, as against comments and docstrings, names a family: identifiers, attributes, imports and strings."""
    tree = ast.parse(source)
    prose = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:  # also the strings below attributes
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                prose.add(id(statement.value))
    for node in ast.walk(tree):
        found: list[object] = []
        if isinstance(node, ast.Constant) and id(node) not in prose:
            found = [node.value]
        elif isinstance(node, ast.alias):
            found = [*node.name.split("."), node.asname]
        else:
            found = [getattr(node, field, None) for field in ("id", "attr", "arg", "name")]
        for word in found:
            if isinstance(word, str) and word.strip().lower() in FAMILIES:
                yield f"line {getattr(node, 'lineno', 0)}: {word}"


def test_no_other_file_names_a_family() -> None:
    # what is measured is named; and a row of a table is called `tr` in HTML
    known = ("families.py", "bench", "experiments", "experiments.py", "markup.py")
    files = [path for path in (ROOT / "tnmars").rglob("*.py") if not {path.name, path.parent.name} & set(known)]
    assert len(files) > 10
    found = [
        f"{path.relative_to(ROOT)}, {place}" for path in files for place in mentions(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "if family == 'tt': pass",
        "x = families.tucker2",
        "from tnmars.families import cp",
        "from tnmars import families as peps",
        "def btd(): pass",
        "call(ht=1)",
        "complete = 3",
        "KNOWN = {'Tucker': 1}",
        "match kind:\n    case 'tr': pass",
    ],
)
def test_a_mention_of_a_family_is_found(source: str) -> None:
    assert len(list(mentions(source))) == 1


def test_prose_about_a_family_is_no_mention() -> None:
    assert list(mentions('"""tt"""\nx: int = 1\n"""cp"""\n# peps\ndef f():\n    "ht"\n')) == []


def test_families_names_them_all() -> None:
    source = (ROOT / "tnmars" / "families.py").read_text(encoding="utf-8")
    assert {place.rpartition(" ")[2] for place in mentions(source)} >= set(FAMILIES)


# --- the helpers of this file ----------------------------------------------------------------------------------------


def test_weight_sees_a_wrong_edge() -> None:
    right = network("tensor", "A[a,r] B[r,s,b] C[s,c]", free={"a": 3, "b": 3, "c": 3}, bonds=2)
    wrong = network("tensor", "A[a,r] B[s,r,b] C[s,c]", free={"a": 3, "b": 3, "c": 3}, bonds=2)
    cores = random_cores(right)
    assert not np.allclose(weight(right, cores), weight(wrong, cores))


def test_degrees_count_bonds_alone() -> None:
    graph = families.tt("conv", **CONV, rank=2)
    assert degrees(only(graph)) == [1, 2, 1]
    assert [mode.role for mode in graph.modes].count(Role.KERNEL) == 2
    assert prod(graph.kernel_size) == 6
