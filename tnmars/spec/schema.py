"""The JSON Schema of the spec format, generated from the table of keys."""

from __future__ import annotations

import json

from tnmars.families import FAMILIES
from tnmars.graph.kinds import KINDS
from tnmars.spec.grammar import Nest
from tnmars.spec.keys import NOTATIONS, record
from tnmars.spec.shape import Schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> Schema:
    """The schema as data. It checks everything except what needs the graph: that names are declared and sizes fit."""
    definitions: dict[str, Schema] = {"nest": Nest.definition()}
    branches = []
    for kind in KINDS:
        for notation in NOTATIONS:
            for family in FAMILIES if notation == "family" else (None,):
                name = "-".join(part for part in (kind, notation, family) if part)
                definitions[name] = record(kind, notation, family).schema()
                branches.append(_branch(kind, notation, family, name))
    _share_repeats(definitions)
    return {
        "$schema": DIALECT,
        "title": "tnmars spec",
        "description": "How a weight is decomposed: a graph of cores joined by named bonds.",
        "type": "object",
        "required": ["tnmars", "kind"],
        "properties": {"kind": {"enum": list(KINDS)}, "family": {"enum": list(FAMILIES)}},
        "allOf": branches,
        "$defs": definitions,
    }


def _share_repeats(definitions: dict[str, Schema]) -> None:
    """Moves what several records have in common to definitions of their own, to keep the schema small."""
    shared: dict[str, str] = {}
    for entry in list(definitions.values()):
        for key, value in entry.get("properties", {}).items():
            text = json.dumps(value)
            if text not in shared:
                shared[text] = f"{key}-{1 + sum(name.startswith(f'{key}-') for name in shared.values())}"
                definitions[shared[text]] = value
            entry["properties"][key] = {"$ref": f"#/$defs/{shared[text]}"}


def _branch(kind: str, notation: str, family: str | None, name: str) -> Schema:
    """If the file is of this kind and in this notation, its record holds."""
    keys = {"kind": {"const": kind}}
    if family is not None:
        keys["family"] = {"const": family}
    test: Schema = {"properties": keys, "required": ["kind"]}
    before = NOTATIONS[: NOTATIONS.index(notation)]
    if notation != NOTATIONS[-1]:
        test["required"] = ["kind", notation]
    if before:
        test["not"] = {"anyOf": [{"required": [key]} for key in before]}
    return {"if": test, "then": {"$ref": f"#/$defs/{name}"}}


def schema_text() -> str:
    """The schema as the text that is shipped with the package."""
    return json.dumps(schema(), indent=1) + "\n"
