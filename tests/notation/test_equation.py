"""Graphs of einsum equations: the compiled layer computes what `torch.einsum` computes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases

import tnmars

SIZES = dict(i=4, j=3, k=2, r=3, s=2, o=5, p=2, b=6, c=2)

EQUATIONS = (
    "bi,ir,ro->bo",
    "bi,io->bo",
    "bci,ir,ro->cbo",
    "bij,ir,jr,ro->bo",
    "bij,irs,jsr,ro,rp->bop",
    "bi,bj,ir,jr,ro->bo",
    "bi,cj,ir,js,rso->bco",
    "bi,ir,ro->o",
    "ir,rs,so->io",
    "ir,jr,or->oji",
    "irs,rsj->ij",
)


def compiled(equation: str) -> tuple[tnmars.TNModule, list[torch.Tensor], list[torch.Tensor]]:
    """The layer of an equation with its inputs and cores as the operands of torch's einsum."""
    terms = equation.partition("->")[0].split(",")
    sizes = {key: size for key, size in SIZES.items() if key in equation and key not in "bc"}
    layer = tnmars.compile(tnmars.einsum(equation, **sizes), dtype=torch.float64)
    inputs = [torch.randn([SIZES[key] for key in term]).double() for term in terms if set(term) & set("bc")]
    return layer, inputs, [layer.cores.get(name) for name in layer.graph.cores]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_a_layer_computes_its_equation(equation: str) -> None:
    layer, inputs, cores = compiled(equation)
    torch.testing.assert_close(layer(*inputs), torch.einsum(equation, *inputs, *cores), rtol=1e-12, atol=1e-12)


@given(st.data())
@settings(max_examples=cases(200))
def test_random_chains_of_cores(data: st.DataObject) -> None:
    """One input of several letters, each on a core; bonds join the cores at random."""
    count = data.draw(st.integers(1, 4), label="cores")
    inside, outside = "ijkl"[:count], "opqu"[: data.draw(st.integers(1, count), label="outputs")]
    bonds = "rst"[: data.draw(st.integers(0, 3), label="bonds") if count > 1 else 0]
    edges = [inside[at] + (outside[at] if at < len(outside) else "") for at in range(count)]
    for bond in bonds:
        ends = data.draw(st.sets(st.integers(0, count - 1), min_size=2), label=f"ends of {bond}")
        edges = [text + (bond if at in ends else "") for at, text in enumerate(edges)]
    sizes = {letter: data.draw(st.integers(1, 4)) for letter in (*inside, *outside, *bonds)}
    equation = f"b{inside},{','.join(edges)}->b{outside}"
    layer = tnmars.compile(tnmars.einsum(equation, **sizes), dtype=torch.float64)
    x = torch.randn(3, *(sizes[letter] for letter in inside), dtype=torch.float64)
    expected = torch.einsum(equation, x, *(layer.cores.get(name) for name in layer.graph.cores))
    torch.testing.assert_close(layer(x), expected, rtol=1e-10, atol=1e-10)


def test_shapes_and_tensors_give_sizes() -> None:
    by_letter = tnmars.einsum("bi,ir,ro->bo", i=8, r=2, o=6)
    assert tnmars.einsum("bi,ir,ro->bo", None, (8, 2), (2, 6)) == by_letter
    assert tnmars.einsum(" bi, ir, ro -> bo ", None, torch.zeros(8, 2), torch.zeros(2, 6)) == by_letter


def test_none_is_an_input_even_if_its_letters_have_sizes() -> None:
    graph = tnmars.einsum("ij,ir,jr->r", None, (4, 3), (5, 3), kind=None)
    assert [operand.name for operand in graph.inputs] == ["x"]
    assert [mode.name for mode in graph.of_role(tnmars.Role.OUT)] == ["r"]


def test_a_linear_graph_flattens_the_features() -> None:
    graph = tnmars.einsum("bij,ir,rjo->bo", i=4, j=3, r=2, o=5, kind="linear")
    assert (graph.kind, graph.in_features, graph.out_features, graph.has_bias) == ("linear", 12, 5, False)
    layer = tnmars.compile(graph, dtype=torch.float64)
    x = torch.randn(7, 4, 3, dtype=torch.float64)
    expected = torch.einsum("bij,ir,rjo->bo", x, *(layer.cores.get(name) for name in graph.cores))
    torch.testing.assert_close(layer(x.flatten(1)), expected)


@pytest.mark.parametrize(
    "equation", ["bgi,gir,gro->bgo", "bj,j->bj", "big,gio->bog", "xgi,gir,rgjo,ygj->xygo", "bghi,ghi->bgh"]
)
def test_letters_of_input_core_and_result_are_groups(equation: str) -> None:
    sizes = {letter: size for letter, size in zip("gihjro", (2, 4, 3, 5, 3, 6), strict=True) if letter in equation}
    graph = tnmars.einsum(equation, **sizes)
    assert {mode.name for mode in graph.of_role(tnmars.Role.GROUP)} == set("ghj") & set(equation.partition("->")[2])
    layer = tnmars.compile(graph, dtype=torch.float64)
    terms = equation.partition("->")[0].split(",")
    cores = iter([layer.cores.get(name) for name in graph.cores])
    lengths = {**sizes, "b": 7, "x": 3, "y": 2}
    is_input = [not set(term) <= set(sizes) for term in terms]
    inputs = [torch.randn([lengths[letter] for letter in term], dtype=torch.float64) for term in terms]
    operands = [value if given else next(cores) for value, given in zip(inputs, is_input, strict=True)]
    found = layer(*[value for value, given in zip(inputs, is_input, strict=True) if given])
    torch.testing.assert_close(found, torch.einsum(equation, *operands), rtol=1e-10, atol=1e-10)


def test_a_linear_graph_with_groups() -> None:
    graph = tnmars.einsum("bgi,gir,gro->bgo", g=2, i=4, r=3, o=5, kind="linear")
    assert (graph.groups, graph.in_features, graph.out_features) == (2, 8, 10)
    layer = tnmars.compile(graph, dtype=torch.float64)
    x = torch.randn(7, 2, 4, dtype=torch.float64)
    expected = torch.einsum("bgi,gir,gro->bgo", x, *(layer.cores.get(name) for name in graph.cores))
    torch.testing.assert_close(layer(x.flatten(1)), expected.flatten(1))
    with pytest.raises(tnmars.GraphError, match="not that of a linear layer"):
        tnmars.einsum("big,gir,gro->bgo", g=2, i=4, r=3, o=5, kind="linear")


MISTAKES = {
    "bi,ir,ro": "'bi,ir,ro' is not an einsum equation.",
    "b...i,io->bo": "equation 'b...i,io->bo' has an ellipsis.",
    "bi,iro->bo": "letter 'r' is on one core only and is summed.",
    "bii,ir,ro->bo": "letter 'i' stands twice on 'bii' of the equation.",
    "bi,iir,ro->bo": "letter 'i' stands twice on 'iir' of the equation.",
    "bi,ir,ro->boz": "letter 'z' of the result is on no operand.",
    "bi,cj->bcij": "has no core: every operand is an input.",
}


@pytest.mark.parametrize("equation", MISTAKES)
def test_mistakes(equation: str) -> None:
    sizes = {key: size for key, size in SIZES.items() if key in equation.partition("->")[0] and key not in "bc"}
    with pytest.raises(tnmars.GraphError) as error:
        tnmars.einsum(equation, **sizes)
    assert MISTAKES[equation] in str(error.value)


def test_sizes_that_do_not_fit() -> None:
    with pytest.raises(tnmars.GraphError, match="letter 'r' has size 2, but 3 on operand 'ro'"):
        tnmars.einsum("bi,ir,ro->bo", None, (8, 2), (3, 6))
    with pytest.raises(tnmars.GraphError, match="a size is given for 'z'"):
        tnmars.einsum("bi,ir,ro->bo", i=8, r=2, o=6, z=3)
    with pytest.raises(tnmars.GraphError, match="the equation has 3 operands, but 2 are given"):
        tnmars.einsum("bi,ir,ro->bo", (8, 2), (2, 6))
    with pytest.raises(tnmars.GraphError, match="not that of a linear layer"):
        tnmars.einsum("ib,ir,ro->bo", i=8, r=2, o=6, kind="linear")
