"""Spec text to graph: a strict reader that reports every problem of a file at once, each with line and column.

The table of keys says what may appear where; the rules of the graph say whether it is valid. Both give a problem's
path, and the places noted while reading turn paths into lines and columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path as FilePath
from typing import Any

from tnmars.arguments import check_arguments
from tnmars.errors import GraphError, Path, Place, Problem, SpecError, closest, listing, nearest, plural
from tnmars.families import FAMILIES, settings
from tnmars.graph import MAIN, Core, Edge, Graph, Operand, Role, Term, rules
from tnmars.graph.fields import Fields
from tnmars.graph.kinds import KINDS
from tnmars.graph.parts import axis_text, size_problem
from tnmars.spec.consequences import is_sound
from tnmars.spec.grammar import Record, TableOf
from tnmars.spec.keys import NOTATIONS, record
from tnmars.spec.nodes import MAX_BYTES, Node, Scalar, Table, TextError, parse
from tnmars.spec.scalars import Whole
from tnmars.spec.shape import KEY_CUTOFF, MAX_HINTS, Reading
from tnmars.weight import KEYWORD, Weight, weight_fields

MAX_AXES = 100_000
"""The number of axes that the cores of a graph may have in total, copies included."""


@dataclass(frozen=True)
class Spec:
    """What was read from a text: the graph, or else its problems; and the place of each part in the text."""

    graph: Graph | None
    problems: tuple[Problem, ...] = ()
    places: Mapping[Path, Place] = field(default_factory=dict)
    copied: Mapping[str, str] = field(default_factory=dict)
    """For each term that `copies` made, the name that it has in the text."""

    def locate(self, problem: Problem) -> Problem:
        """The problem with the place of its path, or of the nearest part around it."""
        if problem.place is not None:
            return problem
        return replace(problem, place=_find(problem.path, self.places, self.copied))


def load(path: str | FilePath, /, **params: int) -> Graph:
    """The graph in a spec file.

    Args:
        path: The file.
        params: Values for parameters that the file declares under `params`; they replace the file's own.

    Returns:
        The graph.

    Raises:
        SpecError: With every problem of the file at once, each with line and column.

    Example:
        >>> import tempfile
        >>> from tnmars import families, save_spec
        >>> graph = families.lowrank("linear", inputs=(8,), outputs=(6,), rank=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_spec(graph, f"{folder}/lowrank.yaml")
        ...     load(f"{folder}/lowrank.yaml") == graph
        True
    """
    check_arguments(load, locals())
    return _graph(read_file(path, params), str(path))


def loads(text: str, /, source: str = "<text>", **params: int) -> Graph:
    """The graph in the text of a spec file.

    Args:
        text: The text.
        source: What messages call it.
        params: Values for parameters that the text declares under `params`; they replace its own.

    Returns:
        The graph.

    Raises:
        SpecError: With every problem of the text at once, each with line and column.

    Example:
        >>> text = "tnmars: 1\\nkind: linear\\nfamily: lowrank\\n"
        >>> text += "params: {r: 2}\\nin: [8]\\nout: [6]\\nrank: r\\n"
        >>> loads(text).bonds["r"].size, loads(text, r=4).bonds["r"].size
        (2, 4)
    """
    check_arguments(loads, locals())
    return _graph(read(text.encode("utf-8", "surrogatepass"), params), source)


def _graph(spec: Spec, source: str) -> Graph:
    if spec.graph is None:
        raise SpecError(spec.problems, source=source)
    return spec.graph


def read_file(path: str | FilePath, params: Mapping[str, int] | None = None) -> Spec:
    """What was read from a spec file. Raises `SpecError` only if the file cannot be opened."""
    check_arguments(read_file, locals())
    try:
        with FilePath(path).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise SpecError(f"{str(path)!r}: cannot be read: {error}.") from None
    return read(data, params)


def read(data: bytes, params: Mapping[str, int] | None = None) -> Spec:
    """What was read from the text of a spec file: a graph, or every problem of it."""
    check_arguments(read, locals())
    try:
        tree, problems = parse(data)
    except TextError as refused:
        return Spec(None, (refused.problem,))
    if not isinstance(tree, Table):
        text = "the file is not a table of keys."
        return Spec(None, (*problems, Problem(text, "A spec starts with 'tnmars: 1'.", place=tree.place)))
    into = Reading(problems=problems)
    _read_params(tree, params or {}, into)
    values = walk(tree, into)
    _report_unused(into)
    return _build(values, _notation(tree), into)


def walk(tree: Table, into: Reading) -> dict[str, Any]:
    """The value under each key of a file, read by the table of keys alone, before the rules of the graph."""
    values: dict[str, Any] = _record(tree).read(tree, (), into)
    return {"kind": _word(tree, "kind", KINDS), **values}


def _record(tree: Table) -> Record:
    """The table of keys for a file of this kind, notation and family."""
    return record(_word(tree, "kind", KINDS), _notation(tree), _word(tree, "family", FAMILIES))


def _entry(tree: Table, key: str) -> tuple[Scalar, Node] | None:
    """The entry of a key, or of one that looks like a misspelling of it, so that a typo does not hide what is below."""
    if key in tree.entries:
        return tree.entries[key]
    slips = record(None, _notation(tree)).mistyped(tree)
    return next((tree.entries[written] for written, meant in slips.items() if meant == key), None)


def _word(tree: Table, key: str, known: Collection[str]) -> str | None:
    """The word at a key, or the known one that is most similar."""
    _, node = _entry(tree, key) or (None, None)
    if not isinstance(node, Scalar):
        return None
    return node.text if node.text in known else closest(node.text, known, KEY_CUTOFF) or None


def _notation(tree: Table) -> str:
    for notation in NOTATIONS:
        if notation in tree.entries:
            return notation
    known = {entry.key for entry in record(None, NOTATIONS[-1]).fields}
    slips = (closest(key, NOTATIONS, KEY_CUTOFF) for key in islice(tree.entries, MAX_HINTS) if key not in known)
    return next(filter(None, slips), NOTATIONS[-1])


def _read_params(tree: Table, given: Mapping[str, int], into: Reading) -> None:
    """Reads the parameters first, because the rest of the file uses them."""
    key, node = _entry(tree, "params") or (None, None)
    declared: dict[str, int] = {}
    if isinstance(node, Table):
        silent = Reading()  # the walk over the file reports what is wrong here
        declared = TableOf(Whole(), "parameter").read(node, ("params",), silent)
        into.params_lost = bool(silent.lost)
    elif node is not None:
        into.params_lost = True  # which is reported too, by the walk
    at: Node = key or tree
    for name, value in given.items():
        if name not in declared:
            if into.params_lost:
                continue
            hint = f"Parameters of the file: {listing(list(declared))}.{nearest(name, declared)}"
            into.report(at, ("params",), f"'{name}' was set from outside, but the file has no such parameter.", hint)
            continue
        problem = size_problem(f"parameter '{name}', set from outside,", value)
        if problem is not None:
            into.report(at, ("params",), problem.text, problem.hint)
        else:
            declared[name] = value
    into.params = declared


def _report_unused(into: Reading) -> None:
    for name in into.params:
        if name not in into.used and not into.lost:
            place = into.places.get(("params", name), Place(1, 1))
            hint = "Use it as a size, or remove it."
            into.problems.append(Problem(f"parameter '{name}' is declared, but no size uses it.", hint, place=place))


_GUIDING = ("tree", "grid", "terms")
"""Settings of a family on which the shape of its graph depends."""


def _build(values: dict[str, Any], notation: str, into: Reading) -> Spec:
    """The graph of what was read, or every problem of it. The rules run once, where the graph is built."""
    assert into.problems or not (into.lost or into.guessed), "what could not be read has been reported"
    if values["kind"] is None:
        return _failed(into)
    copied: dict[str, str] = {}
    _check_same(values, into)
    fields = _frame(values) if notation == "family" else _fields(values, copied, into)
    is_family = notation == "family" and not into.lost and not any(path[0] in _GUIDING for path in into.guessed)
    problems: Sequence[Problem] = ()
    try:
        if is_family:
            graph = _expand(values)
        elif into.problems:
            problems = rules.problems(fields)  # no graph can be built, but more may be wrong
        else:
            every = _with_copies(fields, values, copied)
            graph = Graph.of(every, values.get("name", ""), values.get("origin"))
    except GraphError as error:
        problems = error.problems
        if not is_family and any("copies" in part for part in values.get("terms", {}).values()):
            problems = rules.problems(fields) or problems  # those of a copied term once, not for every copy
    if problems or into.problems:
        return _failed(into, [problem for problem in problems if is_sound(problem, fields, into)], copied)
    return Spec(graph, places=into.places, copied=copied)


def _check_same(values: dict[str, Any], into: Reading) -> None:
    """Reports entries of `same` that are no inputs, and leaves them out."""
    inputs = values.get("inputs", {})
    for name in [name for name in values.get("same", {}) if name not in inputs]:
        del values["same"][name]
        hint = f"Inputs: {listing(list(inputs))}.{nearest(name, inputs)}"
        place = into.places.get(("same", name))
        into.problems.append(Problem(f"same names '{name}', which is not an input.", hint, ("same", name), place))


def _failed(into: Reading, found: list[Problem] | None = None, copied: Mapping[str, str] | None = None) -> Spec:
    located = [
        problem if problem.place else replace(problem, place=_find(problem.path, into.places, copied or {}))
        for problem in (*into.problems, *(found or ()))
    ]
    ordered = sorted(dict.fromkeys(located), key=_place)
    rest = ordered[rules.MAX_PROBLEMS :]
    if rest:
        text = f"and {plural(len(rest), 'more problem')} after this line."
        ordered[rules.MAX_PROBLEMS :] = [Problem(text, "Fix the ones above first.", place=_place(rest[0]))]
    return Spec(None, tuple(ordered), into.places)


def _place(problem: Problem) -> Place:
    return problem.place or Place(1, 1)


_SAME = ("features", "vocab", "kernel_size", "options", "name", "same")
"""Keys of a shorthand that are keywords of a family too."""


def _weight(values: Mapping[str, Any]) -> Weight:
    """What a shorthand says about the weight, as the keywords of every family."""
    weight = {KEYWORD[role]: values[str(role)] for role in KEYWORD if str(role) in values}
    weight.update({key: values[key] for key in _SAME if key in values})
    if "inputs" in values:
        weight["arguments"] = {name: list(map(axis_text, axes)) for name, axes in values["inputs"].items()}
    if "output" in values:
        weight["result"] = list(map(axis_text, values["output"]))
    return weight  # type: ignore[return-value]  # its keys are KEYWORD's and those above


def _frame(values: Mapping[str, Any]) -> Fields:
    """The fields of the graph of a shorthand, except its terms."""
    return weight_fields(values["kind"], _weight(values))


def _expand(values: Mapping[str, Any]) -> Graph:
    """The graph that a family's shorthand stands for."""
    chosen = {key: values[key] for key in settings(values["family"]) if key in values}
    graph = FAMILIES[values["family"]](values["kind"], **_weight(values), **chosen)
    return graph.with_origin(values.get("origin"))


def _fields(values: Mapping[str, Any], copied: dict[str, str], into: Reading) -> Fields:
    """The fields of the graph, each term once however many copies it has."""
    modes = [
        Edge(name, size, Role(role)) for role, sizes in values.get("modes", {}).items() for name, size in sizes.items()
    ]
    if "terms" in values:
        terms = []
        for name, part in values["terms"].items():
            first = f"{name}1" if "copies" in part else name
            copied[first] = name
            terms.append(_term(first, part, ("terms", name), into))
    else:
        terms = [_term(MAIN, values, (), into)]
    same = values.get("same", {})
    features = {Role(role): size for role, size in values.get("features", {}).items()}
    if "vocab" in values:
        features[Role.LOOKUP] = values["vocab"]
    return Fields(
        kind=values["kind"],
        modes=tuple(modes),
        terms=tuple(terms),
        shared=values.get("shared", ()),
        features=tuple(features.items()),
        kernel_size=values.get("kernel_size", ()),
        inputs=tuple(Operand(name, axes, same.get(name, "")) for name, axes in values.get("inputs", {}).items()),
        output=values.get("output", ()),
        options=tuple(values.get("options", {}).items()),
    )


def _term(name: str, part: Mapping[str, Any], path: Path, into: Reading) -> Term:
    cores, tied, conj = part.get("cores", {}), part.get("tied", {}), part.get("conj", ())
    named = [("tied", core, core) for core in tied] + [("conj", place, core) for place, core in enumerate(conj)]
    for key, place, core in named:
        if core not in cores:
            at = (*path, key, place)
            hint = f"Cores: {listing(list(cores))}.{nearest(core, cores)}"
            text = f"{key} names core '{core}', which is not one of the cores."
            into.problems.append(Problem(text, hint, at, _find(at, into.places, {})))
    for place, core in enumerate(conj):
        if core in conj[:place]:
            at = (*path, "conj", place)
            text = f"conj lists core '{core}' twice."
            into.problems.append(Problem(text, "Remove one of them.", at, _find(at, into.places, {})))
    made = tuple(Core(core, edges, tied.get(core, ""), conj=core in conj) for core, edges in cores.items())
    return Term(name, tuple(Edge(bond, size) for bond, size in part.get("bonds", {}).items()), made)


def _with_copies(fields: Fields, values: Mapping[str, Any], copied: dict[str, str]) -> Fields:
    """The fields with every copy of every term."""
    terms: list[Term] = []
    parts = axes = 0
    written = values.get("terms", {MAIN: {}})
    for term, (name, part) in zip(fields.terms, written.items(), strict=True):
        copies = part.get("copies")
        parts += (copies or 1) * (len(term.bonds) + len(term.cores))
        axes += (copies or 1) * sum(len(core.edges) for core in term.cores)
        if parts > rules.MAX_PARTS or axes > MAX_AXES:
            text = f"the graph would have {parts:,} bonds and cores, but must have at most {rules.MAX_PARTS:,}."
            if parts <= rules.MAX_PARTS:
                text = f"the cores of the graph would have {axes:,} axes in total, but must have at most {MAX_AXES:,}."
            raise GraphError(Problem(text, "Use fewer copies.", ("terms", term.name, "copies")))
        if copies is None:
            terms.append(term)
            continue
        tied = part.get("tied", {})  # as written: 't1.A' is another core in all copies but the first
        cores = tuple(replace(core, tied=tied.get(core.name, "")) for core in term.cores)
        for at in range(1, copies + 1):
            copied.setdefault(f"{name}{at}", name)
            terms.append(replace(term, name=f"{name}{at}", cores=cores))
    return replace(fields, terms=tuple(terms))


def _find(path: Path, places: Mapping[Path, Place], copied: Mapping[str, str]) -> Place:
    """The place of a path in the text, or of the nearest part around it that is written there."""
    if len(path) > 1 and path[0] == "terms":
        name = str(path[1])
        path = ("terms", copied.get(name, name), *path[2:])
        if path[:2] not in places:
            path = path[2:] or ("cores",)
    if path[:1] == ("terms",) and path[2:3] == ("modes",):
        path = path[2:]
    candidates = [path[:length] for length in range(len(path), 0, -1)]
    if ("family",) in places:
        candidates += [path[1:], path[1:2]] if path[:1] == ("modes",) else [("ranks",), ("rank",)] if path else []
        candidates.append(("family",))
    for candidate in candidates:
        if candidate and candidate in places:
            return places[candidate]
    return places.get((), Place(1, 1))
