"""The squared singular values of every bond of a weight, in a metric: what cutting a bond would lose."""

from __future__ import annotations

from torch import Tensor

from tnmars.decomposing.canonical import canonical
from tnmars.decomposing.decompose import decompose
from tnmars.decomposing.layout import by_modes, checked
from tnmars.decomposing.metric import Metric, weighting
from tnmars.decomposing.sweep import is_swept
from tnmars.decomposing.unfolding import below, spectrum
from tnmars.graph import Graph


def spectra(weight: Tensor, graph: Graph, metric: Metric | None = None) -> dict[str, Tensor]:
    """The squared singular values of every bond of a tree, in the metric, all of them and largest first.

    Cutting a bond to k slices loses the sum of the others: exactly if the metric splits at the bond, else by its
    partial traces. The sizes of the bonds are ignored, so there are as many values as a bond has useful slices.

    Args:
        weight: The dense weight in torch's layout.
        graph: A graph without cycles or hyperedges. For any other graph the values are the squared weights of the
            slices in the canonical form of a decomposition of the graph's own sizes.
        metric: What errors matter; by default all entries count equally.

    Returns:
        For each bond its squared singular values.
    """
    weight = checked(graph, weight)
    values, weighed = by_modes(graph, weight), weighting(graph, weight, metric)
    if not is_swept(graph):
        found = decompose(weight, graph, metric=metric)
        weights = canonical(found.graph, found.cores).weights
        return {name: value.square() for name, value in weights.items()}
    (term,) = graph.terms
    sides = below(graph, term)
    return {graph.bond_name(term, bond.name): spectrum(graph, values, sides[bond.name], weighed) for bond in term.bonds}
