"""Automatic relevance determination: the prior in closed form, a cut that no scale changes, and the way of a model."""

from __future__ import annotations

from math import log
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import lowrank
from oracle import compiled, error
from strategies import cases, graphs
from torch import nn

import tnmars
from tnmars import Ard
from tnmars.graph import Graph
from tnmars.store.prune_file import prune_file

SOME = Ard(shape=0.7, rate=0.3, threshold=0.35)


def layer_of(graph: Graph, seed: int, selector: Ard = SOME) -> tnmars.TNModule:
    """A layer whose slices differ in size."""
    layer = compiled(graph, batch=3, selector=selector, dtype=torch.float64)
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for name in graph.cores:
            core = layer.cores.get(name)
            core.copy_(torch.tensor(random.lognormal(0.0, 0.7, core.shape)))
            for axis, size in enumerate(core.shape):
                shape = [-1 if at == axis else 1 for at in range(core.dim())]
                core.mul_(torch.tensor(random.lognormal(0.0, 0.7, size)).reshape(shape))
    return layer


def slices(layer: tnmars.TNModule) -> dict[str, list[list[np.ndarray]]]:
    """For each bond and each index, the entries of its slice in each core: taken one by one, without vectors."""
    graph, found = layer.graph, {}
    for term in graph.terms:
        for bond in term.bonds:
            key = graph.qualified(term, bond.name)
            held = [core for core in term.cores if bond.name in core.edges]
            values = {core.name: layer.cores.get(graph.qualified(term, core.name)).detach().numpy() for core in held}
            found[key] = [
                [np.take(values[core.name], at, core.edges.index(bond.name)).ravel() for core in held]
                for at in range(bond.size)
            ]
    return found


def expected_penalty(layer: tnmars.TNModule, shape: float, rate: float) -> float:
    """The negative log-prior of all slices, relative to that of slices of zeros."""
    total = 0.0
    for each in slices(layer).values():
        for parts in each:
            entries = np.concatenate(parts)
            factor = shape + entries.size / 2
            total += factor * log(rate + float(entries @ entries) / 2) - factor * log(rate)
    return total


def expected_keep(layer: tnmars.TNModule, threshold: float) -> dict[str, tuple[int, ...]]:
    """The slices whose product of norms is not small against the largest, by its geometric mean over the cores."""
    kept = {}
    for bond, each in slices(layer).items():
        sizes = [np.prod([np.sum(part**2) for part in parts]) ** (1 / len(parts)) for parts in each]
        kept[bond] = tuple(at for at, size in enumerate(sizes) if size > threshold * max(sizes))
    return kept


# --- the prior -------------------------------------------------------------------------------------------------------


@given(graphs(bonded=True, terms=3), st.integers(0, 2**20))
@settings(max_examples=cases(400), deadline=None)
def test_the_penalty_is_the_prior_on_any_graph(graph: Graph, seed: int) -> None:
    layer = layer_of(graph, seed)
    assert tnmars.penalty(layer).item() == pytest.approx(expected_penalty(layer, 0.7, 0.3), rel=1e-10)


@given(graphs(bonded=True, terms=2), st.integers(0, 2**20))
@settings(max_examples=cases(200), deadline=None)
def test_its_slope_is_the_precision_times_the_entry(graph: Graph, seed: int) -> None:
    """Every slice pulls its entries with the closed form of its precision, (shape + n / 2) / (rate + s / 2)."""
    layer = layer_of(graph, seed)
    tnmars.penalty(layer).backward()
    wanted = {name: np.zeros(shape) for name, shape in graph.cores.items()}
    for term in graph.terms:
        for bond in term.bonds:
            for at, parts in enumerate(slices(layer)[graph.qualified(term, bond.name)]):
                entries = np.concatenate(parts)
                precision = (0.7 + entries.size / 2) / (0.3 + np.sum(entries**2) / 2)
                for core in (core for core in term.cores if bond.name in core.edges):
                    name = graph.qualified(term, core.name)
                    place = tuple(at if edge == bond.name else slice(None) for edge in core.edges)
                    wanted[name][place] += precision * layer.cores.get(name).detach().numpy()[place]
    for name, value in wanted.items():
        slope = layer.cores.get(name).grad
        assert error(torch.zeros(value.shape) if slope is None else slope, torch.tensor(value)) <= 1e-10


def test_the_penalty_balances_the_cores_of_a_bond() -> None:
    """Scaling a slice up in one core and down in the other changes only the penalty, least where both are equal."""
    layer = layer_of(lowrank().graph, 0)
    first, second = (np.sum(part**2) for part in slices(layer)["r"][2])
    best = (second / first) ** 0.25
    found = []
    for scale in (0.9 * best, best, 1.1 * best):
        with torch.no_grad():
            layer.cores.get("A")[:, 2] *= scale
            layer.cores.get("B")[2] /= scale
            found.append(tnmars.penalty(layer).item())
            layer.cores.get("A")[:, 2] /= scale
            layer.cores.get("B")[2] *= scale
    assert found[1] < min(found[0], found[2])


# --- the cut ---------------------------------------------------------------------------------------------------------


@given(graphs(bonded=True, terms=3), st.integers(0, 2**20), st.data())
@settings(max_examples=cases(400), deadline=None)
def test_the_cut_does_not_depend_on_scales(graph: Graph, seed: int, data: st.DataObject) -> None:
    layer = layer_of(graph, seed)
    kept = expected_keep(layer, 0.35)
    assert tnmars.keep(layer) == {"": kept}
    with torch.no_grad():
        layer.cores.get(data.draw(st.sampled_from(sorted(graph.cores)))).mul_(1000.0)
    assert tnmars.keep(layer) == {"": kept}


def test_sums_of_norms_would_depend_on_scales() -> None:
    """A test of the test: the same slices, compared by the sum of their squared norms instead of the product."""
    layer = layer_of(lowrank().graph, 1)
    with torch.no_grad():
        layer.cores.get("A").copy_(torch.tensor([1.0, 3.0, 1.0, 1.0]).expand(6, 4))
        layer.cores.get("B").copy_(torch.tensor([3.0, 1.0, 0.1, 1.0]).expand(5, 4).T)
    kept = []
    for scale in (1.0, 1000.0):
        with torch.no_grad():
            layer.cores.get("A").mul_(scale)
        assert tnmars.keep(layer) == {"": {"r": (0, 1)}}
        sums = [sum(float(np.sum(part**2)) for part in parts) for parts in slices(layer)["r"]]
        kept.append([value > 0.35 * max(sums) for value in sums])
    assert kept == [[True, True, False, False], [False, True, False, False]]


@given(graphs(bonded=True, terms=2), st.integers(0, 2**20))
@settings(max_examples=cases(200), deadline=None)
def test_pruned_is_the_layer_without_the_other_slices(graph: Graph, seed: int) -> None:
    layer = layer_of(graph, seed)
    masks = {}
    for bond, kept in expected_keep(layer, 0.35).items():
        masks[bond] = np.isin(np.arange(graph.bonds[bond].size), kept).astype(float)
    cores = {name: layer.cores.get(name).detach().numpy() for name in graph.cores}
    wanted = oracle.dense(graph, torch.tensor(oracle.tensor(graph, cores, masks)))
    small = tnmars.prune(layer)
    assert error(small.dense(), wanted) <= 1e-10
    assert (
        tnmars.summary(layer).layers[0].live_parameters == tnmars.count(tnmars.prune(layer, simplify=False).graph).cores
    )


def test_slices_of_zeros_go() -> None:
    layer = layer_of(lowrank().graph, 0, Ard(threshold=0.0))
    with torch.no_grad():
        layer.cores.get("A")[:, 1] = 0.0
    assert tnmars.keep(layer) == {"": {"r": (0, 2, 3)}}
    for least, kept in ((1, (0,)), (0, ())):
        layer = layer_of(lowrank().graph, 0, Ard(min_keep=least))
        with torch.no_grad():
            layer.cores.get("B").zero_()
        assert tnmars.keep(layer) == {"": {"r": kept}}
        assert tnmars.penalty(layer).isfinite()


def test_cores_that_are_not_finite_are_refused() -> None:
    layer = layer_of(lowrank().graph, 0)
    with torch.no_grad():
        layer.cores.get("B")[2, 1] = torch.nan
    with pytest.raises(tnmars.TnmarsError) as caught:
        tnmars.prune(layer)
    assert str(caught.value) == (
        "cores with bond 'r' have entries that are not finite: training has diverged.\n  Go back to a checkpoint, and "
        "lower the learning rates."
    )


# --- the way of a model ----------------------------------------------------------------------------------------------


def test_training_finds_a_planted_rank() -> None:
    torch.manual_seed(0)
    graph = tnmars.families.lowrank("linear", inputs=(10,), outputs=(8,), rank=6)
    layer = compiled(graph, batch=300, selector=Ard())
    x = torch.randn(300, 10)
    y = x @ torch.randn(10, 2) @ torch.randn(2, 8) + torch.randn(300, 8)
    optimizer = torch.optim.Adam(tnmars.param_groups(layer, lr=3e-2))
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1500)
    for _ in range(1500):
        ((layer(x) - y).square().mean() + tnmars.penalty(layer) / 300).backward()
        optimizer.step()
        optimizer.zero_grad()
        rate.step()
    small = tnmars.prune(layer, simplify=False)
    assert small.graph.bonds["r"].size == 2
    assert error(small(x), layer(x)) <= 1e-2, "what is cut was nearly zero"
    assert small.graph.origin["selector"] == Ard().settings()


def test_it_is_cut_in_place_stored_and_loaded(tmp_path: Path) -> None:
    model = nn.Sequential(layer_of(lowrank().graph, 4), nn.Linear(5, 2).double())
    kept = expected_keep(model[0], 0.35)["r"]
    assert 0 < len(kept) < 4
    x = torch.randn(7, 6, dtype=torch.float64)
    tnmars.save(model, tmp_path / "model.safetensors")
    back = tnmars.load_into(
        nn.Sequential(nn.Linear(6, 5).double(), nn.Linear(5, 2).double()), tmp_path / "model.safetensors"
    )
    assert back[0].selector == SOME and torch.equal(tnmars.penalty(back), tnmars.penalty(model))
    prune_file(tmp_path / "model.safetensors", tmp_path / "small.safetensors")
    small = tnmars.load_into(
        nn.Sequential(nn.Linear(6, 5).double(), nn.Linear(5, 2).double()), tmp_path / "small.safetensors"
    )
    optimizer = torch.optim.Adam(tnmars.param_groups(model, lr=1e-2))
    (model(x).square().mean() + tnmars.penalty(model) / 10).backward()
    optimizer.step()
    text = str(tnmars.summary(back))
    assert "live" in text and f"{44 + 5 + 12} parameters" in text
    expected = tnmars.prune(back)
    assert error(small(x), expected(x)) <= 1e-12
    kept = expected_keep(model[0], 0.35)["r"]
    tnmars.prune_(model, optimizer)
    assert model[0].graph.bonds["r"].size == len(kept) and tnmars.penalty(model) > 0.0
    assert optimizer.state[model[0].cores.get("A")]["exp_avg"].shape == (6, len(kept))


def test_a_pruned_layer_keeps_its_selector() -> None:
    """The penalty goes on, over the slices that are left, and the layer can be cut again."""
    small = tnmars.prune(layer_of(lowrank().graph, 4), {"": {"r": (0, 1, 3)}}, simplify=False)
    assert small.selector == SOME
    assert tnmars.penalty(small).item() == pytest.approx(expected_penalty(small, 0.7, 0.3), rel=1e-10)
    with torch.no_grad():
        small.cores.get("B")[1] = 0.0
    assert 1 not in tnmars.keep(small)[""]["r"] and tnmars.count(tnmars.prune(small).graph).cores < 3 * 11


def test_a_graph_without_bonds_has_nothing_to_cut() -> None:
    graph = tnmars.network("linear", "A[i,o]", inputs=dict(i=6), outputs=dict(o=5))
    layer = compiled(graph, selector=Ard())
    assert tnmars.penalty(layer).item() == 0.0 and tnmars.keep(layer) == {}
    with pytest.raises(tnmars.TnmarsError, match="no selector of the model chooses slices"):
        tnmars.prune(layer)


def test_gates_beside_it_are_still_in_warm_up() -> None:
    model = nn.Sequential(lowrank(tnmars.Mars()), nn.Linear(5, 6).double(), lowrank(Ard()))
    tnmars.MaskSchedule(model, 20, warmup_steps=5)
    assert tnmars.keep(model)["0"] == {"r": (0, 1, 2, 3)} and "2" in tnmars.keep(model)
    tnmars.prune(model)  # no warning: there is something to cut
