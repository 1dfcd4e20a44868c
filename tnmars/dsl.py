"""Graphs from Python: `network` makes one from a line of text, `Builder` from calls.

Both give the same `Graph` as a spec file. The text lists cores with their edges, as `str(graph)` prints them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tnmars.arguments import check_arguments
from tnmars.errors import GraphError, Problem, listing, nearest
from tnmars.graph import MAIN, Core, Edge, Graph, Role, Term
from tnmars.graph.assemble import build
from tnmars.graph.parts import WORD
from tnmars.weight import KEYWORD, Weight, weight_fields

if TYPE_CHECKING:
    from typing_extensions import Unpack

Bonds = int | Mapping[str, int]
"""One size for all bonds; or sizes by name, `r1`, or `t1.r1` if there are several terms."""

_TOKEN = re.compile(rf"\s*(?:(?P<name>{WORD})|(?P<mark>[\[\],:+=.*])|(?P<end>$))")


def network(kind: str, text: str, *, bonds: Bonds | None = None, **weight: Unpack[Weight]) -> Graph:
    """The graph that `text` describes, over the modes given as keywords.

    Args:
        kind: What the layer does: `"linear"`, `"conv"`, `"conv_transpose"`, `"embedding"`, `"tensor"`, or `"map"` for
            any multilinear map.
        text: The cores with their edges, `"A[i,r] B[r,o]"`. Terms of a sum are joined by `+` and may be named:
            `"a: A[i,r] B[r,o] + b: C[i,o]"`. Every edge that is not a mode is a bond. `"B=A[j,r]"` is core `A` in
            another place, `"B=a.A[j,r]"` that of term `a`; a bond twice on a core, `"G[r,i,r]"`, is a trace.
            `"B*[r,o]"` is the complex conjugate of core `B`, and `"B*=A[j,r]"` that of core `A` in another place.
        bonds: One size for all bonds, or sizes by name, which then also sets the order of the bonds. With several
            terms, `"r"` means the bond of every term and `"t1.r"` that of one. Not needed if there are no bonds.
        weight: The modes and options of the weight:

            - `inputs`: Input modes (role `in`) as sizes by name, or as a list of sizes, then named `i1`, `i2`, ...
            - `outputs`: Output modes (role `out`), in the same way (`o1`, ...).
            - `groups`: Modes that input, cores and output share (`g1`, ...), the slowest of both; as torch's `groups`.
            - `lookup`: Modes of an embedding's rows (`v1`, ...); their product is at least the vocabulary.
            - `patch`: Modes of input channels times taps (`p1`, ...), for a convolution that unfolds its input.
            - `kernel`: Modes of a convolution's taps (`k1`, ...), one per spatial axis, or several axes flattened.
            - `free`: Axes of a plain tensor (`n1`, ...).
            - `features`: Real sizes by role, if the modes' product is larger; the rest is padding: `{"in": 781}`.
            - `vocab`: The real number of rows of an embedding; by default the product of its lookup modes.
            - `kernel_size`: The taps along each spatial axis; needed with patch modes or without kernel modes.
            - `shared`: Modes that sit on several cores, each value selecting a slice of all of them.
            - `arguments`: For a map, the axes of each input: `{"x": "batch i"}`.
            - `result`: For a map, the axes of the output: `"batch o"`; empty for one number.
            - `same`: For a map, inputs that are another input in a second place: `{"y": "x"}`. Only `x` is given.
            - `options`: Options of the torch layer, such as `{"stride": 2}` or `{"bias": False}`.
            - `name`: A name for people; it does not count for equality.

    Returns:
        The graph.

    Raises:
        GraphError: With every problem at once; for a mistake in `text`, with the column.

    Example:
        >>> modes = {"inputs": {"i": 8}, "outputs": {"o": 6}}
        >>> print(network("linear", "A[i,r] B[r,o]", bonds=2, **modes))
        linear (unnamed): 8 -> 6
          in     i=8
          out    o=6
          bonds  r=2
          cores  A[i, r] B[r, o]
    """
    fields = weight_fields(kind, weight)
    modes = {mode.name for mode in fields.modes}
    written = _Parser(text).terms()
    terms = []
    spent: set[str] = set()
    every: set[str] = set()
    wrong: list[Problem] = []
    for name, cores in written:
        used = list(dict.fromkeys(edge for core in cores for edge in core.edges if edge not in modes))
        every.update(used)
        sizes = _sizes(used, bonds, f"{name}." if len(written) > 1 else "", spent, wrong)
        terms.append(Term(name, tuple(sizes), tuple(cores)))
    if isinstance(bonds, Mapping):
        wrong += [
            Problem(f"bonds gives a size for '{key}', which is not a bond.", f"Bonds: {listing(sorted(every))}.")
            for key in bonds
            if key not in spent
        ]
    if wrong:
        raise GraphError(wrong)
    return build(fields, terms, weight.get("name", ""))


def _sizes(used: list[str], bonds: Bonds | None, prefix: str, spent: set[str], wrong: list[Problem]) -> list[Edge]:
    """The bonds of one term. Adds the keys of the mapping that they use to `spent`, and problems to `wrong`."""
    if bonds is None:
        hint = "Give bonds=8, or bonds={'r1': 8, …}."
        wrong += [Problem(f"no size is given for bond '{name}'.", hint) for name in used]
        return []
    if not isinstance(bonds, Mapping):
        bonds = dict.fromkeys(used, bonds)
    edges = {}
    for key, size in bonds.items():
        name = key.removeprefix(prefix) if isinstance(key, str) else key
        if name in used and (name not in edges or key == prefix + name):
            spent.add(key)
            try:
                edges[name] = Edge(name, size)
            except GraphError as error:
                edges[name] = Edge(name, 1)
                wrong += error.problems
    wrong += [
        Problem(
            f"edge '{name}' is not a mode, and bonds gives no size for it.",
            f"Sizes are given for: {listing(list(map(str, bonds)))}.{nearest(name, map(str, bonds))}",
        )
        for name in used
        if name not in edges
    ]
    return list(edges.values())


class _Parser:
    """Reads `name: Core[a, b] Core[c] + …` from left to right."""

    def __init__(self, text: str):
        if not isinstance(text, str):
            raise GraphError(Problem("the network must be text.", 'Write "A[i, r] B[r, o]".'))
        self.text = text.rstrip()
        self.at = 0
        self.word = ""
        self.start = 0
        self._next()

    def terms(self) -> list[tuple[str, list[Core]]]:
        found = [self._term()]
        while self.word == "+":
            self._next()
            found.append(self._term())
        if self.word:
            raise self._error("expected a core such as G1[i1, r1]")
        several = len(found) > 1
        return [(name or (f"t{at}" if several else MAIN), cores) for at, (name, cores) in enumerate(found, 1)]

    def _term(self) -> tuple[str, list[Core]]:
        name = ""
        cores: list[Core] = []
        while self._is_name():
            word, start = self.word, self.start
            self._next()
            if self.word == ":" and not cores and not name:
                name = word
                self._next()
                continue
            is_conj = self.word == "*"
            if is_conj:
                self._next()
            tied = self._tied()
            edges, places = self._edges()
            try:
                cores.append(Core(word, tuple(edges), tied, conj=is_conj))
            except GraphError as error:
                placed = [
                    (places[int(problem.path[0])] if problem.path else start, problem) for problem in error.problems
                ]
                raise GraphError([self._at(*entry) for entry in placed]) from None
        if not cores:
            raise self._error("expected a core such as G1[i1, r1]")
        return name, cores

    def _tied(self) -> str:
        """The core that a core is tied to, after `=`; that of another term with a `.` between. Empty without `=`."""
        if self.word != "=":
            return ""
        words: list[str] = []
        for mark in "=.":
            if self.word == mark:
                self._next()
                if not self._is_name():
                    raise self._error("expected the name of a core")
                words.append(self.word)
                self._next()
        return ".".join(words)

    def _edges(self) -> tuple[list[str], list[int]]:
        """The edges of a core, which commas separate, and where each stands."""
        self._take("[")
        edges: list[str] = []
        places: list[int] = []
        while self._is_name() or edges:
            if not self._is_name():
                raise self._error("expected the name of an edge")
            edges.append(self.word)
            places.append(self.start)
            self._next()
            if self.word != ",":
                break
            self._next()
        if edges and self.word != "]":
            raise self._error("expected ',' or ']'")
        self._take("]")
        return edges, places

    def _is_name(self) -> bool:
        return bool(self.word) and self.word not in "[],:+=.*"

    def _take(self, mark: str) -> None:
        if self.word != mark:
            raise self._error(f"expected '{mark}'")
        self._next()

    def _next(self) -> None:
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            self.start = self.at + len(self.text[self.at :]) - len(self.text[self.at :].lstrip())
            self.word = self.text[self.start]
            raise self._error("expected a name or one of [ ] , : + = . *")
        self.word = found["name"] or found["mark"] or ""
        self.start = found.end() - len(self.word)
        self.at = found.end()

    def _error(self, wanted: str) -> GraphError:
        got = f"'{self.word}'" if self.word else "the end"
        return GraphError(self._at(self.start, Problem(f"{wanted}, got {got}.", self._pointer())))

    def _pointer(self) -> str:
        """The line of the error, shortened to the part around it, with a caret below."""
        first = max(self.text.rfind("\n", 0, self.start) + 1, self.start - 30)
        near = self.text[first : self.start + 30].partition("\n")[0]
        return f"{near}\n{' ' * (self.start - first)}^".replace("\t", " ")

    def _at(self, start: int, problem: Problem) -> Problem:
        """The problem with its place in the text, whose line is given only if there are several."""
        before = self.text[:start].split("\n")
        line = f"line {len(before)}, " if "\n" in self.text else ""
        return Problem(f"network text, {line}column {len(before[-1]) + 1}: {problem.text}", problem.hint)


class Builder:
    """Collects the parts of a graph one by one, for code that generates graphs. Calls can be chained.

    Args:
        kind: The kind of layer, as for `network`.
        weight: Any keyword of `network` that describes the weight; modes may be given here or with `mode`.

    Example:
        >>> b = Builder("tensor").mode("free", a=4, b=5).bond(r=2)
        >>> graph = b.core("A", "a", "r").core("B", "r", "b").build()
        >>> graph == network("tensor", "A[a,r] B[r,b]", free={"a": 4, "b": 5}, bonds=2)
        True
    """

    def __init__(self, kind: str, **weight: Unpack[Weight]):
        check_arguments(Builder.__init__, locals())
        self._kind = kind
        self._weight = weight
        self._modes: dict[str, dict[str, int]] = {}
        self._terms: dict[str, tuple[list[Edge], list[Core]]] = {}
        self._current = MAIN

    def mode(self, role: str, /, **sizes: int) -> Builder:
        """Adds modes, sizes by name, with a role: `in`, `out`, `lookup`, `kernel`, `patch` or `free`."""
        check_arguments(Builder.mode, locals())
        known = [str(known) for known in KEYWORD]
        if role not in known:
            raise GraphError(
                Problem(f"role '{role}' is not known.", f"Roles: {', '.join(known)}.{nearest(role, known)}")
            )
        keyword = KEYWORD[Role(role)]
        if keyword in self._weight:
            hint = "Give all modes of a role in one place."
            raise GraphError(Problem(f"modes with role '{role}' were already given, as {keyword}=.", hint))
        added = self._modes.setdefault(keyword, {})
        twice = [name for name in sizes if name in added]
        if twice:
            raise GraphError(Problem(f"mode '{twice[0]}' is added twice.", "Rename one."))
        for name, size in sizes.items():
            added[name] = Edge(name, size, Role(role)).size
        return self

    def term(self, name: str) -> Builder:
        """Starts a term; the bonds and cores that follow belong to it."""
        check_arguments(Builder.term, locals())
        self._current = name
        self._parts()
        return self

    def bond(self, /, **sizes: int) -> Builder:
        """Adds bonds to the current term."""
        self._parts()[0].extend(Edge(name, size) for name, size in sizes.items())
        return self

    def core(self, name: str, *edges: str, tied: str = "", conj: bool = False) -> Builder:
        """Adds a core to the current term. If it is `tied` to another core, it is that one in another place; with
        `conj`, its complex conjugate."""
        self._parts()[1].append(Core(name, edges, tied, conj=conj))
        return self

    def build(self) -> Graph:
        """The graph of everything added so far. Raises `GraphError` with every problem at once."""
        fields = weight_fields(self._kind, {**self._weight, **self._modes})  # type: ignore[typeddict-item]  # keys are KEYWORD's
        terms = [Term(name, tuple(bonds), tuple(cores)) for name, (bonds, cores) in self._terms.items()]
        return build(fields, terms, self._weight.get("name", ""))

    def _parts(self) -> tuple[list[Edge], list[Core]]:
        return self._terms.setdefault(self._current, ([], []))
