"""The table of keys that a spec file may have, for each kind of layer and each notation.

The reader walks a file by these records, and the JSON Schema is generated from them. Roles and options come from
`tnmars.graph.kinds`, families and their settings from `tnmars.families`: nothing is listed twice.
"""

from __future__ import annotations

from functools import cache

from tnmars.families import FAMILIES, settings
from tnmars.graph.kinds import BAGS, BORDERS, KINDS, MODE_ROLES, ROLE_MEANING, Kind, Option, Role
from tnmars.graph.parts import MAX_STRIDE
from tnmars.spec.grammar import Anything, Either, Field, ListOf, Nest, Record, TableOf
from tnmars.spec.scalars import AxisName, Choice, CoreName, Flag, Name, Number, Size, Text, Whole
from tnmars.spec.shape import Shape

VERSION = 1
NOTATIONS = ("family", "terms", "cores")
"""The ways to write a graph, by the key that distinguishes them; a file with none of these keys is read as the last."""

OPTION_SHAPES: dict[str, Shape] = {
    "flag": Flag(),
    "index": Whole(-(2**31), 2**31 - 1),
    "bag": Choice(BAGS),
    "norm": Number(0.0),
    "order": Number(1.0, is_included=True),
    "border": Choice(BORDERS),
    "axes": Either((Whole(1, MAX_STRIDE), ListOf(Whole(1, MAX_STRIDE), 1, 3))),
    "margins": Either((Whole(0, MAX_STRIDE), ListOf(Whole(0, MAX_STRIDE), 1, 3))),
    "padding": Either((Choice(("same", "valid")), Whole(0, MAX_STRIDE), ListOf(Whole(0, MAX_STRIDE), 1, 3))),
}

SETTINGS: dict[str, tuple[Shape, str, str]] = {
    "rank": (Size(), "the size of every bond", "none, and 'ranks' is needed"),
    "ranks": (
        Either((TableOf(Size(), "bond"), ListOf(Size()), ListOf(ListOf(Size())))),
        "the size of each bond, in order or by name; for a sum, one list per term",
        "none, and 'rank' is needed",
    ),
    "terms": (Size(), "how many terms the sum has", "as many as 'ranks' has lists"),
    "tree": (Nest(), "site numbers, nested as the tree, such as [[1, 2], [3, 4]]", "a balanced binary tree"),
    "grid": (ListOf(Size(), 1, 8), "rows and columns (and more) of the grid of sites", ""),
    "order": (
        ListOf(Choice(tuple(str(role) for role in MODE_ROLES)), 1),
        "the roles in the order of the cores",
        "group, in, lookup, patch, out, kernel, free",
    ),
}
"""For each setting of a family: its shape, its meaning, and its default in words."""

BONDS = Field(
    "bonds", TableOf(Size(), "bond"), "edges that join two or more cores, with their sizes (ranks)", default="none"
)
CORES = Field("cores", TableOf(ListOf(Name()), "core", least=1), "the cores, each with its edges in axis order", True)
TIED = Field(
    "tied",
    TableOf(CoreName(), "core"),
    "cores that are another core in a second place, each with that core: G3: G2, or t1.G2 for one of another term",
    default="none: every core has numbers of its own",
)
CONJ = Field("conj", ListOf(Name()), "cores whose complex conjugates are used", default="none")
_VERSION = Whole(VERSION, VERSION, f"This version of tnmars reads format {VERSION}: write {VERSION}.")
_UNDER_A_TERM = "With 'terms', each term has its own: put it under a term."
COPIES = Field(
    "copies", Size(), "how many terms like this the sum has: t gives t1, t2, …", default="one term, named as written"
)
TERM = Record((COPIES, BONDS, CORES, TIED, CONJ), "a term")


def _option(option: Option) -> Field:
    default = "none" if option.default is None else str(option.default).lower()
    return Field(option.name, OPTION_SHAPES[option.takes], option.meaning, default=default)


def _setting(key: str, required: bool) -> Field:
    shape, meaning, default = SETTINGS[key]
    return Field(key, shape, meaning, required, default="" if required else default)


def _kinds(kind: str | None) -> tuple[Kind, ...]:
    """The named kind, or all kinds if it is not known."""
    return (KINDS[kind],) if kind in KINDS else tuple(KINDS.values())


def _roles(kinds: tuple[Kind, ...]) -> list[Role]:
    return [role for role in MODE_ROLES if any(role in kind.roles for kind in kinds)]


def _head(kinds: tuple[Kind, ...]) -> list[Field]:
    """The keys that every notation has."""
    keys = [
        Field("tnmars", _VERSION, "the version of the format", True, f"Add 'tnmars: {VERSION}'."),
        Field("name", Text(), "what people call it", default="unnamed"),
        Field("kind", Choice(tuple(KINDS)), "what the weight does", True),
        Field(
            "params",
            TableOf(Whole(), "parameter"),
            "numbers with names, to be used as sizes and set from outside",
            default="none",
        ),
    ]
    sized = {role for kind in kinds for role in kind.sized}
    features = tuple(
        Field(str(role), Size(), f"the real number of {role} features", default="what the modes make")
        for role in MODE_ROLES
        if role in sized and role is not Role.LOOKUP
    )
    if features:
        keys.append(
            Field(
                "features",
                Record(features, "features"),
                "real sizes if the modes' product is larger: the rest is padding",
                default="what the modes make",
            )
        )
    if Role.LOOKUP in sized:
        meaning = "the real number of rows if the lookup modes' product is larger"
        keys.append(Field("vocab", Size(), meaning, default="what the modes make"))
    if any(kind.is_spatial for kind in kinds):
        meaning = "taps along each spatial axis, first axis first; needed without kernel modes, and if one of them"
        meaning += " holds several axes"
        keys.append(Field("kernel_size", ListOf(Size(), 1, 3), meaning, default="the kernel modes, an axis each"))
    if any(kind.has_operands for kind in kinds):
        needed = all(kind.has_operands for kind in kinds)
        keys += [
            Field("inputs", TableOf(ListOf(AxisName()), "input", least=1), "the inputs, each with its axes", needed),
            Field(
                "same",
                TableOf(Name(), "input"),
                "inputs that are another input in a second place, each with that input: y: x; only x is given",
                default="none",
            ),
            Field("output", ListOf(AxisName()), "the axes of the output; [] for one number", needed),
        ]
    options: dict[str, Option] = {}
    for option in (option for kind in kinds for option in kind.options):
        options.setdefault(option.name, option)  # of two with one name, the first takes more
    if options:
        fields = tuple(map(_option, options.values()))
        meaning = "what the torch layer of that kind takes"
        keys.append(Field("options", Record(fields, "options"), meaning, default="torch's"))
    meaning = "where a pruned graph came from; for information only"
    keys.append(Field("origin", TableOf(Anything(), "entry"), meaning, default="none"))
    return keys


def _modes(kinds: tuple[Kind, ...]) -> list[Field]:
    roles = [Field(str(role), TableOf(Size(), "mode"), ROLE_MEANING[role]) for role in _roles(kinds)]
    return [
        Field("modes", Record(tuple(roles), "modes"), "the open edges by role, with their sizes", True),
        Field(
            "shared",
            ListOf(Name()),
            "modes that sit on several cores, each value selecting a slice of all of them",
            default="none",
        ),
    ]


@cache
def record(kind: str | None, notation: str, family: str | None = None) -> Record:
    """The keys of a file of this kind, in this notation; if kind or family is not known, of all of them."""
    kinds = _kinds(kind)
    what = f"a spec of kind '{kind}'" if kind in KINDS else "a spec"
    elsewhere: tuple[tuple[str, str], ...] = ()
    if notation == "family":
        names = [family] if family in FAMILIES else list(FAMILIES)
        required = {key: need for name in names for key, need in settings(name).items()}
        sizes = Either((TableOf(Size(), "mode"), ListOf(Size())))
        fields = [
            Field("family", Choice(tuple(FAMILIES)), "a known decomposition, written out by `tnmars expand`", True),
            *(Field(str(role), sizes, ROLE_MEANING[role]) for role in _roles(kinds)),
            *(_setting(key, need and family in FAMILIES) for key, need in required.items()),
        ]
        what += f" with 'family: {family}'" if family in FAMILIES else " with 'family'"
    elif notation == "terms":
        terms = TableOf(TERM, "term")
        fields = [*_modes(kinds), Field("terms", terms, "the summands, each with its own bonds and cores", True)]
        what += " with 'terms'"
        elsewhere = tuple((entry.key, _UNDER_A_TERM) for entry in TERM.fields)
    else:
        fields = [*_modes(kinds), BONDS, CORES, TIED, CONJ]
    return Record((*_head(kinds), *fields), what, elsewhere)
