"""The keywords that describe a weight in Python, and the fields of a graph that they give, all but its terms.

`network`, the builder and every family take the same keywords, which `Weight` declares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from tnmars.arguments import own
from tnmars.errors import GraphError, Problem, listing, nearest
from tnmars.graph.factor import factor, factor_up
from tnmars.graph.fields import Fields
from tnmars.graph.kinds import KINDS, MODE_ROLES, Role
from tnmars.graph.parts import Axis, Edge, Operand, is_int, is_list, name_list, parse_axis, parts_of

if TYPE_CHECKING:
    from typing_extensions import NotRequired

Sizes = Mapping[str, int] | Sequence[int]
"""Modes by name, or sizes alone, which are then named `i1`, `i2`, … after their role."""


class Weight(TypedDict, total=False):
    """The keywords that describe a weight, whatever its decomposition. `tnmars.network` documents each."""

    inputs: NotRequired[Sizes]
    outputs: NotRequired[Sizes]
    groups: NotRequired[Sizes]
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
    same: NotRequired[Mapping[str, str]]
    options: NotRequired[Mapping[str, object]]
    name: NotRequired[str]


KEYWORD = {
    Role.IN: "inputs",
    Role.OUT: "outputs",
    Role.GROUP: "groups",
    Role.LOOKUP: "lookup",
    Role.PATCH: "patch",
    Role.KERNEL: "kernel",
    Role.FREE: "free",
}
LETTER = {
    Role.IN: "i",
    Role.OUT: "o",
    Role.GROUP: "g",
    Role.LOOKUP: "v",
    Role.PATCH: "p",
    Role.KERNEL: "k",
    Role.FREE: "n",
}


def edges(role: Role, sizes: Sizes) -> tuple[Edge, ...]:
    """The modes of one role.

    >>> [str(edge) for edge in edges(Role.IN, (7, 4))], [str(edge) for edge in edges(Role.OUT, {"o": 5})]
    (['i1=7', 'i2=4'], ['o=5'])
    """
    if not is_list(sizes):
        text = f"{KEYWORD[role]} is {sizes!r}, but must be a list of sizes, or sizes by name."
        raise GraphError(Problem(text, f"Write {KEYWORD[role]}=(7, 4), or {KEYWORD[role]}={{'a': 7, 'b': 4}}."))
    if not isinstance(sizes, Mapping):
        sizes = {f"{LETTER[role]}{at}": size for at, size in enumerate(sizes, 1)}
    modes: list[Edge] = []
    wrong: list[Problem] = []
    for name, size in sizes.items():
        try:
            modes.append(Edge(name, size, role))
        except GraphError as error:
            wrong += error.problems
    if wrong:
        raise GraphError(wrong)
    return tuple(modes)


def axes(text: str | Iterable[str]) -> tuple[Axis, ...]:
    """The axes of an operand, from `"batch n (i1 i2)"` or a list of such names.

    >>> axes("batch (i1 i2)")
    (('batch',), ('i1', 'i2'))
    """
    names = _split(text) if isinstance(text, str) else list(text)
    found = []
    for name in names:
        axis = parse_axis(name) if isinstance(name, str) else None
        if axis is None:
            raise GraphError(Problem(f"axis {name!r} is not a name.", "Write a name, or several in brackets: (i1 i2)."))
        found.append(axis)
    return tuple(found)


def _split(text: str) -> list[str]:
    """The words of a text; what is in brackets counts as one word."""
    words: list[str] = []
    for word in text.replace(",", " ").split():
        if words and words[-1].startswith("(") and not words[-1].endswith(")"):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


_EXPECTED = {
    "features": (Mapping, "a table", "{'in': 781}"),
    "arguments": (Mapping, "a table", "{'x': 'batch i1'}"),
    "options": (Mapping, "a table", "{'bias': False}"),
    "same": (Mapping, "a table", "{'y': 'x'}"),
    "kernel_size": (Iterable, "a list", "(3, 3)"),
    "shared": (Iterable, "a list", "['i1']"),
    "result": (Iterable, "a list", "['batch', 'o1']"),
}
"""For keywords with several values: the type, its name in messages, and an example."""


def _keywords(weight: Weight) -> Iterator[Problem]:
    """Problems of the keywords and of the types of their values."""
    known = Weight.__annotations__
    for key, value in weight.items():
        if key not in known:
            yield Problem(f"keyword '{key}' is not known.", f"Keywords: {', '.join(known)}.{nearest(key, known)}")
        elif key in _EXPECTED:
            expected, what, example = _EXPECTED[key]
            if not isinstance(value, expected) or (isinstance(value, str) and key != "result"):
                yield Problem(f"{key} is {value!r}, but must be {what}.", f"Write {key}={example}.")
    if "vocab" in weight and str(Role.LOOKUP) in (weight.get("features") or ()) and weight["vocab"] is not None:
        yield Problem("vocab and features 'lookup' are both given.", "They mean the same: give vocab alone.")


def layer_weight(kind: str, inside: int, outside: int, kernel: Sequence[int], ways: int, groups: int = 1) -> Weight:
    """The keywords of the weight of one of torch's layers, its inputs and outputs split into `ways` modes each.

    `inside` counts features, channels or, for an embedding, rows. Rows are rounded up to a size that splits evenly.
    With groups, the inputs and outputs of one group are split; a depthwise layer has none, because its groups have
    one of each.

    >>> layer_weight("conv", 16, 32, (3, 3), 2)
    {'inputs': (4, 4), 'outputs': (4, 8), 'kernel': (3, 3)}
    >>> layer_weight("embedding", 1000, 64, (), 1)
    {'lookup': (1000,), 'outputs': (64,), 'vocab': 1000}
    >>> layer_weight("conv", 16, 16, (3, 3), 1, groups=16)
    {'groups': (16,), 'kernel': (3, 3)}
    """
    groups, kernel = own(groups), tuple(kernel)
    if not is_int(groups, 1) or inside % groups or outside % groups:
        text = f"groups is {groups!r}, but must be a number that divides {inside:,} inputs and {outside:,} outputs."
        raise GraphError(Problem(text, "Every group has as many inputs, and as many outputs, as the others."))
    outputs = factor(outside // groups, ways)
    if kind in KINDS and Role.LOOKUP in KINDS[kind].roles:
        rows = factor_up(inside, ways, order="descending") if ways > 1 else (inside,)
        return {"lookup": rows, "outputs": outputs, "vocab": inside}
    given: Weight = {"inputs": factor(inside // groups, ways), "outputs": outputs}
    if groups > 1:
        given = {"groups": (groups,), **(given if max(inside, outside) > groups else {})}
    return {**given, "kernel": kernel} if kernel else given


def completed(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords given to a family, and what it needs beside them; lists of `ranks` say how many terms there are.

    >>> completed({"terms": 4}, {"rank": 2}), completed({"terms": 4}, {"ranks": [[2], [3]]})
    ({'terms': 4, 'rank': 2}, {'ranks': [[2], [3]]})
    """
    return {key: value for key, value in own.items() if key != "terms" or "ranks" not in given} | dict(given)


def weight_fields(kind: str, weight: Weight) -> Fields:
    """The fields of a graph without terms. What can be read once, such as a generator, becomes a tuple in `weight`."""
    for key, value in weight.items():
        if isinstance(value, Iterator):
            weight[key] = tuple(value)  # type: ignore[literal-required]
    wrong = list(_keywords(weight))
    modes: list[Edge] = []
    for role in MODE_ROLES if not wrong else ():
        try:
            modes += edges(role, weight.get(KEYWORD[role], ()))  # type: ignore[arg-type]
        except GraphError as error:
            wrong += error.problems
    if wrong:
        raise GraphError(wrong)
    same, given = weight.get("same", {}), weight.get("arguments", {})
    strange = [name for name in same if name not in given]
    if strange:
        hint = f"Inputs: {listing(list(given))}.{nearest(strange[0], given)}"
        raise GraphError(Problem(f"same names '{strange[0]}', which is not an input.", hint, ("same", strange[0])))
    features: dict[Any, int] = dict(weight.get("features", {}))
    vocab = weight.get("vocab")
    if vocab is not None:
        features[Role.LOOKUP] = vocab
    return Fields(
        kind=kind,
        modes=tuple(modes),
        terms=(),
        shared=name_list("shared is", weight.get("shared", ())),
        features=tuple(features.items()),
        kernel_size=parts_of("kernel_size", weight.get("kernel_size", ())),
        inputs=tuple(Operand(name, axes(text), same.get(name, "")) for name, text in given.items()),
        output=axes(weight.get("result", ())),
        options=tuple(weight.get("options", {}).items()),  # type: ignore[arg-type]  # the rules check the values
    )
