"""Shapes of single values: a number, a word, a name, an axis."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tnmars.errors import Path, listing
from tnmars.graph.parts import CORE_NAME, IDENTIFIER, MAX_SIZE, NAME_RULE, is_identifier, is_int, parse_axis
from tnmars.spec.nodes import Node, Scalar, shorten
from tnmars.spec.shape import BAD, DECIMAL, WHOLE, Reading, Schema, Shape, constant, describe, did_you_mean, label

END = r"$(?!\n)"  # in some languages, Python among them, a bare $ also matches before a line break at the end
LARGEST = 1e30
"""The largest number that is not a size."""
_PRINTABLE = r"[^\u0000-\u001f\u007f-\u009f\u2028\u2029]+"


@dataclass(frozen=True, eq=False, repr=False)
class Whole(Shape):
    """A whole number."""

    least: int = 1
    most: int = MAX_SIZE
    fix: str = ""
    """The hint for a wrong value, if it says more than to write another one."""

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        value = constant(node) if isinstance(node, Scalar) else BAD
        if is_int(value, self.least, self.most):
            return value
        hint = self.fix or _number_hint(node) or into.no_parameter(node) or f"Write {self.example}."
        return into.guess(node, path, f"{label(path)} is {describe(node)}, {self._wrong(value)}.", hint)

    def _wrong(self, value: object) -> str:
        if not is_int(value):
            return "but must be a whole number"
        if self.least == self.most:
            return f"but must be {self.least}"
        return "which is too small" if value < self.least else "which is too large"

    @property
    def example(self) -> str:
        return f"a whole number from {self.least:,} to {self.most:,}" if self.least < self.most else f"{self.least}"

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, eq=False, repr=False)
class Size(Whole):
    """A whole number, or the name of a parameter."""

    def _wrong(self, value: object) -> str:
        return "but must be a size"

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
        hint = f"Parameters: {listing(list(into.params))}.{did_you_mean(meant)}"
        if not meant:
            hint += f" To declare it, add for example params: {{{shorten(node.text)}: 8}}."
        return into.guess(
            node, path, f"{label(path)} is '{node.text}', but must be a number or the name of a parameter.", hint
        )

    @property
    def example(self) -> str:
        return f"{super().example}, or the name of a parameter"

    def schema(self) -> Schema:
        return {"anyOf": [super().schema(), Name().schema()]}


def _number_hint(node: Node) -> str:
    """The number that was probably meant, as a hint, or an empty text."""
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
        and not WHOLE.fullmatch(text)
        and DECIMAL.fullmatch(text)
        and 1 <= float(text) <= MAX_SIZE
        and float(text).is_integer()
    ):
        return f"Write {int(float(text))}."
    return ""


@dataclass(frozen=True, eq=False, repr=False)
class Number(Shape):
    """A number above a bound, or at least as large."""

    bound: float
    is_included: bool = False

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        value = constant(node) if isinstance(node, Scalar) else BAD
        if isinstance(value, (int, float)) and not isinstance(value, bool) and self._fits(value):
            return value
        text = f"{label(path)} is {describe(node)}, but must be a number {self.words}."
        into.report(node, path, text, into.no_parameter(node) or f"Write a number {self.words}, such as 2.0.")
        return BAD

    def _fits(self, value: float) -> bool:
        return value <= LARGEST and (value >= self.bound if self.is_included else value > self.bound)

    @property
    def words(self) -> str:
        """The bound, in words."""
        return f"of at least {self.bound:g}" if self.is_included else f"above {self.bound:g}"

    def schema(self) -> Schema:
        key = "minimum" if self.is_included else "exclusiveMinimum"
        return {"type": "number", key: self.bound, "maximum": LARGEST}


@dataclass(frozen=True, eq=False, repr=False)
class Flag(Shape):
    """`true` or `false`, and no other word."""

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        value = constant(node) if isinstance(node, Scalar) else BAD
        if isinstance(value, bool):
            return value
        text = f"{label(path)} is {describe(node)}, but must be true or false."
        into.report(node, path, text, into.no_parameter(node) or _flag_hint(node))
        return BAD

    def schema(self) -> Schema:
        return {"type": "boolean"}


def _flag_hint(node: Node) -> str:
    """The hint for a word other than `true` or `false`."""
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
        into.report(node, path, f"{label(path)} is {describe(node)}, but must be a line of text.", hint)
        return BAD

    def schema(self) -> Schema:
        return {"type": "string", "minLength": 1, "maxLength": self.most, "pattern": f"^{_PRINTABLE}{END}"}


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
        return into.lose(node, path, f"{label(path)} is {describe(node)}, but must be a name.", hint)

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{IDENTIFIER}{END}"}


@dataclass(frozen=True, eq=False, repr=False)
class CoreName(Shape):
    """The name of a core, or with that of its term in front: `t1.G1`."""

    def _read(self, node: Node, path: Path, into: Reading) -> Any:
        value = constant(node) if isinstance(node, Scalar) else BAD
        if isinstance(value, str) and re.fullmatch(CORE_NAME, value):
            return value
        hint = "Write the name of a core, such as G1, or t1.G1 for a core of another term."
        return into.lose(node, path, f"{label(path)} is {describe(node)}, but must be a core.", hint)

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{CORE_NAME}{END}"}


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
            f"{label(path)} is {describe(node)}, but must be an axis.",
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
            f"{label(path)} is {describe(node)}, which is not known.",
            into.no_parameter(node) or f"Known: {', '.join(self.words)}.{did_you_mean(known)}",
        )

    @property
    def example(self) -> str:
        return f"one of {', '.join(self.words)}"

    def schema(self) -> Schema:
        return {"enum": list(self.words)}
