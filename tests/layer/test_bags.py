"""Bags of tokens: a table with a mode gives what `torch.nn.functional.embedding_bag` gives on its dense weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import oracle
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, graphs
from torch import Tensor, nn
from torch.func import functional_call, vmap

import tnmars
from tnmars import Graph, GraphError, ShapeError, TNModule
from tnmars.layer.code import Code
from tnmars.layer.kinds import bags, embedding
from tnmars.ship.export import export_program

EXACT = 1e-10
TABLE = tnmars.families.tt("embedding", lookup=(4, 5, 3), outputs=(2, 3, 2), rank=3, vocab=50)


def bagged(graph: Graph, mode: str, skip: int | None = None) -> Graph:
    return replace(graph, options=(("mode", mode), *([] if skip is None else [("padding_idx", skip)])))


def layer_of(mode: str, skip: int | None = None, **keywords: Any) -> TNModule:
    return tnmars.compile(bagged(TABLE, mode, skip), dtype=torch.float64, **keywords)


def truth(layer: TNModule, index: Tensor, offsets: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
    options = dict(layer.graph.options)
    return F.embedding_bag(
        index,
        layer.dense(),
        offsets,
        mode=options["mode"],
        per_sample_weights=weights,
        padding_idx=options.get("padding_idx"),
    )


def compare(layer: TNModule, index: Tensor, offsets: Tensor | None = None, weights: Tensor | None = None) -> None:
    """Values and gradients, of cores and of weights, against torch's own bags on the dense weight."""
    leaves = [*layer.cores.parameters(), *([] if weights is None else [weights])]
    found, wanted = layer(index, offsets, weights), truth(layer, index, offsets, weights)
    assert oracle.error(found, wanted) <= EXACT
    for ours, theirs in zip(oracle.gradients(found, leaves), oracle.gradients(wanted, leaves), strict=True):
        assert oracle.error(ours, theirs) <= EXACT


def offsets_of(random: torch.Generator, tokens: int, count: int) -> Tensor:
    """Where bags start: rising, some of them empty."""
    cuts = torch.randint(0, tokens + 1, (count - 1,), generator=random).sort().values
    return torch.cat([torch.zeros(1, dtype=torch.int64), cuts])


@settings(max_examples=cases(400))
@given(
    graph=graphs(["embedding"]),
    mode=st.sampled_from(("sum", "mean", "max")),
    shape=st.sampled_from(((3, 4), (1, 1), (5, 1), (40, 9), (2, 0), (0, 3))),
    form=st.sampled_from(("rows", "offsets", "weights", "both")),
    kind=st.sampled_from((torch.int64, torch.int32)),
    seed=st.integers(0, 2**31),
)
def test_bags_are_those_of_torch(
    graph: Graph, mode: str, shape: tuple[int, int], form: str, kind: torch.dtype, seed: int
) -> None:
    graph = replace(graph, options=(*graph.options, ("mode", mode)))
    layer = oracle.compiled(graph, dtype=torch.float64)
    random = torch.Generator().manual_seed(seed)
    index = torch.randint(graph.vocab, shape, generator=random).to(kind)
    offsets = weights = None
    if form in ("offsets", "both"):
        index = index.reshape(-1)
        offsets = offsets_of(random, len(index), 5).to(kind)
    if form in ("weights", "both") and mode == "sum":
        weights = torch.randn(index.shape, generator=random, dtype=torch.float64).requires_grad_()
    if shape[1] == 0 and offsets is None:  # torch cannot do bags of no tokens
        answer = layer(index, per_sample_weights=weights)
        assert torch.equal(answer, torch.zeros(shape[0], graph.out_features, dtype=torch.float64))
        return
    compare(layer, index, offsets, weights)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("count", [7, 3000])
def test_padding_is_in_no_bag(mode: str, count: int) -> None:
    """Neither in the sum nor in the count of the mean; a bag of padding alone is empty."""
    layer = layer_of(mode, skip=7)
    index = torch.randint(50, (count, 4))
    index[0], index[1, 1:] = 7, 7
    compare(layer, index)
    assert layer(index)[0].eq(0).all()
    assert torch.allclose(layer(index)[1], layer.dense()[index[1, 0]])
    compare(layer, index.reshape(-1), torch.tensor([0, 0, 4, 9, 9]))


def test_a_token_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_of("sum", skip=3)
    seen: list[int] = []
    run = Code.__call__

    def counted(self: Code, inputs: tuple[Tensor, ...], bias: Tensor | None, parts: tuple[Tensor, ...]) -> Tensor:
        seen.append(len(inputs[0]))
        return run(self, inputs, bias, parts)

    monkeypatch.setattr(Code, "__call__", counted)
    index = torch.randint(5, (100, 30))
    compare(layer, index)
    assert seen == [4]
    assert index.numel() > embedding.UNIQUE_FROM


def test_it_is_an_embedding_bag_by_its_names() -> None:
    layer = layer_of("mean", skip=-1)
    ours = nn.EmbeddingBag(50, 12, mode="mean", padding_idx=-1)
    for name in ("num_embeddings", "embedding_dim", "mode", "padding_idx"):
        assert getattr(layer, name) == getattr(ours, name)
    assert tnmars.compile(TABLE, mode="sum").mode == "sum"
    assert tnmars.compile(bagged(TABLE, "sum"), mode=None).graph == TABLE


def test_inputs_are_given_by_name_too() -> None:
    layer = layer_of("sum")
    index, offsets = torch.tensor([1, 2, 4, 5, 4]), torch.tensor([0, 2])
    weights = torch.rand(5, dtype=torch.float64)
    assert torch.equal(layer(index, offsets=offsets, per_sample_weights=weights), layer(index, offsets, weights))


# --- where shapes may not depend on values ---------------------------------------------------------------------------


every_bag = pytest.mark.parametrize(
    ("mode", "skip"), [("sum", None), ("sum", 7), ("mean", None), ("mean", 7)], ids=["sum", "sum-7", "mean", "mean-7"]
)


@every_bag
def test_bags_are_compiled(mode: str, skip: int | None) -> None:
    torch._dynamo.reset()
    layer = layer_of(mode, skip)
    fast = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for shape in ((3, 4), (5, 6)):
        index = torch.randint(5, 9, shape)
        assert oracle.error(fast(index), truth(layer, index)) <= EXACT
    index, offsets = torch.randint(5, 9, (9,)), torch.tensor([0, 0, 2, 5, 9])
    assert oracle.error(fast(index, offsets), truth(layer, index, offsets)) <= EXACT
    if mode == "sum":
        weights = torch.randn(9, dtype=torch.float64)
        assert oracle.error(fast(index, offsets, weights), truth(layer, index, offsets, weights)) <= EXACT


@every_bag
def test_bags_are_exported(mode: str, skip: int | None) -> None:
    layer = layer_of(mode, skip)
    program = export_program(layer, torch.randint(50, (3, 4))).module()
    index = torch.randint(5, 9, (6, 4))
    assert oracle.error(program(index), truth(layer, index)) <= EXACT


@every_bag
def test_bags_are_mapped_over(mode: str, skip: int | None) -> None:
    layer = layer_of(mode, skip)
    index = torch.randint(5, 9, (2, 3, 4))
    wanted = torch.stack([truth(layer, each) for each in index])
    assert oracle.error(vmap(layer)(index), wanted) <= EXACT
    many = {name: torch.stack([value, 2 * value]) for name, value in layer.named_parameters()}

    def run(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(layer, parameters, (index[0],))

    found = vmap(run)(many)
    assert oracle.error(found[0], wanted[0]) <= EXACT
    assert oracle.error(found[1], wanted[0] * 2 ** len(layer.graph.cores)) <= EXACT


@pytest.mark.parametrize("form", ["compact", "fast"])
def test_frozen_bags(form: str) -> None:
    for mode in ("sum", "mean"):
        layer = layer_of(mode, skip=7)
        index = torch.randint(50, (90, 4))
        assert oracle.error(tnmars.freeze(layer, form)(index), truth(layer, index)) <= EXACT
        with torch.no_grad(), tnmars.cached(layer):
            assert oracle.error(layer(index), truth(layer, index)) <= EXACT


def test_bags_on_the_meta_device() -> None:
    layer = tnmars.compile(bagged(TABLE, "mean", 7), device="meta")
    assert layer(torch.empty(3, 4, dtype=torch.int64, device="meta")).shape == (3, 12)


def test_bags_of_no_terms_are_zero() -> None:
    layer = tnmars.compile(bagged(TABLE, "mean").with_terms(()))
    assert torch.equal(layer(torch.randint(50, (3, 4))), torch.zeros(3, 12))


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_both_ways_to_pool_agree(mode: str) -> None:
    rows = torch.randn(9, 4, dtype=torch.float64)
    first = torch.tensor([0, 0, 3, 3, 8])
    weights = torch.randn(9, dtype=torch.float64) if mode == "sum" else None
    place = torch.arange(9)
    one, two = bags.pooled(rows, place, first, mode, weights), bags.spread(rows, place, first, mode, weights, None)
    assert oracle.error(one, two) <= 1e-14


# --- what it does not take -------------------------------------------------------------------------------------------


def numbers(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.parametrize(
    ("mode", "given", "said"),
    [
        ("sum", [numbers(1, 2)], "index has shape (2,), but must be (bags, tokens); for a flat index, give offsets"),
        ("sum", [numbers(1).reshape(1, 1, 1)], "index has shape (1, 1, 1), but must be (bags, tokens);"),
        ("sum", [numbers(1, 2).reshape(1, 2), numbers(0)], "one bag in each row, and takes no offsets;"),
        ("sum", [numbers(1, 2), numbers(0).reshape(1, 1)], "offsets have shape (1, 1) and dtype torch.int64, but"),
        ("sum", [numbers(1, 2), numbers(0).float()], "offsets have shape (1,) and dtype torch.float32, but must"),
        ("sum", [numbers(1, 2), numbers(1)], "offsets start with 1, but the first bag starts at 0."),
        ("sum", [numbers(1, 2), numbers(0, 3)], "offsets end with 3, but index has 2 tokens."),
        ("sum", [numbers(1, 2), numbers(0, 2, 1)], "offsets fall somewhere, but each bag starts where"),
        ("sum", [numbers(1, 2), numbers()], "offsets are empty, but index has 2 tokens;"),
        ("sum", [numbers(1, 50), numbers(0)], "index has row 50, but rows must be from 0 to 49."),
        ("sum", [numbers(1, 2).double(), numbers(0)], "index has dtype torch.float64, but must be int64 or int32."),
        ("mean", [numbers(1, 2), numbers(0), torch.ones(2)], "are for mode 'sum', but the layer has mode 'mean'."),
        ("sum", [numbers(1, 2), numbers(0), torch.ones(3)], "have shape (3,), but must have that of index, (2,)."),
        (
            "sum",
            [numbers(1, 2), numbers(0), torch.ones(2)],
            "per_sample_weights has dtype torch.float32, but the layer",
        ),
        ("", [numbers(1, 2), numbers(0)], "offsets and per_sample_weights are for bags; give the layer the option"),
    ],
)
def test_what_is_no_bag_is_refused(mode: str, given: list[Tensor], said: str) -> None:
    layer = layer_of(mode) if mode else tnmars.compile(TABLE, dtype=torch.float64)
    with pytest.raises(ShapeError) as caught:
        layer(*given)
    assert said in str(caught.value)


@pytest.mark.parametrize("mode", ["min", "Sum", 1, True, ["sum"]])
def test_a_mode_is_one_of_three(mode: object) -> None:
    with pytest.raises(GraphError) as caught:
        replace(TABLE, options=(("mode", mode),))
    assert f"option 'mode' is {mode!r}, but must be one of sum, mean, max." in str(caught.value)


def test_a_mode_is_written_and_read() -> None:
    for mode in ("sum", "mean"):
        text = tnmars.dump(bagged(TABLE, mode, 7))
        assert f"options: {{padding_idx: 7, mode: {mode}}}" in text
        assert tnmars.loads(text) == bagged(TABLE, mode, 7)
    assert bagged(TABLE, "sum") != TABLE
