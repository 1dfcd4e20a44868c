"""The rules of a kind of layer: its taps, its real sizes, the inputs and output of a map, its options.

The rules of the parts themselves, of modes, bonds and cores, are in `tnmars.graph.rules`, which asks this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from tnmars.errors import Problem, listing, nearest
from tnmars.graph import options
from tnmars.graph.fields import Fields
from tnmars.graph.kinds import Kind, Role
from tnmars.graph.parts import MAX_ENTRIES, NAME_RULE, Axis, axis_text, flat_size, is_identifier, size_problem


def problems(kind: Kind, fields: Fields) -> Iterator[Problem]:
    """Every problem of what the fields say about the layer."""
    taps = list(_taps(kind, fields))
    yield from taps
    if not taps:  # how many channels patch modes hold depends on the taps
        yield from _features(kind, fields)
    yield from _operands(kind, fields)
    yield from _options(kind, fields)


def tap_groups(modes: Sequence[int], kernel_size: Sequence[int]) -> list[tuple[int, ...]] | None:
    """The spatial axes that each kernel mode holds, or None if the modes do not make up the kernel.

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
        problem = size_problem(f"axis {at + 1} of kernel_size", entry)
        if problem is not None:
            yield problem.under(*path, at)
            return
    spatial = len(size or kernel)
    if not 1 <= spatial <= 3:
        yield Problem(
            f"the kernel has {spatial} spatial axes, but must have 1, 2 or 3.",
            "If one kernel mode holds several axes, add kernel_size: [3, 3].",
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
    channels = dict(fields.features).get(Role.IN)
    if channels is None and patch % taps and patch <= MAX_ENTRIES:  # a larger one is reported as such
        yield Problem(
            f"the patch modes' product is {patch:,}, which is not a multiple of the {taps} taps of kernel_size.",
            "Use modes whose product is channels x taps, or say how many channels are real: features: {in: 3}.",
            path=("modes", str(Role.PATCH)),
        )


def _features(kind: Kind, fields: Fields) -> Iterator[Problem]:
    for role, real in fields.features:
        path = ("vocab",) if role is Role.LOOKUP else ("features", str(role))
        what = "vocab" if role is Role.LOOKUP else f"features '{role}'"
        if fields.of_role(Role.GROUP) and role in kind.sized:
            yield Problem(
                f"{what} is given, but the graph has group modes.",
                "All groups have the same size, so that nothing is padded: use modes whose product is exact.",
                path,
            )
            continue
        if role not in kind.sized:
            yield Problem(
                f"kind '{kind.name}' does not take {what}.",
                f"It takes: {', '.join(kind.sized) or 'none, because its axes are its modes'}.",
                path,
            )
            continue
        problem = size_problem(what, real)
        if problem is not None:
            yield problem.under(*path)
            continue
        held, unit = fields.holders(role)
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
    known = {mode.name for mode in fields.modes}
    data = [name for operand in fields.inputs for axis in operand.axes for name in axis if name not in known]
    is_number = not data and not fields.of_role(Role.OUT) and not fields.of_role(Role.GROUP)
    if not fields.output and not is_number:
        yield Problem(f"kind '{kind.name}' needs its output.", "Add, for example: output: [batch, o1].", ())
    if not fields.inputs or not (fields.output or is_number):
        return
    yield from _same(fields)
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
                    f"the output has axis '{name}', which is neither a mode nor on an input, so its size is unknown.",
                    f"Axes of the inputs: {listing(sorted(seen))}.{nearest(name, {*seen, *roles})}",
                    path=("output", at),
                )
    for mode in fields.modes:
        if mode.role in (Role.IN, Role.GROUP) and mode.name not in seen:
            yield Problem(
                f"mode '{mode.name}' is on no input.",
                "Add it to the input that it belongs to.",
                ("modes", str(mode.role), mode.name),
            )
        if mode.role in (Role.OUT, Role.GROUP) and mode.name not in made:
            yield Problem(
                f"mode '{mode.name}' is not on the output.",
                "Add it to the output.",
                ("modes", str(mode.role), mode.name),
            )


def _same(fields: Fields) -> Iterator[Problem]:
    """What is wrong with inputs that are another input in a second place."""
    inputs = {operand.name: operand for operand in fields.inputs}
    modes = {mode.name: mode.size for mode in fields.modes}
    for operand in fields.inputs:
        if not operand.same:
            continue
        path, first = ("same", operand.name), inputs.get(operand.same)
        what = f"input '{operand.name}' is the same as '{operand.same}'"
        if first is None or first is operand:
            shown = [name for name, other in inputs.items() if not other.same]
            hint = f"Inputs: {listing(shown)}.{nearest(operand.same, shown)}"
            yield Problem(f"{what}, which is not another input.", hint, path)
        elif first.same:
            hint = f"Name the one that is given: '{first.same}'."
            yield Problem(f"{what}, which is another input itself.", hint, path)
        else:
            lengths = [
                [prod(modes[name] for name in axis) if set(axis) <= set(modes) else 0 for axis in own.axes]
                for own in (operand, first)
            ]
            if lengths[0] != lengths[1]:
                hint = "Both must have as many axes, with modes of the same sizes, or data, on the same ones."
                yield Problem(f"{what}, but {operand} and {first} are not of one shape.", hint, path)


def _axes(
    what: str, axes: tuple[Axis, ...], role: Role, roles: Mapping[str, Role], bonds: set[str]
) -> Iterator[Problem]:
    """Problems of the axes of one operand, whose modes must have the given role or be shared by both sides."""
    seen: set[str] = set()
    for at, axis in enumerate(axes):
        for name in axis:
            if not is_identifier(name):
                yield Problem(f"{what} has axis {name!r}, which is not an identifier.", NAME_RULE, (at,))
            elif name in seen:
                yield Problem(f"{what} has axis '{name}' twice.", "An operand must have each axis once.", (at,))
            elif name in bonds:
                yield Problem(f"{what} has axis '{name}', which is a bond.", "Bonds join cores only.", (at,))
            elif roles.get(name, role) not in (role, Role.GROUP):
                yield Problem(
                    f"{what} has axis '{name}', a mode with role '{roles[name]}'.",
                    f"Its modes must have role '{role}', or '{Role.GROUP}' if inputs and output share them.",
                    (at,),
                )
            elif len(axis) > 1 and name not in roles:
                yield Problem(
                    f"{what} flattens '{axis_text(axis)}', but '{name}' is not a mode.",
                    "Only modes can be flattened together, because their sizes are known.",
                    (at,),
                )
            seen.add(name)


def _options(kind: Kind, fields: Fields) -> Iterator[Problem]:
    rows = dict(fields.features).get(Role.LOOKUP, flat_size(fields.of_role(Role.LOOKUP)))
    spatial = len(fields.kernel_size or fields.of_role(Role.KERNEL))
    for problem in options.problems(kind, dict(fields.options), spatial, rows):
        yield problem.under("options")
