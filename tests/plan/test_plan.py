"""Plans: trees over any network by any optimizer, large graphs, costs, and that planning is a function of the graph."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EXACT, MODEL, OPTIMIZERS, WEIGHINGS, run
from machine import slowness
from strategies import cases, graphs

import tnmars
from tnmars import CostModel, Graph, TnmarsError
from tnmars.layer.init import DTYPES
from tnmars.layer.numbers import dtype_name
from tnmars.plan.cost import NUMBERS, VECTOR, machine_model
from tnmars.plan.layout import Layout, Weighing
from tnmars.plan.network import BATCH, groups, layer_network, weight_network
from tnmars.plan.search import Search
from tnmars.plan.tree import Rows, Tree, leaves_of
from tnmars.plan.trees import by_path, candidates
from tnmars.program import choice
from tnmars.program.candidates import weight_forms
from tnmars.program.form import Form, measure, peak, total
from tnmars.program.instructions import Matmul
from tnmars.program.program import verify

# --- trees -----------------------------------------------------------------------------------------------------------


def size_of(tree: Tree) -> int:
    """How many leaves a tree has, repeated ones counted as often."""
    if isinstance(tree, int):
        return 1
    return size_of(tree.part) if isinstance(tree, Rows) else size_of(tree.left) + size_of(tree.right)


WITH_INPUTS = ("linear", "conv", "conv_transpose", "map")


@settings(max_examples=cases(500))
@given(graph=graphs(WITH_INPUTS), optimizer=st.sampled_from(OPTIMIZERS), grad=st.booleans())
def test_a_tree_has_every_leaf_once(graph: Graph, optimizer: str, grad: bool) -> None:
    for terms in groups(graph):
        for network in (layer_network(graph, terms, 16), weight_network(graph, terms)):
            everything = frozenset(range(len(network.leaves)))
            trees = candidates(network, Weighing(MODEL, grad), optimizer)
            trees["all"] = by_path(network, sorted(everything), optimizer)
            for tree in trees.values():
                assert leaves_of(tree) == everything
                assert size_of(tree) == len(everything)


@settings(max_examples=cases(500))
@given(graph=graphs())
def test_terms_of_equal_shape_are_computed_together(graph: Graph) -> None:
    found = groups(graph)
    assert sorted(term.name for group in found for term in group) == sorted(term.name for term in graph.terms)
    shapes = [{(term.bonds, term.cores) for term in group} for group in found]
    assert all(len(shape) == 1 for shape in shapes)
    assert len(set.union(*shapes)) == len(found)
    for group in found:
        network = weight_network(graph, group)
        assert len(network.leaves) == len(group[0].cores)
        assert all(len(leaf.names) == len(group) for leaf in network.leaves)
        volumes = [network.volume(leaf.labels) for leaf in network.leaves]
        wanted = [len(group) * torch.Size(graph.shape(group[0], core)).numel() for core in group[0].cores]
        assert volumes == wanted


@settings(max_examples=cases(300))
@given(graph=graphs(["linear", "map", "tensor"]))
def test_labels_of_size_one_are_left_out(graph: Graph) -> None:
    for terms in groups(graph):
        network = weight_network(graph, terms).without_ones()
        labels = {label for leaf in network.leaves for label in leaf.labels} | set(network.output)
        assert all(network.size[label] > 1 for label in labels)


# --- large graphs ----------------------------------------------------------------------------------------------------


def chain(count: int, *, is_ring: bool = False) -> Graph:
    """Cores in a row or a ring; some of them have a mode of size 2."""
    cores, modes = [], {"inputs": {}, "outputs": {}}
    for at in range(count):
        edges = [f"r{at}"] * (at > 0 or is_ring) + [f"r{(at + 1) % count}"] * (at < count - 1 or is_ring)
        if at % (count // 8) == 0:
            side = ("inputs", "outputs")[at // (count // 8) % 2]
            modes[side][f"m{at}"] = 2
            edges.append(f"m{at}")
        cores.append(f"G{at}[{','.join(edges)}]")
    bonds = {f"r{at}": 3 for at in range(0 if is_ring else 1, count)}
    return tnmars.network("linear", " ".join(cores), **modes, bonds=bonds)


def tree(count: int) -> Graph:
    """Cores as a binary tree, with a mode on each leaf, of size 2 on some."""
    cores, modes = [], {"inputs": {}, "outputs": {}}
    for at in range(1, count + 1):
        edges = [f"r{at}"] * (at > 1) + [f"r{child}" for child in (2 * at, 2 * at + 1) if child <= count]
        if 2 * at > count:
            modes[("inputs", "outputs")[at % 2]][f"m{at}"] = 2 if at % 5 == 0 else 1
            edges.append(f"m{at}")
        cores.append(f"G{at}[{','.join(edges)}]")
    return tnmars.network("linear", " ".join(cores), **modes, bonds={f"r{at}": 2 for at in range(2, count + 1)})


LARGE = {
    "train of 64": chain(64),
    "ring of 64": chain(64, is_ring=True),
    "tree of 64": tree(64),
    "train of 16": chain(16),
    "ring of 24": chain(24, is_ring=True),
    "tree of 31": tree(31),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_graphs_are_planned(name: str) -> None:
    """In seconds; the programs are right, and far from the naive sum over all bonds."""
    graph = LARGE[name]
    problem = oracle.problem(graph, 3)
    cores = {key: value.detach().numpy() for key, value in problem.cores.items()}
    weight = oracle.dense(graph, torch.from_numpy(oracle.tensor(graph, cores, optimize=True)))
    wanted = oracle.layer(graph, weight, problem.bias, *problem.inputs)
    for weighing in WEIGHINGS:
        start = process_time()
        forms = choice.choose(graph, 16, weighing)
        assert process_time() - start < 4 * slowness(), "CPU seconds; a second or two on a fast machine"
        for form in forms:
            verify(form.program)
            with torch.no_grad():
                assert oracle.error(run(form, problem), wanted) <= EXACT
            assert total(measure(form, {BATCH: 1})).macs < 10**6


WIDE = {
    **{
        f"TT layer of {count}": tnmars.families.tt("linear", inputs=(2,) * count, outputs=(2,) * count, rank=4)
        for count in (8, 16, 24, 32)
    },
    "TT layer of 64": tnmars.families.tt("linear", inputs=(2, 1) * 32, outputs=(1, 2) * 32, rank=4),
    "TT embedding of 24": tnmars.families.tt("embedding", lookup=(2,) * 24, outputs=(2,) * 24, rank=4),
    "CP layer of 64": tnmars.families.cp("linear", inputs=(2,) * 32, outputs=(2,) * 32, rank=4),
}
"""Graphs that have many orders to choose from, because every core has modes."""


@pytest.mark.parametrize("name", [*LARGE, *WIDE])
def test_the_work_of_planning_is_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: contractions that the search prices, and pairs of memory orders that are looked at.

    Each takes some microseconds, so that these are a second on an idle machine.
    """
    counts = dict.fromkeys(("prices", "pairs"), 0)

    def counting(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            counts[what] += 1
            return function(*args, **named)

        return counted

    monkeypatch.setattr(Search, "_price", counting("prices", Search._price))
    monkeypatch.setattr(Layout, "_merge", counting("pairs", Layout._merge))
    graph = {**LARGE, **WIDE}[name]
    for grad in (False, True):
        counts.update(prices=0, pairs=0)
        weight_forms.cache_clear()
        forms = choice.choose(graph, 128, Weighing(MODEL, grad))
        assert len(forms) >= 2
        is_small = name == "TT layer of 8"
        assert counts["prices"] < (8_000 if is_small else 150_000)
        assert counts["pairs"] < (800 if is_small else 8_000)


def test_a_weight_beyond_all_memory_is_planned() -> None:
    """Of 2^70 entries, more than a number of torch's can count: planning multiplies sizes and allocates nothing."""
    for graph in (
        tnmars.families.tt("tensor", free=(2**10,) * 7, rank=2),
        tnmars.families.tt("embedding", lookup=(2**8,) * 7, outputs=(4,) * 7, rank=2),
        tnmars.families.tt("linear", inputs=(2**5,) * 7, outputs=(2**5,) * 7, rank=2),
    ):
        for grad in (False, True):
            form = choice.choose(graph, 16, Weighing(MODEL, grad))[0]
            verify(form.program)
            assert form.name not in ("dense", "tables1")
        assert tnmars.compile(graph, device="meta").graph == graph


# --- planning is a function ------------------------------------------------------------------------------------------

PRINT = """
import hashlib, json, sys
import tnmars
from tnmars.program import choice
from tnmars.program.emit import emit
from tnmars.plan.cost import CostModel
from tnmars.plan.layout import Weighing
for graph in map(tnmars.loads, json.load(sys.stdin)):
    for grad in (False, True):
        forms = choice.choose(graph, 64, Weighing(CostModel(), grad))
        text = "".join(f"{form.name} {form.cost} {form.program} {emit(form.program, form.frame)}" for form in forms)
        print(hashlib.sha256(text.encode()).hexdigest())
"""


@pytest.mark.long
def test_plans_are_the_same_in_every_process() -> None:
    """Neither the order of sets nor chance shows in a plan: the same run gives the same bits."""
    specs = ("cp_conv3d", "copies_linear", "block_term_attention", "tt_embedding", "odd_chords")
    large = ("train of 16", "ring of 24", "tree of 64")
    planned = [*(tnmars.load(oracle.spec(name)) for name in specs), *(LARGE[name] for name in large)]
    given = json.dumps([tnmars.dump(graph) for graph in planned])
    printed = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", PRINT]
        done = subprocess.run(command, env=environment, input=given, capture_output=True, text=True, check=True)
        printed.append(done.stdout.splitlines())
    assert len(set(printed[0])) > len(planned)
    assert printed[0] == printed[1]


def test_planning_leaves_chance_alone() -> None:
    """The user's random numbers go on as if nothing had been planned."""
    states = (random.getstate(), torch.get_rng_state().tolist())
    for optimizer in ("auto", "random-greedy", "greedy"):
        choice.choose(LARGE["ring of 24"], 16, Weighing(MODEL), optimizer=optimizer)
    assert states == (random.getstate(), torch.get_rng_state().tolist())


@settings(max_examples=cases(200))
@given(graph=graphs(), nominal=st.sampled_from((128, 5, 4000)))
def test_every_batch_has_one_plan(graph: Graph, nominal: int) -> None:
    """The one made for the nearest batch by ratio; the nominal batch has its own."""
    planner = choice.Planner(graph, MODEL, nominal)
    buckets = planner.buckets
    assert nominal in [bucket.batch for bucket in buckets]
    assert [bucket.batch for bucket in buckets] == sorted({bucket.batch for bucket in buckets})
    assert buckets[-1].limit == choice.NO_LIMIT
    assert all(one.batch <= one.limit < two.batch for one, two in pairwise(buckets))
    assert all(one.limit**2 <= one.batch * two.batch < (one.limit + 1) ** 2 for one, two in pairwise(buckets))
    assert planner == choice.Planner(graph, MODEL, nominal)
    assert planner.plan("train", 16) == planner.plan("train", 16)
    assert hash(planner.plan("infer", 16)) == hash(planner.plan("infer", 16))


def test_a_layer_keeps_its_plans() -> None:
    graph = tnmars.families.tt("linear", inputs=(4, 4), outputs=(4, 4), rank=4)
    layer = tnmars.compile(graph, batch=128)
    for mode in ("train", "infer"):
        assert layer.plan(mode, 100) is layer.plan(mode, 128), "one range"
        assert layer.plan(mode, 0) is layer.plan(mode, 1)
        assert layer.plan(mode, 10**9) is layer.plan(mode, 5000)
        assert layer.plan(mode, 1) == choice.choose(graph, 1, Weighing(MODEL, mode == "train"))[0]


def test_the_mode_follows_autograd() -> None:
    """With gradients the plan for training runs, whether the module trains or not; without, that for inference."""
    layer = tnmars.compile(tnmars.families.tt("linear", inputs=(4, 4), outputs=(4, 4), rank=4))
    asked: list[str] = []
    pick = layer.programs.pick
    layer.programs.pick = lambda batch, mode, *more: (asked.append(mode), pick(batch, mode, *more))[1]
    x = torch.ones(2, 16)
    layer.eval()(x)
    with torch.no_grad():
        layer.train()(x)
    assert asked == ["train", "infer"]


# --- costs -----------------------------------------------------------------------------------------------------------


def test_a_cost_model_is_a_value() -> None:
    model = CostModel()
    assert model == CostModel() and hash(model) == hash(CostModel())
    assert CostModel(**json.loads(json.dumps(model.to_json()))) == model
    with pytest.raises(FrozenInstanceError):
        model.peak = 1.0


def test_the_machine_chooses_the_plan() -> None:
    """Where only calls cost, the form with the fewest; where only operations do, the one with the fewest of these."""
    graph = tnmars.families.tt("linear", inputs=(8, 8, 8), outputs=(8, 8, 8), rank=2)
    free = {key: 0.0 for key in MODEL.to_json() if key.endswith("call")} | {"small_product": 0.0}
    lazy = replace(MODEL, peak=1e6, half_rows=0.0, half_columns=0.0, half_depth=0.0, **free)
    efforts = [total(measure(form, {BATCH: 64})).macs for form in choice.choose(graph, 64, Weighing(lazy))]
    assert efforts[0] == min(efforts) < 64 * 512 * 512
    hasty = replace(MODEL, peak=1e18, rate=1e18, call=1.0, batched_call=1.0, copy_call=1.0)
    products = [calls(form) for form in choice.choose(graph, 64, Weighing(hasty))]
    assert products[0] == min(products) < max(products)


def calls(form: Form) -> int:
    """How many products a form makes, the one with the dense weight among them."""
    pieces = -(-64 // form.chunk) if form.chunk else 1
    made = [sum(isinstance(entry, Matmul) for entry in part) for part in (form.program.fold, form.program.run)]
    return made[0] + pieces * (made[1] + bool(form.frame.dense))


sizes = st.integers(1, 300)


@settings(max_examples=cases(1000))
@given(batch=sizes, rows=sizes, columns=sizes, depth=sizes, more=st.integers(0, 3))
def test_a_larger_product_costs_more(batch: int, rows: int, columns: int, depth: int, more: int) -> None:
    extents = [batch, rows, columns, depth]
    small = MODEL.matmul(*extents)
    extents[more] *= 4
    fills = columns < VECTOR // 4 <= extents[2]  # rows that fill a vector register may cost less than narrow ones
    assert small > 0 and (fills or small < MODEL.matmul(*extents))
    assert MODEL.elementwise(rows, rows) < MODEL.elementwise(4 * rows, 4 * rows)
    assert MODEL.copy(rows, 1) < MODEL.copy(4 * rows, 1)
    assert MODEL.copy(64 * rows, 64) < MODEL.copy(64 * rows, 1)
    assert MODEL.gather(rows) < MODEL.gather(4 * rows)
    assert MODEL.conv(rows * columns, rows, depth) < MODEL.conv(4 * rows * columns, rows, depth)


def test_the_calibrated_model_is_read_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TNMARS_COST_MODEL", raising=False)
    assert machine_model() == CostModel()
    path = tmp_path / "tnmars" / "cost_model.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"peak": 5e9, "made_up": 3}), encoding="utf-8")
    assert machine_model() == replace(CostModel(), peak=5e9)
    monkeypatch.setenv("TNMARS_COST_MODEL", "shipped")
    assert machine_model() == CostModel()
    monkeypatch.delenv("TNMARS_COST_MODEL")
    for text in ("{", "[1]", '{"peak": "much"}', '{"peak": null}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(TnmarsError, match="must be a cost model; run 'tnmars calibrate' again"):
            machine_model()


@pytest.mark.parametrize("optimizer", ["fast", "", "dp2"])
def test_an_optimizer_that_is_not_known(optimizer: str) -> None:
    graph = tnmars.families.tt("linear", inputs=(4, 4), outputs=(4, 4), rank=4)
    with pytest.raises(TnmarsError, match=f"optimizer '{optimizer}' is not known"):
        tnmars.compile(graph, optimizer=optimizer)


def test_peak_is_what_is_alive_at_once() -> None:
    """A low-rank layer through its cores holds the bond's vector and the output; the weight's own form, the weight."""
    graph = tnmars.network("linear", "A[i,r] B[r,o]", inputs={"i": 6}, outputs={"o": 5}, bonds=2)
    forms = {form.name: form for form in choice.all_forms(graph, 16, Weighing(MODEL)) if not form.chunk}
    assert peak(forms["push"]) == 16 * (2 + 5)
    (weight, _) = weight_forms(graph, Weighing(MODEL))
    assert 30 <= peak(weight) <= 30 + 2 * (6 * 2 + 2 * 5) + 30


@pytest.mark.parametrize(("dtype", "size", "work"), [("float32", 4, 1), ("float64", 8, 2), ("complex128", 16, 8)])
def test_wider_numbers_take_longer(dtype: str, size: int, work: int) -> None:
    """A vector instruction takes half as many numbers of 8 bytes; a complex multiply-add is four real ones."""
    single = CostModel()
    model = single.for_numbers(dtype)
    calls, moved = single.matmul(1, 0, 0, 0), 4 * 3 * 512**2 / single.rate
    products = single.matmul(1, 512, 512, 512) - calls - moved
    written = size * 512**2
    fresh = written / single.fresh_rate if written > single.fresh_bytes else 0.0
    wanted = calls + work * products + size / 4 * moved + fresh
    assert model.matmul(1, 512, 512, 512) == pytest.approx(wanted, rel=1e-9)
    assert model.conv(10**9, 10**6, 64) - model.conv_call == pytest.approx(
        work * (single.conv(10**9, 0, 64) - single.conv_call) + size * 10**6 / single.rate, rel=1e-9
    )


def test_numbers_of_16_bits_move_fewer_bytes_and_compute_as_float32() -> None:
    single, half = CostModel(), CostModel().for_numbers("bfloat16")
    assert half.bytes == 2
    assert single.matmul(1, 64, 64, 64) - half.matmul(1, 64, 64, 64) == pytest.approx(2 * 3 * 64**2 / single.rate)


@pytest.mark.parametrize("numbers", [{"item": 128}, {"item": 3}, {"parts": 3}, {"item": 2, "parts": 2}])
def test_numbers_that_no_type_has_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(TnmarsError, match="no type of torch's layers has such numbers"):
        CostModel(**numbers)


def test_the_types_of_layers_are_those_of_the_cost_model() -> None:
    assert set(NUMBERS) == set(map(dtype_name, DTYPES))
    for dtype in DTYPES:
        assert CostModel().for_numbers(dtype_name(dtype)).bytes == dtype.itemsize
