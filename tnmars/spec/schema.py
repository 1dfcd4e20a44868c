"""The JSON Schema of the spec format, generated from the table of keys."""

from __future__ import annotations

import json

from tnmars.families import FAMILIES
from tnmars.graph.kinds import KINDS
from tnmars.spec.grammar import Nest, Schema
from tnmars.spec.keys import FORMS, record

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> Schema:
    """The schema as data. It holds everything but what needs the graph: names declared and used, sizes that fit."""
    definitions: dict[str, Schema] = {"nest": Nest.definition()}
    branches = []
    for kind in KINDS:
        for form in FORMS:
            for family in FAMILIES if form == "family" else (None,):
                name = "-".join(part for part in (kind, form, family) if part)
                definitions[name] = record(kind, form, family).schema()
                branches.append(_branch(kind, form, family, name))
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
    """Moves what stands under several keys of several records to a definition of its own, for size."""
    shared: dict[str, str] = {}
    for entry in list(definitions.values()):
        for key, value in entry.get("properties", {}).items():
            text = json.dumps(value)
            if text not in shared:
                shared[text] = f"{key}-{1 + sum(name.startswith(f'{key}-') for name in shared.values())}"
                definitions[shared[text]] = value
            entry["properties"][key] = {"$ref": f"#/$defs/{shared[text]}"}


def _branch(kind: str, form: str, family: str | None, name: str) -> Schema:
    """If the file is of this kind and written in this form, its record holds."""
    keys = {"kind": {"const": kind}}
    if family is not None:
        keys["family"] = {"const": family}
    test: Schema = {"properties": keys, "required": ["kind"]}
    before = FORMS[: FORMS.index(form)]
    if form != FORMS[-1]:
        test["required"] = ["kind", form]
    if before:
        test["not"] = {"anyOf": [{"required": [key]} for key in before]}
    return {"if": test, "then": {"$ref": f"#/$defs/{name}"}}


def schema_text() -> str:
    """The schema as the text that is shipped with the package."""
    return json.dumps(schema(), indent=1) + "\n"
