"""The only home of hypothesis strategies: random valid graphs and what goes with them.

Every draw is valid by construction: nothing is filtered, so that examples are cheap and shrink to small graphs. Sizes
are small enough for one naive einsum over all edges of a term.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from hypothesis import strategies as st

from tnmars.graph import MAIN, Axis, Core, Edge, Graph, Operand, Role, Term
from tnmars.graph.kinds import KINDS
from tnmars.graph.lint import useful_size

THOROUGH = os.environ.get("TNMARS_THOROUGH") == "1"

MAX_MODES = 400
"""The largest product of all modes of a graph."""
MAX_TOTAL = 20_000
"""The largest product of all edges of a term."""

ODD_WORDS = ("on", "no", "yes", "null", "y", "_", "class", "values", "type", "n", "off", "true", "None", "copy", "self")
ODD_NAMES = (*ODD_WORDS, *(f"{word}_" for word in ODD_WORDS), *(f"_{word}{at}" for at in (1, 2) for word in ODD_WORDS))
GRAPH_NAMES = (
    "",
    "net",
    "two words",
    'it\'s "quoted"',
    "größe-模型",
    "a: b # c",
    " padded ",
    "on",
    "1.0",
    "- x",
    "{a}",
    "back\\slash",
)
LETTERS = {
    Role.GROUP: "g",
    Role.IN: "i",
    Role.OUT: "o",
    Role.LOOKUP: "l",
    Role.PATCH: "p",
    Role.KERNEL: "k",
    Role.FREE: "f",
}

Draw = Callable[[st.SearchStrategy], object]


def cases(count: int) -> int:
    """How many examples to run of a stated number: all of them when thorough, else 5 %, but at least 10."""
    return count if THOROUGH else max(min(count, 10), count // 20)


# --- names -----------------------------------------------------------------------------------------------------------


@dataclass
class Names:
    """Gives out edge names, each once: plain ones by prefix, or odd ones from a list."""

    odd: bool
    start: int
    used: dict[str, int] = field(default_factory=dict)

    def edge(self, prefix: str) -> str:
        """The next name for an edge or data axis; odd ones differ over all prefixes."""
        return self._next("" if self.odd else prefix, prefix)

    def core(self) -> str:
        """The next name for a core; it may be that of an edge."""
        return self._next("core", "G")

    def _next(self, counter: str, prefix: str) -> str:
        at = self.used[counter] = self.used.get(counter, 0) + 1
        return ODD_NAMES[(self.start + at) % len(ODD_NAMES)] if self.odd else f"{prefix}{at}"

    def branch(self) -> Names:
        """Names that go on from here, for a term whose bonds and cores may be named as another's."""
        return Names(self.odd, self.start, dict(self.used))


@st.composite
def _names(draw: Draw) -> Names:
    odd = draw(st.integers(0, 3)) == 3
    return Names(odd, draw(st.integers(0, len(ODD_NAMES) - 1)) if odd else 0)


# --- modes, by kind --------------------------------------------------------------------------------------------------


@dataclass
class Frame:
    """What a graph has beside its terms."""

    modes: list[Edge]
    features: dict[Role, int] = field(default_factory=dict)
    kernel_size: tuple[int, ...] = ()
    inputs: tuple[Operand, ...] = ()
    output: tuple[Axis, ...] = ()
    options: dict[str, object] = field(default_factory=dict)


@st.composite
def _sizes(draw: Draw, least: int, most: int, room: int) -> list[int]:
    """Between `least` and `most` sizes from 1 to 4, mostly 2 and 3, whose product is at most `room`."""
    found: list[int] = []
    for _ in range(draw(st.integers(least, most))):
        options = [size for size in (2, 3, 1, 4, 2, 3) if size * prod(found) <= room]
        found.append(draw(st.sampled_from(options)))
    return found


def _modes(names: Names, role: Role, sizes: Sequence[int]) -> list[Edge]:
    return [Edge(names.edge(LETTERS[role]), size, role) for size in sizes]


@st.composite
def _padding(draw: Draw, modes: Sequence[Edge], roles: Sequence[Role]) -> dict[Role, int]:
    """Real sizes for some roles: now and then smaller than their modes' product, now and then equal to it."""
    found = {}
    for role in roles:
        room = prod(mode.size for mode in modes if mode.role is role)
        if draw(st.integers(0, 2)) == 2:
            found[role] = draw(st.integers(1, room))
    return found


@st.composite
def _linear(draw: Draw, names: Names) -> Frame:
    modes = _modes(names, Role.IN, draw(_sizes(1, 3, 20))) + _modes(names, Role.OUT, draw(_sizes(1, 3, 20)))
    frame = Frame(modes, draw(_padding(modes, (Role.IN, Role.OUT))))
    if draw(st.booleans()):
        frame.options["bias"] = draw(st.booleans())
    return frame


@st.composite
def _embedding(draw: Draw, names: Names) -> Frame:
    modes = _modes(names, Role.LOOKUP, draw(_sizes(1, 3, 24))) + _modes(names, Role.OUT, draw(_sizes(1, 2, 12)))
    frame = Frame(modes, draw(_padding(modes, (Role.LOOKUP, Role.OUT))))
    rows = frame.features.get(Role.LOOKUP, prod(mode.size for mode in modes if mode.role is Role.LOOKUP))
    if draw(st.booleans()):
        frame.options["padding_idx"] = draw(st.integers(-rows, rows - 1))
    return frame


@st.composite
def _tensor(draw: Draw, names: Names) -> Frame:
    return Frame(_modes(names, Role.FREE, draw(_sizes(1, 5, MAX_MODES))))


@st.composite
def _conv(draw: Draw, names: Names) -> Frame:
    kernel_size = tuple(draw(st.lists(st.sampled_from((3, 2, 1)), min_size=1, max_size=3)))
    frame = draw(_patches(names, kernel_size) if draw(st.integers(0, 2)) == 2 else _taps(names, kernel_size))
    frame.modes += _modes(names, Role.OUT, draw(_sizes(1, 2, MAX_MODES // prod(mode.size for mode in frame.modes))))
    frame.features |= draw(_padding(frame.modes, (Role.OUT,)))
    frame.options = draw(_conv_options(len(kernel_size)))
    return frame


@st.composite
def _taps(draw: Draw, names: Names, kernel_size: tuple[int, ...]) -> Frame:
    """Channels in `in` modes and taps in kernel modes, each of which holds one spatial axis or several in a row."""
    modes = _modes(names, Role.IN, draw(_sizes(1, 2, 6)))
    features = draw(_padding(modes, (Role.IN,)))
    if prod(kernel_size) == 1 and draw(st.booleans()):
        return Frame(modes, features, kernel_size)
    groups = draw(_runs(kernel_size))
    modes += _modes(names, Role.KERNEL, list(map(prod, groups)))
    said = len(groups) < len(kernel_size) or draw(st.booleans())
    return Frame(modes, features, kernel_size if said else ())


@st.composite
def _patches(draw: Draw, names: Names, kernel_size: tuple[int, ...]) -> Frame:
    """Channels and taps together in patch modes, whose product is a multiple of the taps, or larger with padding."""
    taps, channels = prod(kernel_size), draw(st.integers(1, 3))
    factors = draw(st.permutations((channels, *kernel_size)))
    sizes = list(map(prod, draw(_runs(factors))))
    features = {}
    if draw(st.booleans()):
        sizes[draw(st.integers(0, len(sizes) - 1))] += draw(st.integers(0, 1))
        features[Role.IN] = draw(st.integers(1, prod(sizes) // taps))
    return Frame(_modes(names, Role.PATCH, sizes), features, kernel_size)


@st.composite
def _runs(draw: Draw, items: Sequence) -> list[tuple]:
    """The items, in order, in runs of at least one."""
    found: list[tuple] = []
    for item in items:
        if found and draw(st.integers(0, 2)) == 2:
            found[-1] += (item,)
        else:
            found.append((item,))
    return found


@st.composite
def _conv_options(draw: Draw, spatial: int) -> dict[str, object]:
    def per_axis(least: int, most: int) -> st.SearchStrategy:
        one = st.integers(least, most)
        return one | st.lists(one, min_size=spatial, max_size=spatial).map(tuple)

    found: dict[str, object] = {}
    if draw(st.booleans()):
        found["stride"] = draw(per_axis(1, 3))
    numbers = per_axis(0, 2) | st.just("valid")
    strided = found.get("stride", 1) not in (1, (1,) * spatial)
    if draw(st.booleans()):
        found["padding"] = draw(numbers if strided else numbers | st.just("same"))
    if draw(st.integers(0, 3)) == 3:
        found["padding_mode"] = draw(st.sampled_from(("reflect", "replicate", "circular", "zeros")))
    if draw(st.booleans()):
        found["dilation"] = draw(per_axis(1, 2))
    if draw(st.booleans()):
        found["bias"] = draw(st.booleans())
    return found


@st.composite
def _conv_transpose(draw: Draw, names: Names) -> Frame:
    kernel_size = tuple(draw(st.lists(st.sampled_from((3, 2, 1)), min_size=1, max_size=3)))
    frame = draw(_taps(names, kernel_size))
    frame.modes += _modes(names, Role.OUT, draw(_sizes(1, 2, MAX_MODES // prod(mode.size for mode in frame.modes))))
    frame.features |= draw(_padding(frame.modes, (Role.OUT,)))
    options = draw(_conv_options(len(kernel_size)))
    frame.options = {key: value for key, value in options.items() if not isinstance(value, str)}
    if draw(st.booleans()):
        frame.options["output_padding"] = draw(_output_padding(frame.options, len(kernel_size)))
    return frame


@st.composite
def _output_padding(draw: Draw, options: dict, spatial: int) -> int | tuple[int, ...]:
    """Less than the stride or the dilation of its axis."""
    values = [options.get(name, 1) for name in ("stride", "dilation")]
    steps = [value if isinstance(value, tuple) else (value,) * spatial for value in values]
    least = [max(pair) - 1 for pair in zip(*steps, strict=True)]
    if draw(st.booleans()):
        return draw(st.integers(0, min(least)))
    return tuple(draw(st.integers(0, most)) for most in least)


@st.composite
def _map(draw: Draw, names: Names) -> Frame:
    """One to three inputs with modes and data axes; a mode may be on several inputs, and an input may have none."""
    ins = _modes(names, Role.IN, draw(_sizes(1, 4, 40)))
    outs = _modes(names, Role.OUT, draw(_sizes(0, 2, 9)))
    count = draw(st.integers(1, 3))
    data = [names.edge("n") for _ in range(draw(st.integers(0, 3)))]
    axes: list[list[str]] = [[] for _ in range(count)]
    for name in (*data, *(mode.name for mode in ins)):
        for at in draw(_some(range(count), most=2)):
            axes[at].append(name)
    kept = data if not outs and len(data) == 1 else [name for name in data if draw(st.booleans())]
    if not outs and not kept:
        kept = data[:1]
    modes = ins + outs
    operands = tuple(Operand(f"x{at}", draw(_axes(found, modes))) for at, found in enumerate(axes, 1))
    return Frame(modes, inputs=operands, output=draw(_axes([*kept, *(mode.name for mode in outs)], modes)))


@st.composite
def _axes(draw: Draw, names: Sequence[str], modes: Sequence[Edge]) -> tuple[Axis, ...]:
    """The names as axes in any order, some neighbouring modes flattened together."""
    known = {mode.name for mode in modes}
    found: list[Axis] = []
    for name in draw(st.permutations(names)):
        if found and name in known and found[-1][0] in known and draw(st.booleans()):
            found[-1] += (name,)
        else:
            found.append((name,))
    return tuple(found)


@st.composite
def _some(draw: Draw, items: Sequence, least: int = 1, most: int = 5) -> list:
    """Between `least` and `most` different items (fewer where there are not so many); mostly few."""
    count = draw(st.integers(least, max(least, min(most, len(items)))))
    return list(draw(st.permutations(items)))[:count]


@st.composite
def _grouped(draw: Draw, frame: Frame, names: Names) -> Frame:
    """The same with one or two group modes; then nothing is padded, and inputs or outputs may have no other modes."""
    room = max(2, min(6, 2 * MAX_MODES // prod(mode.size for mode in frame.modes)))
    groups = _modes(names, Role.GROUP, draw(_sizes(1, 2, room)))
    modes = list(frame.modes)
    if Role.IN in frame.features and any(mode.role is Role.PATCH for mode in modes):
        modes = [mode for mode in modes if mode.role is not Role.PATCH]
        modes += _modes(names, Role.PATCH, [prod(frame.kernel_size)])
    lone = draw(st.sampled_from(((), (Role.IN,), (Role.OUT,), (Role.IN, Role.OUT)))) if not frame.inputs else ()
    modes = [mode for mode in modes if mode.role not in lone]
    names_of = [mode.name for mode in groups]
    inputs, output = list(frame.inputs), frame.output
    for name in names_of if inputs else ():
        for at in draw(_some(range(len(inputs)), most=2)):
            inputs[at] = replace(inputs[at], axes=draw(_with_axis(inputs[at].axes, name)))
        output = draw(_with_axis(output, name))
    return replace(frame, modes=groups + modes, features={}, inputs=tuple(inputs), output=output)


@st.composite
def _with_axis(draw: Draw, axes: Sequence[Axis], name: str) -> tuple[Axis, ...]:
    at = draw(st.integers(0, len(axes)))
    return (*axes[:at], (name,), *axes[at:])


FRAMES = {"linear": _linear, "conv": _conv, "conv_transpose": _conv_transpose}
FRAMES |= {"embedding": _embedding, "tensor": _tensor, "map": _map}
assert FRAMES.keys() == KINDS.keys(), "a new kind needs a strategy"


# --- terms -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """What the terms drawn may look like."""

    max_cores: int
    connected: bool
    trees_only: bool
    hyperedges: bool
    shared: bool
    bonded: bool


@st.composite
def _skeleton(draw: Draw, shape: Shape) -> tuple[int, list[list[int]]]:
    """A number of cores, and the ends of each bond between them.

    Each core after the first hangs on an earlier one by a bond of its own, or joins a bond that is there, or stays
    apart; that gives forests. Cycles and parallel bonds come on top.
    """
    count = draw(st.integers(2 if shape.bonded else 1, shape.max_cores))
    bonds: list[list[int]] = []
    for core in range(1, count):
        joinable = [bond for bond in bonds if len(bond) < 5 and shape.hyperedges]
        ways = ["bond", "bond"] + ["join"] * bool(joinable) + ["apart"] * (not shape.connected)
        way = "bond" if shape.bonded and not bonds else draw(st.sampled_from(ways))
        if way == "bond":
            bonds.append([draw(st.integers(0, core - 1)), core])
        elif way == "join":
            draw(st.sampled_from(joinable)).append(core)
    if count > 1 and not shape.trees_only:
        for _ in range(draw(st.integers(0, 3))):
            bonds.append(draw(_some(range(count), least=2, most=5 if shape.hyperedges else 2)))
    return count, bonds


def _is_forest(count: int, edges: Sequence[Sequence[int]]) -> bool:
    """Whether cores joined by edges of any number of ends have no cycle."""
    group = list(range(count))
    for ends in edges:
        groups = {group[core] for core in ends}
        if len(groups) < len(ends):
            return False
        group = [min(groups) if found in groups else found for found in group]
    return True


@st.composite
def _term(draw: Draw, name: str, modes: Sequence[Edge], names: Names, shape: Shape) -> Term:
    count, bond_ends = draw(_skeleton(shape))
    room = MAX_TOTAL // prod(mode.size for mode in modes)
    bonds = []
    for _ in bond_ends:
        sizes = [size for size in (2, 3, 1, 4) if size <= room]
        bonds.append(Edge(names.edge("r"), draw(st.sampled_from(sizes))))
        room //= bonds[-1].size
    edges: list[list[str]] = [[] for _ in range(count)]
    for bond, ends in zip(bonds, bond_ends, strict=True):
        for core in ends:
            edges[core].append(bond.name)
    mode_ends: list[list[int]] = []
    for mode in modes:
        ends = [draw(st.integers(0, count - 1))]
        is_group = mode.role is Role.GROUP
        if shape.shared and count > 1 and draw(st.integers(0, 1 if is_group else 7)) == (1 if is_group else 7):
            wanted = draw(_some(range(count), least=2, most=5 if is_group else 3))
            if not shape.trees_only or _is_forest(count, [*bond_ends, *mode_ends, wanted]):
                ends = wanted
        mode_ends.append(ends)
        for core in ends:
            edges[core].append(mode.name)
    cores = tuple(Core(names.core(), tuple(draw(st.permutations(found)))) for found in edges)
    return Term(name, tuple(bonds), tuple(draw(st.permutations(cores))))


@st.composite
def _terms(draw: Draw, modes: Sequence[Edge], names: Names, shape: Shape, least: int, most: int) -> tuple[Term, ...]:
    """Terms over the same modes: some copies of others, some of other shapes."""
    count = draw(st.sampled_from(range(max(least, 1), most + 1))) if least else draw(st.integers(0, most))
    found: list[Term] = []
    for at in range(count):
        name = draw(st.sampled_from((MAIN, "t", "no"))) if count == 1 else ODD_NAMES[at] if names.odd else f"t{at + 1}"
        if found and draw(st.booleans()):
            other = draw(st.sampled_from(found))
            found.append(Term(name, other.bonds, other.cores))
        else:
            found.append(draw(_term(name, modes, names.branch(), shape)))
    return tuple(found)


# --- networks of edges, without a graph around them ------------------------------------------------------------------


@dataclass(frozen=True)
class CutTask:
    """A network and what is to be separated from what in it."""

    ends: dict[str, list[str]]
    sizes: dict[str, int]
    open_edges: list[str]
    sources: list[str]
    sinks: list[str]
    without: list[str]


@st.composite
def cut_tasks(draw: Draw, max_cores: int = 8, max_edges: int = 10) -> CutTask:
    """Random networks of edges with one to four ends, and disjoint sources and sinks in them."""
    cores = [f"G{at}" for at in range(draw(st.integers(2, max_cores)))]
    edges = [f"e{at}" for at in range(draw(st.integers(1, max_edges)))]
    ends = {edge: draw(_some(cores, most=4)) for edge in edges}
    sizes = {edge: draw(st.integers(1, 7)) for edge in edges}
    split = draw(st.permutations(cores))
    at = draw(st.integers(1, len(cores) - 1))
    sinks = split[at : draw(st.integers(at, min(len(cores), at + 2)))]
    left_out = [edge for edge in edges if draw(st.integers(0, 7)) == 7]
    open_edges = [edge for edge in edges if draw(st.integers(0, 2)) == 2]
    return CutTask(ends, sizes, open_edges, split[: min(at, 2)], sinks, left_out)


# --- graphs ----------------------------------------------------------------------------------------------------------


@st.composite
def _mixed(draw: Draw, modes: Sequence[Edge]) -> tuple[Edge, ...]:
    """The modes with roles in any order; within a role the order has a meaning and stays."""
    roles = draw(st.permutations([mode.role for mode in modes]))
    left = {role: [mode for mode in modes if mode.role is role] for role in roles}
    return tuple(left[role].pop(0) for role in roles)


@st.composite
def graphs(
    draw: Draw,
    kinds: Sequence[str] = tuple(KINDS),
    *,
    max_cores: int = 5,
    connected: bool = False,
    trees_only: bool = False,
    hyperedges: bool = True,
    shared: bool = True,
    bonded: bool = False,
    terms: int = 3,
    least_terms: int = 1,
    grouped: bool | None = None,
    bordered: bool = False,
) -> Graph:
    """Random valid graphs of the given kinds.

    Each term has at most `max_cores` cores: connected ones if `connected`, without cycles if `trees_only` (both: a
    tree), with bonds of three to five ends if `hyperedges`, with modes on several cores if `shared`, with at least
    one bond if `bonded`. There are `least_terms` to `terms` terms; 0 also draws graphs whose weight is zero. One in
    four graphs of a kind that may have groups has them, or all of them if `grouped`, or none. A convolution is
    padded with other than zeros if `bordered`, else now and then.
    """
    names = draw(_names())
    kind = draw(st.sampled_from(list(kinds)))
    frame = draw(FRAMES[kind](names))
    may = Role.GROUP in KINDS[kind].roles
    if may and (draw(st.integers(0, 3)) == 3 if grouped is None else grouped):
        frame = draw(_grouped(frame, names))
    if bordered and kind == "conv":
        frame.options["padding_mode"] = draw(st.sampled_from(("reflect", "replicate", "circular")))
        frame.options.setdefault("padding", draw(st.sampled_from((1, 2))))
    shape = Shape(max_cores, connected, trees_only, hyperedges, shared, bonded)
    found = draw(_terms(frame.modes, names, shape, least_terms, terms))
    several = {edge for term in found for edge, cores in term.ends().items() if len(cores) > 1}
    return Graph(
        kind,
        draw(_mixed(frame.modes)),
        found,
        shared=tuple(mode.name for mode in frame.modes if mode.name in several and mode.role is not Role.GROUP),
        features=tuple(frame.features.items()),
        kernel_size=frame.kernel_size,
        inputs=frame.inputs,
        output=frame.output,
        options=tuple(frame.options.items()),
        name=draw(st.sampled_from(GRAPH_NAMES)),
    )


MAX_TANGLED = 60_000
"""The largest product of all edges of a term with ties or traces."""


@dataclass
class _Draft:
    """A term that is being changed: the sizes of its bonds, and the edges of its cores."""

    name: str
    bonds: dict[str, int]
    cores: dict[str, list[str]]
    tied: dict[str, str] = field(default_factory=dict)

    def made(self) -> Term:
        bonds = tuple(Edge(name, size) for name, size in self.bonds.items())
        return Term(
            self.name, bonds, tuple(Core(name, tuple(e), self.tied.get(name, "")) for name, e in self.cores.items())
        )


@st.composite
def tangled(draw: Draw, kinds: Sequence[str] = tuple(KINDS), *, traces: bool = True, ties: bool = True) -> Graph:
    """Random graphs with bonds that are twice on a core if `traces`, and cores in several places if `ties`."""
    graph = draw(graphs(kinds, max_cores=3, terms=2))
    drafts = [
        _Draft(term.name, dict(term.bond_sizes), {core.name: list(core.edges) for core in term.cores})
        for term in graph.terms
    ]
    modes = {mode.name: mode.size for mode in graph.modes}
    fresh = (f"z{at}" for at in range(100))
    for _ in range(draw(st.integers(1, 2)) if traces else 0):
        draft = draw(st.sampled_from(drafts))
        edges = draft.cores[draw(st.sampled_from(list(draft.cores)))]
        own = [edge for edge in edges if edge in draft.bonds]
        if own and draw(st.booleans()):
            edges.insert(draw(st.integers(0, len(edges))), draw(st.sampled_from(own)))
        else:
            bond = next(fresh)
            draft.bonds[bond] = draw(st.sampled_from((2, 3, 1)))
            for _ in range(2):
                edges.insert(draw(st.integers(0, len(edges))), bond)
    frozen: set[tuple[str, str]] = set()
    for _ in range(draw(st.integers(1, 3)) if ties else 0):
        home, place = draw(st.sampled_from(drafts)), draw(st.sampled_from(drafts))
        first = draw(st.sampled_from([name for name in home.cores if name not in home.tied]))
        frozen.add((home.name, first))
        edges, clone = home.cores[first], next(fresh)
        frozen.add((place.name, clone))
        free = [name for name in place.cores if (place.name, name) not in frozen]
        renamed: dict[str, str] = {}
        listed: list[str] = []
        for edge in edges:
            if edge in modes:
                listed.append(draw(_mode_for(edge, modes, graph, place, free, listed)))
                continue
            if edge not in renamed or draw(st.booleans()):
                renamed[edge] = draw(_bond_for(home.bonds[edge], place, free, fresh))
            listed.append(renamed[edge])
        place.cores[clone] = listed
        place.tied[clone] = first if home is place else f"{home.name}.{first}"
        ends = {bond: sum(edges.count(bond) for edges in place.cores.values()) for bond in place.bonds}
        for bond in (bond for bond, count in ends.items() if count == 1):
            place.cores[next(fresh)] = [bond]
    terms = tuple(draft.made() for draft in drafts)
    several = {edge for term in terms for edge, cores in term.ends().items() if len(set(cores)) > 1}
    found = replace(
        graph,
        terms=terms,
        shared=tuple(mode.name for mode in graph.modes if mode.name in several and mode.role is not Role.GROUP),
    )
    is_small = all(prod(found.sizes(term).values()) <= MAX_TANGLED for term in terms)
    return found if is_small else graph


@st.composite
def powers(draw: Draw) -> Graph:
    """Maps with one input in several places, each with modes of its own, and cores that may be tied."""
    sizes, places = draw(_sizes(1, 2, 4)), draw(st.integers(2, 3))
    modes = [[Edge(f"i{place}{at}", size, Role.IN) for at, size in enumerate(sizes)] for place in range(places)]
    outs = _modes(Names(False, 0), Role.OUT, draw(_sizes(0, 1, 3)))
    is_flat, has_batch = draw(st.booleans()), draw(st.booleans())
    inputs, cores, bonds = [], [], []
    batch: tuple[Axis, ...] = (("b",),) if has_batch else ()
    for place, own in enumerate(modes):
        names = tuple(mode.name for mode in own)
        axes = (names,) if is_flat else tuple((name,) for name in names)
        inputs.append(Operand(f"x{place}", (*batch, *axes), "x0" if place else ""))
        is_tied = bool(place) and draw(st.booleans())
        cores.append(Core(f"G{place}", (f"r{place}", *names), "G0" if is_tied else ""))
        bonds.append(Edge(f"r{place}", 2))
    cores.append(Core("C", (*(bond.name for bond in bonds), *(mode.name for mode in outs))))
    term = Term(MAIN, tuple(bonds), tuple(cores))
    output = (*batch, *((mode.name,) for mode in outs))
    return Graph("map", (*(mode for own in modes for mode in own), *outs), (term,), inputs=tuple(inputs), output=output)


@st.composite
def _mode_for(
    draw: Draw, mode: str, modes: dict[str, int], graph: Graph, place: _Draft, free: list[str], taken: list[str]
) -> str:
    """A mode of the same size for a core that is tied: taken away from another core, or the mode of several."""
    roles = {found.name: found.role for found in graph.modes}
    movable = [
        name
        for name in modes
        if modes[name] == modes[mode] and name not in taken and any(name in place.cores[core] for core in free)
    ]
    if movable and draw(st.booleans()):
        name = draw(st.sampled_from(movable))
        for core in free:
            if name in place.cores[core]:
                place.cores[core].remove(name)
        return name
    fitting = [name for name in modes if modes[name] == modes[mode] and name not in taken]
    return mode if mode not in taken else draw(st.sampled_from(sorted(fitting, key=lambda name: roles[name])))


@st.composite
def _bond_for(draw: Draw, size: int, place: _Draft, free: list[str], fresh: Iterator[str]) -> str:
    """A bond of a size for a core that is tied: one that is there, or a new one, to another core or to itself."""
    there = [name for name, own in place.bonds.items() if own == size]
    if there and draw(st.booleans()):
        return draw(st.sampled_from(there))
    bond = next(fresh)
    place.bonds[bond] = size
    if free:
        edges = place.cores[draw(st.sampled_from(free))]
        edges.insert(draw(st.integers(0, len(edges))), bond)
    return bond


@st.composite
def conjugates(draw: Draw, graph: Graph) -> Graph:
    """The graph with the conjugates of some of its cores."""
    terms = [
        replace(term, cores=tuple(replace(core, conj=draw(st.booleans())) for core in term.cores))
        for term in graph.terms
    ]
    return replace(graph, terms=tuple(terms))


@st.composite
def keeps(draw: Draw, graph: Graph, *, least: int = 1) -> dict[str, tuple[int, ...]]:
    """For each bond by its qualified name, at least `least` of its indices in rising order."""
    found = {}
    for name, bond in graph.bonds.items():
        kept = [index for index in range(bond.size) if draw(st.booleans())]
        spare = [index for index in range(bond.size) if index not in kept]
        found[name] = tuple(sorted(kept + spare[: max(0, least - len(kept))]))
    return found


def resized(graph: Graph, term: Term, bond: str, size: int) -> Graph:
    """The graph made of this term alone, with another size of a bond."""
    bonds = tuple(Edge(edge.name, size) if edge.name == bond else edge for edge in term.bonds)
    shared = tuple(mode for mode in graph.shared if len(term.ends()[mode]) > 1)
    return replace(graph, terms=(replace(term, bonds=bonds),), shared=shared)


@st.composite
def wide_bonds(draw: Draw, **limits: object) -> tuple[Graph, str]:
    """A graph of one term, and a bond of it that is two wider than it can use, or 24 where that is too large."""
    graph = draw(graphs(bonded=True, **limits))
    term = draw(st.sampled_from(graph.terms))
    bond = draw(st.sampled_from(term.bonds)).name
    return resized(graph, term, bond, min(useful_size(graph, term, bond) + 2, 24)), bond


@st.composite
def cuts(draw: st.DrawFn, least: int = 1) -> tuple[Graph, dict[str, tuple[int, ...]]]:
    """A graph, and what to keep of its bonds."""
    graph = draw(graphs(bonded=True, terms=3))
    return graph, draw(keeps(graph, least=least))
