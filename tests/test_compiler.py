"""Compiled layers against the naive truth: values and gradients, of every kind, at every batch size.

Here a layer is what `tnmars.compile` returns; which form its plans take is its own business (see
`program/test_candidates.py`).
"""

from __future__ import annotations

from pathlib import Path

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EXACT, SPECS, every_spec, square
from strategies import cases, graphs

import tnmars
from tnmars import Graph, GraphError
from tnmars.graph import Core, Edge, Role, Term
from tnmars.graph.kinds import KINDS

SINGLE = 1e-4

BATCHES = (3, 1, 17, 0, 65)


def check(layer: tnmars.TNModule, problem: oracle.Problem, tolerance: float) -> None:
    """The layer's answer and all its gradients are the truth's."""
    wanted = problem.answer()
    found, slopes = oracle.ask(layer, problem)
    assert found.dtype == layer.dtype
    assert oracle.error(found, wanted) <= tolerance
    for at, (slope, truth) in enumerate(zip(slopes, oracle.gradients(wanted, problem.leaves), strict=True)):
        # in float32, a gradient that is a sum over all outputs has lost digits where they cancel
        lost = 1e-7 * wanted.numel() if layer.dtype == torch.float32 else 0.0
        assert oracle.error(slope, truth) <= tolerance + lost, f"the gradient of leaf {at}"


# --- any graph -------------------------------------------------------------------------------------------------------


@pytest.mark.long
@settings(max_examples=cases(10_000))
@given(
    graph=graphs(least_terms=0),
    nominal=st.sampled_from((16, 1, 300)),
    batch=st.sampled_from(BATCHES),
    seed=st.integers(0, 2**31),
    is_whole=st.booleans(),
)
def test_values_and_gradients_are_the_truths(graph: Graph, nominal: int, batch: int, seed: int, is_whole: bool) -> None:
    problem = oracle.problem(graph, batch, seed, is_whole=is_whole)
    layer = oracle.compiled(graph, nominal, dtype=torch.float64)
    oracle.load(layer, problem)
    check(layer, problem, EXACT)
    with torch.no_grad():
        assert oracle.error(layer(*problem.inputs), problem.answer()) <= EXACT
        assert oracle.error(layer.dense(), oracle.dense(graph, oracle.whole(graph, problem.cores))) <= EXACT
    check(layer.float(), problem, SINGLE)


@settings(max_examples=cases(200))
@given(graph=graphs(least_terms=0), seed=st.integers(0, 2**31))
def test_every_batch_size_of_one_layer(graph: Graph, seed: int) -> None:
    """The plans of all buckets, chunks of a large batch among them; for tokens, also what repeats."""
    layer = tnmars.compile(graph, dtype=torch.float64)
    for batch in (0, 1, 3, 17, 130, 300, 1500):
        problem = oracle.problem(graph, batch, seed, image=(3, 2, 2))
        oracle.load(layer, problem)
        if batch <= 300:
            check(layer, problem, EXACT)
        with torch.no_grad():
            assert oracle.error(layer(*problem.inputs), problem.answer()) <= EXACT, batch


@settings(max_examples=cases(300))
@given(graph=graphs(max_cores=3, terms=2), seed=st.integers(0, 2**31))
def test_gradcheck(graph: Graph, seed: int) -> None:
    """Slopes are those of finite differences of the layer itself, whatever the truth says."""
    problem = oracle.problem(graph, 2, seed, image=(2, 2, 2))
    layer = oracle.compiled(graph, 2, dtype=torch.float64)
    oracle.load(layer, problem)
    assert torch.autograd.gradcheck(*as_function(layer, problem))


@settings(max_examples=cases(60))
@given(graph=graphs(max_cores=3, terms=2), seed=st.integers(0, 2**31))
def test_gradgradcheck(graph: Graph, seed: int) -> None:
    problem = oracle.problem(graph, 2, seed, image=(2, 2, 2))
    layer = oracle.compiled(graph, 2, dtype=torch.float64)
    oracle.load(layer, problem)
    assert torch.autograd.gradgradcheck(*as_function(layer, problem), fast_mode=True)


def as_function(layer: tnmars.TNModule, problem: oracle.Problem) -> tuple[object, tuple[torch.Tensor, ...]]:
    """A layer as a function of its parameters and inputs, and their values."""
    names = [name for name, _ in layer.named_parameters()]
    fixed = [value for value in problem.inputs if not value.is_floating_point()]

    def function(*values: torch.Tensor) -> torch.Tensor:
        given = dict(zip(names, values, strict=False))
        return torch.func.functional_call(layer, given, (*values[len(names) :], *fixed))

    inputs = [value for value in problem.inputs if value.is_floating_point()]
    return function, (*layer.parameters(), *inputs)


# --- the worked examples ---------------------------------------------------------------------------------------------


@every_spec
def test_a_spec_compiles_from_its_file(path: Path) -> None:
    """At its real size, in both modes and dtypes."""
    layer = tnmars.compile(path, dtype=torch.float64)
    graph = layer.graph
    assert graph == tnmars.load(path)
    problem = oracle.problem(graph, 9, image=(6, 7, 5))
    oracle.load(layer, problem)
    cores = {name: value.detach().numpy() for name, value in problem.cores.items()}
    weight = oracle.dense(graph, torch.from_numpy(oracle.tensor(graph, cores, optimize=True)))
    with torch.no_grad():
        wanted = oracle.layer(graph, weight, problem.bias, *problem.inputs)
        assert oracle.error(layer.dense(), weight) <= EXACT
        assert oracle.error(layer(*problem.inputs), wanted) <= EXACT
    assert oracle.error(oracle.ask(layer, problem)[0], wanted) <= EXACT
    assert oracle.error(oracle.ask(layer.float(), problem)[0], wanted) <= SINGLE


def test_the_specs_have_every_kind() -> None:
    assert {tnmars.load(path).kind for path in SPECS} == KINDS.keys()


# --- the keywords ----------------------------------------------------------------------------------------------------

CONV = tnmars.network(
    "conv",
    "A[i,r] K[r,h,w,s] B[s,o]",
    inputs=dict(i=3),
    outputs=dict(o=4),
    kernel=dict(h=3, w=2),
    bonds=2,
    options=dict(stride=2, padding=1),
)


def test_options_given_to_compile_win() -> None:
    layer = tnmars.compile(CONV, stride=(1, 3), dilation=2, bias=False)
    assert dict(layer.graph.options) == {"stride": (1, 3), "padding": 1, "dilation": 2, "bias": False}
    assert layer.bias is None
    x = torch.randn(2, 3, 8, 9)
    wanted = torch.nn.functional.conv2d(x, layer.dense(), None, (1, 3), 1, 2)
    assert oracle.error(layer(x), wanted) <= SINGLE


def test_bias_is_on_by_default_and_can_be_asked_for() -> None:
    assert tnmars.compile(CONV).bias.shape == (4,)
    bare = tnmars.compile(CONV, bias=False).graph
    assert tnmars.compile(bare).bias is None
    assert tnmars.compile(bare, bias=True).bias.shape == (4,)


@pytest.mark.parametrize("options", [{"bios": True}, {"stride": 0}, {"stride": (1, 2, 3)}, {"padding_idx": 1}])
def test_options_that_the_kind_does_not_take(options: dict[str, object]) -> None:
    with pytest.raises(GraphError, match=next(iter(options))):
        tnmars.compile(CONV, **options)


@pytest.mark.parametrize("optimizer", ["auto", "dp", "greedy", "random-greedy", "optimal"])
def test_every_optimizer_compiles(optimizer: str) -> None:
    problem = oracle.problem(CONV, 3)
    layer = tnmars.compile(CONV, optimizer=optimizer, dtype=torch.float64)
    oracle.load(layer, problem)
    check(layer, problem, EXACT)


# --- convolutions are torch's ----------------------------------------------------------------------------------------


OPTIONS = [
    (stride, padding, dilation)
    for stride, dilation in ((1, 1), (1, 2), (2, 1), (3, 2))
    for padding in (0, 1, 2, "same", "valid")
    if padding != "same" or stride == 1  # torch refuses it
]


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize(("stride", "padding", "dilation"), OPTIONS)
@pytest.mark.parametrize("shape", ["taps", "chain", "patch"])
def test_options_of_a_convolution(spatial: int, stride: int, padding: int | str, dilation: int, shape: str) -> None:
    """Taps all on one core, each on its own in a chain of cores, or flattened together with the channels."""
    taps = dict(list(dict(d=3, h=2, w=4).items())[-spatial:])
    names = ",".join(taps)
    options = dict(stride=stride, padding=padding, dilation=dilation)
    if shape == "patch":
        kernel_size = tuple(taps.values())
        rows = 3 * torch.Size(kernel_size).numel()
        graph = tnmars.network(
            "conv",
            "A[p,r] B[r,o]",
            patch=dict(p=rows),
            outputs=dict(o=4),
            bonds=2,
            kernel_size=kernel_size,
            options=options,
        )
    else:
        chain = " ".join(f"K{at}[{tap},r{at},r{at + 1}]" for at, tap in enumerate(taps))
        text = f"A[i,r0] {chain} B[r{spatial},o]" if shape == "chain" else f"A[i,r0] K[{names},r0,r1] B[r1,o]"
        graph = tnmars.network("conv", text, inputs=dict(i=3), outputs=dict(o=4), kernel=taps, bonds=2, options=options)
    layer = oracle.compiled(graph, 3, dtype=torch.float64)
    problem = oracle.problem(graph, 3, image=(9, 8, 10)[:spatial])
    oracle.load(layer, problem)
    check(layer, problem, EXACT)
    with torch.no_grad():
        assert oracle.error(layer(*problem.inputs), problem.answer()) <= EXACT
        alone = oracle.layer(graph, layer.dense(), layer.bias, problem.inputs[0][0])
        assert oracle.error(layer(problem.inputs[0][0]), alone) <= EXACT


@pytest.mark.parametrize("options", [{"stride": 2}, {"padding": 1}, {"stride": (1, 3), "padding": (2, 0)}])
def test_a_pointwise_convolution_without_a_kernel_mode_has_its_options_too(options: dict[str, object]) -> None:
    graph = tnmars.network(
        "conv", "A[i,r] B[r,o]", inputs=dict(i=6), outputs=dict(o=4), bonds=2, kernel_size=(1, 1), options=options
    )
    layer = tnmars.compile(graph, dtype=torch.float64)
    for batch in (1, 40):
        problem = oracle.problem(graph, batch)
        oracle.load(layer, problem)
        check(layer, problem, EXACT)


def test_a_map_with_several_empty_axes() -> None:
    """Where one length is 0, torch cannot find another by itself."""
    graph = tnmars.network(
        "map",
        "A[i,r] B[j,r,o]",
        inputs=dict(i=3, j=2),
        outputs=dict(o=4),
        bonds=2,
        arguments=dict(x="b n i", y="b m j"),
        result="b n m o",
    )
    layer = tnmars.compile(graph)
    for b, n, m in ((0, 3, 2), (2, 0, 3), (2, 3, 0), (0, 0, 4), (0, 0, 0)):
        found = layer(torch.randn(b, n, 3), torch.randn(b, m, 2))
        assert found.shape == (b, n, m, 4)


@pytest.mark.parametrize("kind", ["linear", "embedding"])
def test_terms_that_differ_in_the_size_of_a_bond_alone(kind: str) -> None:
    """They cannot be stacked, though their cores read the same; the two with equal sizes can."""
    role = Role.IN if kind == "linear" else Role.LOOKUP
    modes = (Edge("i", 6, role), Edge("o", 5, Role.OUT))
    cores = (Core("A", ("i", "r")), Core("B", ("r", "o")))
    graph = Graph(kind, modes, tuple(Term(f"t{at}", (Edge("r", size),), cores) for at, size in enumerate((2, 3, 2))))
    layer = tnmars.compile(graph, dtype=torch.float64)
    for batch in (2, 300):
        problem = oracle.problem(graph, batch)
        oracle.load(layer, problem)
        check(layer, problem, EXACT)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (dict(batch=-3), "batch is -3, but must be an integer of at least 1."),
        (dict(batch=2.5), "batch is 2.5, but must be an integer."),
        (dict(image=0), "image is 0, but must be an integer of at least 1."),
        (dict(init=-1.0), "init is -1.0, but must be a variance of at least 0"),
        (dict(init=True), "init is True, but must be a variance of at least 0, or one of glorot, kaiming."),
        (dict(dtype=torch.int64), "dtype is torch.int64, but must be one of torch.float16,"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(given: dict[str, object], text: str) -> None:
    with pytest.raises(tnmars.TnmarsError) as caught:
        tnmars.compile(square(), **given)
    assert text in str(caught.value)
