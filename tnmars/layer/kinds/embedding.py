"""Embedding tables, as `torch.nn.Embedding`; with a mode, bags of rows, as `torch.nn.EmbeddingBag`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tnmars.errors import ShapeError
from tnmars.graph import Graph
from tnmars.layer.kinds import bags, row_options
from tnmars.layer.kinds.base import Layer, LayerKind, check_dtype, check_index
from tnmars.layer.torch_state import is_traced

UNIQUE_FROM = 256
"""With at least this many tokens, repeated ones are looked up once."""
BAG = 8
"""The number of tokens in a bag of an example."""


def forward(
    layer: Layer, index: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
) -> Tensor:
    if "mode" in dict(layer.graph.options):
        return _bags(layer, index, offsets, per_sample_weights)
    if offsets is not None or per_sample_weights is not None:
        raise ShapeError("offsets and per_sample_weights are for bags; give the layer the option mode='sum' or 'mean'.")
    check_index(index, layer.graph.vocab, "row")
    flat = index.reshape(-1)
    rows, place = _rows(layer, flat, flat)
    rows = _at(rows, place)
    skip = _skipped(layer.graph)
    if skip is not None:
        rows = rows.masked_fill(flat.eq(skip).unsqueeze(-1), 0.0)
    return rows.reshape(*index.shape, layer.graph.out_features)


def _at(rows: Tensor, place: Tensor | None) -> Tensor:
    """The rows at some places, all of them for None; torch's lookup takes no complex ones."""
    if place is None:
        return rows
    return rows.index_select(0, place) if rows.is_complex() else functional.embedding(place, rows)


def _bags(layer: Layer, index: Tensor, offsets: Tensor | None, weights: Tensor | None) -> Tensor:
    mode = str(dict(layer.graph.options)["mode"])
    bags.check(index, offsets, weights, mode)
    if offsets is not None and dict(layer.graph.options).get("include_last_offset"):
        bags.check_last(offsets, index.shape[0])
        offsets = offsets[:-1]
    check_index(index, layer.graph.vocab, "row")
    if weights is not None:
        check_dtype(layer, weights, "per_sample_weights")
    flat, first = index.reshape(-1), bags.starts(index, offsets)
    flat_weights = None if weights is None else weights.reshape(-1)
    skip = _skipped(layer.graph)
    if is_traced(flat) or is_traced(first) or flat.device.type != "cpu":
        kept = None if skip is None else flat.ne(skip)
        return bags.spread(_taken(layer, flat, flat), index, first, mode, flat_weights, kept)
    if offsets is not None:
        bags.check_offsets(first, flat.shape[0])
    if skip is not None:
        flat, first, flat_weights = bags.without(skip, flat, first, flat_weights)
    rows, place = _rows(layer, flat, index.reshape(-1))
    if is_traced(rows) or (flat_weights is not None and is_traced(flat_weights)) or rows.is_complex():
        rows = _at(rows, place)
        return bags.spread(rows, flat, first, mode, flat_weights, None)
    place = torch.arange(flat.shape[0], device=flat.device) if place is None else place
    return bags.pooled(rows, place, first, mode, flat_weights)


def _rows(layer: Layer, tokens: Tensor, every: Tensor) -> tuple[Tensor, Tensor | None]:
    """Rows of the table, and the place of each token's row among them; none where each token has its row in turn.

    `every` are all tokens of the call, those of the padding row too.

    On an accelerator repeated tokens are looked up each: the host would have to wait for the number of different ones.
    """
    if is_traced(tokens) or layer.is_table or tokens.shape[0] < UNIQUE_FROM or tokens.device.type != "cpu":
        return _taken(layer, tokens, every), None
    different, place = torch.unique(tokens, return_inverse=True)
    return _taken(layer, different, every), place


def _taken(layer: Layer, tokens: Tensor, every: Tensor) -> Tensor:
    """Rows of the table, in the layer's own dtype also under autocast, as torch's tables give them."""
    rows = layer.compute(tokens.shape[0], tokens).to(layer.dtype)
    return row_options.weighed(layer.graph, row_options.limited(layer.graph, rows), tokens, every)


def _skipped(graph: Graph) -> int | None:
    """The row that stays zero, if there is one."""
    row = dict(graph.options).get("padding_idx")
    return row if isinstance(row, int) else None


def probe(graph: Graph, run: Callable[[Tensor], Tensor], device: torch.device, dtype: torch.dtype) -> Tensor:
    rows = run(torch.arange(graph.vocab, device=device))
    skip = _skipped(graph)
    return rows if skip is None else rows.index_fill(0, torch.tensor([skip], device=device), 0.0)


def dense(graph: Graph, weight: Tensor, bias: Tensor | None, index: Tensor) -> Tensor:
    return looked_up(graph, weight, index, _skipped(graph))


def looked_up(graph: Graph, table: Tensor, index: Tensor, skip: int | None) -> Tensor:
    """Rows of a table, or what torch makes of each bag of them; the row to skip is in no bag."""
    mode = dict(graph.options).get("mode")
    table = row_options.limited(graph, table)
    if mode is None:
        return table[index] if table.is_complex() else functional.embedding(index, table)
    if table.is_complex():  # torch sums no bags of complex rows
        kept = None if skip is None else index.reshape(-1).ne(skip)
        return bags.spread(table[index.reshape(-1)], index, bags.starts(index, None), str(mode), None, kept)
    return functional.embedding_bag(index, table, mode=str(mode), padding_idx=skip)


def zero(graph: Graph, weight: Tensor, bias: Tensor | None, inputs: tuple[Tensor, ...]) -> Tensor:
    return weight.new_zeros(inputs[0].shape[0], graph.out_features)


def examples(graph: Graph, batch: int, image: int, dtype: torch.dtype | None) -> tuple[Tensor, ...]:
    bag = (BAG,) if "mode" in dict(graph.options) else ()
    return (torch.randint(0, graph.vocab, (batch, *bag)),)


def sizes(graph: Graph) -> dict[str, Any]:
    own: dict[str, Any] = {"num_embeddings": graph.vocab, "embedding_dim": graph.out_features, "padding_idx": None}
    own |= {"max_norm": None, "norm_type": 2.0, "scale_grad_by_freq": False, "sparse": False}
    own |= {"include_last_offset": False} if "mode" in dict(graph.options) else {}
    return {**own, **dict(graph.options)}


def source(graph: Graph, cores: tuple[str, ...]) -> str:
    skip, options = _skipped(graph), dict(graph.options)
    limit, width = row_options.source(graph), graph.out_features
    if "mode" in options:
        kept = "torch.ones_like(flat, dtype=torch.bool)" if skip is None else f"flat.ne({skip})"
        last = "[:-1]" if options.get("include_last_offset") else ""
        head = _BAGS_SOURCE.format(rows=graph.vocab, kept=kept, last=last, limit=limit)
        mean = " / counts.clamp_min(1.0).unsqueeze(-1)" if options["mode"] == "mean" else ""
        return head + (_MAX_SOURCE if options["mode"] == "max" else _SUM_SOURCE).format(width=width, mean=mean)
    fill = "" if skip is None else f".masked_fill(flat.eq({skip}).unsqueeze(-1), 0.0)"
    return _SOURCE.format(rows=graph.vocab, limit=limit, fill=fill, width=width)


_SOURCE = """\
def forward(self, index):
    flat = index.reshape(-1)
    check(flat, {rows})
    rows = run(flat, *self.parts())
{limit}    return rows{fill}.reshape(*index.shape, {width})
"""

_BAGS_SOURCE = """\
def forward(self, index, offsets=None, per_sample_weights=None):  # index: (bags, tokens), or flat with offsets
    flat = index.reshape(-1)
    check(flat, {rows})
    first = offsets{last}.long() if index.dim() == 1 else torch.arange(len(index), device=index.device) * index.shape[1]
    bag = torch.searchsorted(first, torch.arange(len(flat), device=flat.device), right=True) - 1
    kept = {kept}
    rows = run(flat, *self.parts())
{limit}"""

_SUM_SOURCE = """\
    rows = rows.masked_fill(kept.logical_not().unsqueeze(-1), 0.0)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(-1, 1)
    counts = rows.real.new_zeros(len(first)).index_add(0, bag, kept.to(rows.real.dtype))
    return rows.new_zeros(len(first), {width}).index_add(0, bag, rows){mean}
"""

_MAX_SOURCE = """\
    rows = rows.masked_fill(kept.logical_not().unsqueeze(-1), -torch.inf)
    most = rows.new_full((len(first), {width}), -torch.inf)
    most = most.scatter_reduce(0, bag.unsqueeze(-1).expand_as(rows), rows, "amax")
    return most.masked_fill(most.eq(-torch.inf), 0.0)
"""

EMBEDDING = LayerKind(forward, examples, zero, source, dense, sizes, probe, is_indexed=True)
