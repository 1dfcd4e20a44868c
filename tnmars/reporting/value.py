"""The report as a value: two models side by side, layer by layer and bond by bond. It contains no markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tnmars.graph import Graph
from tnmars.graph.counts import Count
from tnmars.graph.difference import BondChange, finite
from tnmars.models.plan import CompressionPlan
from tnmars.models.rebuilt import INNER, place_of
from tnmars.program.explain import Explained
from tnmars.reporting.metrics import Metric

Rows = tuple[tuple[str, str], ...]
"""Names and what they are set to."""


@dataclass(frozen=True)
class Bond:
    """A bond before and after, where it is in the graph, and its gates before.

    Attributes:
        change: Its sizes; None after if it kept one slice, its cores were merged, or its term was removed.
        term: The name of its term.
        name: Its name in the term.
        ends: The cores that it joins.
        merged_into: The core that all its ends are part of now.
        probabilities: How probable it is that each gate is open; empty without gates.
        is_kept: Which slices the gates keep.
        is_in_shut_term: Whether a bond of its term keeps no slice, so that the gates remove the term.
    """

    change: BondChange
    term: str
    name: str
    ends: tuple[str, ...]
    merged_into: str = ""
    probabilities: tuple[float, ...] = ()
    is_kept: tuple[bool, ...] = ()
    is_in_shut_term: bool = False

    @property
    def shown(self) -> str:
        """The name among those of all terms before."""
        return self.change.name

    @property
    def before(self) -> int | None:
        return self.change.before

    @property
    def after(self) -> int | None:
        return self.change.after

    @property
    def useful(self) -> int | None:
        return self.change.useful

    @property
    def kept(self) -> int | None:
        """How many slices the gates keep."""
        return self.change.live

    @property
    def key(self) -> str:
        """What identifies the bond in a page."""
        return f"{self.term}.{self.name}"

    @property
    def fate(self) -> str:
        """What became of it: `new`, `merged`, `gone`, `cut`, `whole` or `grown`."""
        if self.change.change == "removed" and self.merged_into:
            return "merged"
        return {"added": "new", "removed": "gone", "same": "whole"}.get(self.change.change, self.change.change)

    @property
    def beside(self) -> str:
        """How the rank after differs from what the gates keep: `fewer`, `more`, `gone`, or not at all.

        A bond of which one slice is kept leaves the graph, and so does one of a term that the gates cut; within a
        merged core slices are not counted.
        """
        if self.kept is None or self.fate == "merged":
            return ""
        if self.after is None:
            return "" if self.kept == 1 or self.is_in_shut_term else "gone"
        return "" if self.after == self.kept else "fewer" if self.after < self.kept else "more"


@dataclass(frozen=True)
class Side:
    """A layer at one time."""

    graph: Graph
    count: Count
    bytes: int
    """Of its cores and its bias."""
    explained: Explained | None
    """How it is contracted; None if no term is left."""
    seconds: float | None
    """Time of a pass without gradients; None if it was not measured."""

    @property
    def macs(self) -> int:
        return self.explained.macs if self.explained else 0


@dataclass(frozen=True)
class Layer:
    """A compiled layer of both models."""

    name: str
    before: Side
    after: Side
    dense_bytes: int
    dense_macs: int | None
    dense_seconds: float | None
    bonds: tuple[Bond, ...]
    threshold: float | None
    """The probability above which a slice is kept; `None` without gates, or if no single number decides."""
    is_warm: bool
    """Whether the gates were still in warm-up, which keeps all slices."""
    batch: int
    image: tuple[int, ...]
    """The sides of the image, for a convolution."""
    settings: Rows
    spec: str
    """The graph after, as a spec file."""

    @property
    def title(self) -> str:
        """What the layer is called."""
        return _title(_short(self.name)) or self.before.graph.name or "layer"


@dataclass(frozen=True)
class Report:
    """What `tnmars.report` returns and a page shows."""

    title: str
    layers: tuple[Layer, ...]
    before: Count
    """The numbers of the whole model."""
    after: Count
    threads: int
    is_measured: bool
    history: tuple[Mapping[str, Any], ...]
    versions: Rows
    notes: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = ()
    """What the model is for, before and after."""
    plan: CompressionPlan | None = None
    """How the model was compressed, if it was."""

    @property
    def prefix(self) -> str:
        """What the names of all layers begin with, up to a dot; empty for a single layer."""
        return _prefix([_short(layer.name) for layer in self.layers])

    @property
    def titles(self) -> tuple[str, ...]:
        """What each layer is called in a page, without the common prefix."""
        left = len(self.prefix)
        return tuple(_title(_short(layer.name)[left:]) or layer.title for layer in self.layers)

    def as_json(self) -> dict[str, Any]:
        """The figures as plain data."""
        return {
            "metrics": {metric.name: {"before": metric.before, "after": metric.after} for metric in self.metrics},
            "parameters": {"before": _held(self.before), "after": _held(self.after)},
            "compression": {"before": _ratios(self.before), "after": _ratios(self.after)},
            "threads": self.threads,
            "layers": [_layer_data(layer) for layer in self.layers],
            "versions": dict(self.versions),
            "notes": list(self.notes),
            **({} if self.plan is None else {"plan": self.plan.as_json()}),
        }


def _title(name: str) -> str:
    """A layer's name; layers of `nn.Sequential` have numbers for names."""
    return f"layer {name}" if name.isdigit() else name


def _short(name: str) -> str:
    """A layer's name; for a parameter that is rebuilt, the name of the parameter.

    >>> _short("fc1"), _short("lstm.parametrizations.weight_hh_l0.0.layer")
    ('fc1', 'lstm.weight_hh_l0')
    """
    if f".{INNER}." in f".{name}":
        return ".".join(part for part in place_of(name) if part)
    return name


def _prefix(names: Sequence[str]) -> str:
    """What several names begin with, up to the last dot that they share.

    >>> _prefix(["encoder.layers.0.fc1", "encoder.layers.1.fc1"]), _prefix(["a.b"]), _prefix(["a", "b"])
    ('encoder.layers.', '', '')
    """
    if len(names) < 2:
        return ""
    parts = [name.split(".")[:-1] for name in names]
    shared = []
    for column in zip(*parts, strict=False):
        if len(set(column)) > 1:
            break
        shared.append(column[0])
    return "".join(f"{part}." for part in shared)


def _layer_data(layer: Layer) -> dict[str, Any]:
    bonds = {bond.shown: {"before": bond.before, "kept": bond.kept, "after": bond.after} for bond in layer.bonds}
    return {
        "name": layer.name,
        "batch": layer.batch,
        "bonds": bonds,
        "before": _side_data(layer.before),
        "after": _side_data(layer.after),
        "dense": {
            "parameters": layer.after.count.dense,
            "bytes": layer.dense_bytes,
            "macs": layer.dense_macs,
            "seconds": layer.dense_seconds,
        },
    }


def _side_data(side: Side) -> dict[str, Any]:
    return {"parameters": side.count.cores, "bytes": side.bytes, "macs": side.macs, "seconds": side.seconds}


def _held(count: Count) -> int:
    return count.cores + count.other


def _ratios(count: Count) -> dict[str, float | None]:
    found = {"weights": count.compression, "whole": count.compression_with_other}
    return {name: finite(value) for name, value in found.items()}
