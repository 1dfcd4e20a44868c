"""Shapes: what may stand at a place of a spec file. Each reads a node and states itself as JSON Schema.

Reader and schema are two methods of one value, so that they cannot drift apart. A shape that finds a problem reports
it, and returns the best stand-in it has, so that reading goes on and every problem of a file is found in one go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, ClassVar

from tnmars.errors import Path, Place, Problem, listing, nearest
from tnmars.parts import MAX_SIZE, NAME_RULE, is_identifier, parse_axis
from tnmars.spec.nodes import Broken, Items, Node, Scalar, Table, shorten

Schema = dict[str, Any]

IDENTIFIER_PATTERN = "^[A-Za-z_][A-Za-z0-9_]{0,99}$"
MAX_PROBLEMS = 100

_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_CONSTANTS = {"true": True, "false": False, "null": None, "~": None, "": None}
_CONSTANTS.update({word.title(): value for word, value in _CONSTANTS.items()})
_CONSTANTS.update({word.upper(): value for word, value in _CONSTANTS.items()})


class Bad:
    """Returned where nothing usable could be read."""


BAD = Bad()


@dataclass
class Reading:
    """What a walk over the tree has found so far."""

    params: Mapping[str, int] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    places: dict[Path, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    lost: set[str | int] = field(default_factory=set)
    """Top keys below which a name or more could not be read."""
    guessed: set[str | int] = field(default_factory=set)
    """Top keys below which a number could not be read, and 1 stands in."""

    def report(self, node: Node, path: Path, text: str, hint: str = "") -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(text, hint, path, node.place))

    def lose(self, node: Node, path: Path, text: str, hint: str = "") -> Bad:
        """Reports a problem at a place where nothing can stand in."""
        self.report(node, path, text, hint)
        self.lost.add(path[0] if path else "")
        return BAD


def constant(node: Node) -> object:
    """The value of a scalar under the strict reading: whole number, decimal, true, false, null, or its own text.

    Only what JSON would write as a number is one: `010`, `1_000`, `0x10` and `12:30` are text.
    """
    assert isinstance(node, Scalar)
    if not node.plain:
        return node.text
    if node.text in _CONSTANTS:
        return _CONSTANTS[node.text]
    if _WHOLE.fullmatch(node.text):
        return int(node.text)
    if _FLOAT.fullmatch(node.text) and isfinite(float(node.text)):
        return float(node.text)
    return node.text


def describe(node: Node) -> str:
    """What stands at a place, in words."""
    if isinstance(node, Items):
        return "a list"
    if isinstance(node, Table):
        return "a table"
    assert isinstance(node, Scalar)
    if not node.plain:
        return f"the quoted text '{shorten(node.text)}'"
    return f"'{shorten(node.text)}'" if node.text else "nothing"


class Shape:
    """What may stand at a place."""

    def read(self, node: Node, path: Path, into: Reading) -> Any:
        """The value at a node, or `BAD`; notes places and problems on the way."""
        if isinstance(node, Broken):
            into.lost.add(path[0] if path else "")
            return BAD
        into.places.setdefault(path, node.place)
        return self._read(node, path, into)

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        raise NotImplementedError  # every shape below has its own

    def schema(self) -> Schema:
        raise NotImplementedError  # every shape below has its own


@dataclass(frozen=True)
class Whole(Shape):
    """A whole number."""

    least: int = 1
    most: int = MAX_SIZE

    _noun: ClassVar[str] = "a whole number in its range"

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        value = constant(node) if isinstance(node, Scalar) else BAD
        if isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most:
            return value
        hint = _number_hint(node) or f"Write {self._wanted()}."
        into.report(node, path, f"{_label(path)} is {describe(node)}, which is not {self._noun}.", hint)
        into.guessed.add(path[0] if path else "")
        return 1

    def _wanted(self) -> str:
        return f"a whole number from {self.least:,} to {self.most:,}" if self.least < self.most else f"{self.least}"

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True)
class Size(Whole):
    """A whole number, or the name of a parameter."""

    _noun: ClassVar[str] = "a size"

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        if not isinstance(node, Scalar) or not isinstance(constant(node), str) or not is_identifier(node.text):
            return super()._read(node, path, into)
        into.used.add(node.text)
        if node.text in into.params:
            return into.params[node.text]
        into.report(
            node,
            path,
            f"{_label(path)} is '{node.text}', which is neither a number nor a parameter.",
            f"Parameters: {listing(list(into.params))}.{nearest(node.text, into.params)}",
        )
        into.guessed.add(path[0] if path else "")
        return 1

    def _wanted(self) -> str:
        return f"{super()._wanted()}, or the name of a parameter"

    def schema(self) -> Schema:
        return {"anyOf": [super().schema(), Name().schema()]}


def _number_hint(node: Node) -> str:
    """What the writer of a number that is none may have meant, if that can be told."""
    if not isinstance(node, Scalar):
        return ""
    text = node.text.strip()
    if not node.plain and text.isdigit():
        return f"Remove the quotes: {text}."
    digits = text.replace("_", "").replace(",", "").lstrip("+0")
    if node.plain and digits.isascii() and digits.isdigit() and len(digits) < 11 and digits != text:
        return f"Write {digits}; '{shorten(text)}' means different numbers to different programs."
    if node.plain and _FLOAT.fullmatch(text) and 1 <= float(text) <= MAX_SIZE and float(text).is_integer():
        return f"Write {int(float(text))}."
    return ""


@dataclass(frozen=True)
class Flag(Shape):
    """`true` or `false`, and no other word for it."""

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        if isinstance(node, Scalar) and node.plain and node.text in ("true", "false"):
            return node.text == "true"
        into.report(
            node, path, f"{_label(path)} is {describe(node)}, which is neither true nor false.", "Write true or false."
        )
        return BAD

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Text(Shape):
    """A line of text."""

    most: int = 200

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        value = constant(node) if isinstance(node, Scalar) else BAD
        if isinstance(value, str) and value and len(value) <= self.most and "\n" not in value:
            return value
        hint = f"Put it in quotes, on one line, with 1 to {self.most} characters."
        into.report(node, path, f"{_label(path)} is {describe(node)}, which is not a line of text.", hint)
        return BAD

    def schema(self) -> Schema:
        return {"type": "string", "minLength": 1, "maxLength": self.most, "pattern": "^[^\\n]+$"}


@dataclass(frozen=True)
class Name(Shape):
    """An identifier."""

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        value = constant(node) if isinstance(node, Scalar) else BAD
        if isinstance(value, str) and is_identifier(value):
            return value
        hint = NAME_RULE
        if isinstance(node, Scalar) and is_identifier(node.text):
            hint = f'YAML reads this word as a value: put it in quotes, "{node.text}".'
        return into.lose(node, path, f"{_label(path)} is {describe(node)}, which is not a name.", hint)

    def schema(self) -> Schema:
        return {"type": "string", "pattern": IDENTIFIER_PATTERN}


@dataclass(frozen=True)
class AxisName(Shape):
    """A name, or several that are flattened together: `(i1 i2)`."""

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        value = constant(node) if isinstance(node, Scalar) else BAD
        axis = parse_axis(value) if isinstance(value, str) else None
        if axis is not None:
            return axis
        return into.lose(
            node,
            path,
            f"{_label(path)} is {describe(node)}, which is not an axis.",
            "Write a name, or several names in brackets to flatten them: (i1 i2).",
        )

    def schema(self) -> Schema:
        name = IDENTIFIER_PATTERN[1:-1]
        return {"type": "string", "pattern": f"^\\s*({name}|\\(\\s*{name}(\\s+{name})+\\s*\\))\\s*$"}


@dataclass(frozen=True)
class Choice(Shape):
    """One word of several."""

    words: tuple[str, ...]

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        if isinstance(node, Scalar) and node.text in self.words:
            return node.text
        known = nearest(node.text, self.words) if isinstance(node, Scalar) else ""
        return into.lose(
            node,
            path,
            f"{_label(path)} is {describe(node)}, which is not known.",
            f"Known: {', '.join(self.words)}.{known}",
        )

    def schema(self) -> Schema:
        return {"enum": list(self.words)}


@dataclass(frozen=True)
class ListOf(Shape):
    """A list of like things."""

    item: Shape
    least: int = 0
    most: int = 10_000

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        if not isinstance(node, Items):
            example = "Write a list: [a, b]." if isinstance(self.item, (Name, AxisName)) else "Write a list: [2, 3]."
            return into.lose(node, path, f"{_label(path)} is {describe(node)}, which is not a list.", example)
        if not self.least <= len(node.nodes) <= self.most:
            span = f"{self.least} to {self.most:,}" if self.most < 10_000 else f"at least {self.least}"
            into.lose(node, path, f"{_label(path)} has {len(node.nodes)} entries; it takes {span}.")
        values = [self.item.read(entry, (*path, at), into) for at, entry in enumerate(node.nodes)]
        return tuple(value for value in values if value is not BAD)

    def schema(self) -> Schema:
        return {"type": "array", "items": self.item.schema(), "minItems": self.least, "maxItems": self.most}


@dataclass(frozen=True)
class Nest(Shape):
    """A whole number, or a list of nests."""

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        if isinstance(node, Items):
            values = [self.read(entry, (*path, at), into) for at, entry in enumerate(node.nodes)]
            return tuple(value for value in values if value is not BAD)
        return Whole().read(node, path, into)

    def schema(self) -> Schema:
        return {"$ref": "#/$defs/nest"}

    @staticmethod
    def definition() -> Schema:
        return {"anyOf": [Whole().schema(), {"type": "array", "items": {"$ref": "#/$defs/nest"}}]}


@dataclass(frozen=True)
class TableOf(Shape):
    """Names, each with a like thing."""

    value: Shape
    what: str
    least: int = 0

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        if not isinstance(node, Table):
            return into.lose(
                node, path, f"{_label(path)} is {describe(node)}, which is not a table.", "Write a table: {a: 2, b: 3}."
            )
        if len(node.entries) < self.least:
            into.lose(node, path, f"{_label(path)} is empty; it takes at least one {self.what}.")
        found = {}
        for key, (key_node, value_node) in node.entries.items():
            if not is_identifier(key):
                into.lose(
                    key_node,
                    (*path, key),
                    f"{self.what} name '{shorten(key)}' is not an identifier.",
                    NAME_RULE,
                )
            into.places.setdefault((*path, key), key_node.place)
            value = self.value.read(value_node, (*path, key), into)
            if value is not BAD:
                found[key] = value
        return found

    def schema(self) -> Schema:
        return {
            "type": "object",
            "propertyNames": {"pattern": IDENTIFIER_PATTERN},
            "additionalProperties": self.value.schema(),
            "minProperties": self.least,
        }


@dataclass(frozen=True)
class Field:
    """A key of a record, what stands there, and what it is for."""

    key: str
    shape: Shape
    meaning: str
    required: bool = False


@dataclass(frozen=True)
class Record(Shape):
    """Known keys, each with its own shape."""

    fields: tuple[Field, ...]
    what: str = "this table"

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        if not isinstance(node, Table):
            return into.lose(node, path, f"{_label(path)} is {describe(node)}, which is not a table.")
        known = {entry.key: entry for entry in self.fields}
        found = {}
        for key, (key_node, value_node) in node.entries.items():
            if key not in known:
                hint = f"Keys: {', '.join(known) or 'none'}.{nearest(key, known)}"
                into.report(key_node, (*path, key), f"key '{shorten(key)}' is not known in {self.what}.", hint)
                continue
            into.places.setdefault((*path, key), key_node.place)
            value = known[key].shape.read(value_node, (*path, key), into)
            if value is not BAD:
                found[key] = value
        for entry in self.fields:
            if entry.required and entry.key not in node.entries:
                into.lose(node, path, f"key '{entry.key}' is missing in {self.what}.", f"It is for: {entry.meaning}.")
        return found

    def schema(self) -> Schema:
        found: Schema = {
            "type": "object",
            "properties": {entry.key: {**entry.shape.schema(), "description": entry.meaning} for entry in self.fields},
            "additionalProperties": False,
        }
        required = [entry.key for entry in self.fields if entry.required]
        return {**found, "required": required} if required else found


@dataclass(frozen=True)
class Either(Shape):
    """The first of several shapes whose form fits: a scalar, a list, a list of lists, or a table."""

    shapes: tuple[Shape, ...]

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        fitting = [shape for shape in self.shapes if _fits(shape, node)]
        return (fitting or self.shapes)[0].read(node, path, into)

    def schema(self) -> Schema:
        return {"anyOf": [shape.schema() for shape in self.shapes]}


def _fits(shape: Shape, node: Node) -> bool:
    """Whether a node has the outer form of a shape."""
    if isinstance(shape, ListOf):
        if not isinstance(node, Items):
            return False
        nested = isinstance(shape.item, ListOf)
        return not node.nodes or isinstance(node.nodes[0], Items) == nested
    if isinstance(shape, (TableOf, Record)):
        return isinstance(node, Table)
    if isinstance(shape, Choice):
        return isinstance(node, Scalar) and isinstance(constant(node), str)
    return isinstance(node, Scalar)


@dataclass(frozen=True)
class Anything(Shape):
    """Plain data, kept as it is."""

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        if isinstance(node, Items):
            return [None if (value := self.read(entry, path, into)) is BAD else value for entry in node.nodes]
        if isinstance(node, Table):
            values = {key: self.read(value, path, into) for key, (_, value) in node.entries.items()}
            return {key: value for key, value in values.items() if value is not BAD}
        return constant(node)

    def schema(self) -> Schema:
        return {}


def _label(path: Path) -> str:
    """How a message calls the thing at a path.

    >>> _label(("cores", "G1", 1)), _label(("rank",)), _label(())
    ("entry 2 of 'G1'", "'rank'", 'the file')
    """
    if not path:
        return "the file"
    if isinstance(path[-1], int):
        named = [part for part in path if isinstance(part, str)]
        return f"entry {path[-1] + 1} of '{shorten(named[-1])}'" if named else f"entry {path[-1] + 1}"
    return f"'{shorten(path[-1])}'"
