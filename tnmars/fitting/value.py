"""The result of a fit as a value: the pruned layer, its error and size, and the way there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tnmars.files import write_text
from tnmars.graph import Graph
from tnmars.layer.module import TNModule
from tnmars.spec import save_spec
from tnmars.store.model import save

LINES = 8
"""How many points of a curve are printed."""


class FitWarning(UserWarning):
    """Something about the data, or about what was found, that makes ranks or values doubtful."""


@dataclass(frozen=True)
class Point:
    """A network on the way: its parameters, ranks, relative error and description length."""

    parameters: int
    ranks: Mapping[str, int]
    error: float
    bic: float

    def as_json(self) -> dict[str, Any]:
        return {"parameters": self.parameters, "ranks": dict(self.ranks), "error": self.error, "bic": self.bic}


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted and pruned layer. Errors are root mean squares, relative to that of the fitted entries."""

    layer: TNModule
    before: Graph
    ranks: Mapping[str, int]
    """The size of each bond of the graph before, after the fit; 1 where it was dropped, 0 where its term was."""
    error: float
    """At the entries that were fitted."""
    unseen: float | None
    """At entries that are known, but were left out of the fit; none where there are none."""
    entries: int
    """How many entries were fitted."""
    trace: Sequence[Point]
    """The networks on the way, in the order in which they were found."""
    selector: Mapping[str, Any]
    seconds: float
    gated: TNModule | None = None
    """The layer with its trained gates, of data scaled to unit variance, where a selector was given."""
    doubts: Sequence[str] = ()
    """What makes ranks or values doubtful, in sentences; `fit` warns of each."""

    @property
    def graph(self) -> Graph:
        """The pruned graph."""
        return self.layer.graph

    @property
    def parameters(self) -> int:
        return sum(map(prod, self.graph.cores.values()))

    def curve(self) -> list[Point]:
        """Error against size: for rising numbers of parameters the networks with less error than all smaller ones."""
        found: list[Point] = []
        for point in sorted(self.trace, key=lambda point: (point.parameters, point.error)):
            if not found or point.error < found[-1].error:
                found.append(point)
        return found

    def curve_text(self) -> str:
        """The curve as a few lines: its ends, the network that was kept, and points between, evenly."""
        curve = self.curve()
        kept = next((at for at, point in enumerate(curve) if point is self.trace[-1]), None)
        last = len(curve) - 1
        shown = {round(at * last / (LINES - 2)) for at in range(LINES - 1)} if last >= LINES else set(range(last + 1))
        shown |= {kept} if kept is not None else set()
        rows = [("parameters", "ranks", "relative error")]
        for at in sorted(shown):
            mark = "  (kept)" if at == kept else ""
            ranks = "-".join(map(str, curve[at].ranks.values()))
            rows.append((f"{curve[at].parameters:,}", ranks, f"{curve[at].error:.3g}{mark}"))
        wide = max(len(ranks) for _, ranks, _ in rows)
        return "\n".join(f"{size:>12}  {ranks:<{wide}}  {error}" for size, ranks, error in rows)

    def as_json(self) -> dict[str, Any]:
        """Everything but the weights, as plain data."""
        sizes = {name: bond.size for name, bond in self.before.bonds.items()}
        return {
            "graph": self.before.name,
            "ranks": {name: {"before": size, "after": self.ranks[name]} for name, size in sizes.items()},
            "parameters": {
                "before": sum(map(prod, self.before.cores.values())),
                "after": self.parameters,
                "dense": prod(self.before.dense_shape),
            },
            "error": {"fitted": self.error, "unseen": self.unseen},
            "entries": self.entries,
            "selector": dict(self.selector),
            "seconds": self.seconds,
            "warnings": list(self.doubts),
            "curve": [point.as_json() for point in self.curve()],
        }

    def save(self, stem: str | Path) -> tuple[Path, Path, Path]:
        """Writes `stem.yaml` (the pruned spec), `stem.safetensors` (the layer) and `stem.json` (the summary)."""
        spec, weights, summary = (Path(f"{stem}{ending}") for ending in (".yaml", ".safetensors", ".json"))
        save_spec(self.graph, spec)
        save(self.layer, weights)
        write_text(summary, json.dumps(self.as_json(), indent=1) + "\n")
        return spec, weights, summary

    def __str__(self) -> str:
        rows = [f"bond {name}: {bond.size} -> {self.ranks[name]}" for name, bond in self.before.bonds.items()]
        before, dense = sum(map(prod, self.before.cores.values())), prod(self.before.dense_shape)
        rows.append(f"parameters: {before:,} -> {self.parameters:,} (dense {dense:,})")
        rows.append(f"relative error: {self.error:.4g} at {self.entries:,} fitted entries")
        if self.unseen is not None:
            rows.append(f"relative error: {self.unseen:.4g} at entries that were not fitted")
        return "\n".join(rows)
