"""A plan to compress a model, as a value: what becomes of each weight, what that costs, and what it should lose.

It prints as a table, and holds the cores that `compress_` puts into the model. Nothing here computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tnmars.graph import Graph
from tnmars.models.costs import Cost
from tnmars.models.sites import Site
from tnmars.text.numbers import brief, change, dashed
from tnmars.text.tables import aligned

NOTHING = Cost(0, 0, 0.0)


@dataclass(frozen=True, eq=False)
class WeightPlan:
    """What becomes of one weight.

    Attributes:
        name: The name of the layer or of the weight.
        family: What the rule calls its decomposition; empty if it stays dense.
        graph: The graph with its ranks; None if it stays dense.
        before: What it costs now.
        after: What it will cost.
        loss: The expected squared change of the model's outputs that it causes, relative to their squared norm.
        reason: Why it stays dense; empty otherwise.
        cores: The cores by name, in float64.
        sites: Where the weight is used.
        batch: The rows of an input that its plans are made for.
        image: The side of an image that its plans are made for.
        rule: The pattern that it matched.
        fingerprint: Of the dense weight, which must be the same when the plan is carried out.
    """

    name: str
    family: str = ""
    graph: Graph | None = None
    before: Cost = NOTHING
    after: Cost = NOTHING
    loss: float = 0.0
    reason: str = ""
    cores: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    sites: Sequence[Site] = field(default=(), repr=False)
    batch: int = 128
    image: int = 32
    rule: str = ""
    fingerprint: str = field(default="", repr=False)

    @property
    def ranks(self) -> dict[str, int]:
        """The ranks by bond; none if it stays dense."""
        return {} if self.graph is None else {name: bond.size for name, bond in self.graph.bonds.items()}

    def as_json(self) -> dict[str, Any]:
        """The same without the cores, as plain data."""
        return {
            "name": self.name,
            "family": self.family,
            "ranks": self.ranks,
            "before": vars(self.before),
            "after": vars(self.after),
            "loss": self.loss,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Change:
    """A cost of the whole model before and after."""

    before: float
    after: float

    @property
    def ratio(self) -> float:
        return self.before / self.after if self.after else float("inf")


@dataclass(frozen=True, eq=False)
class CompressionPlan:
    """What `plan_compression` returns, for `compress_`. `print` shows a table.

    Attributes:
        weights: What becomes of each weight, in the order of the model.
        budget: The budget, as text.
        parameters: The parameters of the whole model before and after.
        macs: Its multiply-adds for one batch of the data.
        ms: The milliseconds of its decomposed layers for that batch, frozen, as predicted.
        expected: The sum of the losses: the expected squared change of the outputs, relative to their squared norm.
        measured: The same, measured on data that were held out.
        statistics: Running statistics of normalization layers that `compress_` sets, by buffer; empty where the old
            ones are better.
        rules: The rules, as text.
        score: What `evaluate` returned for the compressed model, if it was given.

    Example:
        >>> import torch, tnmars
        >>> first, second = torch.nn.Linear(64, 96), torch.nn.Linear(96, 10)
        >>> model = torch.nn.Sequential(first, torch.nn.ReLU(), second)
        >>> plan = tnmars.plan_compression(model, budget="2x", data=torch.randn(1024, 64))
        >>> [entry.name for entry in plan.weights], plan.budget
        (['0', '2'], '2x parameters')
    """

    weights: tuple[WeightPlan, ...]
    budget: str
    parameters: Change
    macs: Change
    ms: Change
    expected: float
    measured: float | None = None
    statistics: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    rules: Mapping[str, str] = field(default_factory=dict)
    score: float | None = None

    @property
    def chosen(self) -> tuple[WeightPlan, ...]:
        """The weights that are decomposed."""
        return tuple(entry for entry in self.weights if entry.graph is not None)

    def as_json(self) -> dict[str, Any]:
        """The same without the cores, as plain data."""
        return {
            "weights": [entry.as_json() for entry in self.weights],
            "budget": self.budget,
            "rules": dict(self.rules),
            **{name: vars(getattr(self, name)) for name in ("parameters", "macs", "ms")},
            "expected": self.expected,
            "measured": self.measured,
            "statistics": sorted(self.statistics),
        }

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("layer", "family", "ranks", "parameters", "MACs", "ms", "loss")]
        for entry in self.weights:
            rows.append(_row(entry))
        lines = aligned(rows, "<<<>>>>")
        lines.append(
            f"budget {self.budget}: {_whole(self.parameters)} parameters ({self.parameters.ratio:.2f}x smaller), "
            f"{_whole(self.macs)} MACs ({change(self.macs.before, self.macs.after, 'fewer', 'more')})"
        )
        text = f"change of the outputs: {self.expected:.1%} expected"
        text += "" if self.measured is None else f", {self.measured:.1%} measured on data that were held out"
        lines.append(f"{text} (squared, relative)")
        if self.statistics:
            lines.append("normalization statistics are re-estimated: that brings the outputs closer")
        return "\n".join(lines)


def _row(entry: WeightPlan) -> tuple[str, ...]:
    if entry.graph is None:
        size = f"{entry.before.parameters:,}" if entry.before.parameters else ""
        return (entry.name, "dense", entry.reason, size, "", "", "")
    return (
        entry.name,
        entry.family,
        dashed(entry.ranks.values()),
        f"{entry.before.parameters:,} -> {entry.after.parameters:,}",
        f"{brief(entry.before.macs)} -> {brief(entry.after.macs)}"
        if entry.before.macs != entry.after.macs
        else "unchanged",
        f"{entry.before.ms:.3g} -> {entry.after.ms:.3g}" if entry.before.ms else "unchanged",
        f"{entry.loss:.2%}",
    )


def _whole(cost: Change) -> str:
    return f"{round(cost.before):,} -> {round(cost.after):,}"
