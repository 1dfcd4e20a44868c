"""Graph to graph: bonds reduced to the kept slices or widened, bonds of size 1 dropped, cores merged.

A rewrite is a value: the graph after it, and for every core of that graph how it is made from cores before. So numbers
follow in the same way whether they are weights, gradients or an optimizer's state. Nothing here holds a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import prod

from tnmars.errors import GraphError, Problem, listing, nearest
from tnmars.graph.graph import Core, Edge, Graph, Term
from tnmars.graph.parts import as_int, is_int

Keep = Mapping[str, Sequence[int]]
"""The kept indices of bonds, by qualified name and in increasing order; a bond that is not named keeps all."""

NEW = -1
"""Among the indices that are taken: a slice that was not there before. Its entries are 0."""


@dataclass(frozen=True)
class Source:
    """A core before the rewrite: its name and edges, and the indices that are taken along each axis (None: all)."""

    name: str
    edges: tuple[str, ...]
    taken: tuple[tuple[int, ...] | None, ...]
    conj: bool = False
    """Whether its complex conjugate is taken: a core that is used so was merged into one that is not."""


@dataclass(frozen=True)
class Piece:
    """A core after the rewrite: the product of its sources, summed over the edges that it does not have."""

    name: str
    edges: tuple[str, ...]
    sources: tuple[Source, ...]

    @property
    def is_part(self) -> bool:
        """Whether it is one core with entries left out, so that state of single entries can follow."""
        return len(self.sources) == 1


@dataclass(frozen=True)
class Rewrite:
    """A graph, and where its cores and bonds come from."""

    graph: Graph
    pieces: tuple[Piece, ...]
    bonds: tuple[tuple[str, str], ...]
    """For each bond that is left, its qualified name now and before."""
    taken: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """For each bond that is left, by its name now, the indices that it had before; `NEW` for slices that are added."""


def prune(graph: Graph, keep: Keep) -> Rewrite:
    """The graph with only the kept slices. A term is removed if one of its bonds keeps no slice."""
    return _resized(graph, _checked(graph, keep))


def widen(graph: Graph, sizes: Mapping[str, int]) -> Rewrite:
    """The graph with wider bonds: the slices that it has, then new ones. Pruning to the first ones is the inverse.

    Raises `GraphError` for a bond that the graph does not have, and for a size below the one that the bond has.

    >>> from tnmars import families
    >>> rewrite = widen(families.lowrank("linear", inputs=(3,), outputs=(2,), rank=2), {"r": 4})
    >>> rewrite.graph.bonds["r"].size, rewrite.taken
    (4, (('r', (0, 1, -1, -1)),))
    """
    known = {name: bond.size for name, bond in graph.bonds.items()}
    problems = []
    for name, size in sizes.items():
        if name not in known:
            problems.append(_no_bond(graph, "sizes", name))
        elif not is_int(as_int(size)) or size < known[name]:
            text = f"the size of bond '{name}' is {size!r}, but must be a whole number of at least {known[name]}."
            problems.append(Problem(text, "To make a bond smaller, prune it."))
    if problems:
        raise GraphError(problems)
    taken = {name: (*range(size), *[NEW] * (int(sizes.get(name, size)) - size)) for name, size in known.items()}
    return _resized(graph, taken)


def _resized(graph: Graph, taken_of: Mapping[str, tuple[int, ...]]) -> Rewrite:
    """The graph with other slices of its bonds, without the terms that have an empty bond."""
    terms, origin = [], []
    for term in graph.terms:
        slices = {bond.name: taken_of[graph.bond_name(term, bond.name)] for bond in term.bonds}
        if all(slices.values()):
            terms.append(replace(term, bonds=tuple(Edge(name, len(taken)) for name, taken in slices.items())))
            origin.append((term, slices))
    after = graph.with_terms(terms)
    pieces: list[Piece] = []
    bonds: dict[str, str] = {}
    taken: dict[str, tuple[int, ...]] = {}
    for term, (before, slices) in zip(after.terms, origin, strict=True):
        for core in term.cores:
            if not core.tied:
                entries = tuple(slices.get(edge) for edge in core.edges)
                source = Source(graph.nodes[graph.qualified(before, core.name)], core.edges, entries)
                pieces.append(Piece(after.qualified(term, core.name), core.edges, (source,)))
        for name, indices in slices.items():
            bonds.setdefault(after.bond_name(term, name), graph.bond_name(before, name))
            taken.setdefault(after.bond_name(term, name), indices)
    return Rewrite(after, tuple(pieces), tuple(bonds.items()), tuple(taken.items()))


def _no_bond(graph: Graph, what: str, name: str) -> Problem:
    """The problem of a name that is none of a bond, or that of a bond that follows another."""
    names = {graph.qualified(term, bond.name): (term, bond.name) for term in graph.terms for bond in term.bonds}
    if name in names:
        first = graph.bond_name(*names[name])
        text = f"{what} names bond '{name}', which tied cores make one with '{first}'."
        return Problem(text, f"Name '{first}': the others follow.")
    text = f"{what} names bond '{name}', which the graph does not have."
    return Problem(text, f"Bonds: {listing(list(graph.bonds))}.{nearest(name, graph.bonds)}")


def _checked(graph: Graph, keep: Keep) -> dict[str, tuple[int, ...]]:
    """The kept indices of every bond."""
    sizes = {name: bond.size for name, bond in graph.bonds.items()}
    kept = {name: tuple(range(size)) for name, size in sizes.items()}
    problems = []
    for name, indices in keep.items():
        if name not in sizes:
            problems.append(_no_bond(graph, "keep", name))
            continue
        numbers = list(map(as_int, indices))
        taken = tuple(filter(is_int, numbers))
        if len(taken) < len(numbers):
            text = f"keep of bond '{name}' is {list(indices)!r}, but must be a list of whole numbers."
            problems.append(Problem(text, "List the slices to keep, such as [0, 2]."))
            continue
        if any(after <= before for before, after in pairwise(taken)) or any(
            not 0 <= index < sizes[name] for index in taken
        ):
            text = f"keep of bond '{name}' is {list(taken)}, but must be increasing, from 0 to {sizes[name] - 1}."
            problems.append(Problem(text, "List each slice to keep once, in order."))
        kept[name] = taken
    if problems:
        raise GraphError(problems)
    return kept


def drop_ones(graph: Graph) -> Rewrite:
    """The graph without bonds of size 1. Parts that they joined become factors of an outer product."""

    def solid(term: Term) -> Term:
        ones = {bond.name for bond in term.bonds if bond.size == 1}
        cores = (replace(core, edges=tuple(edge for edge in core.edges if edge not in ones)) for core in term.cores)
        return Term(term.name, tuple(bond for bond in term.bonds if bond.name not in ones), tuple(cores))

    return _reshaped(graph, solid)


def merge(graph: Graph, term: str, first: str, second: str) -> Rewrite:
    """The graph with two cores of a term contracted to one, which has the first one's name and place."""
    return merge_pairs(graph, [(term, first, second)])


def merge_pairs(graph: Graph, pairs: Sequence[tuple[str, str, str]]) -> Rewrite:
    """The graph with several pairs of cores contracted, each as by `merge`. No core is in two pairs."""
    chosen: dict[str, list[tuple[str, str]]] = {}
    for term, first, second in pairs:
        chosen.setdefault(term, []).append((first, second))
    joined = {(term, first): (first, second) for term, first, second in pairs}
    return _reshaped(graph, lambda term: _merged(term, chosen.get(term.name, ())), joined)


def _merged(term: Term, pairs: Sequence[tuple[str, str]]) -> Term:
    if not pairs:
        return term
    cores = {core.name: core for core in term.cores}
    ends, bonds = term.ends(), term.bond_sizes
    made: dict[str, Core] = {}
    gone, summed = set[str](), set[str]()
    for first, second in pairs:
        both = dict.fromkeys((*cores[first].edges, *cores[second].edges))
        inner = {edge for edge in both if edge in bonds and set(ends[edge]) <= {first, second}}
        edges = tuple(edge for edge in both if edge not in inner)
        made[first] = Core(first, edges, conj=cores[first].conj and cores[second].conj)
        gone.add(second)
        summed |= inner
    joined = tuple(made.get(core.name, core) for core in term.cores if core.name not in gone)
    return Term(term.name, tuple(bond for bond in term.bonds if bond.name not in summed), joined)


def _reshaped(
    graph: Graph, change: Callable[[Term], Term], joined: Mapping[tuple[str, str], tuple[str, ...]] | None = None
) -> Rewrite:
    """A rewrite that changes terms one by one and keeps every slice."""
    after = graph.with_terms(tuple(map(change, graph.terms)))
    pieces: list[Piece] = []
    bonds: dict[str, str] = {}
    for before, term in zip(graph.terms, after.terms, strict=True):
        cores = {core.name: core for core in before.cores}
        for core in (core for core in term.cores if not core.tied):
            names = (joined or {}).get((term.name, core.name), (core.name,))
            sources = tuple(
                Source(
                    graph.nodes[graph.qualified(before, name)],
                    cores[name].edges,
                    (None,) * len(cores[name].edges),
                    cores[name].conj != core.conj,
                )
                for name in names
            )
            pieces.append(Piece(after.qualified(term, core.name), core.edges, sources))
        for bond in term.bonds:
            bonds.setdefault(after.bond_name(term, bond.name), graph.bond_name(before, bond.name))
    taken = tuple((now, tuple(range(graph.bonds[was].size))) for now, was in bonds.items())
    return Rewrite(after, tuple(pieces), tuple(bonds.items()), taken)


def unconjugated(graph: Graph) -> Graph:
    """The graph with every core used as it is: with conjugates of the cores that it has so, the weight is the same."""
    return conjugated(graph, frozenset())


def conjugated(graph: Graph, names: Collection[str]) -> Graph:
    """The graph with the conjugates of the cores with these qualified names, and of no others.

    >>> from tnmars import families
    >>> graph = conjugated(families.lowrank("linear", inputs=(3,), outputs=(2,), rank=2), {"B"})
    >>> print(graph.terms[0])
    A[i1, r] B*[r, o1]
    """
    if graph.conjugated == frozenset(names):
        return graph
    terms = [
        replace(term, cores=tuple(replace(core, conj=graph.qualified(term, core.name) in names) for core in term.cores))
        for term in graph.terms
    ]
    return replace(graph, terms=tuple(terms))


MANY = 64
"""Of an edge with more ends, only ends that follow each other count as neighbors: all pairs would be too many."""


def mergeable(graph: Graph) -> list[tuple[str, str, str, int]]:
    """Pairs of neighboring cores of a term whose merger holds fewer numbers, and how many fewer, the most first.

    A core without edges is a neighbor of every other. Cores that are one tensor in several places stay apart.
    """
    pairs = []
    uses = Counter(graph.nodes.values())
    for term in graph.terms:
        sizes = graph.sizes(term)
        count = {bond: len(set(cores)) for bond, cores in term.ends().items() if bond in term.bond_sizes}
        edges = [frozenset(core.edges) for core in term.cores]
        alone = [uses[graph.nodes[graph.qualified(term, core.name)]] == 1 for core in term.cores]
        numbers = [prod(sizes[edge] for edge in core.edges) for core in term.cores]
        solid = [prod(sizes[edge] for edge in own if count.get(edge) != 1) for own in edges]  # without traces
        for one, other in _neighbors(term):
            if not (alone[one] and alone[other]):
                continue
            few, many = sorted((edges[one], edges[other]), key=len)
            twice = prod(sizes[edge] ** (2 if count.get(edge) == 2 else 1) for edge in few if edge in many)
            saved = numbers[one] + numbers[other] - solid[one] * solid[other] // twice
            if saved > 0:
                pairs.append((term.name, term.cores[one].name, term.cores[other].name, saved))
    return sorted(pairs, key=lambda pair: -pair[-1])


def _neighbors(term: Term) -> list[tuple[int, int]]:
    """The places of cores that share an edge, or of which one has none, in the order of the cores."""
    place = {core.name: at for at, core in enumerate(term.cores)}
    pairs = set[tuple[int, int]]()
    for cores in term.ends().values():
        pairs.update(_pairs([place[core] for core in dict.fromkeys(cores)]))
    if len(place) > MANY:
        bare = [at for at, core in enumerate(term.cores) if not core.edges]
        pairs.update((at, at + 1) for at in {*bare, *(at - 1 for at in bare)} if 0 <= at < len(place) - 1)
    else:
        ways = combinations(range(len(place)), 2)
        pairs.update((one, other) for one, other in ways if not (term.cores[one].edges and term.cores[other].edges))
    return sorted(pairs)


def _pairs(places: Sequence[int]) -> Iterable[tuple[int, int]]:
    return pairwise(places) if len(places) > MANY else combinations(places, 2)
