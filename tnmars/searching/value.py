"""The result of a search: its trials, and the best of them. It prints as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from tnmars.errors import plural
from tnmars.graph import Graph
from tnmars.graph.counts import Count, total
from tnmars.text.numbers import brief, dashed, times
from tnmars.text.tables import aligned

ROWS = 20
"""How many trials are printed."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A candidate of `tnmars.search_ranks`, and its score.

    Attributes:
        number: The number of the trial, from 0.
        graph: The graph with these ranks, or the graphs by name if several were given. Bonds of size 1 are in it.
        ranks: The size of each bond by name. With several graphs, a table for each.
        cost: What it costs, in the unit of the budget.
        score: What `score` returned.
        seconds: How long `score` took.

    Example:
        >>> import tnmars
        >>> graph = tnmars.families.tt("tensor", free=(4, 5, 6), rank=4)
        >>> search = tnmars.search_ranks(graph, lambda graph, ranks: ranks["r2"], budget="2x")
        >>> search.best.ranks, search.best.score, search.best.parameters
        ({'r1': 1, 'r2': 4}, 4.0, 48)
    """

    number: int
    graph: Graph | Mapping[str, Graph] = field(repr=False)
    ranks: Mapping[str, Any]
    cost: float
    score: float
    seconds: float

    @property
    def is_failed(self) -> bool:
        """Whether the score is not a finite number. Such a trial is never the best."""
        return not isfinite(self.score)

    @property
    def count(self) -> Count:
        """The parameters of the weights, and of those that they stand for."""
        return total([self.graph] if isinstance(self.graph, Graph) else self.graph.values())

    @property
    def parameters(self) -> int:
        """The parameters of the cores, without biases."""
        return self.count.cores

    @property
    def words(self) -> str:
        """The ranks in a row, those of each graph together.

        >>> Trial(0, {}, {"a": {"r1": 2, "r2": 3}, "b": {"r": 4}}, 5.0, 0.1, 0.0).words
        '2-3 4'
        """
        if isinstance(self.graph, Graph):
            return dashed(self.ranks.values())
        return " ".join(dashed(own.values()) for own in self.ranks.values())


@dataclass(frozen=True, eq=False)
class RankSearch:
    """What `tnmars.search_ranks` returns: all trials, in order. It prints as a table, the best first.

    Attributes:
        trials: The trials, in the order in which they were scored. At least one has a finite score.
        method: How candidates were drawn.
        budget: The budget, in words.
        unit: Its unit: parameters, bytes or macs.
        limit: The largest cost that it allows.
        is_exhausted: Whether the search ended early, because no other candidate was found within the budget.

    Example:
        >>> import tnmars
        >>> graph = tnmars.families.tt("tensor", free=(4, 5, 6), rank=4)
        >>> def score(graph, ranks):
        ...     return ranks["r2"] - ranks["r1"] ** 2
        >>> search = tnmars.search_ranks(graph, score, budget="2x")
        >>> print(search)
           trial  ranks  parameters  ratio  score
        *      2  1-4            48  2.50x      3
               1  2-3            56  2.14x     -1
               0  3-2            54  2.22x     -7
               3  4-1            42  2.86x    -15
        no other candidate was found within the budget of 2x parameters
    """

    trials: tuple[Trial, ...]
    method: str
    budget: str
    unit: str
    limit: float
    is_exhausted: bool

    @property
    def best(self) -> Trial:
        """The trial with the largest score, the first of several."""
        return best_of(self.trials)

    def __str__(self) -> str:
        order = sorted(self.trials, key=lambda trial: (trial.is_failed, -trial.score if not trial.is_failed else 0.0))
        has_macs = self.unit == "macs"
        head = ("", "trial", "ranks", "parameters", "ratio", *(["MACs"] * has_macs), "score")
        rows = [head, *(self._row(trial, has_macs) for trial in order[:ROWS])]
        return "\n".join([*aligned(rows, "<><>"), *self._notes(order[ROWS:])])

    def _row(self, trial: Trial, has_macs: bool) -> tuple[str, ...]:
        return (
            "*" if trial is self.best else "",
            str(trial.number),
            trial.words,
            f"{trial.parameters:,}",
            times(trial.count.compression),
            *([brief(round(trial.cost))] * has_macs),
            "failed" if trial.is_failed else f"{trial.score:.5g}",
        )

    def _notes(self, left_out: Sequence[Trial]) -> list[str]:
        notes = []
        if left_out:
            failed = sum(trial.is_failed for trial in left_out)
            notes.append(f"and {plural(len(left_out), 'more trial')}" + (f", {failed:,} of them failed" * (failed > 0)))
        if self.is_exhausted:
            notes.append(f"no other candidate was found within the budget of {self.budget}")
        return notes


def best_of(trials: Sequence[Trial]) -> Trial:
    """The trial with the largest finite score, the first of several. Raises `ValueError` if there is none."""
    return max((trial for trial in trials if not trial.is_failed), key=lambda trial: trial.score)
