"""Building blocks for decompositions: sites, chains, stars, trees and grids of cores, with their bonds.

They turn the fields of a graph without terms into a `Graph`. A *site* is a set of modes that sit on one core: the
k-th mode of every role; group modes together, and in a convolution all kernel modes together. Nothing here knows the
name of a decomposition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from tnmars.errors import GraphError, Problem, listing, plural
from tnmars.graph.fields import Fields
from tnmars.graph.graph import MAIN, Core, Edge, Graph, Term
from tnmars.graph.kinds import Role
from tnmars.graph.parts import as_int, is_int, is_list
from tnmars.graph.rules import MAX_PARTS

Ranks = Sequence[int] | Mapping[str, int] | None
"""The sizes of bonds, in order or by name."""
Tree = int | Sequence["Tree"]
"""A site number, or a list of trees."""
Cores = Mapping[str, Sequence[str]]
"""The edges of each core, by name."""
Sites = Sequence[Sequence[str]]
"""The modes of each site."""

_TREE = "A tree nests the site numbers, each once, for example [[1, 2], [3, 4]]."


def error(text: str, hint: str, *path: str) -> GraphError:
    """An error with one problem."""
    return GraphError(Problem(text, hint, path))


def build(fields: Fields, terms: Iterable[Term], name: str = "") -> Graph:
    """The graph with these fields and terms."""
    return Graph.of(replace(fields, terms=tuple(terms)), name=name)


def one_term(
    fields: Fields, cores: Cores, bonds: Sequence[str], rank: int | None, ranks: Ranks, name: str = ""
) -> Graph:
    """The graph with one term of these cores."""
    refuse_names(fields, bonds)
    return build(fields, [term(MAIN, cores, bonds, rank, ranks)], name)


def term(name: str, cores: Cores, bonds: Sequence[str], rank: int | None, ranks: Ranks) -> Term:
    """A term whose bonds have one size, or a size each."""
    made = tuple(Core(core, tuple(edges)) for core, edges in cores.items())
    return Term(name, _sized(bonds, rank, ranks), made)


def refuse_more_than(parts: int) -> None:
    """Raises `GraphError` before a graph with too many parts is built."""
    if parts > MAX_PARTS:
        text = f"the graph would have about {parts:,} bonds and cores, but must have at most {MAX_PARTS:,}."
        raise error(text, "Use fewer modes or terms.")


def refuse_names(fields: Fields, bonds: Sequence[str]) -> None:
    """Raises `GraphError` if a mode has the name of one of the bonds."""
    made = set(bonds)
    clashes = [
        Problem(
            f"mode '{mode.name}' has the name of a bond that this family makes.",
            f"Rename the mode; bonds: {listing(bonds)}.",
            ("modes", str(mode.role), mode.name),
        )
        for mode in fields.modes
        if mode.name in made
    ]
    if clashes:
        raise GraphError(clashes)


def sites(fields: Fields, least: int = 1) -> list[tuple[str, ...]]:
    """The modes of each site: group and kernel modes first, as one site each, then the k-th of every other role."""
    together = (Role.GROUP, Role.KERNEL)
    roles = [role for role in Role if role not in together and fields.of_role(role)]
    lengths = {role: len(fields.of_role(role)) for role in roles}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{count} {role}" for role, count in lengths.items())
        raise error(
            f"the k-th modes of all roles share a core, but there are {shown}.",
            "Give every role the same number of modes; a mode may have size 1.",
            str(roles[-1]),
        )
    columns = [[mode.name for mode in fields.of_role(role)] for role in roles]
    grouped = [tuple(site) for site in zip(*columns, strict=True)]
    first = (tuple(mode.name for mode in fields.of_role(role)) for role in together)
    grouped = [*(site for site in first if site), *grouped]
    if len(grouped) < least:
        hint = "A site is the k-th mode of every role: split the modes."
        raise error(f"this decomposition has {plural(len(grouped), 'site')}, but must have at least {least}.", hint)
    return grouped


def two_sides(fields: Fields) -> tuple[list[str], list[str]]:
    """The modes of inputs and taps, and those of outputs; group modes in front of both, so that each has its own pair.

    If one side has no modes of its own, as in a plain tensor or a depthwise convolution, all modes are split in half.
    """
    groups = [mode.name for mode in fields.of_role(Role.GROUP)]
    others = [mode for mode in fields.modes if mode.role is not Role.GROUP]
    last = [mode.name for mode in others if mode.role in (Role.OUT, Role.FREE)]
    if len(last) not in (0, len(others)):
        return [*groups, *(mode.name for mode in others if mode.name not in last)], [*groups, *last]
    names = [*groups, *(mode.name for mode in others)]
    half = max(len(groups), len(names) // 2)
    return names[:half], names[half:]


def chain(places: Sites, *, closed: bool = False) -> tuple[Cores, list[str]]:
    """Cores and bonds of sites in a line; `closed` joins the last site to the first."""
    last = len(places) - 1
    cores: dict[str, Sequence[str]] = {}
    for k, site in enumerate(places):
        left = [f"r{k}"] if k else [f"r{last + 1}"] if closed else []
        right = [f"r{k + 1}"] if k < last or closed else []
        cores[f"G{k + 1}"] = [*left, *site, *right]
    return cores, [f"r{k}" for k in range(1, len(places) + closed)]


def star(fields: Fields, inside: Sequence[Role] = ()) -> tuple[Cores, list[str]]:
    """Cores and bonds of a hub with a factor for every mode, except that modes of the roles `inside` sit on the hub."""
    hub: list[str] = []
    factors: dict[str, Sequence[str]] = {}
    for mode in fields.modes:
        if mode.role in inside:
            hub.append(mode.name)
        else:
            at = len(factors) + 1
            factors[f"U{at}"] = [mode.name, f"r{at}"]
            hub.append(f"r{at}")
    return {"G": hub, **factors}, [f"r{at}" for at in range(1, len(factors) + 1)]


def joined(places: Sites, pairs: Iterable[tuple[int, int]]) -> tuple[Cores, list[str]]:
    """Cores and bonds of sites with a bond for each of the pairs, which count from 0."""
    cores: dict[str, list[str]] = {f"G{at}": list(site) for at, site in enumerate(places, 1)}
    bonds = []
    for one, other in pairs:
        bonds.append(f"r{one + 1}_{other + 1}")
        cores[f"G{one + 1}"].append(bonds[-1])
        cores[f"G{other + 1}"].append(bonds[-1])
    return cores, bonds


def grid_pairs(count: int, grid: object) -> list[tuple[int, int]]:
    """The pairs of neighbors if the sites fill a grid with these sides, the last side fastest."""
    given = list(grid) if isinstance(grid, Iterable) else []
    sides = [side for side in map(as_int, given) if is_int(side)]
    if not isinstance(grid, Iterable) or len(sides) < len(given):
        raise error(f"grid is {grid!r}, but must be a list of whole numbers.", "Write grid=(2, 3).", "grid")
    if prod(sides) != count or min(sides, default=0) < 1:
        raise error(
            f"grid is {sides}, but must have one place for each of {plural(count, 'site')}.",
            "A site is the k-th mode of every role; the sides of a grid are at least 1.",
            "grid",
        )
    refuse_more_than(count * (len(sides) + 1))
    steps = [prod(sides[axis + 1 :]) for axis in range(len(sides))]
    return [
        (at, at + step)
        for at in range(count)
        for step, length in zip(steps, sides, strict=True)
        if at // step % length < length - 1
    ]


def tree_cores(places: Sites, tree: Tree | None) -> tuple[Cores, list[str]]:
    """Cores and bonds of a tree whose leaves hold the sites; without a `tree`, a balanced binary one."""
    inner: dict[str, Sequence[str]] = {}
    leaves: dict[int, Sequence[str]] = {}

    def grow(node: object) -> str:
        """The bond above a node; adds the node's core and those below it."""
        node = as_int(node)
        if is_int(node):
            if not 1 <= node <= len(places) or node in leaves:
                text = f"tree has site {node} twice." if node in leaves else f"tree has site {node} of {len(places)}."
                raise error(text, _TREE, "tree")
            leaves[node] = [*places[node - 1], f"r{node}"]
            return f"r{node}"
        if isinstance(node, str) or not isinstance(node, Sequence):
            raise error(f"tree has {node!r}, but must have whole numbers and lists only.", _TREE, "tree")
        at = len(inner) + 1
        inner[f"B{at}"] = ()  # holds the place, so that cores above come before those below
        above = [f"b{at}"] if at > 1 else []
        inner[f"B{at}"] = [*above, *map(grow, node)]
        return f"b{at}"

    grow(tree if tree is not None else _halves(1, len(places)))
    absent = [str(at) for at in range(1, len(places) + 1) if at not in leaves]
    if absent:
        raise error(f"tree leaves out site {listing(absent)}.", _TREE, "tree")
    cores = {**inner, **{f"U{at}": leaves[at] for at in sorted(leaves)}}
    return cores, list(dict.fromkeys(bond for edges in inner.values() for bond in edges))


def _halves(first: int, last: int) -> Tree:
    """A balanced binary tree over the sites from first to last."""
    if first == last:
        return first
    middle = (first + last) // 2
    return [_halves(first, middle), _halves(middle + 1, last)]


def _sized(bonds: Sequence[str], rank: int | None, ranks: Ranks) -> tuple[Edge, ...]:
    """The bonds, all with size `rank`, or each with its own of `ranks`."""
    if (rank is None) == (ranks is None):
        text = "both rank and ranks are given." if rank is not None else "neither rank nor ranks is given."
        if bonds or rank is not None:
            place = () if ranks is None else ("ranks",)
            raise error(text, "Give one: rank for all bonds, or ranks for each.", *place)
    if ranks is not None and not is_list(ranks):
        text = f"ranks is {ranks!r}, but must be a list or sizes by name."
        raise error(text, "For one size of all bonds, give rank.", "ranks")
    if isinstance(ranks, Mapping):
        return _by_name(bonds, ranks)
    sizes = [rank if rank is not None else 1] * len(bonds) if ranks is None else list(ranks)
    if len(sizes) != len(bonds):
        raise error(
            f"ranks has {plural(len(sizes), 'number')} for {plural(len(bonds), 'bond')}.",
            f"Bonds in order: {listing(bonds)}.",
            "ranks",
        )
    return tuple(Edge(name, size) for name, size in zip(bonds, sizes, strict=True))


def _by_name(bonds: Sequence[str], ranks: Mapping[str, int]) -> tuple[Edge, ...]:
    known = set(bonds)
    extra = [str(name) for name in ranks if name not in known]
    missing = [name for name in bonds if name not in ranks]
    if extra or missing:
        wrong = f"missing: {listing(missing)}" if missing else ""
        wrong += f"{'; ' if extra and missing else ''}not a bond: {listing(extra)}" if extra else ""
        raise error(f"ranks must name every bond and no other ({wrong}).", f"Bonds: {listing(bonds)}.", "ranks")
    return tuple(Edge(name, ranks[name]) for name in bonds)
