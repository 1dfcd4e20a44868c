"""`einsum`: a graph from the equation that people write for it.

An operand of the equation is an input of the layer or a core. Every letter becomes a mode, a bond or a data axis,
depending on where it occurs. The result is an ordinary graph; nothing here contracts anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tnmars.arguments import check_arguments
from tnmars.errors import GraphError, Problem, listing, plural
from tnmars.graph import MAIN, Core, Edge, Graph, Role, Term
from tnmars.graph.assemble import build
from tnmars.graph.parts import as_int
from tnmars.weight import KEYWORD, Weight, weight_fields

_EQUATION = re.compile(r"[A-Za-z]*(?:,[A-Za-z]*)*->[A-Za-z]*")
_EXAMPLE = 'Write it as torch.einsum does, with an arrow: tnmars.einsum("bi,ir,ro->bo", i=8, r=2, o=6).'


def einsum(equation: str, *operands: object, kind: str | None = None, name: str = "", **sizes: int) -> Graph:
    """The graph of an einsum equation whose operands are inputs and cores.

    An operand is an input of the layer if `None` stands in its place, or if one of its letters has no size; every
    other operand is a core, called `W1`, `W2`, ... in order. A letter of cores alone is a bond. A letter of a core and
    an input is an input mode, one of a core and the result an output mode, and one of all three a group mode: each of
    its values has its own block of the weight. All other letters are data axes.

    Args:
        equation: The operands and the result, as for `torch.einsum`, without an ellipsis. On a core a letter that is
            summed may stand twice: that is a trace.
        *operands: Nothing, if all sizes are given by letter. Else the shape of each operand or anything that has a
            shape, such as a tensor, and None for an input.
        kind: The kind of the graph: `"map"`, by default if there are inputs; `"tensor"`, by default if there are none;
            or `"linear"`, for one input whose last axes become one axis of features. A linear graph of an equation has
            no bias.
        name: A name for people.
        **sizes: The size of each letter that is not a data axis.

    Returns:
        The graph. For a map, inputs are called `x`, or `x1`, `x2`, ... if there are several, in order.

    Raises:
        GraphError: The equation is not one, sizes are missing or do not agree, or a layer cannot compute it.

    Example:
        >>> import tnmars
        >>> print(tnmars.einsum("bi,ir,ro->bo", i=8, r=2, o=6))
        map (unnamed): x -> output, weight 8x6
          in     i=8
          out    o=6
          input  x[b, i]
          output [b, o]
          bonds  r=2
          cores  W1[i, r] W2[r, o]
    """
    check_arguments(einsum, locals())
    terms, result = _parsed(equation)
    known = _sizes(terms, operands, sizes)
    given = [operand is None for operand in operands] or [any(letter not in known for letter in term) for term in terms]
    inputs = [term for term, is_input in zip(terms, given, strict=True) if is_input]
    cores = {f"W{at}": term for at, term in enumerate((t for t, i in zip(terms, given, strict=True) if not i), 1)}
    kind = kind or ("map" if inputs else "tensor")
    problems = list(_problems(equation, inputs, list(cores.values()), result, known, kind))
    if problems:
        raise GraphError(problems)
    roles = _roles(inputs, cores.values(), result)
    modes: dict[str, dict[str, int]] = {}
    for letter, role in roles.items():
        modes.setdefault(KEYWORD[role], {})[letter] = known[letter]
    letters = "".join(cores.values())
    shared = [letter for letter in roles if letters.count(letter) > 1]
    fields = weight_fields(kind, {**_weight(kind, inputs, result, modes), "shared": shared})
    bonds = [letter for letter in dict.fromkeys(letters) if letter not in roles]
    edges = tuple(Edge(letter, known[letter]) for letter in bonds)
    made = Term(MAIN, edges, tuple(Core(core, tuple(term)) for core, term in cores.items()))
    return build(fields, [made], name)


def _parsed(equation: object) -> tuple[list[str], str]:
    """The letters of each operand, and of the result."""
    text = "".join(equation.split()) if isinstance(equation, str) else ""
    if "." in text:
        raise GraphError(Problem(f"equation '{equation}' has an ellipsis.", "Write a letter for each axis."))
    if not _EQUATION.fullmatch(text):
        raise GraphError(Problem(f"{equation!r} is not an einsum equation.", _EXAMPLE))
    before, _, result = text.partition("->")
    terms = before.split(",")
    return terms, result


def _repeats(parts: Iterable[str], weight: str, others: str) -> Iterator[Problem]:
    """Letters that stand twice on an input or the result, or on a core although they are not summed there."""
    for term in parts:
        for letter in dict.fromkeys(term):
            if term.count(letter) > 1 and (term not in weight.split(",") or letter in others):
                hint = "Only a bond may stand twice, on a core: that is a trace."
                yield Problem(f"letter '{letter}' stands twice on '{term}' of the equation.", hint)


def _sizes(terms: Sequence[str], operands: Sequence[object], sizes: Mapping[str, int]) -> dict[str, int]:
    """The size of each letter that has one."""
    known = dict(sizes)
    letters = set("".join(terms))
    wrong = [
        Problem(f"a size is given for '{key}', which is not a letter of the operands.", f"Letters: {_listed(letters)}.")
        for key in sizes
        if key not in letters
    ]
    if operands and len(operands) != len(terms):
        text = f"the equation has {plural(len(terms), 'operand')}, but {len(operands)} are given."
        raise GraphError([*wrong, Problem(text, "Give a shape for each, and None for an input; or sizes by letter.")])
    for term, operand in zip(terms, operands, strict=False):
        if operand is None:
            continue
        shape = _shape(operand)
        if shape is None or len(shape) != len(term):
            shown = f"shape {tuple(shape)}" if shape is not None else repr(operand)
            wrong.append(Problem(f"operand '{term}' is {shown}.", f"Give {plural(len(term), 'size')}, or None."))
            continue
        for letter, size in zip(term, shape, strict=True):
            if known.setdefault(letter, size) != size:
                wrong.append(Problem(f"letter '{letter}' has size {known[letter]}, but {size} on operand '{term}'."))
    if wrong:
        raise GraphError(wrong)
    return known


def _shape(operand: Any) -> list[Any] | None:
    shape = getattr(operand, "shape", operand)
    return [as_int(size) for size in shape] if isinstance(shape, Iterable) and not isinstance(shape, str) else None


def _listed(letters: Iterable[str]) -> str:
    return listing(sorted(letters), limit=52)


def _roles(inputs: Sequence[str], cores: Iterable[str], result: str) -> dict[str, Role]:
    """The role of each letter that is a mode, in the order in which inputs, then the result have them."""
    weight, data = set("".join(cores)), "".join(inputs)
    found = {letter: Role.GROUP if letter in result else Role.IN for letter in data if letter in weight}
    outside = Role.OUT if inputs else Role.FREE
    return found | {letter: outside for letter in result if letter in weight and letter not in found}


def _problems(
    equation: str, inputs: Sequence[str], cores: Sequence[str], result: str, known: Mapping[str, int], kind: str
) -> Iterator[Problem]:
    """Why a layer cannot compute an equation."""
    every = "".join((*inputs, *cores))
    if not cores:
        missing = _listed({letter for letter in every if letter not in known})
        hint = f"An operand with a letter that has no size is an input; no size: {missing}."
        yield Problem(f"equation '{equation}' has no core: every operand is an input.", hint)
        return
    yield from _repeats((*inputs, *cores, result), ",".join(cores), "".join((*inputs, result)))
    yield from (
        Problem(f"letter '{letter}' of the result is on no operand.") for letter in result if letter not in every
    )
    data, weight = set("".join(inputs)), "".join(cores)
    for letter in dict.fromkeys(weight):
        if letter not in known:
            yield Problem(f"no size is given for letter '{letter}', which is on a core.", f"Give {letter}=8.")
        if weight.count(letter) == 1 and letter not in data and letter not in result:
            hint = "Put it into the result, or sum the core over it first."
            yield Problem(f"letter '{letter}' is on one core only and is summed.", hint)
    if kind == "linear":
        yield from _linear_problems(inputs, result, set(weight))
    elif kind not in ("map", "tensor") or (kind == "map") != bool(inputs):
        hint = "Inputs make a map, or with kind='linear' a linear layer; without any, the graph is a tensor."
        yield Problem(f"kind is {kind!r}, but the equation has {plural(len(inputs), 'input')}.", hint)


def _linear_problems(inputs: Sequence[str], result: str, weight: set[str]) -> Iterator[Problem]:
    """Why an equation is not that of a linear layer: data axes first, then features, on one input and the result."""
    data = [letter for letter in (inputs[0] if inputs else "") if letter not in weight]
    fits = len(inputs) == 1 and all(text.startswith("".join(data)) for text in (inputs[0], result))
    groups = [letter for letter in result if letter in weight and inputs and letter in inputs[0]]
    first = "".join((*data, *groups))
    fits = fits and all(text.startswith(first) for text in (inputs[0], result))
    if not fits or [letter for letter in result if letter not in weight] != data:
        hint = "Such as 'bij,ijr,ro->bo': one input; data axes first, then groups. Or leave out kind, for a map."
        yield Problem("the equation is not that of a linear layer.", hint)


def _weight(kind: str, inputs: Sequence[str], result: str, modes: Mapping[str, Mapping[str, int]]) -> Weight:
    """The keywords of the weight."""
    weight: Weight = {**modes}  # type: ignore[typeddict-item]  # keys are KEYWORD's
    if kind == "map":
        names = ["x"] if len(inputs) == 1 else [f"x{at}" for at in range(1, len(inputs) + 1)]
        weight["arguments"] = {name: list(term) for name, term in zip(names, inputs, strict=True)}
        weight["result"] = list(result)
    elif kind == "linear":
        weight["options"] = {"bias": False}
    return weight
