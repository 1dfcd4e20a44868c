"""The reference of spec files, from the table of keys that drives the reader and the JSON Schema."""

from __future__ import annotations

from inspect import getdoc
from textwrap import dedent

from marks import block, code, codes, page, table
from shapes import words

from tnmars.families import FAMILIES, settings
from tnmars.graph.kinds import KINDS, MODE_ROLES, ROLE_MEANING, Kind
from tnmars.graph.parts import MAX_SIZE, NAME_RULE
from tnmars.spec.grammar import Field, Record
from tnmars.spec.keys import NOTATIONS, SETTINGS, TERM, record
from tnmars.spec.reader import loads

WIDTH = 88
HEAD = ("key", "value", "kinds", "default", "meaning")
FORM_TEXT = {
    "cores": "One graph, written out. This is the default if there is no `family` and no `terms`.",
    "terms": "A sum of graphs over the same modes. Each term has its own bonds and cores.",
    "family": "A known decomposition, which `tnmars expand` writes out. The roles of its kind, listed below, are keys\n"
    "of the file too. The value of a role is a table of modes and sizes, or a list of sizes; the modes are then named\n"
    "after the role: `i1`, `i2`, … In addition there are the keys of the families, also listed below.",
}

INTRO = """\
Every key of a spec file, generated from the same table as the reader and the JSON Schema (`tnmars schema`).
[The spec format](../spec.md) explains it with examples."""

VALUES = f"""\
## Values

* A **size** is a whole number from 1 to {MAX_SIZE:,}, or the name of an entry of `params`.
* {NAME_RULE.replace("Names", "**Names**").replace("'_'", "`_`")}
* An **axis** is a name, or several names that are flattened together: `(i1 i2)`.
* If the default is *required*, a file without the key is rejected. So is a file with a key that is not listed."""


def text() -> str:
    """The page."""
    forms = [_form(form) for form in reversed(NOTATIONS)]
    return page("# Spec reference", INTRO, VALUES, _kinds(), _common(), *forms, _roles(), _options(), _families())


def keys() -> set[str]:
    """Every key that may stand anywhere in a spec file, those of nested tables too."""
    return {key for kind in KINDS for form in NOTATIONS for key in _inside(record(kind, form))}


def _inside(found: Record) -> set[str]:
    inner = [entry.shape for entry in found.fields if isinstance(entry.shape, Record)]
    return {entry.key for part in (found, *inner, TERM) for entry in part.fields}


def _section(title: str, *parts: str) -> str:
    return "\n\n".join((f"## {title}", *parts))


def _kinds() -> str:
    head = ("kind", "what the weight does", "roles of its modes", "axes that may be padded", "options")
    rows = [
        (
            code(kind.name),
            kind.meaning,
            _needs(kind),
            codes(kind.sized) or "none",
            codes(o.name for o in kind.options) or "none",
        )
        for kind in KINDS.values()
    ]
    return _section("Kinds", table(head, rows))


def _needs(kind: Kind) -> str:
    groups = [" or ".join(map(code, map(str, group))) for group in kind.needs]
    return ", ".join([*groups, *(f"{code(str(role))} (optional)" for role in kind.may)])


def _where(key: str, form: str) -> str:
    """The kinds whose files may have a key."""
    found = [kind for kind in KINDS if any(entry.key == key for entry in record(kind, form).fields)]
    return "all" if len(found) == len(KINDS) else codes(found)


def _default(entry: Field, required: bool) -> str:
    return "*required*" if required else entry.default or "none"


def _row(entry: Field, form: str) -> tuple[str, ...]:
    everywhere = [found for kind in KINDS for found in record(kind, form).fields if found.key == entry.key]
    required = all(found.required for found in everywhere)
    return code(entry.key), words(entry.shape), _where(entry.key, form), _default(entry, required), entry.meaning


def _shared_keys() -> set[str]:
    """The keys that every way to write a graph has."""
    return set.intersection(*({entry.key for entry in record(None, form).fields} for form in NOTATIONS))


def _common() -> str:
    common = _shared_keys()
    rows = [_row(entry, NOTATIONS[-1]) for entry in record(None, NOTATIONS[-1]).fields if entry.key in common]
    return _section("Keys of every file", table(HEAD, rows))


def _form(form: str) -> str:
    elsewhere = {*_shared_keys(), *map(str, MODE_ROLES), *(SETTINGS if form == "family" else ())}
    rows = [_row(entry, form) for entry in record(None, form).fields if entry.key not in elsewhere]
    parts = [FORM_TEXT[form], table(HEAD, rows)]
    if form == "terms":
        parts += ["Each entry of `terms` has:", _plain(TERM.fields)]
    return _section(f"Keys of a file with `{form}`", *parts)


def _plain(fields: tuple[Field, ...]) -> str:
    head = ("key", "value", "default", "meaning")
    rows = [(code(entry.key), words(entry.shape), _default(entry, entry.required), entry.meaning) for entry in fields]
    return table(head, rows)


def _roles() -> str:
    rows = [
        (code(str(role)), codes(kind.name for kind in KINDS.values() if role in kind.roles), ROLE_MEANING[role])
        for role in MODE_ROLES
    ]
    return _section(
        "Roles",
        "The keys of `modes`. The value of each is a table: mode → size.",
        table(("role", "kinds", "meaning"), rows),
    )


def _options() -> str:
    parts = ["The keys of `options`, by kind. Names and values are those of torch."]
    for kind in KINDS:
        found = next((entry.shape for entry in record(kind, NOTATIONS[-1]).fields if entry.key == "options"), None)
        if isinstance(found, Record):
            parts += [f"### Options of `{kind}`", _plain(found.fields)]
    without = codes(name for name, kind in KINDS.items() if not kind.options)
    return _section("Options", *parts, f"No options: {without}.")


THREE_SITES = """\
kind: linear
in: [2, 3, 4]
out: [5, 6, 7]"""
FOUR_AXES = """\
kind: tensor
free: [4, 5, 6, 7]"""
CONVOLUTION = """\
kind: conv
in: [16]
out: [32]
kernel: [3, 3]"""
EXAMPLES = {
    "lowrank": (THREE_SITES, "rank: 2"),
    "tt": (THREE_SITES, "ranks: [2, 3]"),
    "tt_naive": (THREE_SITES, "order: [out, in]", "rank: 2"),
    "tr": (THREE_SITES, "ranks: {r1: 2, r2: 3, r3: 4}"),
    "tucker": (FOUR_AXES, "rank: 2"),
    "tucker2": (CONVOLUTION, "rank: 8"),
    "cp": (FOUR_AXES, "rank: 2"),
    "btd": (FOUR_AXES, "terms: 2", "rank: 2"),
    "ht": (FOUR_AXES, "tree: [[1, 2], [3, 4]]", "rank: 2"),
    "peps": (FOUR_AXES, "grid: [2, 2]", "rank: 2"),
    "complete": (FOUR_AXES, "rank: 2"),
    "btt": (THREE_SITES, "rank: 2"),
}
"""The rest of each family's example."""


def _families() -> str:
    rows = []
    for key, (shape, meaning, default) in SETTINGS.items():
        having = [name for name in FAMILIES if key in settings(name)]
        required = any(settings(name)[key] for name in having)
        entry = Field(key, shape, meaning, required, default=default)
        where = "all" if len(having) == len(FAMILIES) else codes(having)
        rows.append((code(key), words(shape), where, _default(entry, required), meaning))
    head = ("key", "value", "families", "default", "meaning")
    parts = ["These keys are at the top level of a file with `family`, next to the modes.", table(head, rows)]
    return _section("Families", *parts, *map(_family, FAMILIES))


def _family(name: str) -> str:
    meaning = (getdoc(FAMILIES[name]) or "").split("\n\n")[0].replace("\n", " ")
    spec = "\n".join(("tnmars: 1", f"family: {name}", *EXAMPLES[name]))
    graph = dedent("\n".join(str(loads(spec)).splitlines()[1:]))
    shown = "\n".join(map(_folded, graph.splitlines()))
    return "\n\n".join((f"### `{name}`", meaning, block(spec, "yaml"), block(shown)))


def _folded(line: str) -> str:
    """A line of a printed graph, broken between two cores where it is too wide."""
    at = line.rfind("] ", 0, WIDTH) + 1
    return f"{line[:at]}\n{' ' * 6}{line[at:]}" if len(line) > WIDTH else line
