"""`tnmars.fit` and `tnmars fit`: ranks of given tensors, entries that are missing, files, and errors."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import oracle
import pytest
import safetensors.torch
import torch
from kit import SPECS
from torch import Tensor

import tnmars
from tnmars import Graph, cli, families
from tnmars.decomposing.gram import gram
from tnmars.decomposing.refine import Data, mean_square, refined
from tnmars.decomposing.rows import jacobian_at, values_at
from tnmars.decomposing.sweep import has_tree, hierarchical_svd
from tnmars.decomposing.tensors import dense, random_decomposition
from tnmars.errors import ShapeError, TnmarsError
from tnmars.fitting import FitWarning
from tnmars.fitting.removal import removals, without_terms
from tnmars.fitting.room import dimension, parameters, widest, within
from tnmars.fitting.target import ORDER, by_modes
from tnmars.store.arrays import read

Printed = pytest.CaptureFixture[str]


def tt(*ranks: int) -> Graph:
    return families.tt("tensor", free=(5, 6, 7), ranks=ranks)


GRAPHS = {
    "tt": tt(2, 3),
    "ring": families.tr("tensor", free=(3, 4, 5), ranks=(2, 3, 2)),
    "cp": families.cp("tensor", free=(3, 4, 5), rank=4),
    "tucker": families.tucker("tensor", free=(3, 4, 5), ranks=(2, 3, 2)),
    "block-term": families.btd("tensor", free=(3, 4, 5), ranks=[(2, 1, 2), (1, 2, 3)]),
    "shared": tnmars.network("tensor", "A[a,b,r] B[r,b,c]", free=dict(a=3, b=4, c=2), bonds=2, shared=["b"]),
    "no bond": tnmars.network("tensor", "A[a,b]", free=dict(a=3, b=4), bonds=1),
    "apart": tnmars.network("tensor", "A[a,r] B[r,b] C[c]", free=dict(a=3, b=4, c=2), bonds=2),
    "two bonds": tnmars.network("tensor", "A[a,r,s] B[r,s,b]", free=dict(a=5, b=4), bonds=2),
}
every_graph = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def planted(graph: Graph, noise: float = 0.01, seed: int = 0) -> Tensor:
    """A random tensor of a graph with unit variance, and noise."""
    value = dense(graph, random_decomposition(graph, draw(seed)).cores)
    return value / value.std() + noise * torch.randn(value.shape, generator=draw(seed + 1), dtype=torch.float64)


def rows(graph: Graph) -> Tensor:
    axes = [torch.arange(mode.size) for mode in graph.modes]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))


# --- the parts -------------------------------------------------------------------------------------------------------


@every_graph
def test_values_and_derivatives_are_those_of_autograd(graph: Graph) -> None:
    cores = dict(random_decomposition(graph, draw()).cores)
    names = list(graph.cores)
    index = rows(graph)
    whole = dense(graph, cores)
    layer = tnmars.compile(graph, dtype=torch.float64)
    layer.load_state_dict({f"cores.{name}": cores[name] for name in names}, strict=False)
    torch.testing.assert_close(whole, layer().detach())
    torch.testing.assert_close(values_at(graph, cores, index), whole.reshape(-1))

    def flat(*values: Tensor) -> Tensor:
        return dense(graph, dict(zip(names, values, strict=True))).reshape(-1)

    parts = torch.autograd.functional.jacobian(flat, tuple(cores[name] for name in names))
    derivative = torch.cat([part.reshape(len(index), -1) for part in parts], 1)
    torch.testing.assert_close(jacobian_at(graph, cores, index), derivative)
    torch.testing.assert_close(gram(graph, cores), derivative.T @ derivative)


@every_graph
def test_a_refit_reaches_a_tensor_near_by(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    decomposition = random_decomposition(graph, draw())
    data = Data(dense(graph, decomposition.cores))
    moved = decomposition.with_cores({name: core + 0.05 for name, core in decomposition.cores.items()})
    assert refined(moved, data, 60)[1] < 1e-12
    some = rows(graph)[::2]
    seen = Data(data.values, some, values_at(graph, decomposition.cores, some))
    monkeypatch.setattr("tnmars.decomposing.refine.MOST_AT_ONCE", 100)
    assert refined(moved, seen, 60)[1] < 1e-12


def test_a_network_with_very_many_parameters_is_refitted_without_a_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tnmars.decomposing.refine.LARGE", 10)
    decomposition = random_decomposition(tt(2, 3), draw())
    moved = decomposition.with_cores({name: core + 0.05 for name, core in decomposition.cores.items()})
    assert refined(moved, Data(dense(tt(2, 3), decomposition.cores)), 20)[1] < 1e-6
    turned = moved.with_cores({name: core.mT.contiguous().mT for name, core in moved.cores.items()})
    assert refined(turned, Data(dense(tt(2, 3), decomposition.cores)), 20)[1] < 1e-6


def test_a_direction_that_is_left_out_of_a_tree_is_a_singular_vector() -> None:
    decomposition = random_decomposition(tt(4, 4), draw(3))
    whole = dense(decomposition.graph, decomposition.cores)
    (less,) = removals(decomposition, "r1", 1)
    assert less.sizes == {"r1": 3, "r2": 4}
    lost = (dense(less.graph, less.cores) - whole).norm()
    assert lost.item() == pytest.approx(torch.linalg.svdvals(whole.reshape(5, -1))[3].item(), rel=1e-6)


def test_hyperedges_lose_a_slice_and_sums_a_term() -> None:
    decomposition = random_decomposition(GRAPHS["cp"], draw())
    decomposition = decomposition.with_cores(
        {**decomposition.cores, "A1": decomposition.cores["A1"] * torch.tensor([1.0, 1.0, 1e-3, 1.0])}
    )
    (less,) = removals(decomposition, "r", 1)
    assert less.sizes == {"r": 3}
    torch.testing.assert_close(less.cores["A1"], decomposition.cores["A1"][:, [0, 1, 3]])
    terms = list(without_terms(random_decomposition(GRAPHS["block-term"], draw())))
    assert [list(term.sizes) for term in terms] == [["t2.r1", "t2.r2", "t2.r3"], ["t1.r1", "t1.r2", "t1.r3"]]
    assert list(without_terms(decomposition)) == []


def test_the_first_network_of_a_tree_has_the_least_error_across_every_bond() -> None:
    values = planted(tt(5, 7), noise=0.0)
    full = hierarchical_svd(families.tt("tensor", free=(5, 6, 7), rank=9), values)
    assert full.sizes == {"r1": 5, "r2": 7}
    assert mean_square(full, Data(values)) < 1e-20
    assert has_tree(GRAPHS["tucker"]) and has_tree(GRAPHS["tt"])
    assert not any(has_tree(GRAPHS[name]) for name in ("ring", "cp", "block-term", "shared", "apart", "two bonds"))
    cut = hierarchical_svd(tt(2, 7), values)
    tail = torch.linalg.svdvals(values.reshape(5, -1))[2:].norm()
    assert (dense(cut.graph, cut.cores) - values).norm().item() == pytest.approx(tail.item())


def test_starts_have_fewer_parameters_than_data() -> None:
    graph = families.tt("tensor", free=(4, 4, 4), rank=4)
    assert within(graph, 32).bonds["r1"].size == 2
    assert within(graph, 1000) == graph
    long = families.lowrank("tensor", free=(50, 60), rank=40)
    assert within(long, 1210).bonds["r"].size == 11 and within(long, 1209).bonds["r"].size == 10
    assert within(long, 5).bonds["r"].size == 1
    assert widest(long, 3000).bonds["r"].size == 35  # 35 (110 - 35) = 2625, and 3000 (1 - 1 / log 3000) = 2625.3


@pytest.mark.parametrize("name", ["tt", "tucker", "cp", "no bond"])
def test_dimensions_are_the_rank_of_the_derivative(name: str) -> None:
    graph = GRAPHS[name]
    derivative = jacobian_at(graph, random_decomposition(graph, draw()).cores, rows(graph))
    assert dimension(graph) == int(torch.linalg.matrix_rank(derivative))
    assert dimension(graph) < parameters(graph) or name == "no bond"


def test_bonds_wider_than_they_can_use_have_no_more_dimensions() -> None:
    assert dimension(families.lowrank("tensor", free=(4, 5), rank=40)) == 20
    assert dimension(families.tt("tensor", free=(5, 6, 7), rank=90)) == 210


# --- ranks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("planted_graph", "start"),
    [
        (tt(2, 3), tt(5, 7)),
        (families.cp("tensor", free=(7, 8, 9), rank=3), families.cp("tensor", free=(7, 8, 9), rank=7)),
        (families.tr("tensor", free=(7, 8, 9), ranks=(2, 1, 2)), families.tr("tensor", free=(7, 8, 9), rank=4)),
        (
            families.tucker("tensor", free=(7, 8, 9), ranks=(2, 3, 2)),
            families.tucker("tensor", free=(7, 8, 9), ranks=(4, 6, 5)),
        ),
    ],
    ids=["tt", "cp", "ring", "tucker"],
)
def test_planted_ranks_come_back(planted_graph: Graph, start: Graph) -> None:
    values = planted(planted_graph)
    found = tnmars.fit(start, values)
    assert list(found.ranks.values()) == [bond.size for bond in planted_graph.bonds.values()]
    assert found.error < 0.011 and found.doubts == ()
    assert found.entries == values.numel() and found.unseen is None
    error = (found.layer().detach() - values).square().mean().sqrt() / values.square().mean().sqrt()
    assert error.item() == pytest.approx(found.error, rel=1e-6)
    assert found.layer.dtype is torch.float64
    assert found.graph.origin["sizes"] == {name: bond.size for name, bond in start.bonds.items()}


@pytest.mark.parametrize(
    ("planted_graph", "start", "noise", "share"),
    [
        (families.lowrank("tensor", free=(12, 20), rank=5), families.lowrank("tensor", free=(12, 20), rank=7), 0.0, 1),
        (
            families.lowrank("tensor", free=(12, 20), rank=8),
            families.lowrank("tensor", free=(12, 20), rank=12),
            0.01,
            1,
        ),
        (families.cp("tensor", free=(5, 5, 5), rank=5), families.cp("tensor", free=(5, 5, 5), rank=6), 0.01, 1),
        (
            families.lowrank("tensor", free=(14, 15), rank=4),
            families.lowrank("tensor", free=(14, 15), rank=6),
            0.01,
            0.9,
        ),
    ],
    ids=["exact", "noisy", "cp", "missing"],
)
def test_ranks_with_half_as_many_parameters_as_entries(
    planted_graph: Graph, start: Graph, noise: float, share: float
) -> None:
    values = planted(planted_graph, noise)
    seen = torch.rand(values.shape, generator=draw(7)) < share
    assert 2 * parameters(planted_graph) > int(seen.sum())
    with pytest.warns(FitWarning, match="the ranks are uncertain: the network found has"):
        found = tnmars.fit(start, values, observed=seen)
    assert list(found.ranks.values()) == [bond.size for bond in planted_graph.bonds.values()]
    assert found.error < 0.011 and len(found.doubts) == 1
    assert found.as_json()["warnings"] == list(found.doubts)


def test_ranks_that_are_too_large_for_the_entries_give_a_warning() -> None:
    values = planted(families.lowrank("tensor", free=(16, 16), rank=12))
    with pytest.warns(FitWarning, match="the ranks are likely too small: the spec has 480 parameters for 256 entries"):
        found = tnmars.fit(families.lowrank("tensor", free=(16, 16), rank=15), values)
    assert found.error > 0.05


def test_noise_in_a_limited_graph_is_no_reason_to_warn() -> None:
    found = tnmars.fit(families.lowrank("tensor", free=(16, 16), rank=15), torch.randn(16, 16, generator=draw()))
    assert found.ranks == {"r": 1} and found.doubts == ()


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e200])
def test_numbers_whose_squares_underflow_or_overflow(scale: float) -> None:
    values = planted(tt(2, 3), noise=0.01)
    found = tnmars.fit(tt(5, 7), values * scale)
    assert list(found.ranks.values()) == [2, 3]
    assert found.error == pytest.approx(0.0096, abs=0.002)
    if scale > 1e-300:
        again = found.layer().detach() / scale
        assert ((again - values).norm() / values.norm()).item() == pytest.approx(found.error, rel=1e-6)


def test_numbers_longer_than_those_of_torch() -> None:
    values = planted(tt(2, 3)).numpy().astype(np.longdouble)
    found = tnmars.fit(tt(5, 7), values)
    assert list(found.ranks.values()) == [2, 3] and found.layer.dtype is torch.float64


def test_a_tensor_without_noise_and_in_any_scale() -> None:
    values = (1e6 * planted(tt(2, 3), noise=0.0)).float()
    found = tnmars.fit(tt(5, 7), values)
    assert list(found.ranks.values()) == [2, 3]
    assert found.layer.dtype is torch.float32
    torch.testing.assert_close(found.layer().detach(), values, rtol=1e-4, atol=10.0)


def test_noise_alone_has_rank_one_and_a_bond_of_one_is_dropped() -> None:
    found = tnmars.fit(tt(3, 3), torch.randn(5, 6, 7, generator=draw()))
    assert list(found.ranks.values()) == [1, 1]
    assert found.graph.bonds == {} and found.parameters == 5 + 6 + 7


def test_a_term_that_is_not_needed_goes() -> None:
    values = planted(families.cp("tensor", free=(6, 6, 6), rank=1))
    found = tnmars.fit(families.btd("tensor", free=(6, 6, 6), terms=2, rank=2), values)
    assert sorted(found.ranks.values()) == [0, 0, 0, 1, 1, 1]
    assert len(found.graph.terms) == 1


def test_other_kinds_of_layers_are_fitted_by_their_modes() -> None:
    plain = families.tt("tensor", free=(20, 24), rank=2)
    values = planted(plain, 0.01).reshape(4, 5, 4, 6).permute(0, 2, 1, 3)
    graph = tnmars.network(
        "linear", "A[i1,i2,r] B[r,o1,o2]", inputs=dict(i1=4, i2=5), outputs=dict(o1=4, o2=6), bonds=5
    )
    found = tnmars.fit(graph, planted(plain, 0.01).reshape(4, 5, 4, 6))
    assert found.ranks == {"r": 2} and found.graph.kind == "linear" and found.layer.bias.abs().max() == 0
    weight = found.layer.dense().detach()
    torch.testing.assert_close(weight, planted(plain, 0.0).T, atol=0.05, rtol=0.0)
    assert values.shape == (4, 4, 5, 6)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_weights_in_the_layout_of_torch_are_split_into_modes(path: Path) -> None:
    graph = replace(tnmars.load(path), features=(), options=())
    whole = torch.randn([mode.size for mode in graph.modes], generator=draw())
    assert torch.equal(by_modes(graph, oracle.dense(graph, whole)), whole)


def test_a_square_weight_is_not_transposed() -> None:
    weight = planted(families.lowrank("tensor", free=(20, 20), rank=2))
    graph = families.lowrank("linear", inputs=(20,), outputs=(20,), rank=5)
    seen = torch.ones(20, 20)
    seen[3, 1:17] = 0.0  # not symmetric
    holes = torch.where(seen.bool(), weight, weight + 100.0)
    for found in (tnmars.fit(graph, weight), tnmars.fit(graph, holes, observed=seen)):
        assert found.ranks == {"r": 2}
        torch.testing.assert_close(found.layer.dense().detach(), weight, atol=0.1, rtol=0.0)
    split = families.tt("linear", inputs=(4, 5), outputs=(5, 4), rank=2)
    weight = tnmars.compile(split).dense().detach()
    found = tnmars.fit(replace(split, terms=families.tt("linear", inputs=(4, 5), outputs=(5, 4), rank=4).terms), weight)
    assert found.ranks == {"r1": 2}
    torch.testing.assert_close(found.layer.dense().detach(), weight)


def test_shapes_of_a_weight_that_are_refused() -> None:
    graph = families.lowrank("linear", inputs=(20,), outputs=(24,), rank=5)
    with pytest.raises(ShapeError) as caught:
        tnmars.fit(graph, torch.randn(20, 25))
    assert str(caught.value) == (
        "the target has shape (20, 25), but must have (20, 24) (modes i1=20, o1=24).\n"
        f"  {ORDER} Or give a weight in torch's layout, of shape (24, 20)."
    )
    with pytest.raises(
        ShapeError, match=r"the mask 'observed' has shape \(20, 24\), but must have the target's, \(24, 20\)"
    ):
        tnmars.fit(graph, torch.randn(24, 20), observed=torch.ones(20, 24))


def test_indices_without_data_give_a_warning() -> None:
    values = planted(families.lowrank("tensor", free=(30, 20), rank=2))
    values[[2, 3, 5, 7, 11, 13]] = torch.nan
    values[:, 4] = torch.nan
    with pytest.warns(FitWarning) as caught:
        found = tnmars.fit(families.lowrank("tensor", free=(30, 20), rank=4), values)
    assert [str(warning.message) for warning in caught] == list(found.doubts)
    end = "so the layer's values there are meaningless."
    assert found.doubts == (
        f"mode 'n1': 6 of its 30 indices have no entry to fit (2, 3, 5, 7, 11, ...), {end}",
        f"mode 'n2': 1 of its 20 indices have no entry to fit (4), {end}",
    )
    assert found.ranks == {"r": 2}


def test_missing_entries_are_filled_in() -> None:
    graph = families.cp("tensor", free=(10, 10, 10), rank=2)
    clean, values = planted(graph, 0.0), planted(graph, 0.01)
    seen = torch.rand(values.shape, generator=draw(5)) < 0.4
    start = families.cp("tensor", free=(10, 10, 10), rank=5)
    found = tnmars.fit(start, values, observed=seen)
    assert found.ranks == {"r": 2} and found.entries == int(seen.sum())
    assert found.unseen is not None and found.unseen < 0.02
    assert (found.layer().detach() - clean)[~seen].square().mean().sqrt() < 0.02
    holes = torch.where(seen, values, torch.nan)
    again = tnmars.fit(start, holes.numpy())
    assert again.ranks == found.ranks and again.error == found.error and again.unseen is None
    assert torch.equal(again.layer(), found.layer())
    hidden = tnmars.fit(start, holes, held_out=~seen)
    assert hidden.unseen is None and hidden.error == found.error


def test_the_curve_falls_and_the_trace_ends_with_the_result() -> None:
    found = tnmars.fit(tt(5, 7), planted(tt(2, 3)))
    curve = found.curve()
    assert len(curve) > 1
    assert all(a.parameters < b.parameters and a.error > b.error for a, b in pairwise(curve))
    assert found.trace[-1].ranks == found.ranks
    assert min(point.bic for point in found.trace) == pytest.approx(found.trace[-1].bic, abs=1e-3)


def test_annealed_gates_find_ranks_too() -> None:
    seen = []
    found = tnmars.fit(
        tt(5, 5),
        planted(tt(2, 3)),
        selector=tnmars.Annealed(),
        steps=600,
        shown=lambda record, done, total: seen.append((done, total)),
    )
    assert list(found.ranks.values()) == [2, 3] and found.error < 0.011
    assert found.selector["name"] == "annealed" and found.selector["samples"] == 210
    assert found.graph.origin["selector"] == found.selector
    assert seen[-1] == (600, 600)


@pytest.mark.parametrize("holes", [False, True])
def test_mars_decides_alone(holes: bool) -> None:
    values = planted(tt(2, 3))
    seen = torch.rand(values.shape, generator=draw()) < 0.8 if holes else None
    found = tnmars.fit(tt(4, 4), values, selector=tnmars.Mars(alpha=2.0), steps=20, observed=seen)
    assert found.selector["name"] == "mars" and found.graph.origin["selector"]["name"] == "mars"
    assert list(found.ranks.values()) == [4, 4]


def test_a_start_too_large_for_a_matrix_has_gates_trained_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tnmars.fitting.search.LARGE", 10)
    graph = families.cp("tensor", free=(7, 8, 9), rank=3)
    found = tnmars.fit(families.cp("tensor", free=(7, 8, 9), rank=7), planted(graph), steps=300)
    assert found.ranks == {"r": 3}


def test_the_state_of_random_numbers_is_left_alone() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    tnmars.fit(tt(3, 3), planted(tt(2, 2)), selector=tnmars.Annealed(), steps=3)
    tnmars.fit(families.cp("tensor", free=(7, 8, 9), rank=3), planted(families.cp("tensor", free=(7, 8, 9), rank=2)))
    assert torch.equal(torch.get_rng_state(), state)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            torch.zeros(5, 6),
            "the target has shape (5, 6), but must have (5, 6, 7) (modes n1=5, n2=6, n3=7).\n  ONE_AXIS",
        ),
        (
            torch.full((5, 6, 7), torch.nan),
            "every entry of the target is NaN.\n  NaN marks an unknown entry.",
        ),
        (torch.full((5, 6, 7), 3.0), "every known entry of the target is 3, so there are no ranks to find."),
        (torch.full((5, 6, 7), torch.inf), "the target has infinite entries.\n  Mark unknown entries by NaN."),
        (torch.full((5, 6, 7), 3j), "every known entry of the target is 0+3j, so there are no ranks to find."),
        ([[1.0], [1.0, 2.0]], "the target is not an array: its rows differ in length."),
        (np.array(["a"]), "the target: entries must be real numbers, but have type <U1."),
    ],
)
def test_targets_that_are_refused(given: object, text: str) -> None:
    with pytest.raises(TnmarsError) as caught:
        tnmars.fit(tt(2, 2), given)
    assert str(caught.value) == text.replace("ONE_AXIS", ORDER)


def test_masks_and_graphs_that_are_refused() -> None:
    values = planted(tt(2, 2))
    with pytest.raises(
        ShapeError, match=r"the mask 'observed' has shape \(5,\), but must have the target's, \(5, 6, 7\)"
    ):
        tnmars.fit(tt(2, 2), values, observed=torch.ones(5))
    with pytest.raises(TnmarsError, match="the mask 'held_out' has entries other than 0 and 1"):
        tnmars.fit(tt(2, 2), values, held_out=2 * torch.ones(5, 6, 7))
    with pytest.raises(TnmarsError, match="the masks leave no known entry of the target to fit"):
        tnmars.fit(tt(2, 2), values, held_out=torch.ones(5, 6, 7))
    with pytest.raises(TnmarsError, match="the graph has no terms"):
        tnmars.fit(replace(tt(2, 2), terms=()), values)
    for selector in (tnmars.Annealed(), tnmars.Mars()):
        with pytest.raises(TnmarsError, match="the graph has no bonds, so there are no gates to train"):
            tnmars.fit(GRAPHS["no bond"], torch.randn(3, 4), selector=selector)
    padded = families.lowrank("linear", inputs=(4,), outputs=(6,), rank=2, features={"in": 3})
    with pytest.raises(TnmarsError, match="the graph has padding"):
        tnmars.fit(padded, torch.randn(4, 6))


def test_files_that_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "bad.npy").write_text("hello")
    (tmp_path / "bad.safetensors").write_text("hello")
    safetensors.torch.save_file({"first": torch.ones(2), "second": torch.ones(3)}, tmp_path / "two.safetensors")
    np.save(tmp_path / "x.npy", np.ones(3))
    for name, key, text in (
        ("x.txt", None, "the file must end in .npy or .safetensors"),
        ("none.npy", None, "there is no such file"),
        ("object.npy", None, "cannot be read as a numpy array"),
        ("bad.npy", None, "cannot be read as a numpy array"),
        ("bad.safetensors", None, "cannot be read as a safetensors file"),
        ("x.npy", "first", "a .npy file holds one array, so it has no key 'first'"),
        ("two.safetensors", None, "holds 2 tensors.\n  Give the key of one: first, second."),
        ("two.safetensors", "secnd", "there is no tensor 'secnd'.\n  Give the key of one: first, second. Did you mean"),
    ):
        with pytest.raises(TnmarsError) as caught:
            read(tmp_path / name, key)
        assert text in str(caught.value), name
    assert torch.equal(read(tmp_path / "two.safetensors", "second"), torch.ones(3))
    np.save(tmp_path / "swapped.npy", np.arange(3, dtype=">f4"))
    assert read(tmp_path / "swapped.npy").tolist() == [0.0, 1.0, 2.0]
    np.save(tmp_path / "long.npy", np.arange(3, dtype=np.longdouble))
    assert torch.equal(read(tmp_path / "long.npy"), torch.arange(3.0, dtype=torch.float64))


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tnmars.save_spec(tt(5, 7), tmp_path / "tt.yaml")
    np.save(tmp_path / "x.npy", planted(tt(2, 3)).numpy())
    return tmp_path


def test_the_command_writes_spec_weights_and_summary(folder: Path, capfd: Printed) -> None:
    assert cli.run(["fit", str(folder / "tt.yaml"), str(folder / "x.npy")]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[:3] == ["bond r1: 5 -> 2", "bond r2: 7 -> 3", "parameters: 284 -> 67 (dense 210)"]
    assert lines[4:6] == ["error against size:", "  parameters  ranks  relative error"]
    curve = [line.split() for line in lines[6:-3]]
    assert ["67", "2-3"] in [row[:2] for row in curve] and 2 <= len(curve) <= 9
    assert [row[:2] for row in curve if row[-1] == "(kept)"] == [["67", "2-3"]]
    stem = folder / "x-fit"
    assert lines[-3:] == [f"wrote {stem}{ending}" for ending in (".yaml", ".safetensors", ".json")]
    graph = tnmars.load(f"{stem}.yaml")
    assert [bond.size for bond in graph.bonds.values()] == [2, 3]
    layer = tnmars.load_into(tnmars.compile(graph), f"{stem}.safetensors")
    values = torch.from_numpy(np.load(folder / "x.npy"))
    summary = json.loads(Path(f"{stem}.json").read_text())
    assert (layer().detach() - values).norm() / values.norm() == pytest.approx(summary["error"]["fitted"], rel=1e-3)
    assert summary["ranks"]["r1"] == {"before": 5, "after": 2}
    assert summary["parameters"] == {"before": 284, "after": 67, "dense": 210}
    assert summary["curve"][0]["parameters"] < 67


def test_the_command_completes_and_prints_json(folder: Path, capfd: Printed) -> None:
    values = planted(tt(2, 3))
    np.save(folder / "seen.npy", (torch.rand(values.shape, generator=draw()) < 0.8).numpy())
    safetensors.torch.save_file({"a": torch.ones(2), "b": values.contiguous()}, folder / "two.safetensors")
    arguments = ["fit", str(folder / "tt.yaml"), str(folder / "two.safetensors"), "--key", "b", "--json"]
    assert cli.run([*arguments, "--observed", str(folder / "seen.npy"), "-o", str(folder / "out")]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["files"] == [str(folder / f"out{ending}") for ending in (".yaml", ".safetensors", ".json")]
    assert found["ranks"]["r1"]["after"] == 2
    assert 0.0 < found["error"]["unseen"] < 0.05


def test_the_command_with_trained_gates(folder: Path, capfd: Printed) -> None:
    arguments = ["fit", str(folder / "tt.yaml"), str(folder / "x.npy"), "--steps", "5", "--selector"]
    assert cli.run([*arguments, "mars", "--alpha", "3"]) == 0
    assert "bond r1: 5 -> 5" in capfd.readouterr().out
    assert cli.run([*arguments, "annealed"]) == 0
    assert cli.run([*arguments, "annealed", "--alpha", "3"]) == 2
    assert "--alpha requires --selector mars." in capfd.readouterr().err
    assert cli.run([*arguments, "fixed"]) == 2
    assert "'fixed' must be one of elimination, mars, gaussian, annealed." in capfd.readouterr().err
    assert cli.run([*arguments, "elimination"]) == 2
    assert "--steps requires --selector mars, gaussian or annealed." in capfd.readouterr().err


def test_the_command_prints_doubts_as_warnings(folder: Path, capfd: Printed) -> None:
    values = planted(tt(2, 3))
    values[1] = torch.nan
    np.save(folder / "gap.npy", values.numpy())
    assert cli.run(["fit", str(folder / "tt.yaml"), str(folder / "gap.npy"), "--json"]) == 0
    printed = capfd.readouterr()
    assert "warning: mode 'n1': 1 of its 5 indices have no entry to fit (1)" in printed.err
    assert "FitWarning" not in printed.err
    (doubt,) = json.loads(printed.out)["warnings"]
    assert doubt.startswith("mode 'n1': 1 of its 5")
    assert json.loads((folder / "gap-fit.json").read_text())["warnings"] == [doubt]


def test_the_command_shows_progress_unless_it_is_to_be_quiet(
    folder: Path, capfd: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tnmars.cli.fits.EVERY", 0.0)
    arguments = ["fit", str(folder / "tt.yaml"), str(folder / "x.npy")]
    assert cli.run(arguments) == 0
    assert "67 parameters, ranks 2-3" in capfd.readouterr().err
    assert cli.run([*arguments, "--quiet"]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("option", ["--observed", "--held-out"])
def test_the_command_does_not_write_over_a_mask(folder: Path, capfd: Printed, option: str) -> None:
    mask = folder / "mask.safetensors"
    safetensors.torch.save_file({"mask": torch.ones(5, 6, 7)}, mask)
    before = mask.read_bytes()
    arguments = ["fit", str(folder / "tt.yaml"), str(folder / "x.npy"), option, str(mask)]
    assert cli.run([*arguments, "-o", str(folder / "mask")]) == 2
    assert "is an input and would be overwritten" in capfd.readouterr().err
    assert mask.read_bytes() == before


def test_the_command_refuses_before_it_works(folder: Path, capfd: Printed) -> None:
    spec, target = str(folder / "tt.yaml"), str(folder / "x.npy")
    assert cli.run(["fit", spec, str(folder / "absent.npy")]) == 2
    assert "there is no such file" in capfd.readouterr().err
    assert cli.run(["fit", spec, target, "-o", str(folder / "tt")]) == 2
    assert "is an input and would be overwritten" in capfd.readouterr().err
    assert cli.run(["fit", spec, target, "-o", str(folder / "no" / "x")]) == 2
    assert "does not exist" in capfd.readouterr().err
    np.save(folder / "y.npy", np.ones((2, 2)))
    assert cli.run(["fit", spec, str(folder / "y.npy")]) == 2
    assert "the target has shape (2, 2), but must have (5, 6, 7)" in capfd.readouterr().err


# --- targets for the ranks -------------------------------------------------------------------------------------------


def test_ranks_follow_from_a_target_without_a_search() -> None:
    values = planted(tt(3, 4), noise=0.01)
    graph = families.tt("tensor", free=(5, 6, 7), rank=5)
    assert tnmars.fit(graph, values, error=0.05).ranks == {"r1": 3, "r2": 4}
    assert tnmars.fit(graph, values, energy=0.99).error <= 0.1
    small = tnmars.fit(graph, values, parameters=100)
    assert small.parameters <= 100 and small.selector == {"name": "decompose", "target": "parameters"}
    given = tnmars.fit(graph, values, ranks=(2, 3))
    assert given.ranks == {"r1": 2, "r2": 3}
    whole = given.layer().detach().double()
    assert given.error == pytest.approx(((whole - values).norm() / values.norm()).item(), rel=1e-4)
    assert tnmars.fit(GRAPHS["cp"], planted(GRAPHS["cp"], noise=0.0), ranks=4).error < 1e-4


def test_a_large_weight_without_a_search() -> None:
    weight = torch.randn(256, 256, generator=draw()) * torch.logspace(0, -1, 256)
    graph = families.lowrank("linear", inputs=(256,), outputs=(256,), rank=64)
    with pytest.warns(FitWarning, match=r"rank 1 explains \d+ % of the norm, and the rest is not just noise; to ask"):
        found = tnmars.fit(graph, weight)
    assert found.ranks == {"r": 1} and found.seconds < 20.0
    signal = torch.randn(256, 5, generator=draw()) @ torch.randn(5, 256, generator=draw(1))
    assert tnmars.fit(graph, signal + torch.randn(256, 256, generator=draw(2))).ranks == {"r": 5}


def test_targets_that_make_no_sense_are_refused() -> None:
    values = planted(tt(2, 3))
    with pytest.raises(TnmarsError, match="selector 'mars' and error are both given, and both decide the ranks"):
        tnmars.fit(tt(3, 3), values, error=0.1, selector=tnmars.Mars())
    values[0, 0, 0] = torch.nan
    with pytest.raises(TnmarsError, match="some entries are unknown or must not be fitted"):
        tnmars.fit(tt(3, 3), values, parameters=60)


@pytest.mark.parametrize(
    ("option", "ranks"),
    [("--error=0.05", "2 3"), ("--parameters=55", "2 2"), ("--ranks=2", "2 2"), ("--ranks=r1=1,r2=3", "1 3"),
     ("--ranks=1,2", "1 2"), ("--energy=0.999", "2 3")],
)  # fmt: skip
def test_the_command_takes_targets(option: str, ranks: str, tmp_path: Path) -> None:
    tnmars.save_spec(families.tt("tensor", free=(5, 6, 7), rank=5), tmp_path / "tt.yaml")
    np.save(tmp_path / "x.npy", planted(tt(2, 3)).numpy())
    with pytest.raises(SystemExit) as done:
        cli.main(["fit", str(tmp_path / "tt.yaml"), str(tmp_path / "x.npy"), "-q", option])
    assert done.value.code in (0, None)
    summary = json.loads((tmp_path / "x-fit.json").read_text())["ranks"]
    assert " ".join(str(bond["after"]) for bond in summary.values()) == ranks


def test_the_command_refuses_ranks_that_are_none(tmp_path: Path, capsys: Printed) -> None:
    tnmars.save_spec(tt(2, 3), tmp_path / "tt.yaml")
    np.save(tmp_path / "x.npy", planted(tt(2, 3)).numpy())
    with pytest.raises(SystemExit):
        cli.main(["fit", str(tmp_path / "tt.yaml"), str(tmp_path / "x.npy"), "-q", "--ranks=2,x"])
    assert "must be a rank, one for each bond, such as 2,3,4 or r1=2,r2=3, or evbmf" in capsys.readouterr().err
