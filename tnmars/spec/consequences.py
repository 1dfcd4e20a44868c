"""Which complaints of the rules follow from something that could not be read, and so are not reported.

A file with one mistake should give one message, a file with two mistakes two. For example:

    kind: linear
    modes: {in: {i: 8x}, out: {o: 6}}       # line 2: the size of 'i' cannot be read
    features: {in: 7}
    bonds: {r: 2}
    cores: {A: [i, r], B: [r, 0]}           # line 5: entry 2 of 'B' is a number, not a name

Reading continues with what it has: size 1 for `i`, which is noted as *guessed* at `("modes", "in", "i")`, and core `B`
without its second edge, noted as *lost* at `("cores", "B", 1)`. The rules then complain twice more:

- "features 'in' is 7, but the modes hold only 1." This compares numbers, and one of them was guessed.
- "mode 'o' is declared, but no core lists it." This rests on what the cores list, and an edge of a core was lost.

Neither is reported. So the file gives two messages, one for each line that is wrong.
"""

from __future__ import annotations

from tnmars.errors import Path, Problem, closest, likeness
from tnmars.graph.fields import Fields
from tnmars.graph.kinds import MODE_ROLES
from tnmars.spec.shape import Reading

_RESTS_ON: dict[str, tuple[str, ...]] = {
    "cores": ("modes", "bonds"),
    "bonds": ("cores",),
    "modes": ("modes", "kernel_size", "inputs", "output"),
    "shared": ("modes", "cores"),
    "tied": ("modes", "bonds", "cores", "tied"),
    "kernel_size": ("modes", "kernel_size"),
    "features": ("modes", "kernel_size"),
    "vocab": ("modes",),
    "inputs": ("modes", "bonds"),
    "same": ("modes", "inputs", "same"),
    "output": ("modes", "bonds", "inputs"),
    "options": ("modes", "kernel_size", "vocab"),
    "": ("modes", "kernel_size", "inputs", "output"),
}
"""For each part of a file that a rule may complain about, the parts on which the complaint rests."""

_NUMERIC = ("kernel_size", "features", "vocab", "options", "patch")
"""The parts about which rules complain because numbers do not fit each other."""


def is_sound(problem: Problem, fields: Fields, into: Reading) -> bool:
    """Whether a complaint of the rules stands even though some parts of the file could not be read."""
    area, inner = _area(problem.path), problem.path[2:]
    basis = _RESTS_ON.get(area, ())
    if problem.path[:1] == ("terms",) and (inner[:1] == ("modes",) or inner == ("cores",)):
        basis = ("cores",)  # ("terms", "main", "modes", "out", "o"): no core lists a mode, and a lost core might
    elif problem.path[:1] == ("terms",) and inner[:1] == ("cores",) and len(inner) == 3:
        # ("terms", "main", "cores", "G1", 0): an edge is not declared, and its declaration might be what was lost
        if _is_lost(_edge(problem.path, fields), fields, into):
            return False
        basis = ()
    lost = {_area(path) for path in into.lost}
    if lost & {"", "terms", *basis}:
        return False
    if area in ("tied", "same") and into.guessed:
        return False
    guessed = {_area(path) for path in into.guessed} - {"bonds", "copies"}
    return not guessed or not (area in _NUMERIC or problem.path == ("modes", "patch"))


def _area(path: Path) -> str:
    """The part of a file that a path lies in, inside a term or not. A family writes its modes at the top level.

    >>> _area(("terms", "t1", "cores", "A", 0)), _area(("modes", "in", "i")), _area(("out",))
    ('cores', 'modes', 'modes')
    """
    inner = path[2:] if path[:1] == ("terms",) else path
    area = str(inner[0]) if inner else "terms" if path else ""
    return "modes" if area in MODE_ROLES else area


def _edge(path: Path, fields: Fields) -> str:
    """The edge at a path such as `("terms", "main", "cores", "G1", 0)`."""
    _, term, _, core, at = path
    return next(
        found.edges[int(at)]
        for part in fields.terms
        if part.name == term
        for found in part.cores
        if found.name == core and len(found.edges) > int(at)
    )


def _is_lost(edge: str, fields: Fields, into: Reading) -> bool:
    """Whether an undeclared edge may be one whose declaration could not be read."""
    names = set()
    for path in into.lost:
        inner = path[2:] if path[:1] == ("terms",) else path
        if _area(path) in ("modes", "bonds"):
            if len(inner) < (3 if inner[0] == "modes" else 2):
                return True  # all of ("bonds",) or ("modes", "in") was lost, so any name may be missing
            names.add(str(inner[-1]))  # ("bonds", "r1") or ("modes", "in", "i1") was lost
    declared = {part.name for part in (*fields.modes, *(bond for term in fields.terms for bond in term.bonds))}
    return bool(names) and closest(edge, names) != "" and likeness(edge, names) >= likeness(edge, declared)
