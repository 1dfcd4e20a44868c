"""When ranks that were found should not be trusted, in sentences for the user."""

from __future__ import annotations

from collections.abc import Iterator

from tnmars.fitting.elimination import Fit
from tnmars.fitting.refine import Data
from tnmars.fitting.room import parameters
from tnmars.graph import Graph


def rank_doubts(graph: Graph, found: Fit, near: float | None, data: Data) -> Iterator[str]:
    """What speaks against the ranks of a network: few data for its parameters, or a limited start that fits better.

    `near` is the mean squared error that the data make likely, at most, where the graph had to be limited.
    """
    entries, held = data.count, found.decomposition.parameters
    if near is not None and found.error > near:
        yield (
            f"the ranks are likely too small: the spec has {parameters(graph):,} parameters for {entries:,} entries, "
            f"too many to start with, and the network found has a relative error of {found.error**0.5:.2g}, where a "
            f"wider one points to {near**0.5:.2g} or less. Give more entries, or a graph with fewer parameters."
        )
    if graph.bonds and 2 * held > entries:
        yield (
            f"the ranks are uncertain: the network found has {held:,} parameters for {entries:,} entries, more than "
            "half as many, and with so few data the criterion (BIC) hardly tells ranks from noise."
        )
