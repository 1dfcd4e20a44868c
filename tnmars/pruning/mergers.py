"""Mergers of neighboring cores after a cut, each of which saves both parameters and planned time."""

from __future__ import annotations

from tnmars.graph import Graph
from tnmars.graph.rewrite import Rewrite, merge, mergeable
from tnmars.plan.layout import Weighing
from tnmars.program.choice import Planner, choose

MOST_MERGERS = 64
"""The maximum number of mergers of two cores that are planned when a layer is simplified."""
MOST_CORES = 4096
"""The number of cores of all these plans together: fewer mergers are planned in graphs with more than 64 cores."""


def mergers(graph: Graph, planner: Planner) -> list[Rewrite]:
    """Mergers of two cores, one after the other, each of which saves parameters and planned time."""
    rewrites, tried = list[Rewrite](), 0
    time = planned_time(graph, planner)
    pairs = mergeable(graph)
    most = min(MOST_MERGERS, MOST_CORES // max(1, len(graph.cores)))
    while pairs and tried < most:
        term, first, second, _ = pairs.pop(0)
        rewrite = merge(graph, term, first, second)
        tried += 1
        after = planned_time(rewrite.graph, planner)
        if after < time:
            rewrites.append(rewrite)
            graph, time, pairs = rewrite.graph, after, mergeable(rewrite.graph)
    return rewrites


def planned_time(graph: Graph, planner: Planner) -> float:
    """The predicted seconds of inference for the nominal batch."""
    if not graph.terms:
        return 0.0
    weighing = Weighing(planner.model, channels_last=planner.channels_last)
    return choose(graph, planner.nominal, weighing, planner.image, planner.optimizer)[0].cost
