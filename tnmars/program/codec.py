"""Plans as plain data: to JSON and back, exactly. What is read is checked, so that no file can write code.

A plan is a form for each mode and batch, as a layer holds them. Each value is a table of its fields, and each field is
read as its type says; then `tnmars.program.audit` checks the form against the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from math import isfinite
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from tnmars.errors import Problem, TnmarsError, listing
from tnmars.graph import Graph
from tnmars.graph.parts import MAX_DENSE, MAX_SIZE, is_identifier
from tnmars.program.audit import audit, wrong
from tnmars.program.base import Instruction
from tnmars.program.emit import WRITE
from tnmars.program.form import Form

VERSION = 1
MODES = ("train", "infer")
LARGEST = MAX_SIZE**2
"""The largest number of a plan: a product of two sizes. The strides of an index may be as large as a dense tensor."""

Plans = Mapping[tuple[str, int], Form]
"""For each mode and batch, the form that is taken."""


def plan_to_json(forms: Plans) -> dict[str, Any]:
    """The forms that a layer holds, by mode and batch, as data that `json` writes."""
    found: dict[str, Any] = {mode: {} for mode in MODES}
    for (mode, batch), form in sorted(forms.items()):
        found[mode][str(batch)] = form_to_json(form)
    return {"version": VERSION, **found}


def plan_from_json(data: object, graph: Graph) -> dict[tuple[str, int], Form]:
    """The forms that `plan_to_json` wrote, for the graph that they were made for.

    Raises `TnmarsError` if something is not known, is of another type, or is not of this graph.
    """
    table = _table(data, ("version", *MODES), "the plan")
    if table["version"] != VERSION or isinstance(table["version"], bool):
        wrong(f"the plan has version {table['version']!r}; this version of tnmars reads {VERSION}.")
    forms = {}
    for mode in MODES:
        if not isinstance(table[mode], dict):
            wrong(f"'{mode}' of the plan is {_shown(table[mode])}, which is not a table.")
        for text, form in table[mode].items():
            if not (isinstance(text, str) and text.isascii() and text.isdigit() and text == str(int(text[:12]))):
                wrong(f"'{mode}' of the plan has {text!r}, which is not a batch.")
            try:
                forms[mode, int(text)] = form_from_json(form, graph)
            except TnmarsError as error:
                first = error.problems[0]
                raise TnmarsError(Problem(f"plan '{mode}' for batch {text}: {first.text}", first.hint)) from None
    return forms


def form_to_json(form: Form) -> dict[str, Any]:
    """One form as data."""
    found = _write(form)
    assert isinstance(found, dict)
    return found


def form_from_json(data: object, graph: Graph) -> Form:
    """The form that `form_to_json` wrote. Raises `TnmarsError` if it is not one of the graph."""
    form = _read(Form, data, "the form")
    assert isinstance(form, Form)
    if not is_identifier(form.name):
        wrong(f"the form has the name {_shown(form.name)}, which is not an identifier.")
    if not (isfinite(form.cost) and form.cost >= 0):
        wrong(f"the form has the cost {form.cost}.")
    audit(form, graph)
    return form


def _write(value: object) -> object:
    """A value as plain data: tables for values with fields, lists for tuples, sorted lists for sets."""
    if is_dataclass(value) and not isinstance(value, type):
        own = {"op": value.word()} if isinstance(value, Instruction) else {}
        held = {entry.name: getattr(value, entry.name) for entry in fields(value)}
        later = {entry.name for entry in fields(value) if _is_later(entry) and held[entry.name] == entry.default}
        return own | {name: _write(part) for name, part in held.items() if name not in later}
    if isinstance(value, tuple):
        return [_write(entry) for entry in value]
    if isinstance(value, frozenset):
        return sorted(value)
    return value


def _read(kind: Any, data: object, where: str) -> object:
    """Data as a value of a type."""
    if get_origin(kind) is UnionType:
        options = get_args(kind)
        plain = next((option for option in options if isinstance(option, type) and type(data) is option), None)
        return _read(plain or options[0], data, where)
    if get_origin(kind) in (tuple, frozenset):
        return _list(kind, data, where)
    if kind is Instruction:
        return _instruction(data, where)
    if is_dataclass(kind):
        assert isinstance(kind, type)
        later = tuple(entry.name for entry in fields(kind) if _is_later(entry))
        return _record(kind, _table(data, _names(kind), where, later), where)
    if kind is float and type(data) in (int, float):
        return float(data)  # type: ignore[arg-type]
    if type(data) is not kind:
        wrong(f"{where} is {_shown(data)}, which is not {_ARTICLES[kind]}.")
    if type(data) is int and abs(data) > (MAX_DENSE if where.startswith("frame.strides") else LARGEST):
        wrong(f"{where} is {_shown(data)}, which is too large.")
    return data


_ARTICLES = {str: "text", int: "an integer", bool: "true or false", float: "a number"}


def _list(kind: Any, data: object, where: str) -> object:
    if not isinstance(data, list):
        wrong(f"{where} is {_shown(data)}, which is not a list.")
    inner = get_args(kind)
    if get_origin(kind) is frozenset:
        found = [_read(inner[0], entry, where) for entry in data]
        if found != sorted(set(data)):
            wrong(f"{where} is {_shown(data)}, which is not in order, each once.")
        return frozenset(found)
    if inner[-1] is Ellipsis:
        return tuple(_read(inner[0], entry, f"{where}[{at}]") for at, entry in enumerate(data))
    if len(inner) != len(data):
        wrong(f"{where} has {len(data)} entries, not {len(inner)}.")
    return tuple(_read(one, entry, where) for one, entry in zip(inner, data, strict=True))


def _instruction(data: object, where: str) -> object:
    if not isinstance(data, dict) or not isinstance(data.get("op"), str):
        wrong(f"{where} is {_shown(data)}, which is not an instruction.")
    known = {kind.word(): kind for kind in WRITE}
    if data["op"] not in known:
        wrong(f"{where} is {_shown(data['op'])}, which is not known; known: {listing(list(known))}.")
    kind = known[data["op"]]
    later = tuple(entry.name for entry in fields(kind) if _is_later(entry))
    table = _table(data, ("op", *_names(kind)), where, later)
    return _record(kind, {key: value for key, value in table.items() if key != "op"}, where)


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _is_later(entry: Field[Any]) -> bool:
    """Whether a field was added after the first files were written: it is left out where it has its default."""
    return bool(entry.metadata.get("is_later"))


def _names(kind: type) -> tuple[str, ...]:
    listed: tuple[Field[Any], ...] = fields(kind)
    return tuple(entry.name for entry in listed)


def _record(kind: type, table: Mapping[str, object], where: str) -> object:
    place = "" if where == "the form" else f"{where}."
    return kind(**{name: _read(_hints(kind)[name], value, f"{place}{name}") for name, value in table.items()})


def _table(data: object, names: tuple[str, ...], where: str, later: tuple[str, ...] = ()) -> dict[str, Any]:
    """A table that has exactly these keys, those of `later` or not."""
    if not isinstance(data, dict):
        wrong(f"{where} is {_shown(data)}, which is not a table.")
    for key in data:
        if key not in names:
            wrong(f"{where} has {_shown(key)}, which is not known; known: {', '.join(names)}.")
    for name in names:
        if name not in data and name not in later:
            wrong(f"{where} has no '{name}'.")
    return data


def _shown(value: object) -> str:
    """A value as a message shows it: short, and on one line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
