"""Mergers of neighboring cores after a cut, which save both parameters and planned time."""

from __future__ import annotations

from collections.abc import Sequence

from tnmars.graph import Graph
from tnmars.graph.rewrite import Rewrite, merge_pairs, mergeable
from tnmars.plan.layout import Weighing
from tnmars.program.choice import Planner, choose

MOST_PLANS = 64
"""The maximum number of mergers that are planned when a layer is simplified."""
MOST_CORES = 4096
"""The number of cores of all these plans together: fewer mergers are planned in graphs with hundreds of cores."""
ONE_BY_ONE = 12
"""In graphs with more cores many pairs are merged at a time, because each pair of its own would need a plan."""


def mergers(graph: Graph, planner: Planner) -> list[Rewrite]:
    """Mergers of cores, one after the other, each of which saves parameters and planned time.

    In a small graph each merges two cores. In a large one it merges as many pairs as there are, and half of them after
    every failure: the time that it saves is that of all of its pairs together.
    """
    rewrites = list[Rewrite]()
    time = planned_time(graph, planner)
    pairs, tried, planned = mergeable(graph), 0, 0
    most = 1 if len(graph.cores) <= ONE_BY_ONE else len(graph.cores)
    while pairs and tried < MOST_PLANS and planned + len(graph.cores) <= MOST_CORES:
        chosen = _apart(pairs, most)
        rewrite = merge_pairs(graph, chosen)
        tried, planned = tried + 1, planned + len(rewrite.graph.cores)
        after = planned_time(rewrite.graph, planner)
        if after < time:
            rewrites.append(rewrite)
            graph, time, pairs = rewrite.graph, after, mergeable(rewrite.graph)
        elif len(chosen) == 1:
            pairs.pop(0)
        else:
            most = len(chosen) // 2
    return rewrites


def _apart(pairs: Sequence[tuple[str, str, str, int]], most: int) -> list[tuple[str, str, str]]:
    """The first pairs, such that no core is in two of them."""
    chosen, taken = list[tuple[str, str, str]](), set[tuple[str, str]]()
    for term, first, second, _ in pairs:
        both = {(term, first), (term, second)}
        if len(chosen) < most and not both & taken:
            chosen.append((term, first, second))
            taken |= both
    return chosen


def planned_time(graph: Graph, planner: Planner) -> float:
    """The predicted seconds of inference for the nominal batch."""
    if not graph.terms:
        return 0.0
    weighing = Weighing(planner.model, channels_last=planner.channels_last)
    return choose(graph, planner.nominal, weighing, planner.image, planner.optimizer)[0].cost
