"""A model at a glance: of each compiled layer and bond the rank before, the largest of use, now and under the gates.

The result is a value that prints as a table; nothing of the model is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import torch
from torch import nn

from tnmars.graph import Graph
from tnmars.graph.counts import Count, count
from tnmars.graph.lint import has_bounds, useful_size
from tnmars.layer.distributed import whole
from tnmars.layer.module import TNModule, layers
from tnmars.program.expected import evaluate, parameter_terms, pruned_macs


@dataclass(frozen=True)
class BondSummary:
    """A bond: its size at first, the largest of use in this graph, the size now, and what the gates keep of it."""

    name: str
    before: int
    useful: int | None
    size: int | None
    """None where the bond is gone: it kept one slice, or its cores were merged, or its term has gone."""
    live: int | None


@dataclass(frozen=True)
class LayerSummary:
    """A compiled layer. `live` counts what would be left if it were pruned now, before cores are merged."""

    name: str
    kind: str
    signature: str
    gated: bool
    bonds: tuple[BondSummary, ...]
    parameters: int
    live_parameters: int
    dense_parameters: int
    batch: int
    macs: int
    """Multiply-adds for the nominal batch, without gradients."""
    live_macs: int


@dataclass(frozen=True)
class Summary:
    """What `summary` returns."""

    layers: tuple[LayerSummary, ...]
    other: int
    """Parameters that are no cores: biases, and layers that are not compiled. Logits of gates count nowhere."""

    @property
    def count(self) -> Count:
        """The numbers of the model as it is."""
        cores = sum(layer.parameters for layer in self.layers)
        return Count(cores, sum(layer.dense_parameters for layer in self.layers), self.other)

    @property
    def live_count(self) -> Count:
        """The numbers of the model if it were pruned now."""
        return Count(sum(layer.live_parameters for layer in self.layers), self.count.dense, self.other)

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "layers": [asdict(layer) for layer in self.layers],
            "parameters": self.count.cores + self.other,
            "live_parameters": self.live_count.cores + self.other,
            "other": self.other,
            "compression": _finite(self.count.compression_with_other),
            "live_compression": _finite(self.live_count.compression_with_other),
        }

    def __str__(self) -> str:
        if not self.layers:
            return f"no compiled layer; {self.other:,} parameters"
        blocks = [_block(layer) for layer in self.layers]
        total = self.count.cores + self.other
        text = f"model: {total:,} parameters, {self.other:,} of them not in cores; {_ratio(self.count)}"
        if any(layer.gated for layer in self.layers):
            left = self.live_count.cores + self.other
            text += f"; under the gates {left:,}, {_ratio(self.live_count)}"
        return "\n".join([*blocks, text])


def summary(model: nn.Module) -> Summary:
    """For each compiled layer of a model its bonds, parameters and multiply-adds; `print` shows a table."""
    found = tuple(_layer(name, layer) for name, layer in layers(model))
    held = {id(value) for _, layer in layers(model) for value in (*layer.cores.parameters(), *layer.logits())}
    return Summary(found, sum(value.numel() for value in model.parameters() if id(value) not in held))


def _layer(name: str, layer: TNModule) -> LayerSummary:
    graph = layer.graph
    sizes = {bond: edge.size for bond, edge in graph.bonds.items()}
    live = {**sizes, **_live(layer)}
    macs = layer.mac_terms()
    left = [term.name for term in graph.terms if all(live[graph.qualified(term, bond.name)] for bond in term.bonds)]
    numbers = count(graph)
    return LayerSummary(
        name,
        graph.kind,
        graph.signature,
        layer.masks is not None,
        tuple(_bonds(graph, sizes, live if layer.masks is not None else {})),
        numbers.cores,
        int(
            evaluate(
                parameter_terms(graph.with_terms([t for t in graph.terms if t.name in left])), _named(graph, live, left)
            )
        ),
        numbers.dense,
        layer.nominal,
        int(evaluate(macs, sizes)),
        pruned_macs(layer.planner, live) if layer.masks is not None else int(evaluate(macs, sizes)),
    )


def _named(graph: Graph, sizes: Mapping[str, int], left: Sequence[str]) -> dict[str, int]:
    """Sizes by the names that bonds have in the graph with only some of its terms."""
    fewer = graph.with_terms([term for term in graph.terms if term.name in left])
    return {
        fewer.qualified(term, bond.name): sizes[graph.qualified(term, bond.name)]
        for term in fewer.terms
        for bond in term.bonds
    }


def _live(layer: TNModule) -> dict[str, int]:
    """How many slices of each bond the gates keep; on this rank, so that one may ask alone."""
    if layer.masks is None:
        return {}
    with torch.no_grad():
        kept = layer.masks.keep([whole(logits) for logits in layer.logits()])
    return {name: int(found.sum()) for name, found in zip(layer.graph.bonds, kept, strict=True)}


def _bonds(graph: Graph, sizes: Mapping[str, int], live: Mapping[str, int]) -> list[BondSummary]:
    """The bonds at first, those that are gone included, in that order; then any others."""
    first = _first_sizes(graph)
    bounds = _bounds(graph)
    renamed = {_long(name, graph): name for name in sizes}
    found = []
    for name, before in first.items():
        now = name if name in sizes else renamed.get(name, "")
        found.append(BondSummary(name, before, bounds.get(now), sizes.get(now), live.get(now)))
    seen = {name if name in sizes else renamed.get(name, "") for name in first}
    found += [
        BondSummary(name, size, bounds.get(name), size, live.get(name))
        for name, size in sizes.items()
        if name not in seen
    ]
    return found


def _long(name: str, graph: Graph) -> str:
    """The name of a bond where there were more terms: a graph with one term left calls `t1.r` just `r`."""
    return f"{graph.terms[0].name}.{name}" if len(graph.terms) == 1 else name


def _first_sizes(graph: Graph) -> dict[str, int]:
    """The sizes before the first cut, from the graph's origin."""
    origin = graph.origin or {}
    sizes = origin.get("first", origin.get("sizes"))
    if not isinstance(sizes, Mapping):
        return {}
    return {str(name): size for name, size in sizes.items() if isinstance(size, int)}


def _bounds(graph: Graph) -> dict[str, int]:
    if not has_bounds(graph):
        return {}
    return {
        graph.qualified(term, bond.name): useful_size(graph, term, bond.name)
        for term in graph.terms
        for bond in term.bonds
    }


def _block(layer: LayerSummary) -> str:
    head = (
        f"{layer.name or 'layer'}: {layer.kind} {layer.signature}; {_change(layer.parameters, layer.live_parameters)} "
    )
    head += f"parameters ({layer.dense_parameters:,} dense), {_change(layer.macs, layer.live_macs)} MACs "
    head += f"for batch {layer.batch}"
    rows = [("bond", "before", "useful", "now", *(["live"] if layer.gated else []))]
    for bond in layer.bonds:
        cells = (bond.before, bond.useful, bond.size, *([bond.live] if layer.gated else []))
        rows.append((bond.name, *("-" if cell is None else f"{cell:,}" for cell in cells)))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join([head, *(f"  {line}" for line in lines if layer.bonds)])


def _change(before: int, after: int) -> str:
    return f"{before:,}" if before == after else f"{before:,} -> {after:,}"


def _ratio(numbers: Count) -> str:
    ratio = numbers.compression_with_other
    return f"compression {ratio:,.2f}" if isfinite(ratio) else "nothing is left"


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
