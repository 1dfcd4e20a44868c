"""The allowed values of a key of a spec file, in words."""

from __future__ import annotations

from functools import singledispatch

from marks import code, codes

from tnmars.graph.parts import MAX_SIZE
from tnmars.spec.grammar import Anything, Either, ListOf, Nest, Record, TableOf
from tnmars.spec.scalars import AxisName, Choice, CoreName, Flag, Name, Number, Size, Text, Whole
from tnmars.spec.shape import Shape

SCALARS = {
    Flag: "`true` or `false`",
    Text: "line of text",
    Name: "name",
    CoreName: "core",
    AxisName: "axis",
    Nest: "nested lists of whole numbers",
    Anything: "anything",
}


@singledispatch
def words(shape: Shape) -> str:
    """A shape in words, as a cell of a table has them."""
    return SCALARS[type(shape)]


@words.register
def _(shape: Whole) -> str:
    if shape.least == shape.most:
        return code(str(shape.least))
    if shape.most < MAX_SIZE:
        return f"whole number from {shape.least:,} to {shape.most:,}"
    return "whole number" if shape.least < 0 else f"whole number, at least {shape.least:,}"


@words.register
def _(shape: Number) -> str:
    return f"number {shape.words}"


@words.register
def _(shape: Size) -> str:
    return "size"


@words.register
def _(shape: Choice) -> str:
    *most, last = map(code, shape.words)
    return f"{', '.join(most)} or {last}" if most else last


@words.register
def _(shape: ListOf) -> str:
    what = f"words: {codes(shape.item.words)}" if isinstance(shape.item, Choice) else _plural(words(shape.item))
    return f"list of {_span(shape)}{what}"


def _span(shape: ListOf) -> str:
    if shape.most < ListOf(shape.item).most:
        return f"{shape.least} to {shape.most} "
    return f"{shape.least} or more " if shape.least else ""


def _plural(text: str) -> str:
    """A shape in words, several times; the noun is the first word that may be one.

    >>> _plural("size"), _plural("whole number, at least 1"), _plural("list of sizes"), _plural("axis")
    ('sizes', 'whole numbers, at least 1', 'lists of sizes', 'axes')
    """
    if text == "axis":
        return "axes"
    noun = next((word for word in ("list", "number") if word in text), text)
    return text.replace(noun, f"{noun}s", 1)


@words.register
def _(shape: TableOf) -> str:
    return f"table: {shape.what} → {words(shape.value)}"


@words.register
def _(shape: Record) -> str:
    return f"table with {codes(entry.key for entry in shape.fields)}"


@words.register
def _(shape: Either) -> str:
    return "; or ".join(map(words, shape.shapes))
