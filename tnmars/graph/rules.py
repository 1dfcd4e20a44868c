"""What makes a graph valid: every rule that spans its parts, as generators of problems.

In go the fields of a `Graph`, out come all problems at once, each with the path of the part it is about, so that a
spec reader can point at the line. A term's problems do not depend on the other terms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from math import prod

from tnmars.errors import Problem, closest, listing, nearest, plural
from tnmars.graph import options
from tnmars.graph.kinds import KINDS, Kind, Role
from tnmars.graph.parts import (
    MAX_ENTRIES,
    NAME_RULE,
    Axis,
    Core,
    Edge,
    Operand,
    Term,
    axis_text,
    flat_size,
    is_identifier,
    size_problem,
)

_FLAT = (Role.IN, Role.LOOKUP, Role.PATCH, Role.OUT)
"""The roles whose modes are one axis of some tensor, flattened."""

MAX_PARTS = 10_000
"""How many modes, bonds and cores a graph may have in all."""

MAX_PROBLEMS = 100
"""How many problems of one graph are reported: nobody reads more, and a broken file may have thousands."""


@dataclass(frozen=True)
class Fields:
    """The fields of a graph before they are known to be valid."""

    kind: str
    modes: tuple[Edge, ...]
    terms: tuple[Term, ...]
    shared: tuple[str, ...] = ()
    features: Mapping[Role, int] = field(default_factory=dict)
    kernel_size: tuple[int, ...] = ()
    inputs: tuple[Operand, ...] = ()
    output: tuple[Axis, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)

    def of_role(self, role: Role) -> tuple[Edge, ...]:
        return tuple(mode for mode in self.modes if mode.role is role)


def problems(fields: Fields) -> list[Problem]:
    """Everything that is wrong with the fields of a graph, up to a hundred problems; empty where they make one."""
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
        text = f"the graph has {parts:,} modes, bonds and cores; at most {MAX_PARTS:,} are allowed."
        return [Problem(text, "Split the layer, or use fewer terms.")]
    taps = list(_taps(kind, fields))
    found = chain(
        _modes(kind, fields),
        _terms(fields),
        _shared(fields),
        taps,
        () if taps else _features(kind, fields),  # how many channels patch modes hold depends on the taps
        _operands(kind, fields),
        _options(kind, fields),
    )
    return list(islice(found, MAX_PROBLEMS))


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
            wanted = "' or '".join(group)
            yield Problem(
                f"kind '{kind.name}' needs at least one mode with role '{wanted}'.",
                f"Declare it, for example: {group[0]}: {{{group[0].value[0]}1: 8}}.",
                path=("modes",),
            )
    for role in (role for role in _FLAT if role in present):
        if flat_size(fields.of_role(role)) > MAX_ENTRIES:
            yield Problem(
                f"the product of the '{role}' modes is over 2^63 - 1.",
                "Use smaller modes.",
                path=("modes", str(role)),
            )


def _terms(fields: Fields) -> Iterator[Problem]:
    names: set[str] = set()
    ends = [term.ends() for term in fields.terms]
    several = len(ends) > 1
    absent = {mode.name for mode in fields.modes if several and not any(mode.name in found for found in ends)}
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
    """The edges that undeclared ones seem to stand for: a slip is reported where it is, not also where it is missed."""
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
        yield from _core(core, sizes)
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
            f"To leave it open, declare it as a mode. To join another core, add '{name}' to that core's edges.",
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


def _core(core: Core, sizes: Mapping[str, int]) -> Iterator[Problem]:
    if prod(sizes.get(edge, 1) for edge in core.edges) > MAX_ENTRIES:
        yield Problem(
            f"core '{core.name}' would have more than 2^63 - 1 entries.",
            "Give it fewer or smaller edges.",
            path=("cores", core.name),
        )


def _mode(mode: Edge, cores: tuple[str, ...], fields: Fields, term: str) -> Iterator[Problem]:
    """Problems of a mode on the cores of one term, which is named where there are several."""
    path = ("cores",) if term else ("modes", str(mode.role), mode.name)
    of = f" of term '{term}'" if term else ""
    if not cores:
        yield Problem(
            f"mode '{mode.name}' is declared, but no core{of} lists it.",
            "Every term has each mode on one of its cores: add it to a core, or remove it.",
            path,
        )
    elif len(cores) > 1 and mode.name not in fields.shared:
        yield Problem(
            f"mode '{mode.name}' is on {plural(len(cores), 'core')}{of}: {listing(cores)}; a mode belongs to one core.",
            "To join the cores, use a bond. If each value of the mode shall select a slice of all of them "
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
            yield Problem(f"shared lists mode '{name}' twice.", "Once is enough.", path)
        elif name not in modes:
            yield Problem(
                f"shared lists '{name}', which is not a mode.",
                f"Modes: {listing(list(modes))}.{nearest(name, modes)}",
                path,
            )
        elif ends and max(len(found.get(name, ())) for found in ends) < 2:
            yield Problem(
                f"shared lists mode '{name}', but no term has it on two cores.",
                "Remove it from shared.",
                path,
            )
        seen.add(name)


def tap_groups(modes: Sequence[int], kernel_size: Sequence[int]) -> list[tuple[int, ...]] | None:
    """The spatial axes that each kernel mode holds, or None where the modes do not make up the kernel.

    A mode takes axes, in order, until their product is its size; axes of size 1 left at the end go to the last mode.

    >>> tap_groups([9], [3, 3]), tap_groups([3, 5], [3, 5]), tap_groups([4], [3, 3])
    ([(0, 1)], [(0,), (1,)], None)
    """
    groups: list[tuple[int, ...]] = []
    at = 0
    for size in modes:
        start = at
        while at < len(kernel_size) and (at == start or prod(kernel_size[start:at]) < size):
            at += 1
        if prod(kernel_size[start:at]) != size or at == start:
            return None
        groups.append(tuple(range(start, at)))
    rest = tuple(range(at, len(kernel_size)))
    if any(kernel_size[axis] != 1 for axis in rest):
        return None
    if groups:
        groups[-1] += rest
    return groups


def _taps(kind: Kind, fields: Fields) -> Iterator[Problem]:
    path = ("kernel_size",)
    size = fields.kernel_size
    if not kind.is_spatial:
        if size:
            yield Problem(f"kernel_size is for convolutions; kind '{kind.name}' has no kernel.", "Remove it.", path)
        return
    patch, kernel = fields.of_role(Role.PATCH), fields.of_role(Role.KERNEL)
    if patch and (kernel or fields.of_role(Role.IN)):
        other = (kernel or fields.of_role(Role.IN))[0]
        yield Problem(
            f"mode '{other.name}' has role '{other.role}', but the graph has patch modes.",
            "Patch modes hold the input channels and all taps: use them alone, or 'in' with 'kernel' modes.",
            path=("modes", str(other.role), other.name),
        )
        return
    if not size and patch:
        yield Problem(
            "patch modes need kernel_size, to tell channels from taps.",
            "Add, for example: kernel_size: [3, 3].",
            (),
        )
        return
    if not size and not kernel:
        yield Problem(
            "a convolution needs taps.",
            "Declare kernel modes, or kernel_size: [1, 1] for a pointwise one.",
            ("modes",),
        )
        return
    for at, entry in enumerate(size):
        found = size_problem(f"axis {at + 1} of kernel_size", entry)
        if found is not None:
            yield found.under(*path, at)
            return
    spatial = len(size or kernel)
    if not 1 <= spatial <= 3:
        yield Problem(
            f"the kernel has {spatial} spatial axes; torch has convolutions of 1, 2 and 3.",
            "Where one kernel mode holds several axes, say so: kernel_size: [3, 3].",
            path if size else ("modes", str(Role.KERNEL)),
        )
    elif patch:
        yield from _patch(fields, prod(size))
    elif size and tap_groups([mode.size for mode in kernel], size) is None:
        yield Problem(
            f"kernel modes {listing(list(map(str, kernel)))} do not make up kernel_size {list(size)}.",
            "Each kernel mode holds one spatial axis, or several in order: its size is their product.",
            path,
        )


def _patch(fields: Fields, taps: int) -> Iterator[Problem]:
    patch = flat_size(fields.of_role(Role.PATCH))
    channels = fields.features.get(Role.IN)
    if channels is None and patch % taps and patch <= MAX_ENTRIES:  # a larger one is reported as such
        yield Problem(
            f"the patch modes' product is {patch:,}, which is not a multiple of the {taps} taps of kernel_size.",
            "Use modes whose product is channels x taps, or say how many channels are real: features: {in: 3}.",
            path=("modes", str(Role.PATCH)),
        )


def holders(fields: Fields, role: Role) -> tuple[tuple[Edge, ...], int]:
    """The modes that hold the flat axis of a role, and how many of their entries one feature takes.

    Input channels under patch modes take as many entries as the kernel has taps.
    """
    patch = fields.of_role(Role.PATCH)
    if role is Role.IN and patch:
        return patch, prod(fields.kernel_size)
    return fields.of_role(role), 1


def _features(kind: Kind, fields: Fields) -> Iterator[Problem]:
    for role, real in fields.features.items():
        path = ("vocab",) if role is Role.LOOKUP else ("features", str(role))
        what = "vocab" if role is Role.LOOKUP else f"features '{role}'"
        if role not in kind.sized:
            yield Problem(
                f"{what} is not something that kind '{kind.name}' has.",
                f"It has: {', '.join(kind.sized) or 'none, its axes are its modes'}.",
                path,
            )
            continue
        found = size_problem(what, real)
        if found is not None:
            yield found.under(*path)
            continue
        held, unit = holders(fields, role)
        room = flat_size(held) // unit
        if real > room:
            yield Problem(
                f"{what} is {real:,}, but the modes hold only {room:,}.",
                "Use larger modes, or a smaller number.",
                path,
            )


def _operands(kind: Kind, fields: Fields) -> Iterator[Problem]:
    if not kind.has_operands:
        for key in ("inputs", "output"):
            if getattr(fields, key):
                yield Problem(f"'{key}' is for kind 'map'; kind '{kind.name}' has its own.", "Remove it.", (key,))
        return
    if not fields.inputs:
        yield Problem(f"kind '{kind.name}' needs its inputs.", "Add, for example: inputs: {x: [batch, i1]}.", ())
    if not fields.output:
        yield Problem(f"kind '{kind.name}' needs its output.", "Add, for example: output: [batch, o1].", ())
    if not fields.inputs or not fields.output:
        return
    roles = {mode.name: mode.role for mode in fields.modes}
    bonds = {bond.name for term in fields.terms for bond in term.bonds}
    seen: set[str] = set()
    names: set[str] = set()
    for operand in fields.inputs:
        if operand.name in names:
            yield Problem(f"two inputs are named '{operand.name}'.", "Rename one.", ("inputs", operand.name))
        names.add(operand.name)
        path = ("inputs", operand.name)
        for problem in _axes(f"input '{operand.name}'", operand.axes, Role.IN, roles, bonds):
            yield problem.under(*path)
        seen |= {name for axis in operand.axes for name in axis}
    for problem in _axes("the output", fields.output, Role.OUT, roles, bonds):
        yield problem.under("output")
    made = {name for axis in fields.output for name in axis}
    for at, axis in enumerate(fields.output):
        for name in axis:
            if name not in roles and name not in bonds and name not in seen:
                yield Problem(
                    f"the output has axis '{name}', which is no mode and on no input, so its size is not known.",
                    f"Axes of the inputs: {listing(sorted(seen))}.{nearest(name, {*seen, *roles})}",
                    path=("output", at),
                )
    for mode in fields.modes:
        if mode.role is Role.IN and mode.name not in seen:
            yield Problem(
                f"mode '{mode.name}' is on no input.",
                "Add it to the input that it belongs to.",
                ("modes", "in", mode.name),
            )
        if mode.role is Role.OUT and mode.name not in made:
            yield Problem(
                f"mode '{mode.name}' is not on the output.",
                "Add it to the output.",
                ("modes", "out", mode.name),
            )


def _axes(
    what: str, axes: tuple[Axis, ...], role: Role, roles: Mapping[str, Role], bonds: set[str]
) -> Iterator[Problem]:
    """Problems of the axes of one operand, whose modes must have the given role."""
    seen: set[str] = set()
    for at, axis in enumerate(axes):
        for name in axis:
            if not is_identifier(name):
                yield Problem(f"{what} has axis {name!r}, which is not an identifier.", NAME_RULE, (at,))
            elif name in seen:
                yield Problem(f"{what} has axis '{name}' twice.", "An operand has each axis once.", (at,))
            elif name in bonds:
                yield Problem(f"{what} has axis '{name}', which is a bond.", "Bonds join cores only.", (at,))
            elif roles.get(name, role) is not role:
                yield Problem(
                    f"{what} has axis '{name}', a mode with role '{roles[name]}'.",
                    f"Its modes have role '{role}'.",
                    (at,),
                )
            elif len(axis) > 1 and name not in roles:
                yield Problem(
                    f"{what} flattens '{axis_text(axis)}', but '{name}' is not a mode.",
                    "Only modes are flattened together: their sizes are known.",
                    (at,),
                )
            seen.add(name)


def _options(kind: Kind, fields: Fields) -> Iterator[Problem]:
    rows = fields.features.get(Role.LOOKUP, flat_size(fields.of_role(Role.LOOKUP)))
    spatial = len(fields.kernel_size or fields.of_role(Role.KERNEL))
    for problem in options.problems(kind, fields.options, spatial, rows):
        yield problem.under("options")
