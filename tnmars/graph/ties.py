"""Cores that are one tensor in several places: which core holds it, what must agree, and which bonds it unites.

A tied core is a node of its own, with edges of its own, but it has the numbers of another core. So the bonds at the
same axis of both have the same size, and the same gate: they are one as far as sizes are chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tnmars.errors import Problem, listing, nearest
from tnmars.graph.fields import Fields
from tnmars.graph.parts import Core, Term

Place = tuple[str, str]
"""The names of a term, and of a core or bond of it."""


def holder(term: Term, core: Core) -> Place:
    """The core that holds the numbers of a core: itself, or the one that it is tied to.

    >>> term = Term("a", (), (Core("A", ("i",)), Core("B", ("i",), "A"), Core("C", ("i",), "b.A")))
    >>> [holder(term, core) for core in term.cores]
    [('a', 'A'), ('a', 'A'), ('b', 'A')]
    """
    if not core.tied:
        return term.name, core.name
    other, _, name = core.tied.rpartition(".")
    return other or term.name, name


def is_tied(terms: Sequence[Term]) -> bool:
    """Whether a core is tied to another."""
    return any(core.tied for term in terms for core in term.cores)


def problems(fields: Fields) -> Iterator[Problem]:
    """What is wrong with the ties of a graph."""
    if not is_tied(fields.terms):
        return
    cores = {(term.name, core.name): (term, core) for term in fields.terms for core in term.cores}
    for term in fields.terms:
        for core in term.cores:
            if core.tied:
                path = ("terms", term.name, "tied", core.name)
                target = cores.get(holder(term, core))
                if target is None:
                    shown = [_shown(place, term) for place in cores if not cores[place][1].tied]
                    hint = f"Cores: {listing(shown)}.{nearest(core.tied, shown)}"
                    yield Problem(f"core '{core.name}' is tied to '{core.tied}', which is not a core.", hint, path)
                elif target[1].tied:
                    place = holder(*target)
                    text = f"core '{core.name}' is tied to '{core.tied}', which is tied itself."
                    hint = f"Tie it to the core that holds the numbers: '{_shown(place, term)}'."
                    if place == (term.name, core.name):
                        hint = "One of the two must hold the numbers: leave its tie out."
                    yield Problem(text, hint, path)
                else:
                    yield from (problem.under(*path) for problem in _axes(fields, term, core, *target))


def _shown(place: Place, term: Term) -> str:
    return place[1] if place[0] == term.name else ".".join(place)


def _axes(fields: Fields, term: Term, core: Core, home: Term, first: Core) -> Iterator[Problem]:
    """Where the axes of a core are not those of the core that it is tied to."""
    what = f"core '{core.name}' is tied to '{core.tied}', but"
    if len(core.edges) != len(first.edges):
        text = f"{what} the numbers of their axes are {len(core.edges)} and {len(first.edges)}."
        yield Problem(text, "Both must have as many axes, of the same sizes in the same order.")
        return
    modes = {mode.name: mode.size for mode in fields.modes}
    for at, (edge, other) in enumerate(zip(core.edges, first.edges, strict=True), 1):
        sizes = [{**own.bond_sizes, **modes}.get(name) for own, name in ((term, edge), (home, other))]
        if None in sizes:
            continue  # which is reported as such
        if (edge in modes) != (other in modes):
            bond, mode = (other, edge) if edge in modes else (edge, other)
            text = f"{what} at axis {at} one has bond '{bond}', and the other mode '{mode}'."
            yield Problem(text, "A bond may be cut and a mode may not: use bonds, or modes, at the same axis of both.")
        elif sizes[0] != sizes[1]:
            text = f"{what} its axis {at} is '{edge}' of size {sizes[0]}, and that of '{core.tied}' is '{other}'"
            yield Problem(f"{text} of size {sizes[1]}.", "Both must have the same sizes in the same order.")


def united(terms: Sequence[Term]) -> Mapping[Place, Place]:
    """For each bond the first of those that ties make one with it, which may be itself."""
    places = [(term.name, bond.name) for term in terms for bond in term.bonds]
    first: dict[Place, Place] = dict(zip(places, places, strict=True))
    if not is_tied(terms):
        return first
    order = {place: at for at, place in enumerate(first)}
    axes: dict[tuple[Place, int], Place] = {}

    def top(place: Place) -> Place:
        while first[place] != place:
            place = first[place]
        return place

    for term in terms:
        for core in term.cores:
            for at, edge in enumerate(core.edges):
                if (term.name, edge) in first:
                    one = top((term.name, edge))
                    two = top(axes.setdefault((holder(term, core), at), one))
                    low, high = sorted((one, two), key=order.__getitem__)
                    first[high] = low
    return {place: top(place) for place in first}


def reheld(terms: Sequence[Term]) -> tuple[Term, ...]:
    """Terms from which others were removed. If a core was there, the first of those tied to it takes its place."""
    if not is_tied(terms):
        return tuple(terms)
    here = {(term.name, core.name) for term in terms for core in term.cores}
    heirs: dict[Place, Place] = {}
    for term in terms:
        for core in term.cores:
            if holder(term, core) not in here:
                heirs.setdefault(holder(term, core), (term.name, core.name))
    found = []
    for term in terms:
        cores = (
            replace(core, tied=".".join(heirs[holder(term, core)])) if holder(term, core) in heirs else core
            for core in term.cores
        )
        found.append(replace(term, cores=tuple(cores)))
    return tuple(found)
