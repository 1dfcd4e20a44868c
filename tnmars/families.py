"""The known decompositions, each a function that returns a `Graph`. The only file that knows their names.

A *site* is a group of modes that sit on one core: the k-th mode of every role, and in a convolution all kernel modes
together. Sizes of bonds are given as one `rank`, or as `ranks`, in the order of the bonds or by name. Ranks are taken
as given, never clipped; `tnmars.lint` says where one is wider than it can use. Where there is one site alone, and so
no bond, a `rank` says nothing and may be given all the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from math import prod
from typing import TYPE_CHECKING, Any, ParamSpec

from tnmars.errors import GraphError, Problem, listing, nearest, plural
from tnmars.graph import MAIN, Core, Edge, Graph, Role, Term
from tnmars.graph.fields import Fields
from tnmars.graph.parts import as_int, is_list
from tnmars.graph.rules import MAX_PARTS, problems
from tnmars.weight import Weight, build, weight_fields

if TYPE_CHECKING:
    from typing_extensions import Unpack

Ranks = Sequence[int] | Mapping[str, int] | None
Tree = int | Sequence["Tree"]
Cores = Mapping[str, Sequence[str]]

Given = ParamSpec("Given")

_SOURCES = (Role.IN, Role.LOOKUP, Role.PATCH)


def _family(function: Callable[Given, Graph]) -> Callable[Given, Graph]:
    """The function, which where it fails also says what is wrong with the weight itself, for that is known too."""

    @wraps(function)
    def family(*kind: Given.args, **given: Given.kwargs) -> Graph:
        try:
            return function(*kind, **given)
        except GraphError as error:
            name: Any = given["kind"] if "kind" in given else kind[0]
            weight: Any = {key: value for key, value in given.items() if key in Weight.__annotations__}
            found = list(error.problems)
            with suppress(GraphError):  # which is then the one that was caught
                found += problems(weight_fields(name, weight))
            raise GraphError(dict.fromkeys(found)) from None

    return family


@_family
def lowrank(kind: str, *, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]) -> Graph:
    """Two factors joined by one bond: inputs (and taps) on `A`, outputs on `B`; one role alone is cut in the middle."""
    fields = weight_fields(kind, weight)
    names = [mode.name for mode in fields.modes]
    first = [mode.name for mode in fields.modes if mode.role not in (Role.OUT, Role.FREE)]
    if len(first) in (0, len(names)):
        first = names[: len(names) // 2]
    chosen = set(first)
    cores = {"A": [*first, "r"], "B": ["r", *(name for name in names if name not in chosen)]}
    return _one_term(fields, cores, ["r"], rank, ranks, weight)


@_family
def tt(kind: str, *, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]) -> Graph:
    """Tensor train: one core per site in a line. With patch modes, the "proper" TT convolution.

    >>> print(tt("linear", inputs=(4, 7), outputs=(5, 5), rank=3))
    linear (unnamed): 28 -> 25
      in     i1=4 i2=7
      out    o1=5 o2=5
      bonds  r1=3
      cores  G1[i1, o1, r1] G2[r1, i2, o2]
    """
    fields = weight_fields(kind, weight)
    return _chain(fields, _sites(fields), False, rank, ranks, weight)


@_family
def tt_naive(
    kind: str,
    *,
    rank: int | None = None,
    ranks: Ranks = None,
    order: Sequence[str] = ("in", "lookup", "patch", "out", "kernel", "free"),
    **weight: Unpack[Weight],
) -> Graph:
    """Tensor train with one core per mode, the roles in the given `order`: the (2d+1)-way "naive" TT convolution."""
    fields = weight_fields(kind, weight)
    known = [str(role) for role in Role if role is not Role.BOND]
    unknown = [role for role in order if role not in known]
    if unknown:
        hint = f"Roles: {', '.join(known)}.{nearest(str(unknown[0]), known)}"
        raise _error(f"order has {unknown[0]!r}, which is not a role.", hint, "order")
    missing = [str(mode.role) for mode in fields.modes if str(mode.role) not in order]
    if missing:
        raise _error(f"order leaves out role '{missing[0]}'.", "List every role that has modes.", "order")
    sites = [(mode.name,) for role in dict.fromkeys(order) for mode in fields.modes if str(mode.role) == role]
    return _chain(fields, sites, False, rank, ranks, weight)


@_family
def tr(kind: str, *, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]) -> Graph:
    """Tensor ring: a train whose ends are joined too."""
    fields = weight_fields(kind, weight)
    return _chain(fields, _sites(fields, least=2), True, rank, ranks, weight)


@_family
def tucker(kind: str, *, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]) -> Graph:
    """Tucker: a factor for every mode around one core."""
    fields = weight_fields(kind, weight)
    cores, bonds = _star(fields, inside=())
    return _one_term(fields, cores, bonds, rank, ranks, weight)


@_family
def tucker2(kind: str, *, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]) -> Graph:
    """Tucker-2: as Tucker, but the kernel modes stay on the core; three convolutions in a row."""
    fields = weight_fields(kind, weight)
    cores, bonds = _star(fields, inside=(Role.KERNEL,))
    return _one_term(fields, cores, bonds, rank, ranks, weight)


@_family
def cp(kind: str, *, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]) -> Graph:
    """Canonical polyadic: a factor for every mode, all joined by one hyperedge."""
    fields = weight_fields(kind, weight)
    cores: Cores = {f"A{at}": [mode.name, "r"] for at, mode in enumerate(fields.modes, 1)}
    return _one_term(fields, cores, ["r"], rank, ranks, weight)


@_family
def btd(
    kind: str,
    *,
    terms: int | None = None,
    rank: int | None = None,
    ranks: Sequence[Sequence[int]] | Ranks = None,
    **weight: Unpack[Weight],
) -> Graph:
    """Block-term: a sum of Tucker terms, `terms` alike ones, or one for each entry of `ranks` that is a list."""
    fields = weight_fields(kind, weight)
    cores, bonds = _star(fields, inside=())
    terms = as_int(terms)  # type: ignore[assignment]  # what is no number is refused here
    if terms is not None and (isinstance(terms, bool) or not isinstance(terms, int) or terms < 1):
        raise _error(f"terms is {terms!r}.", "It is a whole number from 1 on.", "terms")
    several = isinstance(ranks, Sequence) and any(isinstance(entry, (Sequence, Mapping)) for entry in ranks)
    count = len(ranks) if several and isinstance(ranks, Sequence) else terms
    if count is None:
        raise _error("btd needs to know how many terms there are.", "Give terms: 4, or one list of ranks a term.")
    if terms is not None and count != terms:
        raise _error(f"terms is {terms}, but ranks has {plural(count, 'list')}.", "Leave one of the two out.", "ranks")
    _refuse_more_than(count * (len(cores) + len(bonds)))
    _refuse_names(fields, bonds)
    each: Sequence[Any] = ranks if several and isinstance(ranks, Sequence) else [ranks] * count
    built = []
    for at, sizes in enumerate(each, 1):
        built.append(_term(f"t{at}", cores, bonds, rank, sizes))
    return build(fields, built, weight.get("name", ""))


@_family
def ht(
    kind: str, *, tree: Tree | None = None, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]
) -> Graph:
    """Hierarchical Tucker: leaves hold the sites, inner cores join their children. `tree` nests site numbers from 1.

    >>> print(ht("tensor", free=(4, 4, 4), tree=[[1, 2], 3], rank=2).terms[0])
    B1[b2, r3] B2[b2, r1, r2] U1[n1, r1] U2[n2, r2] U3[n3, r3]
    """
    fields = weight_fields(kind, weight)
    sites = _sites(fields, least=2)
    inner: dict[str, Sequence[str]] = {}
    leaves: dict[int, Sequence[str]] = {}

    def grow(node: Tree) -> str:
        """The bond above a node, whose core and those below are added on the way."""
        node = as_int(node)  # type: ignore[assignment]  # what is neither number nor list is refused below
        if isinstance(node, int) and not isinstance(node, bool):
            if not 1 <= node <= len(sites) or node in leaves:
                raise _error(
                    f"tree has site {node} twice." if node in leaves else f"tree has site {node} of {len(sites)}.",
                    "A tree nests the site numbers, each once, for example [[1, 2], [3, 4]].",
                    "tree",
                )
            leaves[node] = [*sites[node - 1], f"r{node}"]
            return f"r{node}"
        if isinstance(node, str) or not isinstance(node, Sequence):
            raise _error(f"tree has {node!r}.", "A tree nests site numbers, for example [[1, 2], [3, 4]].", "tree")
        at = len(inner) + 1
        inner[f"B{at}"] = ()
        above = [f"b{at}"] if at > 1 else []
        inner[f"B{at}"] = [*above, *map(grow, node)]
        return f"b{at}"

    grow(tree if tree is not None else _halves(1, len(sites)))
    absent = [str(at) for at in range(1, len(sites) + 1) if at not in leaves]
    if absent:
        raise _error(f"tree leaves out site {listing(absent)}.", "Nest every site number once.", "tree")
    cores = {**inner, **{f"U{at}": leaves[at] for at in sorted(leaves)}}
    bonds = list(dict.fromkeys(bond for edges in inner.values() for bond in edges))
    return _one_term(fields, cores, bonds, rank, ranks, weight)


@_family
def peps(
    kind: str, *, grid: Sequence[int], rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]
) -> Graph:
    """Projected entangled pairs: sites on a grid of any number of dimensions, neighbours joined."""
    fields = weight_fields(kind, weight)
    sites = _sites(fields)
    sides = _grid(grid)
    if prod(sides) != len(sites) or min(sides, default=0) < 1:
        raise _error(
            f"grid {sides} does not have one place for each of {plural(len(sites), 'site')}.",
            "A site is the k-th mode of every role; the sides of a grid are at least 1.",
            "grid",
        )
    _refuse_more_than(len(sites) * (len(sides) + 1))
    pairs = []
    for at in range(len(sites)):
        for axis, length in enumerate(sides):
            step = prod(sides[axis + 1 :])
            if at // step % length < length - 1:
                pairs.append((at, at + step))
    return _joined(fields, sites, pairs, rank, ranks, weight)


@_family
def complete(kind: str, *, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]) -> Graph:
    """Every site joined to every other: a start from which masks can learn a topology."""
    fields = weight_fields(kind, weight)
    sites = _sites(fields, least=2)
    _refuse_more_than(len(sites) ** 2 // 2)
    pairs = [(a, b) for a in range(len(sites)) for b in range(a + 1, len(sites))]
    return _joined(fields, sites, pairs, rank, ranks, weight)


@_family
def btt(kind: str, *, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]) -> Graph:
    """Block tensor train: core k has the inputs up to k and the outputs from k on; with rank 1, Monarch.

    Its modes are shared: a core is a stack of blocks, one for each value of the modes that it shares.
    """
    fields = weight_fields(kind, weight)
    sources = [mode.name for mode in fields.modes if mode.role in _SOURCES]
    outs = [mode.name for mode in fields.modes if mode.role is Role.OUT]
    if len(sources) != len(outs) or not outs or len(sources) + len(outs) != len(fields.modes):
        raise _error(
            f"btt pairs inputs with outputs: of {len(fields.modes)} modes {len(sources)} are in, {len(outs)} out.",
            "Give as many outputs as inputs, and no kernel or free modes.",
            "out",
        )
    _refuse_more_than(len(outs) ** 2)
    last = len(outs) - 1
    cores: Cores = {
        f"G{k + 1}": [*([f"r{k}"] if k else []), *sources[: k + 1], *outs[k:], *([f"r{k + 1}"] if k < last else [])]
        for k in range(len(outs))
    }
    shared = [*sources[:-1], *outs[1:]]
    fields = weight_fields(kind, {**weight, "shared": shared})
    return _one_term(fields, cores, [f"r{k}" for k in range(1, len(outs))], rank, ranks, weight)


FAMILIES: dict[str, Callable[..., Graph]] = {
    function.__name__: function
    for function in (lowrank, tt, tt_naive, tr, tucker, tucker2, cp, btd, ht, peps, complete, btt)
}


def settings(family: str) -> dict[str, bool]:
    """The keywords of a family beyond those of every weight, and whether each must be given."""
    parameters = inspect.signature(FAMILIES[family]).parameters.values()
    return {
        parameter.name: parameter.default is parameter.empty
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def _error(text: str, hint: str, *path: str) -> GraphError:
    return GraphError(Problem(text, hint, path))


def _grid(grid: object) -> list[int]:
    sides = [as_int(side) for side in grid] if isinstance(grid, Iterable) else []
    found = [side for side in sides if isinstance(side, int) and not isinstance(side, bool)]
    if not isinstance(grid, Iterable) or len(found) < len(sides):
        raise _error(f"grid is {grid!r}, which is not a list of whole numbers.", "Write grid=(2, 3).", "grid")
    return found


def _refuse_more_than(parts: int) -> None:
    if parts > MAX_PARTS:
        text = f"the graph would have about {parts:,} bonds and cores; at most {MAX_PARTS:,} are allowed."
        raise _error(text, "Use fewer modes or terms.")


def _sites(fields: Fields, least: int = 1) -> list[tuple[str, ...]]:
    """The modes of each site: kernel modes first, as one, then the k-th mode of every other role."""
    roles = [role for role in Role if role is not Role.KERNEL and fields.of_role(role)]
    lengths = {role: len(fields.of_role(role)) for role in roles}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{count} {role}" for role, count in lengths.items())
        raise _error(
            f"the k-th modes of all roles share a core, but there are {shown}.",
            "Give every role the same number of modes; a mode may have size 1.",
            str(roles[-1]),
        )
    columns = [[mode.name for mode in fields.of_role(role)] for role in roles]
    sites = [tuple(site) for site in zip(*columns, strict=True)]
    kernel = tuple(mode.name for mode in fields.of_role(Role.KERNEL))
    sites = [kernel, *sites] if kernel else sites
    if len(sites) < least:
        hint = "A site is the k-th mode of every role: split the modes."
        raise _error(f"this decomposition needs at least {least} sites, and has {len(sites)}.", hint)
    return sites


def _sizes(bonds: Sequence[str], rank: int | None, ranks: Ranks) -> tuple[Edge, ...]:
    if (rank is None) == (ranks is None):
        text = "both rank and ranks are given." if rank is not None else "neither rank nor ranks is given."
        if bonds or rank is not None:
            raise _error(text, "Give one: rank for all bonds, or ranks for each.", *(["ranks"] if ranks else []))
    if ranks is not None and not is_list(ranks):
        raise _error(f"ranks is {ranks!r}, which is not a list.", "For one size of all bonds, give rank.", "ranks")
    if isinstance(ranks, Mapping):
        known = set(bonds)
        extra = [str(name) for name in ranks if name not in known]
        missing = [name for name in bonds if name not in ranks]
        if extra or missing:
            wrong = f"missing: {listing(missing)}" if missing else ""
            wrong += f"{'; ' if extra and missing else ''}not a bond: {listing(extra)}" if extra else ""
            raise _error(f"ranks must name every bond and no other ({wrong}).", f"Bonds: {listing(bonds)}.", "ranks")
        return tuple(Edge(name, ranks[name]) for name in bonds)
    sizes = [rank if rank is not None else 1] * len(bonds) if ranks is None else list(ranks)
    if len(sizes) != len(bonds):
        raise _error(
            f"ranks has {plural(len(sizes), 'number')} for {plural(len(bonds), 'bond')}.",
            f"Bonds in order: {listing(bonds)}.",
            "ranks",
        )
    return tuple(Edge(name, size) for name, size in zip(bonds, sizes, strict=True))


def _term(name: str, cores: Cores, bonds: Sequence[str], rank: int | None, ranks: Ranks) -> Term:
    return Term(name, _sizes(bonds, rank, ranks), tuple(Core(core, tuple(edges)) for core, edges in cores.items()))


def _refuse_names(fields: Fields, bonds: Sequence[str]) -> None:
    """Raises where a mode has the name of one of the bonds."""
    made = set(bonds)
    found = [
        Problem(
            f"mode '{mode.name}' has the name of a bond that this family makes.",
            f"Rename the mode; bonds: {listing(bonds)}.",
            ("modes", str(mode.role), mode.name),
        )
        for mode in fields.modes
        if mode.name in made
    ]
    if found:
        raise GraphError(found)


def _one_term(
    fields: Fields, cores: Cores, bonds: Sequence[str], rank: int | None, ranks: Ranks, weight: Weight
) -> Graph:
    _refuse_names(fields, bonds)
    return build(fields, [_term(MAIN, cores, bonds, rank, ranks)], weight.get("name", ""))


def _chain(
    fields: Fields, sites: Sequence[Sequence[str]], closed: bool, rank: int | None, ranks: Ranks, weight: Weight
) -> Graph:
    """Sites in a line; `closed` joins the last to the first."""
    last = len(sites) - 1
    cores: dict[str, Sequence[str]] = {}
    for k, site in enumerate(sites):
        left = [f"r{k}"] if k else [f"r{last + 1}"] if closed else []
        right = [f"r{k + 1}"] if k < last or closed else []
        cores[f"G{k + 1}"] = [*left, *site, *right]
    bonds = [f"r{k}" for k in range(1, len(sites) + closed)]
    return _one_term(fields, cores, bonds, rank, ranks, weight)


def _star(fields: Fields, inside: Sequence[Role]) -> tuple[Cores, list[str]]:
    """A core with a factor for every mode, but for those of the roles that stay inside."""
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


def _joined(
    fields: Fields,
    sites: Sequence[Sequence[str]],
    pairs: Sequence[tuple[int, int]],
    rank: int | None,
    ranks: Ranks,
    weight: Weight,
) -> Graph:
    """Sites with a bond for each pair of them."""
    cores: dict[str, list[str]] = {f"G{at}": list(site) for at, site in enumerate(sites, 1)}
    bonds = [f"r{a + 1}_{b + 1}" for a, b in pairs]
    for bond, ends in zip(bonds, pairs, strict=True):
        for end in ends:
            cores[f"G{end + 1}"].append(bond)
    return _one_term(fields, cores, bonds, rank, ranks, weight)


def _halves(first: int, last: int) -> Tree:
    """A balanced binary tree over the sites from first to last."""
    if first == last:
        return first
    middle = (first + last) // 2
    return [_halves(first, middle), _halves(middle + 1, last)]
