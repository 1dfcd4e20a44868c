"""The shape of a term: its connected parts, its cycles, its narrowest cuts, and whether two graphs have the same one.

A term is seen as a bipartite graph of cores and edges, so that an edge with many ends needs no special case. Functions
that need networkx import it when called; `parts`, `is_tree` and the cuts do without, because `tnmars check` runs them.

Example:
    >>> from tnmars import families, topology
    >>> ring = families.tr("tensor", free=(4, 5, 6), rank=2)
    >>> topology.is_tree(ring.terms[0]), topology.cycles(ring, ring.terms[0])
    (False, (('r1', 'r2', 'r3'),))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from tnmars.arguments import check_arguments
from tnmars.errors import GraphError, Problem, listing, nearest
from tnmars.graph import cuts
from tnmars.graph.graph import Axis, Graph, Term

if TYPE_CHECKING:
    import networkx as nx

Node = tuple[str, str]


def view(graph: Graph, term: Term) -> nx.Graph[Node]:
    """The term as a bipartite networkx graph with nodes `("core", name)` and `("edge", name)`.

    Edges of the term have their `size` and `role`; cores have their number of entries as `size`, and role None.
    """
    check_arguments(view, locals())
    import networkx as nx

    found: nx.Graph[Node] = nx.Graph()
    for edge in (*graph.modes, *term.bonds):
        found.add_node(("edge", edge.name), size=edge.size, role=edge.role)
    for core in term.cores:
        found.add_node(("core", core.name), size=prod(graph.shape(term, core)), role=None)
        found.add_edges_from((("core", core.name), ("edge", edge)) for edge in core.edges)
    return found


def parts(term: Term) -> tuple[tuple[str, ...], ...]:
    """The names of the cores of each connected part, in the order of the cores.

    Cores are joined by the edges that both list: by bonds, and by shared modes.

    >>> from tnmars.graph import Core, Edge
    >>> cores = (Core("A", ("i", "r")), Core("B", ("j",)), Core("C", ("r",)))
    >>> parts(Term("t", (Edge("r", 2),), cores))
    (('A', 'C'), ('B',))
    """
    check_arguments(parts, locals())
    first = _joined(term)
    found: dict[str, list[str]] = {}
    for core in term.cores:
        found.setdefault(_top(first, core.name), []).append(core.name)
    return tuple(map(tuple, found.values()))


def is_tree(term: Term) -> bool:
    """Whether the term is connected and has no cycle; two bonds between the same two cores are a cycle."""
    check_arguments(is_tree, locals())
    joints = sum(len(cores) - 1 for cores in term.ends().values() if cores)
    return len(parts(term)) == 1 and joints == len(term.cores) - 1


def _top(first: dict[str, str], core: str) -> str:
    while first[core] != core:
        first[core] = first[first[core]]
        core = first[core]
    return core


def _joined(term: Term) -> dict[str, str]:
    """A forest over the cores (name -> name above) with one tree for each connected part."""
    first = {core.name: core.name for core in term.cores}
    for cores in term.ends().values():
        for core in cores[1:]:
            first[_top(first, core)] = _top(first, cores[0])
    return first


def cycles(graph: Graph, term: Term) -> tuple[tuple[str, ...], ...]:
    """A basis of the term's cycles, each as the edges along it; empty for a tree, or for several.

    >>> from tnmars.graph import Core, Edge, Role
    >>> i, r, s = Edge("i", 8, Role.FREE), Edge("r", 2), Edge("s", 3)
    >>> term = Term("main", (r, s), (Core("A", ("i", "r", "s")), Core("B", ("r", "s"))))
    >>> cycles(Graph("tensor", (i,), (term,)), term)
    (('r', 's'),)
    """
    check_arguments(cycles, locals())
    import networkx as nx

    order = {edge.name: at for at, edge in enumerate((*graph.modes, *term.bonds))}
    basis = nx.cycle_basis(view(graph, term))
    found = (sorted((name for what, name in cycle if what == "edge"), key=order.__getitem__) for cycle in basis)
    return tuple(sorted(map(tuple, found), key=lambda cycle: [order[edge] for edge in cycle]))


def common(term: Term, bond: str) -> tuple[str, ...]:
    """The modes that every end of a bond lists. For each of their values the bond has slices of its own.

    >>> from tnmars.graph import Core, Edge
    >>> cores = (Core("A", ("b", "i", "r")), Core("B", ("b", "r", "o")))
    >>> common(Term("t", (Edge("r", 2),), cores), "r")
    ('b',)
    """
    check_arguments(common, locals())
    cores = term.ends().get(bond)
    if cores is None:
        raise _unknown(term, bond)
    return _common(term, cores)


def _common(term: Term, cores: Sequence[str]) -> tuple[str, ...]:
    """The modes that all of some cores list."""
    listed = [set(core.edges) for core in term.cores if core.name in cores]
    bonds = {found.name for found in term.bonds}
    return tuple(sorted(set.intersection(*listed) - bonds))


def cut(graph: Graph, term: Term, bond: str) -> dict[str, cuts.Cut]:
    """For each end of a bond, the narrowest cut between that core and all modes and the other ends.

    The bond itself is taken as absent, so that its own size does not matter; the other edges have their sizes. Modes
    that all ends share are absent too: each of their values selects slices that are independent of the others, and the
    bond has to be large enough for one at a time. Raises `GraphError` if the term has no such bond.
    """
    check_arguments(cut, locals())
    if bond not in term.bond_sizes:
        raise _unknown(term, bond)
    net, ends = _network(graph, term), term.ends()[bond]
    absent = frozenset((bond, *common(term, bond)))
    return {core: cuts.min_cut(net, (core,), frozenset(ends), absent) for core in ends}


def _unknown(term: Term, bond: str) -> GraphError:
    names = list(term.bond_sizes)
    hint = f"Bonds: {listing(names)}.{nearest(bond, names)}"
    return GraphError(Problem(f"term '{term.name}' has no bond '{bond}'.", hint))


def narrow_cuts(graph: Graph, term: Term) -> dict[str, dict[str, cuts.Cut | None]]:
    """For every bond the result of `cut`, or None for an end that has no cut narrower than the bond. This is faster."""
    check_arguments(narrow_cuts, locals())
    net, ends = _network(graph, term), term.ends()
    found = {}
    for bond in term.bonds:
        cores = ends[bond.name]
        others, absent = frozenset(cores), frozenset((bond.name, *_common(term, cores)))
        found[bond.name] = {core: cuts.narrower(net, bond.size, (core,), others, absent) for core in cores}
    return found


def _network(graph: Graph, term: Term) -> cuts.Network:
    return cuts.network(term.ends(), graph.sizes(term), [mode.name for mode in graph.modes])


def isomorphic(a: Graph, b: Graph) -> bool:
    """Whether two graphs are equal up to names, and up to the order of terms, of cores, and of the edges on a core.

    Names of cores, terms, edges and data axes do not count. What decides about results does: kind, options, sizes,
    roles, the order of modes within a role (it says how an axis is split), and the names of inputs, which callers use.
    Graphs with tied cores must be equal, names included.
    """
    check_arguments(isomorphic, locals())
    if any(core.tied for graph in (a, b) for term in graph.terms for core in term.cores):
        return a == b
    return _frame(a) == _frame(b) and _same_terms(a, b)


def _frame(graph: Graph) -> tuple[object, ...]:
    """Everything except the terms, with modes and data axes numbered in order of appearance."""
    names: dict[str, int] = {mode.name: at for at, mode in enumerate(graph.modes)}

    def numbered(axes: tuple[Axis, ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(names.setdefault(name, len(names)) for name in axis) for axis in axes)

    return (
        graph.kind,
        tuple((mode.size, mode.role) for mode in graph.modes),
        tuple(names[name] for name in graph.shared),
        graph.features,
        graph.kernel_size,
        tuple((operand.name, numbered(operand.axes), operand.same) for operand in graph.inputs),
        numbered(graph.output),
        graph.options,
    )


def _same_terms(a: Graph, b: Graph) -> bool:
    """Whether the terms of two graphs with equal frames pair up."""
    if len(a.terms) != len(b.terms):
        return False
    # Isomorphism is an equivalence relation, so the first match is as good as any other.
    rest = [_colored(b, term) for term in b.terms]
    for term in a.terms:
        one = _colored(a, term)
        at = next((at for at, other in enumerate(rest) if _same_term(one, other)), None)
        if at is None:
            return False
        del rest[at]
    return True


def _colored(graph: Graph, term: Term) -> tuple[list[str], nx.Graph[Node]]:
    """The view of a term in which each node's `color` is what a renaming leaves of it, and the sorted colors.

    Colors are refined by those of the neighbors (Weisfeiler and Leman), which leaves the search little to try.
    """
    import networkx as nx

    seen = view(graph, term)
    modes = {mode.name: at for at, mode in enumerate(graph.modes)}
    edges = {core.name: core.edges for core in term.cores}
    for (what, name), data in seen.nodes(data=True):
        traces = sorted(Counter(edges[name]).values())[::-1] if what == "core" else None
        data["start"] = repr((what, data["size"], modes.get(name) if what == "edge" else traces))
    rounds = nx.weisfeiler_lehman_subgraph_hashes(seen, node_attr="start", iterations=4)
    for node, history in rounds.items():
        seen.nodes[node]["color"] = history[-1]
    return sorted(history[-1] for history in rounds.values()), seen


def _same_term(one: tuple[list[str], nx.Graph[Node]], other: tuple[list[str], nx.Graph[Node]]) -> bool:
    import networkx as nx

    if one[0] != other[0]:
        return False
    return bool(nx.is_isomorphic(one[1], other[1], node_match=lambda x, y: x["color"] == y["color"]))
