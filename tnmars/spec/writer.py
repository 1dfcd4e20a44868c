"""Graph to spec text: canonical, in the user's order, with numbers as sizes. `loads(dump(g)) == g`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tnmars.arguments import check_arguments
from tnmars.graph import MAIN, Edge, Graph, Json, Role, Term
from tnmars.graph.parts import axis_text
from tnmars.spec.keys import VERSION

WIDTH = 100

_SAFE = re.compile(r"[A-Za-z_][A-Za-z0-9_./+-]*(?: [A-Za-z0-9_./+-]+)*|\([A-Za-z0-9_ ]+\)")
_WORDS_OF_OTHERS = frozenset(["true", "false", "yes", "no", "on", "off", "y", "n", "null"])
"""Words that some YAML readers turn into booleans or null; ours does not, but others read our files too."""


def document(graph: Graph) -> dict[str, Json]:
    """A graph as the data of a spec file, keys in canonical order; keys that do not apply are left out."""
    check_arguments(document, locals())
    real = {str(role): size for role, size in graph.features if role is not Role.LOOKUP}
    taps = tuple(mode.size for mode in graph.of_role(Role.KERNEL))
    groups = {mode.name for mode in graph.of_role(Role.GROUP)}  # may sit on several cores without being listed
    flat = len(graph.terms) == 1 and graph.terms[0].name == MAIN
    data: dict[str, Json] = {
        "tnmars": VERSION,
        "name": graph.name,
        "kind": graph.kind,
        "modes": {str(role): _sizes(graph.of_role(role)) for role in graph.rules.roles if graph.of_role(role)},
        "features": real,
        "vocab": dict(graph.features).get(Role.LOOKUP),
        "kernel_size": () if graph.kernel_size == taps else graph.kernel_size,
        "shared": tuple(name for name in graph.shared if name not in groups),
        "inputs": {operand.name: list(map(axis_text, operand.axes)) for operand in graph.inputs},
        "same": {operand.name: operand.same for operand in graph.inputs if operand.same},
        "output": list(map(axis_text, graph.output)),
        "options": dict(graph.options),
        **(_term(graph.terms[0]) if flat else {}),
    }
    is_number = graph.rules.has_operands and not graph.output
    data = {
        key: value
        for key, value in data.items()
        if value not in (None, "", (), [], {}) or (key == "output" and is_number)
    }
    if not flat:
        data["terms"] = {term.name: _term(term) for term in graph.terms}
    if graph.origin:
        data["origin"] = graph.origin
    return data


def dump(graph: Graph) -> str:
    """A graph as the text of a spec file, in canonical form: `loads(dump(graph)) == graph`.

    Args:
        graph: Any graph. A family's graph is written out as its cores, parameters as numbers.

    Returns:
        The text.

    Example:
        >>> from tnmars import families
        >>> print(dump(families.lowrank("linear", inputs=(8,), outputs=(6,), rank=2)), end="")
        tnmars: 1
        kind: linear
        modes:
          in: {i1: 8}
          out: {o1: 6}
        bonds: {r: 2}
        cores:
          A: [i1, r]
          B: [r, o1]
    """
    check_arguments(dump, locals())
    return "".join(f"{line}\n" for key, value in document(graph).items() for line in _block(key, value, ""))


def save_spec(graph: Graph, path: str | Path) -> None:
    """Writes a graph as a spec file. The write is atomic: no reader, and no crash, sees half of it.

    Args:
        graph: Any graph, written as `dump` gives it.
        path: The file; it is replaced if it exists.

    Raises:
        TnmarsError: If the file cannot be written.

    Example:
        >>> import tempfile
        >>> from tnmars import families, load
        >>> graph = families.lowrank("linear", inputs=(8,), outputs=(6,), rank=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_spec(graph, f"{folder}/lowrank.yaml")
        ...     load(f"{folder}/lowrank.yaml") == graph
        True
    """
    check_arguments(save_spec, locals())
    from tnmars.files import write_text

    write_text(path, dump(graph))


def _term(term: Term) -> dict[str, Json]:
    bonds: dict[str, Json] = {"bonds": _sizes(term.bonds)} if term.bonds else {}
    tied: dict[str, Json] = {core.name: core.tied for core in term.cores if core.tied}
    conj: list[Json] = [core.name for core in term.cores if core.conj]
    more: dict[str, Json] = {**({"tied": tied} if tied else {}), **({"conj": conj} if conj else {})}
    return {**bonds, "cores": {core.name: core.edges for core in term.cores}, **more}


def _sizes(edges: Iterable[Edge]) -> dict[str, Json]:
    return {edge.name: edge.size for edge in edges}


def _block(key: str, value: Json, indent: str) -> list[str]:
    """An entry on one line; a table that is long or holds more than scalars gets a line for each of its entries."""
    line = f"{indent}{_text(key)}: {_flow(value)}"
    if not isinstance(value, Mapping) or not value:
        return [line]
    nested = any(isinstance(entry, Mapping) or _is_list(entry) for entry in value.values())
    if not nested and len(line) <= WIDTH:
        return [line]
    return [f"{indent}{_text(key)}:", *(row for entry in value.items() for row in _block(*entry, indent + "  "))]


def _is_list(value: Json) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _flow(value: Json) -> str:
    """Data on one line."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(key)}: {_flow(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_flow, value)) + "]"
    text = json.dumps(value)
    if isinstance(value, float) and "." not in text:
        return text.replace("e", ".0e")  # without a decimal point, YAML 1.1 reads it as text
    return text


def _text(text: str) -> str:
    """Text without quotes if every YAML reader takes it for text, else in quotes."""
    if _SAFE.fullmatch(text) and text.lower() not in _WORDS_OF_OTHERS:
        return text
    return "".join(map(_escaped, json.dumps(text, ensure_ascii=False)))


def _escaped(letter: str) -> str:
    """A letter of a quoted text, as YAML escapes it if it is not printable."""
    if letter.isprintable():
        return letter
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"
