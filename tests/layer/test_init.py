"""Initial values: the weight has the requested variance, whatever the graph."""

from __future__ import annotations

from math import log, prod, sqrt
from pathlib import Path

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import SPECS
from strategies import cases, graphs

import tnmars
from tnmars import Graph, TnmarsError
from tnmars.layer.init import deviations, fill_, variance

SIGMAS = 6.0
"""How far off a sample may be, in standard errors: one test in a hundred million is."""


def expected(graph: Graph, found: dict[str, float]) -> torch.Tensor:
    """The exact variance of each entry of the weight, of independent cores with these deviations.

    Products over different bond indices share no entry of some core, so they are uncorrelated: variances contract as
    the cores do.
    """
    squares = {name: torch.full(shape, found[name] ** 2, dtype=torch.float64) for name, shape in graph.cores.items()}
    return oracle.whole(graph, squares)


# --- exactly ---------------------------------------------------------------------------------------------------------


@settings(max_examples=cases(1000))
@given(graph=graphs(), wanted=st.sampled_from((1.0, 0.01, 7.0, "glorot", "kaiming", None)))
def test_every_entry_has_the_variance_asked_for(graph: Graph, wanted: float | str | None) -> None:
    if isinstance(wanted, str) and graph.kind in ("embedding", "tensor"):
        wanted = None  # there is no input to have a fan
    entries = expected(graph, deviations(graph, variance(graph, wanted)))
    assert torch.allclose(entries, torch.full_like(entries, variance(graph, wanted)), rtol=1e-12)


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("count", [400, 1000])
def test_a_long_chain_has_the_variance_too(count: int, size: int) -> None:
    """The product of its bonds' sizes has up to 2,800 bits, but a float at most 1,024."""
    inner = " ".join(f"G{at}[r{at},r{at + 1}]" for at in range(count - 2))
    cores = f"A[i,r0] {inner} B[r{count - 2},o]"
    found = deviations(tnmars.network("linear", cores, inputs={"i": 2}, outputs={"o": 2}, bonds=size), 0.25)
    logarithm = 2 * sum(map(log, found.values())) + (count - 1) * log(size)
    assert logarithm == pytest.approx(log(0.25), abs=1e-9)


@settings(max_examples=cases(500))
@given(graph=graphs())
def test_the_rules_are_torchs(graph: Graph) -> None:
    """`nn.init` finds the fans by itself in a dense weight; a map has the product of its modes.

    With groups `nn.init` counts the outputs of all of them, although an input has an effect on those of its own alone.
    """
    if graph.kind in ("linear", "conv"):
        inside, outside = torch.nn.init._calculate_fan_in_and_fan_out(torch.empty(graph.dense_shape))
        outside //= graph.groups
    elif graph.kind == "conv_transpose":  # its weight has the inputs first
        outside, inside = torch.nn.init._calculate_fan_in_and_fan_out(torch.empty(graph.dense_shape))
        inside //= graph.groups
    elif graph.kind == "map":
        inside, outside = (prod(mode.size for mode in graph.modes if mode.role == role) for role in ("in", "out"))
    else:
        assert variance(graph) == 1.0, "as torch.nn.Embedding"
        return
    assert variance(graph, "glorot") == pytest.approx(2 / (inside + outside))
    assert variance(graph, "kaiming") == pytest.approx(2 / inside)
    assert variance(graph) == variance(graph, "glorot")
    assert variance(graph, 0.25) == 0.25


@pytest.mark.parametrize(
    ("inputs", "outputs", "deviation"),
    [((7, 4, 7, 4), (5, 5, 5, 5), 0.1433), ((25, 25), (2, 5), 0.1120), ((4, 3, 2), (3, 5, 7), None)],
)
def test_a_tensor_train_has_the_deviation_of_the_reference(
    inputs: tuple[int, ...], outputs: tuple[int, ...], deviation: float | None
) -> None:
    """The "Glorot-like" rule of tt-pytorch: lambda^(1/2d) * prod(ranks)^(-1/2d), with lambda = 2 / (in + out)."""
    graph = tnmars.families.tt("linear", inputs=inputs, outputs=outputs, rank=20)
    count = len(inputs)
    whole = 2 / (prod(inputs) + prod(outputs))
    wanted = whole ** (1 / (2 * count)) * (20 ** (count - 1)) ** (-1 / (2 * count))
    found = deviations(graph, variance(graph))
    assert set(found) == set(graph.cores)
    assert list(found.values()) == pytest.approx([wanted] * count)
    if deviation is not None:
        assert wanted == pytest.approx(deviation, abs=5e-5)


def test_terms_share_the_variance_by_what_they_are() -> None:
    """Two terms of different shapes each make half of it."""
    graph = tnmars.load(oracle.spec("odd_two_terms"))
    assert len(graph.terms) == 2
    found = deviations(graph, 3.0)
    for term in graph.terms:
        ours = {name: value for name, value in found.items() if name.startswith(f"{term.name}.")}
        own = graph.with_terms([term])
        entries = expected(own, {name.partition(".")[2]: value for name, value in ours.items()})
        assert torch.allclose(entries, torch.full_like(entries, 1.5))


# --- by sampling -----------------------------------------------------------------------------------------------------


def check_sample(values: torch.Tensor, wanted: float) -> None:
    """Independent values have mean zero and this variance, within what so many can show."""
    count = values.numel()
    assert abs(values.mean().item()) <= SIGMAS * sqrt(wanted / count)
    assert abs(values.square().mean().item() / wanted - 1) <= SIGMAS * sqrt(2 / count)


@settings(max_examples=cases(200))
@given(graph=graphs(), wanted=st.sampled_from((1.0, 0.3, None)), seed=st.integers(0, 2**31))
def test_cores_are_normal_with_their_deviations(graph: Graph, wanted: float | None, seed: int) -> None:
    torch.manual_seed(seed)
    found = deviations(graph, variance(graph, wanted))
    draws: dict[str, list[torch.Tensor]] = {name: [] for name in graph.cores}
    cores = {name: torch.nn.Parameter(torch.empty(shape, dtype=torch.float64)) for name, shape in graph.cores.items()}
    for _ in range(100):
        fill_(cores, graph, wanted)
        for name, core in cores.items():
            draws[name].append(core.detach().flatten().clone())
    for name, values in draws.items():
        check_sample(torch.cat(values), found[name] ** 2)


def check_by_seeds(layer: tnmars.TNModule, wanted: float, seeds: int) -> None:
    """The mean square of a weight's entries over many draws. Within a draw entries depend on each other, so that the
    error is estimated from the draws, and has to be small for the test to mean anything."""
    means = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        layer.reset_parameters()
        means.append(layer.dense().double().square().mean())
    found = torch.stack(means)
    error = (found.std() / sqrt(seeds)).item()
    assert error < 0.1 * wanted
    assert abs(found.mean().item() - wanted) <= SIGMAS * error


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_weight_of_a_spec(path: Path) -> None:
    """As drawn by the layer itself, by default: Glorot where there is an input, else 1."""
    layer = oracle.compiled(path)
    with torch.no_grad():
        check_by_seeds(layer, variance(layer.graph), seeds=60 if prod(layer.graph.dense_shape) < 10**6 else 6)


@pytest.mark.parametrize(("rule", "wanted"), [("glorot", 2 / (48 + 60)), ("kaiming", 2 / 48), (0.5, 0.5), (3, 3.0)])
def test_compile_passes_the_rule_on(rule: str | float, wanted: float) -> None:
    """Also `reset_parameters` uses it."""
    graph = tnmars.families.tt("linear", inputs=(6, 8), outputs=(6, 10), rank=12)
    with torch.no_grad():
        check_by_seeds(tnmars.compile(graph, init=rule), wanted, seeds=80)


def test_the_variance_of_a_padded_layer_is_of_its_real_size() -> None:
    graph = tnmars.load(oracle.spec("padded_linear"))
    assert variance(graph) == 2 / (781 + 250)


@pytest.mark.parametrize(
    ("spec", "bound"), [("tt_linear", 784**-0.5), ("tucker2_conv", (64 * 9) ** -0.5), ("padded_linear", 781**-0.5)]
)
def test_the_bias_is_drawn_as_torchs(spec: str, bound: float) -> None:
    layer = tnmars.compile(oracle.spec(spec), bias=True)
    values = []
    for _ in range(50):
        layer.reset_parameters()
        values.append(layer.bias.detach().clone())
    drawn = torch.cat(values)
    assert drawn.abs().max() <= bound
    check_sample(drawn, bound**2 / 3)


def test_a_rule_that_is_not_known() -> None:
    graph = tnmars.load(oracle.spec("tt_linear"))
    with pytest.raises(TnmarsError, match="init is 'xavier', but must be a variance, or one of glorot, kaiming"):
        tnmars.compile(graph, init="xavier")


def test_draws_follow_torchs_seed() -> None:
    graph = tnmars.load(oracle.spec("tt_linear"))
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(tnmars.compile(graph).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not any(torch.equal(states[0][key], states[2][key]) for key in states[0])
