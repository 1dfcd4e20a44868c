"""Text to node tree: YAML with positions, within limits, and without any conversion of values.

The tree is made from the parser's events, not from a loaded dict: a dict loses line numbers, keeps only the last of
two equal keys, and turns an edge named `on` or `no` into a boolean. Anchors, aliases, merge keys and tags are refused.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import yaml

from tnmars.errors import Place, Problem

START = b'{"__metadata__":{"tnmars.digest":"'
"""What follows the first eight bytes of a saved model, which hold the length of its header."""
MAX_BYTES = 16_000_000
MAX_NODES = 150_000
"""Enough for every graph that the rules allow: 10,000 modes, bonds and cores with 100,000 axes in total.

So are the bytes, if all of these have names of 100 letters: what `save_spec` writes can be read.
"""
MAX_DEPTH = 32
MAX_DIRECTIVES = 10
"""The number of lines that may start with '%'; the parser compares each with all before it."""

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINE_END = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_DIRECTIVE = re.compile("^%", re.MULTILINE)
_SMALLER = "Write a family, or copies of a term, in place of equal parts."
_FLATTER = "Write it in fewer levels."
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(eq=False, repr=False)
class Node:
    """A scalar, a list or a table, with the place where it starts."""

    place: Place


@dataclass(eq=False, repr=False)
class Scalar(Node):
    text: str
    plain: bool
    """Written without quotes."""


@dataclass(eq=False, repr=False)
class Items(Node):
    nodes: list[Node] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Table(Node):
    entries: dict[str, tuple[Scalar, Node]] = field(default_factory=dict)
    """Key text -> the key's own node and the value's."""
    gaps: set[str] = field(default_factory=set)
    """Keys with a refused entry, so that what it would have declared is missing; an empty text stands for any key."""


@dataclass(eq=False, repr=False)
class Broken(Node):
    """Stands in for something that was refused and has been reported."""


class TextError(Exception):
    """The text exceeds a limit or is not YAML, so that there is no tree."""

    def __init__(self, problem: Problem):
        self.problem = problem
        super().__init__(problem.text)


def parse(data: bytes) -> tuple[Node, list[Problem]]:
    """The node tree of a document, and every problem of its syntax. Raises `TextError` if there is no tree."""
    text = _decode(data)
    problems: list[Problem] = []
    try:
        tree = _compose(yaml.parse(text, Loader=_LOADER), problems)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1)
        place = min(place, _place_after(text))  # libyaml counts the end of the text as a line of its own
        what = ", ".join(part for part in (error.context, error.problem) if part)
        hint = "Check the indents, colons, brackets and quotes"
        start = error.context_mark
        hint += f", starting at line {start.line + 1}." if start and start.line + 1 < place.line else "."
        if _is_tab(text, place):
            hint = "Use spaces to indent, not tabs."
        raise TextError(Problem(f"not valid YAML: {what}.", hint, place=place)) from None
    except yaml.YAMLError as error:
        raise TextError(Problem(f"not valid YAML: {error}.", place=Place(1, 1))) from None
    return tree, problems


def _is_tab(text: str, place: Place) -> bool:
    """Whether the line up to a place is an indent with a tab in it."""
    ends = islice(_LINE_END.finditer(text), place.line - 2, None) if place.line > 1 else iter(())
    start = next((end.end() for end in ends), 0)
    before = text[start : start + place.column]
    return "\t" in before and not before.strip()


def _decode(data: bytes) -> str:
    if data.startswith(START, 8):
        hint = "tnmars show, plan and diff read its graphs; tnmars.load_into reads the model."
        raise TextError(Problem("the file is a saved model, not a spec file.", hint, place=Place(1, 1)))
    if len(data) > MAX_BYTES:
        raise TextError(
            Problem(
                f"the file has over {MAX_BYTES:,} bytes, which no spec needs.", "Make it smaller.", place=Place(1, 1)
            )
        )
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        raise TextError(
            Problem(
                f"byte 0x{data[error.start]:02x} is not UTF-8 text.",
                "Save the file as UTF-8.",
                place=_place_after(before),
            )
        ) from None
    bad = _UNPRINTABLE.search(text)
    if bad:
        raise TextError(
            Problem(
                f"character U+{ord(bad.group()):04X} is not printable.",
                "Remove it.",
                place=_place_after(text[: bad.start()]),
            )
        )
    for at, line in enumerate(_DIRECTIVE.finditer(text)):
        if at == MAX_DIRECTIVES:
            place = _place_after(text[: line.start()])
            raise TextError(
                Problem(f"over {MAX_DIRECTIVES} lines start with '%'.", "A spec does not need any.", place=place)
            )
    return text


def _place_after(text: str) -> Place:
    line, start = 1, 0
    for end in _LINE_END.finditer(text):  # a list of all lines would take many times the memory of the text
        line, start = line + 1, end.end()
    return Place(line, len(text) - start + 1)


def _compose(events: Iterator[yaml.Event], problems: list[Problem]) -> Node:
    """The tree of the only document in a stream of events."""
    root: Node | None = None
    stack: list[_Open] = []
    count = 0
    for event in events:
        place = _place_of(event)
        if isinstance(event, yaml.DocumentStartEvent) and root is not None:
            problems.append(
                Problem("the file holds a second document.", "One file is one spec: split it.", place=place)
            )
            break
        if isinstance(event, yaml.CollectionEndEvent):
            node: Node = stack.pop().node
        elif isinstance(event, yaml.NodeEvent):
            count += 1
            if count > MAX_NODES:
                raise TextError(
                    Problem(f"the file has over {MAX_NODES:,} nodes, which no spec needs.", _SMALLER, place=place)
                )
            opened = _open(event, place, problems)
            if isinstance(event, yaml.CollectionStartEvent):
                if len(stack) == MAX_DEPTH:
                    raise TextError(Problem(f"the file is nested over {MAX_DEPTH} levels deep.", _FLATTER, place=place))
                stack.append(_Open(opened))
                continue
            node = opened
        else:
            continue
        if stack:
            stack[-1].add(node, problems)
        else:
            root = node
    if root is None:
        raise TextError(Problem("the file is empty.", "A spec starts with 'tnmars: 1'.", place=Place(1, 1)))
    return root


def _place_of(event: yaml.Event) -> Place:
    mark = event.start_mark
    assert mark is not None
    return Place(mark.line + 1, mark.column + 1)


def _open(event: yaml.NodeEvent, place: Place, problems: list[Problem]) -> Node:
    """The node that an event starts; reports what is refused about it."""
    if isinstance(event, yaml.AliasEvent):
        problems.append(
            Problem(f"alias '*{shorten(event.anchor or '')}' is refused.", "Write the value out.", place=place)
        )
        return Broken(place)
    if event.anchor is not None:
        text = f"anchor '&{shorten(event.anchor)}' is refused."
        problems.append(Problem(text, "Remove it; for a size, use params.", place=place))
    tag = getattr(event, "tag", None)
    if tag is not None:
        short = shorten(tag.replace("tag:yaml.org,2002:", "!!"))
        problems.append(Problem(f"tag '{short}' is refused.", "Remove it.", place=place))
    if isinstance(event, yaml.ScalarEvent):
        return Scalar(place, event.value, plain=not event.style)
    return Items(place) if isinstance(event, yaml.SequenceStartEvent) else Table(place)


class _Open:
    """A list or table that is still being filled."""

    def __init__(self, node: Node):
        self.node = node
        self.key: Node | None = None

    def add(self, node: Node, problems: list[Problem]) -> None:
        if isinstance(self.node, Items):
            self.node.nodes.append(node)
        elif self.key is None:
            self.key = node
        elif isinstance(self.node, Table):
            key, self.key = self.key, None
            self._enter(self.node, key, node, problems)

    @staticmethod
    def _enter(table: Table, key: Node, value: Node, problems: list[Problem]) -> None:
        if not isinstance(key, Scalar):
            table.gaps.add("")
            if not isinstance(key, Broken):
                text = "a key must be a name, not a list or a table."
                problems.append(Problem(text, "Write 'name: value'.", place=key.place))
        elif key.plain and key.text == "<<":
            table.gaps.add("")
            problems.append(Problem("merge key '<<' is refused.", "Write the keys out.", place=key.place))
        elif key.text in table.entries:
            table.gaps.add(key.text)
            first = table.entries[key.text][0].place
            problems.append(
                Problem(
                    f"key '{shorten(key.text)}' is given twice; the first is on line {first.line}.",
                    "Remove or rename one of them.",
                    place=key.place,
                )
            )
        else:
            table.entries[key.text] = (key, value)


def shorten(text: str, limit: int = 60) -> str:
    """`text` on one line, printable, and cut if it is long.

    >>> shorten("a \\n b \\x1b[31m"), shorten("abcdef", limit=4)
    ('a b \\\\x1b[31m', 'abc…')
    """
    line = " ".join(text[: 10 * limit].split())
    line = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
    return line if len(line) <= limit and len(text) <= 10 * limit else line[: limit - 1] + "…"
