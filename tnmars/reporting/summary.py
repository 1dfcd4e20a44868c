"""A model at a glance: for each compiled layer and bond the rank before, the largest useful one, now and if pruned.

The result is a value that prints as a table. The model is not changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

from torch import nn

from tnmars.arguments import check_arguments
from tnmars.graph import Graph
from tnmars.graph.counts import Count, count
from tnmars.graph.difference import BondChange, finite, first_sizes
from tnmars.graph.lint import has_bounds, useful_size
from tnmars.layer.kept import can_decide, is_selecting, kept_slices
from tnmars.layer.module import TNModule, layers
from tnmars.layer.predicted import predicted
from tnmars.program.backward import kept_bytes
from tnmars.program.expected import evaluate, pruned_macs
from tnmars.text.numbers import byte_count, number
from tnmars.text.tables import aligned
from tnmars.timing.tuning import measured_ratios


@dataclass(frozen=True)
class LayerSummary:
    """A compiled layer.

    Attributes:
        name: Its name in the model.
        kind: Its kind: `linear`, `conv`, ...
        signature: Its inputs and outputs.
        gated: Whether its selector decides what to keep, by gates or by norms.
        bonds: Its bonds, those that pruning removed included. Of each, `before`, `size` (now), `live` (what the
            selector keeps; None if cores are NaN and their norms decide) and `useful` (the maximum useful rank).
        parameters: The parameters of its cores. A complex number is one parameter, as in torch's `numel`.
        live_parameters: What would be left of them if the layer were pruned now, before cores are merged.
        shared: How many of its parameters an earlier layer holds too; the model counts these once.
        live_shared: What would be left of those.
        dense_parameters: The parameters of the dense weight.
        batch: The nominal batch, which multiply-adds are for.
        macs: Multiply-adds without gradients. One of complex numbers is one, although it takes four real ones.
        live_macs: The same if the layer were pruned now.
        time_ratio: The time of inference at the nominal batch relative to torch's own layer, measured if the layer is
            tuned, else estimated; None if torch has no such layer.
        train_time_ratio: The same for a training step in which the input gets no gradient.
        is_planned: Whether such a step has a planned backward pass (`compile(..., tune=True)`), rather than autograd's.
        kept_bytes: The bytes of the buffers that it keeps between steps. Equal layers share them.
        is_rebuilt: Whether the layer is a parameter of another module (`tnmars.parametrize_`). Multiply-adds are then
            those that rebuild it, once a call, whatever the batch.
    """

    name: str
    kind: str
    signature: str
    gated: bool
    bonds: tuple[BondChange, ...]
    parameters: int
    live_parameters: int
    shared: int
    live_shared: int
    dense_parameters: int
    batch: int
    macs: int
    live_macs: int
    time_ratio: float | None = None
    train_time_ratio: float | None = None
    is_planned: bool = False
    kept_bytes: int = 0
    is_rebuilt: bool = False

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        bonds = [
            {"name": bond.name, "before": bond.before, "useful": bond.useful, "size": bond.size, "live": bond.live}
            for bond in self.bonds
        ]
        return {**vars(self), "bonds": bonds}


@dataclass(frozen=True)
class Summary:
    """What `summary` returns.

    Attributes:
        layers: The compiled layers, in the order of the model.
        other: Parameters that are not in cores: biases, and layers that are not compiled. The logits of gates are not
            counted anywhere.
    """

    layers: tuple[LayerSummary, ...]
    other: int

    @property
    def count(self) -> Count:
        """The numbers of the model as it is. A parameter that several layers share counts once."""
        cores = sum(layer.parameters - layer.shared for layer in self.layers)
        return Count(cores, sum(layer.dense_parameters for layer in self.layers), self.other)

    @property
    def live_count(self) -> Count:
        """The numbers of the model if it were pruned now."""
        cores = sum(layer.live_parameters - layer.live_shared for layer in self.layers)
        return Count(cores, self.count.dense, self.other)

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "layers": [layer.as_json() for layer in self.layers],
            "parameters": self.count.cores + self.other,
            "live_parameters": self.live_count.cores + self.other,
            "other": self.other,
            "compression": finite(self.count.compression_with_other),
            "live_compression": finite(self.live_count.compression_with_other),
        }

    def __str__(self) -> str:
        if not self.layers:
            return f"no compiled layer; {self.other:,} parameters"
        blocks = [_block(layer) for layer in self.layers]
        total = self.count.cores + self.other
        text = f"model: {total:,} parameters, {self.other:,} of them not in cores; {_ratio(self.count)}"
        if any(bond.live is not None for layer in self.layers for bond in layer.bonds):
            left = self.live_count.cores + self.other
            text += f"; if pruned now {left:,}, {_ratio(self.live_count)}"
        return "\n".join([*blocks, text])


def summary(model: nn.Module) -> Summary:
    """For each compiled layer of a model its bonds, parameters and multiply-adds; `print` shows a table.

    Args:
        model: Any module. Layers that are not compiled only count as other parameters.

    Returns:
        A value with `layers`, `count` and `live_count`; `as_json()` gives it as plain data.

    Example:
        >>> import tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(8,), outputs=(6,), rank=2)
        >>> found = tnmars.summary(tnmars.compile(graph, batch=16))
        >>> found.layers[0].parameters, found.other
        (28, 6)
        >>> found.layers[0].bonds
        (BondChange(name='r', before=2, after=2, useful=6, live=None),)
    """
    check_arguments(summary, locals())
    held: set[int] = set()
    rows = []
    for name, layer in layers(model):
        rows.append(_layer(name, layer, held))
        held |= {id(value) for value in layer.cores.parameters()}
    held |= {id(value) for _, layer in layers(model) for value in layer.logits()}
    return Summary(tuple(rows), sum(value.numel() for value in model.parameters() if id(value) not in held))


def _layer(name: str, layer: TNModule, held: set[int]) -> LayerSummary:
    """The summary of a layer; `held` are the parameters of layers before it."""
    graph = layer.graph
    sizes = {bond: edge.size for bond, edge in graph.bonds.items()}
    decided = _live(layer)
    live = {**sizes, **decided}
    values = {core: layer.cores.get(core) for core in graph.cores}
    first = {id(value): core for core, value in reversed(values.items())}
    parameters = {core: value for core, value in values.items() if first[id(value)] == core}  # tied cores count once
    left = _sizes_left(graph, live)
    shared = {core for core, value in parameters.items() if id(value) in held}
    macs = int(evaluate(layer.mac_terms(), sizes))
    times = {mode: comparison.ratio for mode, comparison in predicted(layer).items()} | measured_ratios(layer)
    form = layer.plan("train", layer.nominal) if graph.terms else None
    step = form if form is not None and form.is_planned else None
    return LayerSummary(
        name=name,
        kind=graph.kind,
        signature=graph.signature,
        gated=is_selecting(layer),
        bonds=tuple(_bonds(graph, sizes, decided)),
        parameters=sum(value.numel() for value in parameters.values()),
        live_parameters=sum(left[core] for core in parameters),
        shared=sum(parameters[core].numel() for core in shared),
        live_shared=sum(left[core] for core in shared),
        dense_parameters=count(graph).dense,
        batch=layer.nominal,
        macs=macs,
        live_macs=pruned_macs(layer.planner, live, is_rebuilt=layer.is_rebuilt) if decided else macs,
        time_ratio=times.get("infer"),
        train_time_ratio=times.get("train"),
        is_planned=step is not None,
        kept_bytes=0 if step is None else kept_bytes(step, layer.dtype.itemsize),
        is_rebuilt=layer.is_rebuilt,
    )


def _sizes_left(graph: Graph, live: Mapping[str, int]) -> dict[str, int]:
    """How many entries of each core are left if bonds are cut to these sizes; 0 for a term with an empty bond."""
    left: dict[str, int] = dict.fromkeys(graph.cores, 0)
    for term in graph.terms:
        sizes = {bond.name: live[graph.bond_name(term, bond.name)] for bond in term.bonds}
        is_gone = not all(sizes.values())
        for core in term.cores:
            entries = prod(sizes.get(edge, graph.sizes(term)[edge]) for edge in core.edges)
            held = graph.nodes[graph.qualified(term, core.name)]  # a tied core is left if it is in one place
            left[held] = max(left[held], 0 if is_gone else entries)
    return left


def _live(layer: TNModule) -> dict[str, int]:
    """How many slices of each bond the selector keeps, computed on this rank alone; nothing if it cannot tell."""
    if not can_decide(layer):
        return {}
    return {name: int(kept.sum()) for name, kept in zip(layer.graph.bonds, kept_slices(layer), strict=True)}


def _bonds(graph: Graph, sizes: Mapping[str, int], live: Mapping[str, int]) -> list[BondChange]:
    """The bonds of the graph before the first cut, then any others."""
    first = first_sizes(graph)
    bounds = _bounds(graph)
    renamed = {_long(name, graph): name for name in sizes}
    found = []
    for name, before in first.items():
        now = name if name in sizes else renamed.get(name, "")
        found.append(BondChange(name, before, sizes.get(now), bounds.get(now), live.get(now)))
    seen = {name if name in sizes else renamed.get(name, "") for name in first}
    found += [
        BondChange(name, size, size, bounds.get(name), live.get(name))
        for name, size in sizes.items()
        if name not in seen
    ]
    return found


def _long(name: str, graph: Graph) -> str:
    """The name of a bond when there were more terms: a graph with one term left calls `t1.r` just `r`."""
    return f"{graph.terms[0].name}.{name}" if len(graph.terms) == 1 else name


def _bounds(graph: Graph) -> dict[str, int]:
    if not has_bounds(graph):
        return {}
    return {
        graph.bond_name(term, bond.name): useful_size(graph, term, bond.name)
        for term in graph.terms
        for bond in term.bonds
    }


def _block(layer: LayerSummary) -> str:
    head = (
        f"{layer.name or 'layer'}: {layer.kind} {layer.signature}; {_change(layer.parameters, layer.live_parameters)} "
    )
    head += f"parameters ({layer.dense_parameters:,} dense), {_change(layer.macs, layer.live_macs)} MACs "
    head += "to rebuild it" if layer.is_rebuilt else f"for batch {layer.batch}"
    if layer.time_ratio is not None and layer.train_time_ratio is not None:
        head += f"; time / dense {layer.time_ratio:.2f} for inference, {layer.train_time_ratio:.2f} in training"
    if layer.is_planned:
        kept = f" that keeps {byte_count(layer.kept_bytes)} of buffers" if layer.kept_bytes else ""
        head += f"; planned backward pass{kept}"
    head += f"; {layer.shared:,} parameters shared with a layer above" if layer.shared else ""
    rows = [("bond", "before", "useful", "now", *(["live"] if layer.gated else []))]
    for bond in layer.bonds:
        cells = (bond.before, bond.useful, bond.size, *([bond.live] if layer.gated else []))
        rows.append((bond.name, *(number(cell) for cell in cells)))
    return "\n".join([head, *(f"  {line}" for line in aligned(rows, "<>") if layer.bonds)])


def _change(before: int, after: int) -> str:
    return f"{before:,}" if before == after else f"{before:,} -> {after:,}"


def _ratio(numbers: Count) -> str:
    ratio = numbers.compression_with_other
    return f"compression {ratio:,.2f}" if isfinite(ratio) else "nothing is left"
