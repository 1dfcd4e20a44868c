"""`tnmars.decompose`: any graph, targets for the ranks, metrics that do not split, and messages."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import decompose_acceptance as acceptance
import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EVERY, EXACT, PADDED, normal, second_moment
from strategies import THOROUGH, cases, graphs
from torch import Tensor

import tnmars
from tnmars import Graph, Metric, ShapeError, TnmarsError, families, network
from tnmars.decomposing.als import Goal, alternated
from tnmars.decomposing.decompose import decompose
from tnmars.decomposing.evbmf import evbmf_rank
from tnmars.decomposing.layout import by_modes, in_torch
from tnmars.decomposing.metric import weighting
from tnmars.decomposing.spectra import spectra
from tnmars.decomposing.tensors import random_decomposition

KINDS = ("linear", "conv", "embedding", "map")
FEW = 10 if THOROUGH else 2


OUTSIDE = (tnmars.Role.GROUP, tnmars.Role.OUT)
"""The roles of modes that outputs have; those of all groups are one axis."""


def source_size(graph: Graph) -> int:
    """The length of the flat axis of what a weight is multiplied with."""
    return int(np.prod(graph.dense_shape)) // max(out_size(graph), 1)


def out_size(graph: Graph) -> int:
    if graph.rules.layout:
        return graph.out_features
    return int(np.prod([mode.size for mode in graph.modes if mode.role in OUTSIDE]))


def loss(graph: Graph, difference: Tensor, metric: Metric) -> float:
    """tr(G D C D') in numpy, from torch's layout."""
    flat = flattened(graph, difference)
    inputs = np.eye(flat.shape[1]) if metric.inputs is None else metric.inputs.numpy()
    inputs = np.diag(inputs) if inputs.ndim == 1 else inputs
    outputs = np.eye(flat.shape[0]) if metric.outputs is None else metric.outputs.numpy()
    values, vectors = np.linalg.eigh(outputs)
    outputs = (vectors * np.maximum(values, 1e-6 * values[-1])) @ vectors.T
    return float(np.trace(outputs @ flat @ inputs @ flat.T))


def flattened(graph: Graph, weight: Tensor) -> np.ndarray:
    """The weight as outputs x sources."""
    if graph.kind == "embedding":
        return weight.numpy().T
    if graph.kind == "map":
        roles = [mode.role for mode in graph.modes]
        outs = [at for at, role in enumerate(roles) if role in OUTSIDE]
        ins = [at for at in range(len(roles)) if at not in outs]
        return weight.permute(*outs, *ins).reshape(out_size(graph), -1).numpy()
    return weight.reshape(weight.shape[0], -1).numpy()


# --- graphs that no sweep solves -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", acceptance.PLANTED)
def test_planted_networks_are_found_again(name: str) -> None:
    errors = []
    for seed in range(FEW):
        weight = acceptance.planted(acceptance.PLANTED[name], 2000 + seed)
        errors.append(decompose(weight, acceptance.PLANTED[name], seed=seed).error)
    assert sum(error <= 1e-4 for error in errors) >= 0.8 * FEW if THOROUGH else min(errors) <= 1e-4


@settings(max_examples=cases(100))
@given(graphs(terms=2, max_cores=4), st.integers(0, 99))
def test_any_graph_is_decomposed_and_its_error_is_that_of_its_weight(graph: Graph, seed: int) -> None:
    weight = normal(*graph.dense_shape, seed=seed)
    found = decompose(weight, graph, seed=seed, starts=2, steps=20)
    assert {name: tuple(core.shape) for name, core in found.cores.items()} == dict(found.graph.cores)
    distance = (oracle.rebuilt(found) - weight).norm() / weight.norm()
    assert found.error == pytest.approx(distance.item(), abs=1e-9)
    assert found.error <= 1.0 + 1e-9
    assert replace(found.graph, terms=graph.terms, shared=graph.shared) == graph


def test_the_same_seed_gives_the_same_cores_and_leaves_torch_alone() -> None:
    graph, weight = families.cp("tensor", free=(4, 5, 6), rank=3), normal(4, 5, 6)
    state = torch.get_rng_state()
    one, two = (decompose(weight, graph, seed=5) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(one.cores[name], two.cores[name]) for name in graph.cores)
    seen: list[tuple[int, float]] = []
    decompose(weight, graph, seed=5, watch=lambda step, error: seen.append((step, error)))
    assert [step for step, _ in seen] == list(range(1, len(seen) + 1))
    assert all(after <= before for (_, before), (_, after) in pairwise(seen))


def test_a_weight_of_zeros() -> None:
    for graph in (families.cp("tensor", free=(4, 5, 6), rank=3), families.tt("tensor", free=(4, 5, 6), rank=3)):
        found = decompose(torch.zeros(4, 5, 6), graph)
        assert found.error == 0.0 and float(oracle.rebuilt(found).abs().max()) == 0.0
        assert decompose(torch.zeros(4, 5, 6), graph, error=0.1).parameters <= 15


# --- targets ---------------------------------------------------------------------------------------------------------


TARGETS = {
    "tt": families.tt("tensor", free=(6, 7, 8), rank=4),
    "tucker": families.tucker("tensor", free=(6, 7, 8), ranks=(2, 2, 2)),
    "cp": families.cp("tensor", free=(6, 7, 8), rank=4),
    "ring": families.tr("tensor", free=(6, 7, 8), rank=3),
    "terms": families.btd("tensor", free=(6, 7, 8), ranks=[(2, 2, 2), (2, 2, 2)]),
}
SOME = TARGETS if THOROUGH else {name: TARGETS[name] for name in ("tt", "tucker", "cp")}
every_target = pytest.mark.parametrize("graph", SOME.values(), ids=SOME)


@every_target
def test_an_error_is_met_with_few_parameters(graph: Graph) -> None:
    exact = oracle.whole(graph, oracle.problem(graph, 1).cores).detach()
    noise = normal(*exact.shape, seed=9)
    weight = exact + 0.01 * noise * exact.norm() / noise.norm()
    found = decompose(weight, graph, error=0.03)
    assert found.error <= 0.03
    assert found.parameters <= 1.5 * sum(int(np.prod(shape)) for shape in graph.cores.values())


def test_a_share_of_the_squared_norm_is_kept() -> None:
    found = decompose(normal(6, 7, 8), TARGETS["tt"], energy=0.9)
    assert found.error**2 <= 0.1
    assert found.ranks == decompose(normal(6, 7, 8), TARGETS["tt"], error=0.1**0.5).ranks


@every_target
def test_parameters_are_a_limit_that_is_used(graph: Graph) -> None:
    weight = normal(6, 7, 8)
    errors = []
    for most in (45, 80, 160):
        found = decompose(weight, graph, parameters=most)
        assert found.parameters <= most
        errors.append(found.error)
    assert errors[0] > errors[1] > errors[2]


def test_the_slices_with_the_largest_weight_per_parameter_stay() -> None:
    graph = network("linear", "A[i,r] B[r,o]", inputs={"i": 20}, outputs={"o": 30}, bonds=1)
    assert decompose(normal(30, 20), graph, parameters=349).ranks == {"r": 6}
    assert decompose(normal(30, 20), graph, parameters=350).ranks == {"r": 7}


@settings(max_examples=cases(200))
@given(graphs(trees_only=True, shared=False, hyperedges=False, terms=1), st.integers(0, 99), st.floats(0.05, 0.8))
def test_a_tree_is_cut_within_the_error(graph: Graph, seed: int, error: float) -> None:
    weight = normal(*graph.dense_shape, seed=seed)
    connected = decompose(weight, graph, ranks=1000).error < EXACT  # parts that nothing joins limit the error
    if not connected:
        return
    found = decompose(weight, graph, error=error)
    assert found.bound is not None and found.error <= found.bound + EXACT
    assert found.error <= error + EXACT
    assert found.bound == pytest.approx(sum(found.discarded.values()) ** 0.5 / weight.norm().item())


def test_evbmf_finds_planted_ranks() -> None:
    assert int(acceptance.noisy(100 if THOROUGH else 20).split()[0]) >= (95 if THOROUGH else 19)
    assert evbmf_rank(torch.zeros(5), 5, 9) == 0
    graph = network("conv", "A[i,r] K[r,h,s] B[s,o]", inputs={"i": 24}, outputs={"o": 30}, kernel={"h": 3}, bonds=9)
    planted = torch.einsum("ir,rhs,so->oih", normal(24, 4), normal(4, 3, 5), normal(5, 30))
    weight = planted / planted.std() + 0.1 * normal(30, 24, 3, seed=3)
    assert decompose(weight, graph, ranks="evbmf").ranks == {"r": 4, "s": 5}
    assert decompose(normal(30, 24, 3), graph, ranks="evbmf").ranks == {"r": 1, "s": 1}


# --- metrics that do not split ---------------------------------------------------------------------------------------


def has_both_sides(graph: Graph) -> bool:
    """Whether a graph has outputs, and something that they are computed from: a metric is over both."""
    roles = {mode.role for mode in graph.modes}
    return tnmars.Role.OUT in roles and bool(roles - {*OUTSIDE, tnmars.Role.FREE})


def metric_for(graph: Graph, seed: int, parts: tuple[bool, bool, bool]) -> Metric:
    has_inputs, is_diagonal, has_outputs = parts
    size = source_size(graph)
    inputs = second_moment(size, max(size // 2, 1), seed)
    inputs = inputs.diagonal() if is_diagonal else inputs
    outputs = second_moment(out_size(graph), 2 * out_size(graph), seed + 7)
    return Metric(inputs=inputs if has_inputs else None, outputs=outputs if has_outputs else None)


@settings(max_examples=cases(200))
@given(graphs(KINDS, terms=2, max_cores=4), st.integers(0, 99), st.tuples(*[st.booleans()] * 3))
def test_the_metric_is_that_of_the_closed_form(graph: Graph, seed: int, parts: tuple[bool, bool, bool]) -> None:
    if not has_both_sides(graph):
        return
    metric = metric_for(graph, seed, parts)
    weight = normal(*graph.dense_shape, seed=seed)
    found = decompose(weight, graph, metric=metric, starts=1, steps=5)
    if metric.is_empty:
        assert found.metric_error is None
        return
    expected = loss(graph, oracle.rebuilt(found) - weight, metric) / loss(graph, weight, metric)
    assert found.metric_error == pytest.approx(max(expected, 0.0) ** 0.5, abs=1e-6)


@settings(max_examples=cases(200))
@given(graphs(KINDS, terms=2, max_cores=4), st.integers(0, 99), st.tuples(*[st.booleans()] * 3))
def test_weighted_least_squares_never_end_above_their_start(
    graph: Graph, seed: int, parts: tuple[bool, bool, bool]
) -> None:
    if not has_both_sides(graph):
        return
    weight = normal(*graph.dense_shape, seed=seed)
    goal = Goal(graph, by_modes(graph, weight), weighting(graph, weight, metric_for(graph, seed, parts)))
    start = random_decomposition(graph, torch.Generator().manual_seed(seed))
    before = goal.loss(graph, start.cores)
    losses = [alternated(start, goal, steps)[1] for steps in (1, 3, 10)]
    assert losses[0] <= before and losses[1] <= losses[0] and losses[2] <= losses[1]
    after, least = alternated(start, goal, 10)
    assert goal.loss(graph, after.cores) == pytest.approx(least, rel=1e-6, abs=1e-9)


def test_a_core_solves_its_normal_equations() -> None:
    graph = network("linear", "A[i,p,r] B[r,j,o]", inputs={"i": 3, "j": 4}, outputs={"p": 2, "o": 5}, bonds=2)
    weight, metric = normal(10, 12), Metric(inputs=second_moment(12, 30), outputs=second_moment(10, 30, 4))
    goal = Goal(graph, by_modes(graph, weight), weighting(graph, weight, metric))
    after, _ = alternated(random_decomposition(graph, torch.Generator().manual_seed(0)), goal, 300, gain=0.0)
    cores = {name: core.clone().requires_grad_() for name, core in after.cores.items()}
    difference = oracle.dense(graph, oracle.whole(graph, cores)) - weight
    assert metric.inputs is not None and metric.outputs is not None
    value = torch.trace(metric.outputs @ difference @ metric.inputs @ difference.T)
    value.backward()
    for core in cores.values():
        assert float(core.grad.norm()) < 1e-4 * float(value.detach())


def test_the_metric_pays_off_on_trees_that_do_not_split() -> None:
    graph = families.tt("linear", inputs=(6, 6), outputs=(5, 5), rank=4)
    weight, metric = normal(25, 36), Metric(inputs=second_moment(36, 50), outputs=second_moment(25, 40, 3))
    plain, weighed = decompose(weight, graph), decompose(weight, graph, metric=metric)
    assert weighed.bound is None and weighed.metric_error is not None
    blind = loss(graph, oracle.rebuilt(plain) - weight, metric) / loss(graph, weight, metric)
    assert weighed.metric_error < 0.8 * blind**0.5
    within = decompose(weight, graph, metric=metric, error=0.2)
    assert within.metric_error is not None and within.metric_error <= 0.2


def test_responses_and_channels_take_the_place_of_inputs() -> None:
    graph = network(
        "conv", "A[i,r] K[r,h,w,s] B[s,o]", inputs={"i": 8}, outputs={"o": 10}, kernel={"h": 3, "w": 3}, bonds=4
    )
    weight, channels = normal(10, 8, 3, 3), second_moment(8, 40)
    inputs = torch.kron(channels, torch.eye(9, dtype=torch.float64))
    flat = weight.reshape(10, -1)
    known = decompose(weight, graph, metric=Metric(inputs=inputs))
    given_parts = Metric(responses=flat @ inputs @ flat.T, channels=channels)
    found = decompose(weight, graph, metric=given_parts)
    blind = decompose(weight, graph)
    losses = [loss(graph, oracle.rebuilt(each) - weight, Metric(inputs=inputs)) for each in (known, found, blind)]
    assert losses[0] <= losses[1] <= 1.1 * losses[0] < losses[2]
    values = spectra(weight, graph, given_parts)
    exact = spectra(weight, graph, Metric(inputs=inputs))
    torch.testing.assert_close(values["s"], exact["s"])
    torch.testing.assert_close(values["r"], exact["r"])


def test_few_samples_shrink_the_metric() -> None:
    weight, inputs = normal(6, 40), second_moment(40, 5)
    graph = families.lowrank("linear", inputs=(40,), outputs=(6,), rank=2)
    raw, shrunk = (decompose(weight, graph, metric=Metric(inputs=inputs, samples=n)) for n in (None, 5))
    assert shrunk.error < raw.error
    many = decompose(weight, graph, metric=Metric(inputs=inputs, samples=10**9))
    assert many.error == pytest.approx(raw.error, rel=1e-3)
    responses = weight @ inputs @ weight.T
    less = decompose(weight, graph, metric=Metric(responses=responses, samples=5))
    assert shrunk.error - 0.05 < less.error < raw.error


# --- layout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", [*EVERY.values(), PADDED], ids=[*EVERY, "padded"])
def test_torchs_layout_and_back(graph: Graph) -> None:
    weight = normal(*graph.dense_shape)
    values = by_modes(graph, weight)
    assert tuple(values.shape) == tuple(mode.size for mode in graph.modes)
    assert torch.equal(in_torch(graph, values), weight)
    assert torch.equal(oracle.dense(replace(graph, options=()), values), weight)
    layer = tnmars.compile(graph, dtype=torch.float64)
    found = decompose(layer.dense().detach(), graph, ranks=100)
    assert oracle.error(oracle.rebuilt(found), layer.dense().detach()) < EXACT


# --- messages --------------------------------------------------------------------------------------------------------

LOWRANK = families.lowrank("linear", inputs=(8,), outputs=(6,), rank=3)
RING = families.tr("tensor", free=(3, 3, 3), rank=2)
NAN = torch.full((6, 8), torch.nan)
WRONG = {
    "shape": (
        lambda: decompose(normal(8, 6), LOWRANK),
        "the weight has shape (8, 6), but must have (6, 8).\n  That is torch's layout for this graph: 8 -> 6.",
    ),
    "nan": (
        lambda: decompose(NAN, LOWRANK),
        (
            "the weight has 48 of 48 entries that are NaN or infinite.\n"
            "  Every entry must be a finite number; tnmars.fit takes NaN as unknown."
        ),
    ),
    "complex": (
        lambda: decompose(torch.zeros(6, 8, dtype=torch.complex64), LOWRANK, metric=Metric(inputs=torch.eye(8))),
        ("the weight has type torch.complex64, but a metric is for real weights.\n  Leave the metric or the data out."),
    ),
    "two targets": (
        lambda: decompose(normal(6, 8), LOWRANK, ranks=2, error=0.1),
        "ranks and error are both given.\n  Give one of ranks, error, energy and parameters.",
    ),
    "an unknown bond": (
        lambda: decompose(normal(6, 8), LOWRANK, ranks={"q": 2}),
        "ranks names bond 'q', which the graph does not have.\n  Bonds: r.",
    ),
    "too many ranks": (
        lambda: decompose(normal(6, 8), LOWRANK, ranks=[2, 3]),
        "ranks has 2 sizes, but the graph has 1 bonds.\n  Give one for each bond, in this order: r.",
    ),
    "rank 0": (
        lambda: decompose(normal(6, 8), LOWRANK, ranks=0),
        "ranks has 0 for bond 'r', but must have a whole number of at least 1.",
    ),
    "a word": (
        lambda: decompose(normal(6, 8), LOWRANK, ranks="bic"),
        "ranks is 'bic', but as a word must be 'evbmf'.",
    ),
    "error": (lambda: decompose(normal(6, 8), LOWRANK, error=2), "error is 2, but must be a number from 0 to 1."),
    "few parameters": (
        lambda: decompose(normal(6, 8), LOWRANK, parameters=13),
        (
            "parameters is 13, but the graph needs at least 14, with every bond of size 1.\n"
            "  Ask for more parameters, or use another graph."
        ),
    ),
    "few parameters of a ring": (
        lambda: decompose(normal(3, 3, 3), RING, parameters=8),
        (
            "parameters is 8, but the graph needs at least 9, with every bond of size 1.\n"
            "  Ask for more parameters, or use another graph."
        ),
    ),
    "evbmf of a ring": (
        lambda: decompose(normal(3, 3, 3), RING, ranks="evbmf"),
        (
            "ranks is 'evbmf', but the graph has cycles, hyperedges, several terms or modes on several cores.\n"
            "  Give error, energy or parameters; EVBMF is for graphs without cycles."
        ),
    ),
    "inputs": (
        lambda: decompose(normal(6, 8), LOWRANK, metric=Metric(inputs=torch.eye(6))),
        "inputs of the metric has size 6, but must have 8.\n  The dense weight has shape (6, 8): 8 -> 6.",
    ),
    "no inputs": (
        lambda: decompose(normal(3, 3, 3), RING, metric=Metric(inputs=torch.eye(27))),
        (
            "the metric has inputs, but a graph of kind 'tensor' has no input modes here.\n"
            "  A metric is for layers with inputs and outputs."
        ),
    ),
    "channels": (
        lambda: decompose(normal(6, 8), LOWRANK, metric=Metric(channels=torch.eye(8))),
        "the metric has channels, but the graph is of kind 'linear'.\n  Channels are for convolutions; give inputs.",
    ),
    "not square": (
        lambda: Metric(outputs=normal(3, 4)),
        "outputs of the metric has shape (3, 4), but must be a square matrix.",
    ),
    "nan in the metric": (
        lambda: Metric(inputs=NAN[0]),
        "inputs of the metric has entries that are NaN or infinite.\n  Look for NaN in the calibration data.",
    ),
    "not symmetric": (
        lambda: Metric(outputs=torch.tensor([[1.0, 1.0], [0.0, 1.0]])),
        "outputs of the metric is not symmetric, but must be a second moment.",
    ),
    "negative": (
        lambda: Metric(inputs=-torch.ones(3)),
        "inputs of the metric has negative numbers on its diagonal, but must be a second moment.",
    ),
    "samples": (
        lambda: Metric(inputs=torch.ones(3), samples=0),
        "samples of the metric is 0, but must be a number of at least 1.",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_messages(case: str) -> None:
    call, text = WRONG[case]
    with pytest.raises(TnmarsError) as caught:
        call()
    assert str(caught.value) == text
    assert isinstance(caught.value, ShapeError) == (case in ("shape", "inputs", "not square"))


def test_an_error_out_of_reach_is_refused() -> None:
    graph = network("tensor", "A[i,r] B[j,r] C[k]", free={"i": 4, "j": 4, "k": 4}, bonds=2, shared=())
    with pytest.raises(TnmarsError, match=r"a relative error of 0\.001 is out of reach: the graph gives 0\.\d+ with"):
        decompose(normal(4, 4, 4), graph, error=1e-3)
    looped = network("tensor", "A[i,r,s] B[j,r,s] C[k]", free={"i": 4, "j": 4, "k": 4}, bonds=2)
    with pytest.raises(TnmarsError, match=r"a relative error of 0\.001 is out of reach: the graph gives 0\.\d+ with"):
        decompose(normal(4, 4, 4), looped, error=1e-3)
