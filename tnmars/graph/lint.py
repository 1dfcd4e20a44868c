"""Warnings about a graph that is valid but wasteful: problems of a `Graph`, with paths as in `rules`.

The main one is a bond that is larger than useful. Nothing here imports networkx or NumPy, because `tnmars check` runs
it at every start. Nothing here knows plans, so the memory that a contraction takes is not checked.

Example:
    >>> from tnmars import families, lint
    >>> graph = families.lowrank("linear", inputs=(40,), outputs=(50,), rank=60)
    >>> lint.useful_size(graph, graph.terms[0], "r")
    40
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import prod

from tnmars.arguments import check_arguments
from tnmars.errors import Problem, listing, plural
from tnmars.graph import topology
from tnmars.graph.cuts import Cut
from tnmars.graph.graph import Graph, Term
from tnmars.graph.kinds import Role
from tnmars.graph.parts import MAX_CORES, MAX_DENSE

MAX_BONDS = 200
"""The number of bonds, those of equal terms counted once, up to which useful sizes are computed."""

Equal = dict[Term, list[str]]
"""For each term that differs from the others in more than its name, the names of all terms equal to it."""


def lint(graph: Graph) -> tuple[Problem, ...]:
    """Every warning about a graph, those about the whole graph first.

    Args:
        graph: The graph. Terms with the same bonds and cores are checked once.

    Returns:
        The warnings; empty if there are none. Each has a path, as the problems of a `GraphError` have.

    Example:
        >>> from tnmars.graph import Core, Edge
        >>> modes = (Edge("i", 4, Role.IN), Edge("o", 10, Role.OUT))
        >>> term = Term("main", (Edge("r", 6),), (Core("A", ("i", "r")), Core("B", ("r", "o"))))
        >>> [problem.text for problem in lint(Graph("linear", modes, (term,)))][1]
        "bond 'r' has size 6, but can use at most 4."
    """
    check_arguments(lint, locals())
    equal = _equal_terms(graph)
    return (
        *_no_terms(graph),
        *too_large(graph),
        *_padding(graph),
        *_parameters(graph),
        *(problem for term, names in equal.items() for problem in _parts(graph, term, names)),
        *_bonds(graph, equal),
    )


def useful_size(graph: Graph, term: Term, bond: str) -> int:
    """The largest useful size of a bond: a larger one adds parameters, but no weight that was out of reach before.

    All other edges keep their sizes. Each end of the bond passes on at most what fits through the narrowest cut
    between it and all modes and other ends. With two ends, the smaller of the two bounds holds. With more, the slices
    are products of what the ends pass on, and one end may take the rest: the bound is the product of all bounds except
    the largest. A mode that all ends share does not count, because each of its values has slices of its own.

    Args:
        graph: The graph.
        term: One of its terms.
        bond: The name of a bond of that term.

    Returns:
        The size.

    Raises:
        GraphError: If the term has no such bond.

    Example:
        >>> from tnmars.graph import Core, Edge
        >>> modes = (Edge("i", 4, Role.FREE), Edge("j", 3, Role.FREE), Edge("k", 5, Role.FREE))
        >>> cores = (Core("A", ("i", "r")), Core("B", ("j", "r")), Core("C", ("k", "r")))
        >>> cp = Term("main", (Edge("r", 50),), cores)
        >>> useful_size(Graph("tensor", modes, (cp,)), cp, "r")
        12
    """
    check_arguments(useful_size, locals())
    if _is_at_tied_core(graph, term, bond):
        return term.bond_sizes[bond]
    return _useful(cut.size for cut in topology.cut(graph, term, bond).values())


def _is_at_tied_core(graph: Graph, term: Term, bond: str) -> bool:
    """Whether a bond has an end at a core that is in several places, so that cuts do not bound what it can use."""
    uses = Counter(graph.nodes.values())
    return any(uses[graph.nodes[graph.qualified(term, core)]] > 1 for core in term.ends().get(bond, ()))


def has_bounds(graph: Graph) -> bool:
    """Whether the graph has few enough bonds for their useful sizes to be computed on every check."""
    check_arguments(has_bounds, locals())
    return sum(len(term.bonds) for term in _equal_terms(graph)) <= MAX_BONDS


def _useful(bounds: Iterable[int]) -> int:
    """The product of all bounds except the largest: of two, the smaller."""
    sizes = list(bounds)
    return prod(sizes) // max(sizes)


def _equal_terms(graph: Graph) -> Equal:
    first: dict[object, Term] = {}
    names: Equal = {}
    for term in graph.terms:
        names.setdefault(first.setdefault((term.bonds, term.cores), term), []).append(term.name)
    return names


def _of(graph: Graph, names: list[str]) -> str:
    """Which terms a warning is about, if the graph has several."""
    if len(graph.terms) == 1:
        return ""
    return f" of term '{names[0]}'" if len(names) == 1 else f" of {len(names)} equal terms ({listing(names)})"


def too_large(graph: Graph) -> Iterator[Problem]:
    """Why a graph can be checked and drawn, but not planned or compiled; nothing for almost all graphs."""
    check_arguments(too_large, locals())
    fix = "It can be drawn, but not planned or compiled: "
    if prod(mode.size for mode in graph.modes) > MAX_DENSE:
        yield Problem("the dense tensor would have more than 2^900 entries.", f"{fix}use fewer modes.", ("modes",))
    for term in graph.terms:
        if len(term.cores) > MAX_CORES:
            text = f"term '{term.name}' has {plural(len(term.cores), 'core')}, but only {MAX_CORES:,} can be planned."
            yield Problem(text, f"{fix}merge some of them, or split the term.", ("terms", term.name, "cores"))
            return


def _no_terms(graph: Graph) -> Iterator[Problem]:
    if not graph.terms:
        yield Problem(
            "the graph has no terms, so its weight is zero.",
            "Such a layer returns its bias alone; add a term to make it depend on its input.",
        )


def _padding(graph: Graph) -> Iterator[Problem]:
    paths = {Role.LOOKUP: ("vocab",), Role.PATCH: ("features", "in")}
    for role, (held, real) in graph.padding.items():
        if held >= 2 * real:
            yield Problem(
                f"the '{role}' modes hold {held:,} entries, but only {real:,} of them are real.",
                "The rest is padding, which costs parameters and time: use modes with a smaller product.",
                paths.get(role, ("features", str(role))),
            )


def _parameters(graph: Graph) -> Iterator[Problem]:
    held, dense = sum(map(prod, graph.cores.values())), prod(graph.dense_shape)
    if held > dense:
        yield Problem(
            f"the cores have {plural(held, 'parameter')}, more than the {dense:,} of the dense weight.",
            "Use smaller bonds, or fewer of them; masks may still find smaller ones in training.",
        )


def _parts(graph: Graph, term: Term, names: list[str]) -> Iterator[Problem]:
    """Warnings about parts of a term that nothing joins."""
    parts = topology.parts(term)
    if len(parts) < 2:
        return
    shown = listing([f"({listing(part)})" for part in parts])
    yield Problem(
        f"the cores{_of(graph, names)} make {len(parts)} parts that nothing joins: {shown}.",
        "The weight is the outer product of what the parts give. To join them, let them share a bond.",
        ("terms", term.name, "cores"),
    )
    for core in term.cores:
        if (core.name,) in parts:
            what = "touches no bond" if core.edges else "touches no bond and no mode: it is a single number"
            yield Problem(
                f"core '{core.name}'{_of(graph, names)} {what}.",
                "Add a bond that it shares with another core." if core.edges else "Add a bond to it, or take it out.",
                ("terms", term.name, "cores", core.name),
            )


def _bonds(graph: Graph, equal: Equal) -> Iterator[Problem]:
    """Warnings about bonds that are larger than useful."""
    count = sum(len(term.bonds) for term in equal)
    if not has_bounds(graph):
        different = f" in {plural(len(equal), 'different term')}" if len(equal) < len(graph.terms) else ""
        yield Problem(
            f"useful sizes are not checked: the graph has {plural(count, 'bond')}{different}; "
            f"bounds are computed up to {MAX_BONDS}.",
            "A bond may be wider than it can use without a warning.",
        )
        return
    for term, names in equal.items():
        yield from _wide_bonds(graph, term, names)


def _wide_bonds(graph: Graph, term: Term, names: list[str]) -> Iterator[Problem]:
    sizes = graph.sizes(term)
    for bond, cuts in topology.narrow_cuts(graph, term).items():
        size = sizes[bond]
        if _is_at_tied_core(graph, term, bond):
            continue
        # A bound that was not computed is at least the size. One such is the largest, which is left out of the product;
        # with two, the bond can use its full size.
        useful = _useful(size if cut is None else cut.size for cut in cuts.values())
        if size > useful:
            reason = _reason(bond, cuts, sizes)
            reason += _slices(topology.common(term, bond)) if len(cuts) > 1 else ""
            yield Problem(
                f"bond '{bond}'{_of(graph, names)} has size {size:,}, but can use at most {useful:,}.",
                f"{reason}\nSet its size to {useful:,} or less: "
                "more adds parameters, but no weight that it could not give already.",
                ("terms", term.name, "bonds", bond),
            )


def _slices(shared: tuple[str, ...]) -> str:
    return f" Its slices for each value of {listing(shared)} are apart from one another." if shared else ""


def _reason(bond: str, cuts: Mapping[str, Cut | None], sizes: Mapping[str, int]) -> str:
    """Why a larger bond is not useful, by the cuts at its ends."""
    if len(cuts) == 1:
        return f"It is a trace of core '{next(iter(cuts))}': the sum over it is a core without it."
    if len(cuts) > 2:
        bounds = [f"{core} {f'{cut.size:,}' if cut else f'{sizes[bond]:,} or more'}" for core, cut in cuts.items()]
        return f"Its ends can pass on: {listing(bounds)}. It uses the product of all but the largest."
    core, cut = min(((core, cut) for core, cut in cuts.items() if cut is not None), key=lambda end: end[1].size)
    if not cut.edges:
        return f"Core '{core}' has no other way to a mode or to the other end."
    through = listing([f"{edge}={sizes[edge]}" for edge in cut.edges])
    return f"Core '{core}' reaches the modes and the other end only through {through}."
