"""What makes a graph valid: every rule that spans its parts, as generators of problems.

Given the fields of a `Graph`, they yield all problems at once, each with the path of the part it is about, so that a
spec reader can point at the line. The problems of a term do not depend on the other terms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from math import prod

from tnmars.errors import Problem, closest, listing, nearest, plural
from tnmars.graph import layer_rules, ties
from tnmars.graph.fields import Fields
from tnmars.graph.kinds import KINDS, Kind, Role
from tnmars.graph.parts import MAX_ENTRIES, Core, Edge, Term, flat_size

_FLAT = (Role.IN, Role.LOOKUP, Role.PATCH, Role.OUT)
"""The roles whose modes are one axis of some tensor, flattened."""

MAX_PARTS = 10_000
"""The number of modes, bonds and cores that a graph may have in total."""

MAX_PROBLEMS = 100
"""The number of problems of one graph that are reported; a broken file may have thousands."""


def problems(fields: Fields) -> list[Problem]:
    """Every problem of the fields of a graph, up to a hundred; empty if they are valid."""
    kind = KINDS.get(fields.kind) if isinstance(fields.kind, str) else None
    if kind is None:
        return [
            Problem(
                f"kind '{fields.kind}' is not known.",
                f"Kinds: {', '.join(KINDS)}.{nearest(str(fields.kind), KINDS)}",
                path=("kind",),
            )
        ]
    parts = len(fields.modes) + sum(len(term.bonds) + len(term.cores) for term in fields.terms)
    if parts > MAX_PARTS:
        text = f"the graph has {parts:,} modes, bonds and cores, but must have at most {MAX_PARTS:,}."
        return [Problem(text, "Split the layer, or use fewer terms.")]
    every = chain(
        _modes(kind, fields),
        _terms(fields),
        ties.problems(fields),
        _shared(fields),
        layer_rules.problems(kind, fields),
    )
    return list(islice(every, MAX_PROBLEMS))


def _modes(kind: Kind, fields: Fields) -> Iterator[Problem]:
    allowed = ", ".join(kind.roles)
    first: dict[str, Role] = {}
    for mode in fields.modes:
        path = ("modes", str(mode.role), mode.name)
        if mode.role not in kind.roles:
            yield Problem(
                f"mode '{mode.name}' has role '{mode.role}', which kind '{kind.name}' does not have.",
                f"Roles of its modes: {allowed}.",
                path,
            )
        if mode.name in first:
            yield Problem(
                f"mode '{mode.name}' is declared twice, as '{first[mode.name]}' and as '{mode.role}'.",
                "Rename one of the two.",
                path,
            )
        first.setdefault(mode.name, mode.role)
    present = {mode.role for mode in fields.modes}
    for group in kind.needs:
        if not present & set(group):
            roles = "' or '".join(group)
            yield Problem(
                f"kind '{kind.name}' needs at least one mode with role '{roles}'.",
                f"Declare it, for example: {group[0]}: {{{group[0].value[0]}1: 8}}.",
                path=("modes",),
            )
    for role in (role for role in _FLAT if role in present):
        if flat_size(fields.of_role(role)) * fields.groups > MAX_ENTRIES:
            yield Problem(
                f"the product of the '{role}'{_with_groups(fields)} modes is over 2^63 - 1.",
                "Use smaller modes.",
                path=("modes", str(role)),
            )


def _with_groups(fields: Fields) -> str:
    return " and 'group'" if fields.of_role(Role.GROUP) else ""


def _terms(fields: Fields) -> Iterator[Problem]:
    names: set[str] = set()
    ends = [term.ends() for term in fields.terms]
    several = len(ends) > 1
    absent = {mode.name for mode in fields.modes if several and not any(mode.name in listed for listed in ends)}
    slips: set[str] = set()
    for term in fields.terms:
        path = ("terms", term.name)
        if term.name in names:
            yield Problem(f"two terms are named '{term.name}'.", "Rename one.", path)
        names.add(term.name)
        meant = _meant(term, fields)
        slips |= meant
        for problem in _term(term, fields, meant | absent):
            yield problem.under(*path)
    for mode in fields.modes:
        if mode.name in absent - slips:
            yield from (problem.under("terms", fields.terms[0].name) for problem in _mode(mode, (), fields, ""))


def _meant(term: Term, fields: Fields) -> set[str]:
    """The edges that undeclared ones seem to misspell. A misspelled edge is reported once, where it is listed."""
    known = {edge.name for edge in (*fields.modes, *term.bonds)}
    return {closest(edge, known) for edge in islice((edge for edge in term.ends() if edge not in known), 10)}


def _term(term: Term, fields: Fields, excused: set[str]) -> Iterator[Problem]:
    modes = {mode.name: mode for mode in fields.modes}
    bonds = {bond.name: bond for bond in term.bonds}
    sizes = {name: edge.size for name, edge in {**bonds, **modes}.items()}
    ends = term.ends()
    for name in bonds:
        if name in modes:
            yield Problem(
                f"bond '{name}' has the name of a mode.",
                "An edge is one or the other: rename it.",
                ("bonds", name),
            )
        elif name not in excused:
            yield from _bond(name, ends[name])
    yield from _undeclared(term, sizes)
    for core in term.cores:
        yield from _core(core, sizes, modes)
    for mode in fields.modes:
        if mode.name not in excused:
            yield from _mode(mode, ends.get(mode.name, ()), fields, term.name if len(fields.terms) > 1 else "")


def _bond(name: str, cores: tuple[str, ...]) -> Iterator[Problem]:
    if not cores:
        yield Problem(
            f"bond '{name}' is declared, but no core lists it.",
            "Add it to the two or more cores that it joins, or remove it.",
            path=("bonds", name),
        )
    elif len(cores) == 1:
        yield Problem(
            f"bond '{name}' touches only core '{cores[0]}'; a bond joins at least two cores.",
            f"To leave it open, declare it as a mode. To join another core, add '{name}' to that core's edges; for a "
            "trace, list it twice.",
            path=("bonds", name),
        )


def _undeclared(term: Term, sizes: Mapping[str, int]) -> Iterator[Problem]:
    """Each edge that is not declared, once, on the first core that lists it."""
    seen: set[str] = set()
    for core in term.cores:
        for at, edge in enumerate(core.edges):
            if edge not in sizes and edge not in seen:
                hint = nearest(edge, sizes) if len(seen) < 10 else ""
                seen.add(edge)
                yield Problem(
                    f"core '{core.name}' lists edge '{edge}', which is not declared.",
                    f"Declared edges: {listing(list(sizes))}.{hint}",
                    path=("cores", core.name, at),
                )


def _core(core: Core, sizes: Mapping[str, int], modes: Mapping[str, Edge]) -> Iterator[Problem]:
    for at, edge in enumerate(core.edges):
        if edge in modes and edge in core.edges[:at]:
            yield Problem(
                f"core '{core.name}' lists mode '{edge}' twice.",
                "Only a bond may be on a core twice: that is a trace.",
                path=("cores", core.name, at),
            )
    if prod(sizes.get(edge, 1) for edge in core.edges) > MAX_ENTRIES:
        yield Problem(
            f"core '{core.name}' would have more than 2^63 - 1 entries.",
            "Give it fewer or smaller edges.",
            path=("cores", core.name),
        )


def _mode(mode: Edge, cores: tuple[str, ...], fields: Fields, term: str) -> Iterator[Problem]:
    """Problems of a mode on the cores of one term, which is named if there are several."""
    path = ("cores",) if term else ("modes", str(mode.role), mode.name)
    of = f" of term '{term}'" if term else ""
    if not cores:
        yield Problem(
            f"mode '{mode.name}' is declared, but no core{of} lists it.",
            "Every term must have each mode on one of its cores: add it to a core, or remove it.",
            path,
        )
    elif len(set(cores)) > 1 and mode.name not in fields.shared and mode.role is not Role.GROUP:
        yield Problem(
            f"mode '{mode.name}' is on {plural(len(set(cores)), 'core')}{of}: {listing(list(dict.fromkeys(cores)))}; "
            "a mode belongs to one core.",
            "To join the cores, use a bond. If each value of the mode should select a slice of all of them "
            f"(block-diagonal, Monarch), declare it: shared: [{mode.name}].",
            path,
        )


def _shared(fields: Fields) -> Iterator[Problem]:
    modes = {mode.name: mode for mode in fields.modes}
    ends = [term.ends() for term in fields.terms]
    seen: set[str] = set()
    for at, name in enumerate(fields.shared):
        path = ("shared", at)
        if name in seen:
            yield Problem(f"shared lists mode '{name}' twice.", "Remove one of them.", path)
        elif name not in modes:
            yield Problem(
                f"shared lists '{name}', which is not a mode.",
                f"Modes: {listing(list(modes))}.{nearest(name, modes)}",
                path,
            )
        elif ends and max(len(listed.get(name, ())) for listed in ends) < 2:
            yield Problem(
                f"shared lists mode '{name}', but no term has it on two cores.",
                "Remove it from shared.",
                path,
            )
        seen.add(name)
