"""Shapes of lists, tables and records: what may stand at a place of a spec file.

Each reads a node and states itself as JSON Schema. Reader and schema are two methods of one value, so that they cannot
drift apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tnmars.errors import Path, closest
from tnmars.graph.parts import IDENTIFIER, NAME_RULE, is_identifier
from tnmars.spec.nodes import Items, Node, Scalar, Table, shorten
from tnmars.spec.scalars import END, Choice, Whole
from tnmars.spec.shape import (
    BAD,
    KEY_CUTOFF,
    MAX_HINTS,
    Reading,
    Schema,
    Shape,
    constant,
    describe,
    did_you_mean,
    label,
)

MANY = 10_000
"""The length of the longest list, where a shape does not state one."""


@dataclass(frozen=True, eq=False, repr=False)
class ListOf(Shape):
    """A list whose items have one shape."""

    item: Shape
    least: int = 0
    most: int = MANY

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        if not isinstance(node, Items):
            text = f"{label(path)} is {describe(node)}, but must be a list."
            return into.lose(node, path, text, f"Write {self.example}.")
        if not self.least <= len(node.nodes) <= self.most:
            is_bounded = self.most < MANY or len(node.nodes) > self.most
            span = f"{self.least} to {self.most:,}" if is_bounded else f"at least {self.least}"
            count = "1 entry" if len(node.nodes) == 1 else f"{len(node.nodes):,} entries"
            into.lose(node, path, f"{label(path)} has {count}, but must have {span}.", "Add or remove some.")
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
    """A table of names, whose values have one shape."""

    value: Shape
    what: str
    least: int = 0

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        if not isinstance(node, Table):
            text = f"{label(path)} is {describe(node)}, but must be a table."
            return into.lose(node, path, text, f"Write {self.example}.")
        into.lose_gaps(node, path)
        if len(node.entries) < self.least and not node.gaps:
            into.lose(node, path, f"{label(path)} is empty, but must have at least one {self.what}.", "Add one.")
        values = {}
        for key, (key_node, value_node) in node.entries.items():
            named = is_identifier(key)
            if not named:
                text = f"{self.what} name '{shorten(key)}' is not an identifier."
                into.lose(key_node, (*path, key), text, NAME_RULE)
            into.places.setdefault((*path, key), key_node.place)
            value = self.value.read(value_node, (*path, key), into)
            if named and value is not BAD:
                values[key] = value
        return values

    @property
    def example(self) -> str:
        return "a table: {a: 2, b: 3}" if isinstance(self.value, Whole) else "a table: {a: …, b: …}"

    def schema(self) -> Schema:
        return {
            "type": "object",
            "propertyNames": {"pattern": f"^{IDENTIFIER}{END}"},
            "additionalProperties": self.value.schema(),
            "minProperties": self.least,
        }


@dataclass(frozen=True, eq=False, repr=False)
class Field:
    """A key of a record, the shape of its value, and its meaning."""

    key: str
    shape: Shape
    meaning: str
    required: bool = False
    fix: str = ""
    """What to write if it is missing, if that is always the same."""
    default: str = ""
    """Its default, in words."""

    @property
    def description(self) -> str:
        """Meaning and default, as the schema has them."""
        return f"{self.meaning}. Default: {self.default}" if self.default else self.meaning


@dataclass(frozen=True, eq=False, repr=False)
class Record(Shape):
    """Known keys, each with its own shape."""

    fields: tuple[Field, ...]
    what: str = "this table"
    elsewhere: tuple[tuple[str, str], ...] = ()
    """Keys that belong elsewhere, each with a hint that says where."""

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        if not isinstance(node, Table):
            text = f"{label(path)} is {describe(node)}, but must be a table."
            return into.lose(node, path, text, f"Write {self.example}.")
        into.lose_gaps(node, path)
        known = {entry.key: entry for entry in self.fields}
        mistyped = self.mistyped(node)
        values = {}
        for key, (key_node, value_node) in node.entries.items():
            meant = key
            if key not in known:
                meant = mistyped.get(key, "")
                moved = dict(self.elsewhere).get(key, "")
                hint = moved or f"Keys: {', '.join(known)}.{did_you_mean(meant)}"
                into.report(key_node, (*path, key), f"key '{shorten(key)}' is not known in {self.what}.", hint)
                if not meant or meant in values or not _fits(known[meant].shape, value_node):
                    if meant or not (moved or isinstance(value_node, Scalar)):
                        into.lost.add((*path, meant) if meant else path)
                    continue
            into.places.setdefault((*path, meant), key_node.place)
            value = known[meant].shape.read(value_node, (*path, meant), into)
            if value is not BAD:
                values[meant] = value
        for entry in self.fields:
            if entry.required and entry.key not in node.entries and entry.key not in values:
                into.lost.add((*path, entry.key))
                if entry.key not in mistyped.values() and "" not in node.gaps:
                    text = f"key '{entry.key}' is missing in {self.what}."
                    into.report(node, path, text, entry.fix or f"It is for: {entry.meaning}.")
        return values

    def mistyped(self, table: Table) -> dict[str, str]:
        """For each unknown key of a table, the missing key that it seems to misspell."""
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
    """The first of several shapes that fits by its outline: a scalar, a list, a list of lists, or a table."""

    shapes: tuple[Shape, ...]

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        fitting = next((shape for shape in self.shapes if _fits(shape, node)), None)
        if fitting is not None:
            return fitting.read(node, path, into)
        hint = f"Write {'; or '.join(shape.example for shape in self.shapes)}."
        return into.lose(node, path, f"{label(path)} is {describe(node)}, which does not fit here.", hint)

    def schema(self) -> Schema:
        return {"anyOf": [shape.schema() for shape in self.shapes]}


def _fits(shape: Shape, node: Node) -> bool:
    """Whether a node has the outline of a shape."""
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
