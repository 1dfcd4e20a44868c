"""Shapes: what may stand at a place of a spec file. Each reads a node and states itself as JSON Schema.

Reader and schema are two methods of one value, so that they cannot drift apart. A shape that finds a problem reports
it, and returns the best stand-in it has, so that reading goes on and every problem of a file is found in one go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from tnmars.errors import Path, Place, Problem, closest, listing
from tnmars.graph.parts import IDENTIFIER, MAX_SIZE, NAME_RULE, is_identifier, parse_axis
from tnmars.spec.nodes import Broken, Items, Node, Scalar, Table, shorten

Schema = dict[str, Any]

KEY_CUTOFF = 0.65
"""How alike a key must be to a known one to be taken for a slip of the pen."""
MAX_HINTS = 100
"""For how many problems of a file the name that was meant is searched: the search is slow."""

_END = r"$(?!\n)"  # in some languages, Python among them, a bare $ also matches before a line break at the end
_PRINTABLE = r"[^\u0000-\u001f\u007f-\u009f\u2028\u2029]+"
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,99})")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_CONSTANTS = {"true": True, "false": False, "null": None, "~": None, "": None}
_CONSTANTS.update({word.title(): value for word, value in _CONSTANTS.items()})
_CONSTANTS.update({word.upper(): value for word, value in _CONSTANTS.items()})


class Bad:
    """Returned where nothing usable could be read."""


BAD = Bad()


@dataclass(eq=False, repr=False)
class Reading:
    """What a walk over the tree has found so far."""

    params: Mapping[str, int] = field(default_factory=dict)
    params_lost: bool = False
    """Whether a parameter may have been declared that could not be read."""
    used: set[str] = field(default_factory=set)
    places: dict[Path, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    lost: set[Path] = field(default_factory=set)
    """Where a name, or a part with names in it, could not be read."""
    guessed: set[Path] = field(default_factory=set)
    """Where a number could not be read, and 1 stands in."""

    def report(self, node: Node, path: Path, text: str, hint: str = "") -> None:
        self.problems.append(Problem(text, hint, path, node.place))

    def lose(self, node: Node, path: Path, text: str, hint: str = "") -> Bad:
        """Reports a problem at a place where nothing can stand in."""
        self.report(node, path, text, hint)
        self.lost.add(path)
        return BAD

    def lose_gaps(self, table: Table, path: Path) -> None:
        """Notes what is missing because an entry was refused, and has been reported, before."""
        self.lost.update((*path, key) if key else path for key in table.gaps)

    def guess(self, node: Node, path: Path, text: str, hint: str = "") -> int:
        """Reports a problem with a number, for which 1 then stands in."""
        self.report(node, path, text, hint)
        self.guessed.add(path)
        return 1

    def no_parameter(self, node: Node) -> str:
        """What to say of a parameter where none may stand, or nothing; it then counts as used."""
        if not isinstance(node, Scalar) or node.text not in self.params:
            return ""
        self.used.add(node.text)
        return "Parameters stand for sizes only: write the value itself."

    def meant(self, name: str, known: Iterable[str]) -> str:
        """The known name that `name` may stand for, or nothing."""
        return closest(name, known, KEY_CUTOFF) if len(self.problems) < MAX_HINTS else ""


def _did_you_mean(name: str) -> str:
    return f" Did you mean '{name}'?" if name else ""


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

    @property
    def example(self) -> str:
        """What to write, for hints."""
        raise NotImplementedError  # those below that are hinted at have their own

    def read(self, node: Node, path: Path, into: Reading) -> Any:
        """The value at a node, or `BAD`; notes places and problems on the way."""
        if isinstance(node, Broken):
            into.lost.add(path)
            return BAD
        into.places.setdefault(path, node.place)
        return self._read(node, path, into)

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        raise NotImplementedError  # every shape below has its own

    def schema(self) -> Schema:
        raise NotImplementedError  # every shape below has its own


@dataclass(frozen=True, eq=False, repr=False)
class Whole(Shape):
    """A whole number."""

    least: int = 1
    most: int = MAX_SIZE
    fix: str = ""
    """What to do about a wrong one, where that is more than to write another."""

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        value = constant(node) if isinstance(node, Scalar) else BAD
        if isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most:
            return value
        hint = self.fix or _number_hint(node) or into.no_parameter(node) or f"Write {self.example}."
        return into.guess(node, path, f"{_label(path)} is {describe(node)}, which is {self._wrong(value)}.", hint)

    def _wrong(self, value: object) -> str:
        if not isinstance(value, int) or isinstance(value, bool):
            return "not a whole number"
        return f"not {self.least}" if self.least == self.most else "too small" if value < self.least else "too large"

    @property
    def example(self) -> str:
        return f"a whole number from {self.least:,} to {self.most:,}" if self.least < self.most else f"{self.least}"

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, eq=False, repr=False)
class Size(Whole):
    """A whole number, or the name of a parameter."""

    def _wrong(self, value: object) -> str:
        return "not a size"

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        if not isinstance(node, Scalar) or not isinstance(constant(node), str) or not is_identifier(node.text):
            return super()._read(node, path, into)
        into.used.add(node.text)
        if node.text in into.params:
            return into.params[node.text]
        if into.params_lost:
            into.guessed.add(path)
            return 1
        meant = into.meant(node.text, into.params)
        into.used.add(meant)
        hint = f"Parameters: {listing(list(into.params))}.{_did_you_mean(meant)}"
        return into.guess(
            node, path, f"{_label(path)} is '{node.text}', which is neither a number nor a parameter.", hint
        )

    @property
    def example(self) -> str:
        return f"{super().example}, or the name of a parameter"

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
    if (
        node.plain
        and not _WHOLE.fullmatch(text)
        and _FLOAT.fullmatch(text)
        and 1 <= float(text) <= MAX_SIZE
        and float(text).is_integer()
    ):
        return f"Write {int(float(text))}."
    return ""


@dataclass(frozen=True, eq=False, repr=False)
class Flag(Shape):
    """`true` or `false`, and no other word for it."""

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        value = constant(node) if isinstance(node, Scalar) else BAD
        if isinstance(value, bool):
            return value
        text = f"{_label(path)} is {describe(node)}, which is neither true nor false."
        into.report(node, path, text, into.no_parameter(node) or _flag_hint(node))
        return BAD

    def schema(self) -> Schema:
        return {"type": "boolean"}


def _flag_hint(node: Node) -> str:
    """Which of the two the writer of another word for it has meant, if that can be told."""
    word = node.text.lower() if isinstance(node, Scalar) else ""
    meant = [value for value, words in _FLAGS.items() if word in words]
    return f"Write {meant[0]}." if meant else "Write true or false."


_FLAGS = {"true": ("true", "yes", "on", "y", "1"), "false": ("false", "no", "off", "n", "0")}


@dataclass(frozen=True, eq=False, repr=False)
class Text(Shape):
    """A line of text."""

    most: int = 200

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        value = constant(node) if isinstance(node, Scalar) else BAD
        if isinstance(value, str) and len(value) <= self.most and re.fullmatch(_PRINTABLE, value):
            return value
        hint = f"Write one line of 1 to {self.most} printable characters, in quotes if YAML reads it as something else."
        into.report(node, path, f"{_label(path)} is {describe(node)}, which is not a line of text.", hint)
        return BAD

    def schema(self) -> Schema:
        return {"type": "string", "minLength": 1, "maxLength": self.most, "pattern": f"^{_PRINTABLE}{_END}"}


@dataclass(frozen=True, eq=False, repr=False)
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
        return {"type": "string", "pattern": f"^{IDENTIFIER}{_END}"}


@dataclass(frozen=True, eq=False, repr=False)
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
        name = IDENTIFIER
        return {"type": "string", "pattern": f"^\\s*({name}|\\(\\s*{name}(\\s+{name})+\\s*\\))\\s*$"}


@dataclass(frozen=True, eq=False, repr=False)
class Choice(Shape):
    """One word of several."""

    words: tuple[str, ...]

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        if isinstance(node, Scalar) and node.text in self.words:
            return node.text
        known = into.meant(node.text, self.words) if isinstance(node, Scalar) else ""
        return into.lose(
            node,
            path,
            f"{_label(path)} is {describe(node)}, which is not known.",
            into.no_parameter(node) or f"Known: {', '.join(self.words)}.{_did_you_mean(known)}",
        )

    @property
    def example(self) -> str:
        return f"one of {', '.join(self.words)}"

    def schema(self) -> Schema:
        return {"enum": list(self.words)}


@dataclass(frozen=True, eq=False, repr=False)
class ListOf(Shape):
    """A list of like things."""

    item: Shape
    least: int = 0
    most: int = 10_000

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        if not isinstance(node, Items):
            text = f"{_label(path)} is {describe(node)}, which is not a list."
            return into.lose(node, path, text, f"Write {self.example}.")
        if not self.least <= len(node.nodes) <= self.most:
            span = f"{self.least} to {self.most}" if self.most < 10_000 else f"at least {self.least}"
            count = "1 entry" if len(node.nodes) == 1 else f"{len(node.nodes):,} entries"
            into.lose(node, path, f"{_label(path)} has {count}; it takes {span}.", "Add or remove some.")
        values: list[object] = []
        for at, entry in enumerate(node.nodes):
            value = self.item.read(entry, (*path, at), into)
            if value is not BAD:
                moved = (*path, len(values))  # up, where an entry before it was left out
                into.places[moved] = entry.place
                values.append(value)
        return tuple(values)

    @property
    def example(self) -> str:
        if isinstance(self.item, ListOf):
            return "a list of lists: [[2, 3], [4, 5]]"
        return "a list: [2, 3]" if isinstance(self.item, (Whole, Nest)) else "a list: [a, b]"

    def schema(self) -> Schema:
        return {"type": "array", "items": self.item.schema(), "minItems": self.least, "maxItems": self.most}


@dataclass(frozen=True, eq=False, repr=False)
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


@dataclass(frozen=True, eq=False, repr=False)
class TableOf(Shape):
    """Names, each with a like thing."""

    value: Shape
    what: str
    least: int = 0

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        if not isinstance(node, Table):
            text = f"{_label(path)} is {describe(node)}, which is not a table."
            return into.lose(node, path, text, f"Write {self.example}.")
        into.lose_gaps(node, path)
        if len(node.entries) < self.least and not node.gaps:
            into.lose(node, path, f"{_label(path)} is empty; it takes at least one {self.what}.", "Add one.")
        found = {}
        for key, (key_node, value_node) in node.entries.items():
            named = is_identifier(key)
            if not named:
                text = f"{self.what} name '{shorten(key)}' is not an identifier."
                into.lose(key_node, (*path, key), text, NAME_RULE)
            into.places.setdefault((*path, key), key_node.place)
            value = self.value.read(value_node, (*path, key), into)
            if named and value is not BAD:
                found[key] = value
        return found

    @property
    def example(self) -> str:
        return "a table: {a: 2, b: 3}" if isinstance(self.value, Whole) else "a table: {a: …, b: …}"

    def schema(self) -> Schema:
        return {
            "type": "object",
            "propertyNames": {"pattern": f"^{IDENTIFIER}{_END}"},
            "additionalProperties": self.value.schema(),
            "minProperties": self.least,
        }


@dataclass(frozen=True, eq=False, repr=False)
class Field:
    """A key of a record, what stands there, and what it is for."""

    key: str
    shape: Shape
    meaning: str
    required: bool = False
    fix: str = ""
    """What to write where it is missing, if that is always the same."""
    default: str = ""
    """What holds where it is left out, in words."""

    @property
    def description(self) -> str:
        """What it is for and what holds without it, as the schema says it."""
        return f"{self.meaning}. Default: {self.default}" if self.default else self.meaning


@dataclass(frozen=True, eq=False, repr=False)
class Record(Shape):
    """Known keys, each with its own shape."""

    fields: tuple[Field, ...]
    what: str = "this table"
    elsewhere: tuple[tuple[str, str], ...] = ()
    """Keys that are not known here, with where to put them."""

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        if not isinstance(node, Table):
            text = f"{_label(path)} is {describe(node)}, which is not a table."
            return into.lose(node, path, text, f"Write {self.example}.")
        into.lose_gaps(node, path)
        known = {entry.key: entry for entry in self.fields}
        mistyped = self.mistyped(node)
        found = {}
        for key, (key_node, value_node) in node.entries.items():
            meant = key
            if key not in known:
                meant = mistyped.get(key, "")
                moved = dict(self.elsewhere).get(key, "")
                hint = moved or f"Keys: {', '.join(known)}.{_did_you_mean(meant)}"
                into.report(key_node, (*path, key), f"key '{shorten(key)}' is not known in {self.what}.", hint)
                if not meant or meant in found or not _fits(known[meant].shape, value_node):
                    if meant or not (moved or isinstance(value_node, Scalar)):
                        into.lost.add((*path, meant) if meant else path)
                    continue
            into.places.setdefault((*path, meant), key_node.place)
            value = known[meant].shape.read(value_node, (*path, meant), into)
            if value is not BAD:
                found[meant] = value
        for entry in self.fields:
            if entry.required and entry.key not in node.entries and entry.key not in found:
                into.lost.add((*path, entry.key))
                if entry.key not in mistyped.values() and "" not in node.gaps:
                    text = f"key '{entry.key}' is missing in {self.what}."
                    into.report(node, path, text, entry.fix or f"It is for: {entry.meaning}.")
        return found

    def mistyped(self, table: Table) -> dict[str, str]:
        """For the keys of a table that are not known, the absent ones that they seem to stand for."""
        absent = [entry.key for entry in self.fields if entry.key not in table.entries]
        known = {entry.key for entry in self.fields}
        unknown = [key for key in table.entries if key not in known][:MAX_HINTS]
        return {key: meant for key in unknown if (meant := closest(key, absent, KEY_CUTOFF))}

    @property
    def example(self) -> str:
        return "a table: {" + ", ".join(f"{entry.key}: …" for entry in self.fields) + "}"

    def schema(self) -> Schema:
        found: Schema = {
            "type": "object",
            "properties": {
                entry.key: {**entry.shape.schema(), "description": entry.description} for entry in self.fields
            },
            "additionalProperties": False,
        }
        required = [entry.key for entry in self.fields if entry.required]
        return {**found, "required": required} if required else found


@dataclass(frozen=True, eq=False, repr=False)
class Either(Shape):
    """The first of several shapes whose form fits: a scalar, a list, a list of lists, or a table."""

    shapes: tuple[Shape, ...]

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        fitting = next((shape for shape in self.shapes if _fits(shape, node)), None)
        if fitting is not None:
            return fitting.read(node, path, into)
        hint = f"Write {'; or '.join(shape.example for shape in self.shapes)}."
        return into.lose(node, path, f"{_label(path)} is {describe(node)}, which does not fit here.", hint)

    def schema(self) -> Schema:
        return {"anyOf": [shape.schema() for shape in self.shapes]}


def _fits(shape: Shape, node: Node) -> bool:
    """Whether a node has the outer form of a shape."""
    if isinstance(shape, Either):
        return any(_fits(other, node) for other in shape.shapes)
    if isinstance(shape, Nest):
        return isinstance(node, (Scalar, Items))
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


@dataclass(frozen=True, eq=False, repr=False)
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
