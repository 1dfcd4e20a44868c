"""The published schema: shipped as generated, valid itself, and in agreement with the reader about the shape of a file.

What needs the graph is beyond a schema: names declared and used, sizes that fit. So the reader's side of the comparison
is its walk over the table of keys alone, in which every name at a size counts as a parameter.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.validators import extend
from kit import SPECS
from mutator import NASTY, SIZES, sources
from strategies import THOROUGH, cases, graphs

from tnmars.families import FAMILIES
from tnmars.graph import Graph
from tnmars.graph.kinds import KINDS
from tnmars.spec import document, dump, schema, schema_text
from tnmars.spec.nodes import Items, Node, Scalar, Table, TextError, parse
from tnmars.spec.reader import walk
from tnmars.spec.shape import Reading, constant

# JSON has one kind of number, so that by the standard 3.0 is an integer. A text tells 3 from 3.0, and so does this.
_TYPES = Draft202012Validator.TYPE_CHECKER.redefine(
    "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
)
VALIDATOR = extend(Draft202012Validator, type_checker=_TYPES)(schema())


class AnyParameter(dict[str, int]):
    """Parameters among which every name is."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> int:
        return 1


def data(node: Node) -> Any:
    """A tree as the data that the schema sees."""
    if isinstance(node, Items):
        return list(map(data, node.nodes))
    if isinstance(node, Table):
        return {key: data(value) for key, (_, value) in node.entries.items()}
    assert isinstance(node, Scalar)
    return constant(node)


def verdicts(text: str) -> tuple[list[str], list[str]]:
    """What schema and reader have against the form of a text: the schema's first error, and all of the reader's."""
    tree, problems = parse(text.encode())
    assert problems == []
    into = Reading(params=AnyParameter())
    if isinstance(tree, Table):
        walk(tree, into)
        said = [problem.text for problem in into.problems]
    else:
        said = ["the file is not a table of keys."]
    return [error.message[:200] for error in islice(VALIDATOR.iter_errors(data(tree)), 1)], said


def agree(text: str) -> bool:
    """Whether schema and reader have the same verdict on a text; returns it."""
    against, said = verdicts(text)
    assert bool(against) == bool(said), (text, against, said)
    return not said


def test_the_shipped_schema_is_the_generated_one() -> None:
    shipped = (files("tnmars.spec") / "schema.json").read_text(encoding="utf-8")
    assert shipped == schema_text(), "run: make golden"


def test_the_schema_is_valid_and_describes_every_key() -> None:
    Draft202012Validator.check_schema(schema())
    assert schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    definitions = schema()["$defs"]
    for kind in KINDS:
        for name in (f"{kind}-cores", f"{kind}-terms", *(f"{kind}-family-{family}" for family in FAMILIES)):
            for key, value in definitions[name]["properties"].items():
                assert definitions[value["$ref"].removeprefix("#/$defs/")]["description"], (name, key)


def test_every_reference_in_the_schema_leads_somewhere() -> None:
    def references(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            yield from (entry for key, entry in value.items() if key == "$ref")
            yield from (found for entry in value.values() for found in references(entry))
        elif isinstance(value, list):
            yield from (found for entry in value for found in references(entry))

    found = {reference.removeprefix("#/$defs/") for reference in references(schema())}
    assert found <= schema()["$defs"].keys()
    assert len(found) > 50


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_example_is_good_for_both(path: Path) -> None:
    assert agree(path.read_text(encoding="utf-8"))


@settings(max_examples=cases(2000))
@given(graphs(least_terms=0))
def test_every_graph_is_good_for_both(graph: Graph) -> None:
    assert agree(dump(graph))
    assert agree(json.dumps(document(graph), ensure_ascii=False))


# --- bad ones --------------------------------------------------------------------------------------------------------

GOOD = [text for text in sources() if agree(text)]
DOCUMENTS = [data(parse(text.encode())[0]) for text in GOOD]
KEYS = sorted({key for definition in schema()["$defs"].values() for key in definition.get("properties", {})})
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        2,
        3,
        -1,
        7.5,
        3.0,
        2**31 - 1,
        2**31,
        10**30,
        "",
        "x",
        "on",
        "1",
        "r-1",
        "1r",
        "x" * 100,
    ),
    *("x" * 101, "r1\n", "a b", "(i j)", "(i)", " i ", "é", "same", "valid", "linear", "tt", "in", [], {}, [1], [1, 2]),
    *([1, 2, 3, 4], ["a"], ["a", 1], [[1]], [[1], 2], [1, [2]], [None], [[]], {"a": 1}, {"a": None}, {"1": 1}, {"": 1}),
    *(
        {"a": [1]},
        {"a": {"b": 1}},
        {"in": {"i": 1}},
        {"a\n": 1},
        {"cores": {"A": ["i"]}},
        {"bias": True},
        {"stride": [1, 1]},
    ),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from places(entry, (*path, key))


def mutated(document: Any, rng: random.Random) -> Any:
    """A document with one change of its form at a random place."""
    found = copy.deepcopy(document)
    path = rng.choice(list(places(found))[1:])
    holder = found
    for key in path[:-1]:
        holder = holder[key]
    what, last = rng.randrange(6), path[-1]
    if what == 0 and isinstance(holder, dict):
        holder[rng.choice((*KEYS, "x", "1", "on"))] = holder.pop(last)
    elif what == 1:
        del holder[last]
    elif what == 2 and isinstance(holder, dict):
        holder[rng.choice((*KEYS, "x", "r-1", ""))] = copy.deepcopy(rng.choice(VALUES))
    elif what == 3 and isinstance(holder, list):
        holder[:] = [*holder, *holder][: rng.randrange(6)]
    elif what == 4:
        holder[last] = [holder[last]]
    else:
        holder[last] = copy.deepcopy(rng.choice(VALUES))
    return found


@settings(max_examples=cases(4000))
@given(st.integers(0, 2**32))
def test_schema_and_reader_agree_on_changed_documents(seed: int) -> None:
    rng = random.Random(seed)
    agree(json.dumps(mutated(rng.choice(DOCUMENTS), rng), ensure_ascii=False))


@pytest.mark.parametrize("text", GOOD[-6:], ids=range(6))
def test_schema_and_reader_agree_on_every_value_at_every_place(text: str) -> None:
    original = data(parse(text.encode())[0])
    good = bad = 0
    for at, path in enumerate(places(original)):
        for value in VALUES if THOROUGH else VALUES[at % 4 :: 4]:
            found = {"": copy.deepcopy(original)}
            holder: Any = found
            for key in ("", *path)[:-1]:
                holder = holder[key]
            holder[("", *path)[-1]] = value
            if agree(json.dumps(found[""], ensure_ascii=False)):
                good += 1
            else:
                bad += 1
    assert good > 10
    assert bad > 100


@pytest.mark.parametrize("scalar", [*NASTY, *SIZES])
def test_schema_and_reader_agree_on_nasty_scalars(scalar: str) -> None:
    base = "tnmars: 1\nkind: linear\nname: {}\nmodes:\n  in: {{i: {}}}\n  out: {{o: 2}}\n"
    base += "options: {{bias: {}}}\ncores: {{A: [i, {}]}}\n"
    for at in range(4):
        words = ["x", "1", "true", "o"]
        words[at] = scalar
        try:
            tree, problems = parse(base.format(*words).encode())
        except TextError:  # not a text at all: nothing to agree on
            continue
        if not problems and isinstance(tree, Table):
            agree(base.format(*words))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_schema_and_reader_agree_on_every_key_in_every_kind(kind: str) -> None:
    """Keys, roles, options and families of other kinds, at every level."""
    roles = [str(role) for role in KINDS[kind].roles]
    modes = {role: {f"m_{role}": 2} for role in roles}
    names = [f"m_{role}" for role in roles]
    operands = {"inputs": {"x": ["b"]}, "output": ["b"]} if KINDS[kind].has_operands else {}
    head = {"tnmars": 1, "kind": kind, **operands}
    explicit = {**head, "modes": modes, "cores": {"A": names}}
    assert agree(json.dumps(explicit))
    assert agree(json.dumps({**head, "modes": modes, "terms": {"t": {"cores": {"A": names}}}}))
    assert not agree(json.dumps({**explicit, "terms": {}}))
    assert not agree(json.dumps({**explicit, "family": "tt"}))
    assert not agree(json.dumps({key: value for key, value in explicit.items() if key != "cores"}))
    agreed = 0
    for at, key in enumerate(KEYS):
        for value in VALUES if THOROUGH else VALUES[at % 8 :: 8]:
            agreed += agree(json.dumps({**explicit, key: value}))
            agreed += agree(json.dumps({**explicit, "modes": {**modes, key: value}}))
            agreed += agree(json.dumps({**explicit, "options": {key: value}}))
    for family in FAMILIES:
        shorthand = {**head, "family": family, **{role: [2, 2] for role in roles}}
        for key in KEYS:
            agreed += agree(json.dumps({**shorthand, key: 2}))
            agreed += agree(json.dumps({**shorthand, "grid": [2], key: [1, 2]}))
    assert agreed > 15


@pytest.mark.parametrize("side", ["schema", "reader"])
def test_the_comparison_can_fail(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the test: a side that has nothing against anything is caught on a bad text, and not on a good one."""
    if side == "schema":
        monkeypatch.setattr(f"{__name__}.VALIDATOR", Draft202012Validator({}))
    else:
        monkeypatch.setattr(f"{__name__}.walk", lambda tree, into: {})
    assert agree(GOOD[0])
    with pytest.raises(AssertionError, match="kind: linear"):
        agree("tnmars: 1\nkind: linear\n")
