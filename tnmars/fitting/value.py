"""The result of a fit as a value: the pruned layer, its error and size, the networks tried, and reasons for doubt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tnmars.arguments import check_arguments
from tnmars.decomposing.refine import Data
from tnmars.files import write_text, write_together
from tnmars.fitting.digests import digest, signed
from tnmars.fitting.elimination import Fit
from tnmars.fitting.room import parameters
from tnmars.graph import Graph
from tnmars.graph.difference import BondChange
from tnmars.layer.module import TNModule
from tnmars.spec import save_spec
from tnmars.store.model import save
from tnmars.text.numbers import dashed
from tnmars.text.tables import aligned

LINES = 8
"""How many points of a curve are printed."""


class FitWarning(UserWarning):
    """A warning of `fit` that ranks or values are doubtful.

    There are four reasons: the network has more than half as many parameters as there are entries; the spec had more
    parameters than the entries allow, and the network found fits worse than a wider one; the network explains little of
    the tensor, and the rest is not just noise; or some indices of a mode have no entry at all. The same sentences are
    in `Fitted.doubts`. Turn them into errors with
    `warnings.simplefilter("error", tnmars.FitWarning)`.

    Example:
        >>> import torch, warnings, tnmars
        >>> target = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
        >>> target[2] = torch.nan
        >>> graph = tnmars.families.lowrank("tensor", free=(6, 5), rank=1)
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     fitted = tnmars.fit(graph, target)
        >>> print(caught[0].message)  # doctest: +ELLIPSIS
        mode 'n1': 1 of its 6 indices have no entry to fit (2), so the layer's values...
    """


@dataclass(frozen=True)
class Point:
    """A network that the search tried: its parameters, ranks, relative error and description length."""

    parameters: int
    ranks: Mapping[str, int]
    error: float
    bic: float

    def as_json(self) -> dict[str, Any]:
        return {"parameters": self.parameters, "ranks": dict(self.ranks), "error": self.error, "bic": self.bic}


@dataclass(frozen=True, eq=False)
class Fitted:
    """What `fit` returns: a fitted and pruned layer, and how it was found. `print` shows ranks, size and error.

    An error is a root mean square, divided by that of the fitted entries: 0.01 means 1 % of the signal.

    Attributes:
        layer: The pruned layer, compiled, with the fitted cores; a bias is 0.
        before: The graph that was given.
        ranks: The size of each bond of `before` after the fit: 1 if the bond was dropped, 0 if its term was removed.
        error: The error at the fitted entries.
        unseen: The error at the known entries that were not fitted, or `None` if every known entry was.
        entries: How many entries were fitted.
        trace: The networks that the search tried, in order; the last one is the result.
        selector: The settings of the selector, as plain data.
        seconds: How long the fit took.
        gated: The layer with its trained gates, for data of unit variance, or `None` without a selector.
        doubts: Why ranks or values are doubtful, in sentences; `fit` issues each as a `FitWarning`.

    Example:
        >>> import torch, tnmars
        >>> target = torch.outer(torch.arange(1.0, 7.0), torch.arange(1.0, 9.0))
        >>> graph = tnmars.families.lowrank("tensor", free=(6, 8), rank=2)
        >>> fitted = tnmars.fit(graph, target)
        >>> fitted.ranks, fitted.parameters, fitted.error < 1e-6
        ({'r': 1}, 14, True)
    """

    layer: TNModule
    before: Graph
    ranks: Mapping[str, int]
    error: float
    unseen: float | None
    entries: int
    trace: Sequence[Point]
    selector: Mapping[str, Any]
    seconds: float
    gated: TNModule | None = None
    doubts: Sequence[str] = ()

    @property
    def graph(self) -> Graph:
        """The pruned graph."""
        return self.layer.graph

    @property
    def bonds(self) -> tuple[BondChange, ...]:
        """The bonds of the graph before, with their sizes before and after."""
        return tuple(BondChange(name, bond.size, self.ranks[name]) for name, bond in self.before.bonds.items())

    @property
    def parameters(self) -> int:
        """The number of parameters in the pruned cores."""
        return parameters(self.graph)

    def curve(self) -> list[Point]:
        """Error against size: of the networks tried, those with a smaller error than every smaller network."""
        curve: list[Point] = []
        for point in sorted(self.trace, key=lambda point: (point.parameters, point.error)):
            if not curve or point.error < curve[-1].error:
                curve.append(point)
        return curve

    def curve_text(self) -> str:
        """The curve as a few lines: its ends, the network that was kept, and evenly spaced points in between."""
        curve = self.curve()
        kept = next((at for at, point in enumerate(curve) if point is self.trace[-1]), None)
        last = len(curve) - 1
        shown = {round(at * last / (LINES - 2)) for at in range(LINES - 1)} if last >= LINES else set(range(last + 1))
        shown |= {kept} if kept is not None else set()
        rows = [("  parameters", "ranks", "relative error")]
        for at in sorted(shown):
            mark = "  (kept)" if at == kept else ""
            rows.append((f"{curve[at].parameters:,}", dashed(curve[at].ranks.values()), f"{curve[at].error:.3g}{mark}"))
        return "\n".join(aligned(rows, "><"))

    def as_json(self) -> dict[str, Any]:
        """Everything except the weights, as plain data."""
        return {
            "graph": self.before.name,
            "ranks": {bond.name: {"before": bond.before, "after": bond.after} for bond in self.bonds},
            "parameters": {
                "before": parameters(self.before),
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
        """Writes `stem.yaml` (the pruned spec), `stem.safetensors` (the layer) and `stem.json` (the summary).

        Args:
            stem: The path of the files without an ending. The folder must exist.

        Returns:
            The paths of the three files. All of them are written, or none. The summary holds the digests of all
            three, so that `tnmars fit` knows the files that it may replace.
        """
        check_arguments(Fitted.save, locals())
        spec, weights, summary = (Path(f"{stem}{ending}") for ending in (".yaml", ".safetensors", ".json"))
        digests: dict[str, str] = {}

        def save_layer(path: Path) -> None:
            save(self.layer, path)
            digests[".safetensors"] = digest(path.read_bytes())

        def save_graph(path: Path) -> None:
            save_spec(self.graph, path)
            digests[".yaml"] = digest(path.read_bytes())

        writers = {
            str(spec): save_graph,
            str(weights): save_layer,
            str(summary): lambda path: write_text(path, signed(self.as_json(), digests)),
        }
        write_together(writers)
        return spec, weights, summary

    def __str__(self) -> str:
        rows = [f"bond {bond.name}: {bond.before} -> {bond.after}" for bond in self.bonds]
        before, dense = parameters(self.before), prod(self.before.dense_shape)
        rows.append(f"parameters: {before:,} -> {self.parameters:,} (dense {dense:,})")
        rows.append(f"relative error: {self.error:.4g} at {self.entries:,} fitted entries")
        if self.unseen is not None:
            rows.append(f"relative error: {self.unseen:.4g} at entries that were not fitted")
        return "\n".join(rows)


def rank_doubts(graph: Graph, fit: Fit, near: float | None, data: Data) -> Iterator[str]:
    """Reasons to doubt the ranks of a fit: few entries for its parameters, or a wider start that fits better.

    `near` is the largest mean squared error that the data make likely, if the graph had to be limited.
    """
    entries, held = data.count, fit.decomposition.parameters
    if near is not None and fit.error > near:
        yield (
            f"the ranks are likely too small: the spec has {parameters(graph):,} parameters for {entries:,} entries, "
            f"too many to start with. The network found has a relative error of {fit.error**0.5:.2g}, while a wider "
            f"one suggests {near**0.5:.2g} or less. Give more entries, or a graph with fewer parameters."
        )
    if graph.bonds and 2 * held > entries:
        yield (
            f"the ranks are uncertain: the network found has {held:,} parameters for {entries:,} entries, more than "
            "half as many. With so few entries the criterion (BIC) can hardly tell ranks from noise."
        )
