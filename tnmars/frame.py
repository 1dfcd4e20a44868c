"""The frame of a weight: all of a graph but its terms, from what a Python caller gives.

`network`, the builder and every family take the same keywords, declared once as `Weight`; here they become the fields
of a graph that has no terms yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

from tnmars.errors import GraphError, Problem, nearest
from tnmars.graph import Graph
from tnmars.kinds import MODE_ROLES, Role
from tnmars.parts import Axis, Edge, Operand, Term, parse_axis
from tnmars.rules import Fields

if TYPE_CHECKING:
    from typing_extensions import NotRequired

Sizes = Mapping[str, int] | Sequence[int]
"""Modes by name, or sizes alone, which are then named `i1`, `i2`, … after their role."""


class Weight(TypedDict, total=False):
    """The keywords that describe a weight whatever its decomposition."""

    inputs: NotRequired[Sizes]
    outputs: NotRequired[Sizes]
    lookup: NotRequired[Sizes]
    patch: NotRequired[Sizes]
    kernel: NotRequired[Sizes]
    free: NotRequired[Sizes]
    features: NotRequired[Mapping[str, int]]
    vocab: NotRequired[int | None]
    kernel_size: NotRequired[Sequence[int]]
    shared: NotRequired[Sequence[str]]
    arguments: NotRequired[Mapping[str, str | Sequence[str]]]
    result: NotRequired[str | Sequence[str]]
    options: NotRequired[Mapping[str, object]]
    name: NotRequired[str]


KEYWORD = {
    Role.IN: "inputs",
    Role.OUT: "outputs",
    Role.LOOKUP: "lookup",
    Role.PATCH: "patch",
    Role.KERNEL: "kernel",
    Role.FREE: "free",
}
LETTER = {Role.IN: "i", Role.OUT: "o", Role.LOOKUP: "v", Role.PATCH: "p", Role.KERNEL: "k", Role.FREE: "n"}


def edges(role: Role, sizes: Sizes) -> tuple[Edge, ...]:
    """The modes of one role.

    >>> [str(edge) for edge in edges(Role.IN, (7, 4))], [str(edge) for edge in edges(Role.OUT, {"o": 5})]
    (['i1=7', 'i2=4'], ['o=5'])
    """
    if isinstance(sizes, (str, int)):
        text = f"{KEYWORD[role]} is {sizes!r}, which is neither a list of sizes nor sizes by name."
        raise GraphError(Problem(text, f"Write {KEYWORD[role]}=(7, 4), or {KEYWORD[role]}={{'a': 7, 'b': 4}}."))
    if not isinstance(sizes, Mapping):
        sizes = {f"{LETTER[role]}{at}": size for at, size in enumerate(sizes, 1)}
    return tuple(Edge(name, size, role) for name, size in sizes.items())


def axes(text: str | Iterable[str]) -> tuple[Axis, ...]:
    """The axes of an operand, from `"batch n (i1 i2)"` or a list of such names.

    >>> axes("batch (i1 i2)")
    (('batch',), ('i1', 'i2'))
    """
    names = _split(text) if isinstance(text, str) else list(text)
    found = []
    for name in names:
        axis = parse_axis(name)
        if axis is None:
            raise GraphError(Problem(f"axis {name!r} is not a name.", "Write a name, or several in brackets: (i1 i2)."))
        found.append(axis)
    return tuple(found)


def _split(text: str) -> list[str]:
    """Words, where one in brackets may hold several."""
    words: list[str] = []
    for word in text.replace(",", " ").split():
        if words and words[-1].startswith("(") and not words[-1].endswith(")"):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


def frame(kind: str, weight: Weight) -> Fields:
    """The fields of a graph without terms."""
    unknown = [key for key in weight if key not in Weight.__annotations__]
    if unknown:
        hint = f"Keywords: {', '.join(Weight.__annotations__)}.{nearest(unknown[0], Weight.__annotations__)}"
        raise GraphError(Problem(f"keyword '{unknown[0]}' is not known.", hint))
    features = {_role(role): size for role, size in weight.get("features", {}).items()}
    vocab = weight.get("vocab")
    if vocab is not None:
        features[Role.LOOKUP] = vocab
    return Fields(
        kind=kind,
        modes=tuple(edge for role in MODE_ROLES for edge in edges(role, weight.get(KEYWORD[role], ()))),  # type: ignore[arg-type]
        terms=(),
        shared=tuple(weight.get("shared", ())),
        features=features,
        kernel_size=tuple(weight.get("kernel_size", ())),
        inputs=tuple(Operand(name, axes(text)) for name, text in weight.get("arguments", {}).items()),
        output=axes(weight.get("result", ())),
        options=dict(weight.get("options", {})),
    )


def _role(name: str) -> Role:
    known = [str(role) for role in MODE_ROLES]
    if name not in known:
        raise GraphError(
            Problem(f"features has no role '{name}'.", f"Roles: {', '.join(known)}.{nearest(name, known)}")
        )
    return Role(name)


def build(fields: Fields, terms: Sequence[Term], name: str = "") -> Graph:
    """The graph with this frame and these terms."""
    return Graph.of(replace(fields, terms=tuple(terms)), name=name)
