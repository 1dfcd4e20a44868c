"""Laws: properties that span stages. Three more stand with the stage that they are mostly about.

A file, its text and the graph agree: `spec/test_reader.py`. Every program equals the oracle under every path optimizer:
`program/test_candidates.py` and `test_compiler.py`. Reported counts are those of the tensors and of the code that runs:
`graph/test_counts.py` and `program/test_measure.py`.
"""

from __future__ import annotations

import copy
from collections import Counter

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import BONDED, Given, inputs_of, mask_of, set_gates
from oracle import compiled, error, problem, spec
from strategies import cases, cuts, graphs, keeps

import tnmars
from tnmars.decomposing.rewritten import cores_after
from tnmars.graph import Graph
from tnmars.graph.rewrite import prune

Keep = dict[str, tuple[int, ...]]


# --- a mask acts once -------------------------------------------------------------------------------------------------


def gated(graph: Graph, **keywords: object) -> tnmars.TNModule:
    return compiled(graph, selector=Given(), **keywords)


@given(graphs(bonded=True, terms=3), st.integers(0, 2**20))
@settings(max_examples=cases(1000), deadline=None)
def test_gates_of_any_value_equal_the_oracle(graph: Graph, seed: int) -> None:
    layer = gated(graph, batch=3, dtype=torch.float64)
    task = problem(graph, 3, seed)
    oracle.load(layer, task, strict=False)
    random = np.random.default_rng(seed)
    masks = {name: random.uniform(0.2, 1.5, bond.size) for name, bond in graph.bonds.items()}
    set_gates(layer, {name: torch.tensor(value) for name, value in masks.items()})
    cores = {name: value.detach().numpy() for name, value in task.cores.items()}
    whole = torch.tensor(oracle.tensor(graph, cores, masks))
    wanted = oracle.layer(graph, oracle.dense(graph, whole), task.bias, *task.inputs)
    assert error(layer(*task.inputs), wanted) <= 1e-10
    assert error(layer.dense(), oracle.dense(graph, whole)) <= 1e-10


@pytest.mark.parametrize("name", BONDED)
def test_tripling_a_mask_triples_its_term(name: str) -> None:
    graph = tnmars.load(spec(name))
    layer = (
        gated(graph, batch=2, dtype=torch.float64, bias=False) if graph.has_bias else gated(graph, dtype=torch.float64)
    )
    inputs = inputs_of(graph, 2, torch.float64)
    ones = {bond: torch.ones(edge.size) for bond, edge in graph.bonds.items()}
    set_gates(layer, ones)
    before = layer(*inputs)
    for term in graph.terms:
        zeros = {bond: torch.zeros(edge.size) for bond, edge in graph.bonds.items()}
        counts = Counter(graph.bond_name(term, edge.name) for edge in term.bonds)  # ties make one of several bonds
        own = {bond: ones[bond] for bond in counts}
        set_gates(layer, {**zeros, **own})
        part = layer(*inputs)
        if len(graph.terms) == 1:
            assert error(part, before) <= 1e-12
        for bond in own:
            set_gates(layer, {**ones, bond: 3 * ones[bond]})
            assert error(layer(*inputs), before + (3 ** counts[bond] - 1) * part) <= 1e-10, bond


@pytest.mark.parametrize("name", BONDED)
def test_open_gates_change_nothing(name: str) -> None:
    plain, layer = compiled(spec(name), batch=2), compiled(spec(name), batch=2, selector=Given())
    layer.load_state_dict(plain.state_dict(), strict=False)
    set_gates(layer, {bond: torch.ones(edge.size) for bond, edge in layer.graph.bonds.items()})
    inputs = inputs_of(plain.graph, 2)
    assert error(layer(*inputs), plain(*inputs)) <= 1e-6


# --- running with a hard mask equals pruning, then running ------------------------------------------------------------


@pytest.mark.long
@given(cuts(), st.sampled_from([0, 1, 17]), st.integers(0, 2**20))
@settings(max_examples=cases(5000), deadline=None)
def test_masked_equals_pruned(cut: tuple[Graph, Keep], batch: int, seed: int) -> None:
    graph, kept = cut
    masked = compiled(graph, batch=max(batch, 1), dtype=torch.float64, selector=Given()).eval()
    task = problem(graph, batch, seed)
    oracle.load(masked, task, strict=False)
    set_gates(masked, {name: mask_of(kept[name], bond.size) for name, bond in graph.bonds.items()})
    assert tnmars.keep(masked) == {"": kept}
    small, cut_here = tnmars.prune(masked), copy.deepcopy(masked)
    tnmars.prune_(cut_here)
    for layer in (small, cut_here):
        held = {name: tuple(value.shape) for name, value in layer.named_parameters() if name.startswith("cores.")}
        assert held == {f"cores.{name}": shape for name, shape in layer.graph.cores.items()}
    for dtype, room in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        inputs = [value.detach().to(dtype) if value.is_floating_point() else value for value in task.inputs]
        wanted = masked.to(dtype)(*inputs)
        assert error(small.to(dtype)(*inputs), wanted) <= room
        assert error(cut_here.to(dtype)(*inputs), wanted) <= room


@given(cuts(least=0), st.integers(0, 2**20))
@settings(max_examples=cases(1000), deadline=None)
def test_a_bond_that_keeps_nothing_removes_its_term(cut: tuple[Graph, Keep], seed: int) -> None:
    graph, kept = cut
    layer = compiled(graph, batch=3, dtype=torch.float64)
    task = problem(graph, 3, seed)
    oracle.load(layer, task)
    masks = {name: mask_of(kept[name], bond.size).numpy() for name, bond in graph.bonds.items()}
    whole = torch.tensor(
        oracle.tensor(graph, {name: core.detach().numpy() for name, core in task.cores.items()}, masks)
    )
    small = tnmars.prune(layer, {"": kept})
    wanted = oracle.layer(graph, oracle.dense(graph, whole), task.bias, *task.inputs)
    assert error(small(*task.inputs), wanted) <= 1e-10
    empty = [term for term in graph.terms if any(not kept[graph.qualified(term, bond.name)] for bond in term.bonds)]
    assert len(small.graph.terms) == len(graph.terms) - len(empty)


@given(cuts(), st.data())
@settings(max_examples=cases(1000), deadline=None)
def test_pruning_twice_is_pruning_once(cut: tuple[Graph, Keep], data: st.DataObject) -> None:
    graph, first = cut
    once = prune(graph, first)
    second = data.draw(keeps(once.graph))
    was = dict(once.bonds)
    twice = prune(once.graph, second)
    composed = {was[now]: tuple(first[was[now]][index] for index in second[now]) for now in second}
    straight = prune(graph, {**first, **composed})
    assert straight.graph == twice.graph
    cores = {name: torch.randn(shape) for name, shape in graph.cores.items()}
    stepwise = cores_after(twice, cores_after(once, cores))
    for name, value in cores_after(straight, cores).items():
        assert torch.equal(value, stepwise[name])
