"""The known decompositions, each a function that returns a `Graph`. The only file that knows their names.

Every family takes the kind of layer, the keywords that describe a weight (`inputs`, `outputs`, `kernel`, ...: see
`tnmars.network`), and the sizes of its bonds: one `rank` for all of them, or `ranks`, in the order of the bonds or by
name. Ranks are taken as given, never clipped. All families raise `GraphError` with every problem at once.

A *site* is a group of modes on one core: the k-th mode of every role, and all kernel modes. One site has no bond.

Example:
    >>> from tnmars import families
    >>> families.tt("linear", inputs=(4, 7), outputs=(5, 5), rank=3).dense_shape
    (25, 28)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from itertools import combinations
from typing import TYPE_CHECKING, Any, ParamSpec

from tnmars.arguments import check_arguments
from tnmars.errors import GraphError, nearest, plural
from tnmars.graph import Graph, Role
from tnmars.graph import assemble as made
from tnmars.graph.assemble import Cores, Ranks, Tree, error, one_term
from tnmars.graph.parts import as_int, is_int, name_list
from tnmars.graph.rules import problems
from tnmars.weight import Weight, completed, layer_weight, weight_fields

if TYPE_CHECKING:
    from typing_extensions import Unpack

Given = ParamSpec("Given")
_SOURCES = (Role.IN, Role.LOOKUP, Role.PATCH)


def _family(function: Callable[Given, Graph]) -> Callable[Given, Graph]:
    """The function; if it raises, the error also has every problem of the weight itself."""

    @wraps(function)
    def family(*kind: Given.args, **given: Given.kwargs) -> Graph:
        try:
            return function(*kind, **given)
        except GraphError as raised:
            name: Any = given["kind"] if "kind" in given else kind[0]
            weight: Any = {key: value for key, value in given.items() if key in Weight.__annotations__}
            every = list(raised.problems)
            with suppress(GraphError):  # then the weight's own problem is the one that was raised
                every += problems(weight_fields(name, weight))
            raise GraphError(dict.fromkeys(every)) from None

    return family


@_family
def lowrank(kind: str, *, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]) -> Graph:
    """Two factors joined by one bond: inputs and taps on `A`, outputs on `B`, groups on both. One role is split in two.

    Args:
        kind: The kind of layer, such as `"linear"`.
        rank: The size of the bond `r`, the rank of the weight matrix.
        ranks: The same as a list of one number, or as `{"r": 4}`.
        weight: The modes and options of the weight, as for `tnmars.network`.

    Example:
        >>> print(lowrank("linear", inputs=(8,), outputs=(6,), rank=2).terms[0])
        A[i1, r] B[r, o1]
    """
    fields = weight_fields(kind, weight)
    first, second = made.two_sides(fields)
    cores = {"A": [*first, "r"], "B": ["r", *second]}
    return one_term(fields, cores, ["r"], rank, ranks, weight.get("name", ""))


@_family
def tt(kind: str, *, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]) -> Graph:
    """Tensor train: one core per site, in a line. With patch modes, the "proper" TT convolution.

    Args:
        kind: The kind of layer, such as `"linear"`.
        rank: The size of every bond.
        ranks: The size of each bond, from left to right (`r1`, `r2`, ...) or by name.
        weight: The modes and options of the weight, as for `tnmars.network`; every role has as many modes as cores.

    Example:
        >>> print(tt("linear", inputs=(4, 7), outputs=(5, 5), rank=3))
        linear (unnamed): 28 -> 25
          in     i1=4 i2=7
          out    o1=5 o2=5
          bonds  r1=3
          cores  G1[i1, o1, r1] G2[r1, i2, o2]
    """
    fields = weight_fields(kind, weight)
    return one_term(fields, *made.chain(made.sites(fields)), rank, ranks, weight.get("name", ""))


@_family
def tt_naive(
    kind: str,
    *,
    rank: int | None = None,
    ranks: Ranks = None,
    order: Sequence[str] = ("group", "in", "lookup", "patch", "out", "kernel", "free"),
    **weight: Unpack[Weight],
) -> Graph:
    """Tensor train with one core per mode, the roles in the given `order`: the (2d+1)-way "naive" TT convolution.

    Args:
        kind: The kind of layer, such as `"conv"`.
        rank: The size of every bond.
        ranks: The size of each bond, from left to right (`r1`, `r2`, ...) or by name.
        order: The roles in the order of their cores; must list every role that has modes.
        weight: The modes and options of the weight, as for `tnmars.network`.

    Example:
        >>> print(tt_naive("conv", inputs=(4,), outputs=(5,), kernel=(3, 3), rank=2).terms[0])
        G1[i1, r1] G2[r1, o1, r2] G3[r2, k1, r3] G4[r3, k2]
    """
    fields, order = weight_fields(kind, weight), name_list("order is", order)
    known = [str(role) for role in Role if role is not Role.BOND]
    unknown = [role for role in order if role not in known]
    if unknown:
        hint = f"Roles: {', '.join(known)}.{nearest(str(unknown[0]), known)}"
        raise error(f"order has {unknown[0]!r}, which is not a role.", hint, "order")
    missing = [str(mode.role) for mode in fields.modes if str(mode.role) not in order]
    if missing:
        raise error(f"order leaves out role '{missing[0]}'.", "List every role that has modes.", "order")
    sites = [(mode.name,) for role in dict.fromkeys(order) for mode in fields.modes if str(mode.role) == role]
    return one_term(fields, *made.chain(sites), rank, ranks, weight.get("name", ""))


@_family
def tr(kind: str, *, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]) -> Graph:
    """Tensor ring: a tensor train whose ends are joined too.

    Args:
        kind: The kind of layer, such as `"linear"`.
        rank: The size of every bond.
        ranks: The size of each bond in order or by name; the last one joins the last core to the first.
        weight: The modes and options of the weight, as for `tnmars.network`; at least two sites.

    Example:
        >>> print(tr("tensor", free=(4, 5, 6), rank=2).terms[0])
        G1[r3, n1, r1] G2[r1, n2, r2] G3[r2, n3, r3]
    """
    fields = weight_fields(kind, weight)
    sites = made.sites(fields, least=2)
    return one_term(fields, *made.chain(sites, closed=True), rank, ranks, weight.get("name", ""))


@_family
def tucker(kind: str, *, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]) -> Graph:
    """Tucker: a factor for every mode around one core.

    Args:
        kind: The kind of layer, such as `"linear"`.
        rank: The size of every bond.
        ranks: The size of each bond in the order of the modes, or by name.
        weight: The modes and options of the weight, as for `tnmars.network`.

    Example:
        >>> print(tucker("tensor", free=(4, 5, 6), ranks=(2, 3, 3)).terms[0])
        G[r1, r2, r3] U1[n1, r1] U2[n2, r2] U3[n3, r3]
    """
    fields = weight_fields(kind, weight)
    return one_term(fields, *made.star(fields), rank, ranks, weight.get("name", ""))


@_family
def tucker2(kind: str, *, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]) -> Graph:
    """Tucker-2: Tucker with the kernel modes left on the core, three convolutions in a row.

    Args:
        kind: The kind of layer, usually `"conv"`.
        rank: The size of every bond.
        ranks: The size of each bond in the order of the modes, or by name.
        weight: The modes and options of the weight, as for `tnmars.network`.

    Example:
        >>> conv = tucker2("conv", inputs=(8,), outputs=(6,), kernel=(3, 3), ranks=(4, 2))
        >>> print(conv.terms[0])
        G[r1, k1, k2, r2] U1[i1, r1] U2[o1, r2]
    """
    fields = weight_fields(kind, weight)
    return one_term(fields, *made.star(fields, inside=(Role.KERNEL,)), rank, ranks, weight.get("name", ""))


@_family
def cp(kind: str, *, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]) -> Graph:
    """Canonical polyadic: a factor for every mode, all joined by one hyperedge.

    Args:
        kind: The kind of layer, such as `"linear"`.
        rank: The size of the hyperedge `r`, the number of rank-one terms.
        ranks: The same as a list of one number, or as `{"r": 4}`.
        weight: The modes and options of the weight, as for `tnmars.network`.

    Example:
        >>> print(cp("tensor", free=(4, 5, 6), rank=2).terms[0])
        A1[n1, r] A2[n2, r] A3[n3, r]
    """
    fields = weight_fields(kind, weight)
    cores: Cores = {f"A{at}": [mode.name, "r"] for at, mode in enumerate(fields.modes, 1)}
    return one_term(fields, cores, ["r"], rank, ranks, weight.get("name", ""))


@_family
def btd(
    kind: str,
    *,
    terms: int | None = None,
    rank: int | None = None,
    ranks: Sequence[Sequence[int]] | Ranks = None,
    **weight: Unpack[Weight],
) -> Graph:
    """Block-term: a sum of Tucker terms, `terms` equal ones, or one for each list in `ranks`.

    Args:
        kind: The kind of layer, such as `"linear"`.
        terms: The number of terms; not needed if `ranks` has a list for each.
        rank: The size of every bond of every term.
        ranks: The sizes of the bonds of one term, used for all terms, or a list of such sizes for each term.
        weight: The modes and options of the weight, as for `tnmars.network`.

    Example:
        >>> print(*btd("tensor", free=(4, 5), terms=2, rank=2).terms, sep="\\n")
        G[r1, r2] U1[n1, r1] U2[n2, r2]
        G[r1, r2] U1[n1, r1] U2[n2, r2]
    """
    fields = weight_fields(kind, weight)
    cores, bonds = made.star(fields)
    given = as_int(terms)
    if given is not None and not is_int(given, 1):
        raise error(f"terms is {given!r}, but must be a whole number of at least 1.", "Write terms=4.", "terms")
    several = isinstance(ranks, Sequence) and any(isinstance(entry, (Sequence, Mapping)) for entry in ranks)
    count = len(ranks) if several and isinstance(ranks, Sequence) else given
    if count is None:
        raise error("the number of terms is not given.", "Give terms=4, or a list of ranks for each term.")
    if given is not None and count != given:
        raise error(f"terms is {given}, but ranks has {plural(count, 'list')}.", "Leave one of the two out.", "ranks")
    made.refuse_more_than(count * (len(cores) + len(bonds)))
    made.refuse_names(fields, bonds)
    each: Sequence[Any] = ranks if several and isinstance(ranks, Sequence) else [ranks] * count
    built = [made.term(f"t{at}", cores, bonds, rank, sizes) for at, sizes in enumerate(each, 1)]
    return made.build(fields, built, weight.get("name", ""))


@_family
def ht(
    kind: str, *, tree: Tree | None = None, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]
) -> Graph:
    """Hierarchical Tucker: leaves hold the sites, inner cores join their children. `tree` nests site numbers from 1.

    Args:
        kind: The kind of layer, such as `"linear"`.
        tree: The sites as nested lists, each number once; a balanced binary tree by default.
        rank: The size of every bond.
        ranks: The size of each bond, in the order in which the inner cores list them or by name.
        weight: The modes and options of the weight, as for `tnmars.network`; at least two sites.

    Example:
        >>> print(ht("tensor", free=(4, 4, 4), tree=[[1, 2], 3], rank=2).terms[0])
        B1[b2, r3] B2[b2, r1, r2] U1[n1, r1] U2[n2, r2] U3[n3, r3]
    """
    fields = weight_fields(kind, weight)
    sites = made.sites(fields, least=2)
    return one_term(fields, *made.tree_cores(sites, tree), rank, ranks, weight.get("name", ""))


@_family
def peps(
    kind: str, *, grid: Sequence[int], rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]
) -> Graph:
    """Projected entangled pairs: sites on a grid with any number of dimensions, neighbors joined.

    Args:
        kind: The kind of layer, such as `"tensor"`.
        grid: The sides of the grid; their product must be the number of sites, the last side runs fastest.
        rank: The size of every bond.
        ranks: The size of each bond in order or by name; `r1_2` joins sites 1 and 2.
        weight: The modes and options of the weight, as for `tnmars.network`.

    Example:
        >>> print(peps("tensor", free=(4, 4, 4, 4), grid=(2, 2), rank=2).terms[0])
        G1[n1, r1_3, r1_2] G2[n2, r1_2, r2_4] G3[n3, r1_3, r3_4] G4[n4, r2_4, r3_4]
    """
    fields = weight_fields(kind, weight)
    sites = made.sites(fields)
    cores, bonds = made.joined(sites, made.grid_pairs(len(sites), grid))
    return one_term(fields, cores, bonds, rank, ranks, weight.get("name", ""))


@_family
def complete(kind: str, *, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]) -> Graph:
    """Every site joined to every other: a start from which gates can learn a topology.

    Args:
        kind: The kind of layer, such as `"tensor"`.
        rank: The size of every bond.
        ranks: The size of each bond in order or by name; `r1_2` joins sites 1 and 2.
        weight: The modes and options of the weight, as for `tnmars.network`; at least two sites.

    Example:
        >>> print(complete("tensor", free=(4, 5, 6), rank=2).terms[0])
        G1[n1, r1_2, r1_3] G2[n2, r1_2, r2_3] G3[n3, r1_3, r2_3]
    """
    fields = weight_fields(kind, weight)
    sites = made.sites(fields, least=2)
    made.refuse_more_than(len(sites) ** 2 // 2)
    cores, bonds = made.joined(sites, combinations(range(len(sites)), 2))
    return one_term(fields, cores, bonds, rank, ranks, weight.get("name", ""))


@_family
def btt(kind: str, *, rank: int | None = None, ranks: Ranks = None, **weight: Unpack[Weight]) -> Graph:
    """Block tensor train: core k has the first k inputs, and the outputs starting with the k-th; with rank 1, Monarch.

    Its modes are shared: a core is a stack of blocks, one for each value of the modes that it shares.

    Args:
        kind: The kind of layer, such as `"linear"`.
        rank: The size of every bond; 1 gives a Monarch matrix.
        ranks: The size of each bond, from left to right (`r1`, `r2`, ...) or by name.
        weight: The modes and options of the weight, as for `tnmars.network`; as many outputs as inputs, no others.

    Example:
        >>> print(btt("linear", inputs=(4, 5), outputs=(3, 2), rank=1).terms[0])
        G1[i1, o1, o2, r1] G2[r1, i1, i2, o2]
    """
    modes = weight_fields(kind, weight).modes
    sources = [mode.name for mode in modes if mode.role in _SOURCES]
    outs = [mode.name for mode in modes if mode.role is Role.OUT]
    if len(sources) != len(outs) or not outs or len(sources) + len(outs) != len(modes):
        raise error(
            f"btt pairs inputs with outputs: of {len(modes)} modes {len(sources)} are in, {len(outs)} out.",
            "Give as many outputs as inputs, and no kernel, group or free modes.",
            "out",
        )
    made.refuse_more_than(len(outs) ** 2)
    last = len(outs) - 1
    cores: Cores = {
        f"G{k + 1}": [*([f"r{k}"] if k else []), *sources[: k + 1], *outs[k:], *([f"r{k + 1}"] if k < last else [])]
        for k in range(len(outs))
    }
    fields = weight_fields(kind, {**weight, "shared": [*sources[:-1], *outs[1:]]})
    return one_term(fields, cores, [f"r{k}" for k in range(1, len(outs))], rank, ranks, weight.get("name", ""))


_ALL = (lowrank, tt, tt_naive, tr, tucker, tucker2, cp, btd, ht, peps, complete, btt)
FAMILIES: dict[str, Callable[..., Graph]] = {function.__name__: function for function in _ALL}

SPLIT = {"tt": 3, "tt_naive": 2, "tr": 3, "ht": 4, "peps": 4, "complete": 3, "btt": 2}
"""Into how many modes `of_layer` splits the inputs and the outputs; for other families, one each."""
_WINDOW = ("lowrank", "tucker2")
DEFAULTS = {"linear": ("lowrank",), "conv": _WINDOW, "conv_transpose": _WINDOW, "embedding": ("lowrank",)}
"""The families that suit trained weights of each kind of layer; the better one is taken where there are several."""
GIVEN: dict[str, dict[str, Any]] = {"btd": {"terms": 4}, "peps": {"grid": (2, 2)}}
"""What a family must be given beside its rank, for `of_layer` with its own number of modes."""
FROM_SCRATCH = {"linear": "tt", "conv": "tucker2", "conv_transpose": "tucker2", "embedding": "tt"}
"""The family of each kind of layer that begins with random cores."""


def of_layer(
    family: str,
    kind: str,
    inside: int,
    outside: int,
    *,
    kernel: Sequence[int] = (),
    groups: int = 1,
    ways: int | None = None,
    **given: Any,
) -> Graph:
    """The graph of a family for one of torch's layers, from the layer's sizes; `inside` of an embedding are its rows.

    `ways` is the number of modes that inputs and outputs are split into. All else goes to the family, such as `rank`.

    Example:
        >>> print(of_layer("tt", "linear", 784, 625, ways=2, rank=3).terms[0])
        G1[i1, o1, r1] G2[r1, i2, o2]
    """
    check_arguments(of_layer, locals())
    count, own = (SPLIT.get(family, 1), GIVEN.get(family, {})) if ways is None else (ways, {})
    return known(family)(kind, **layer_weight(kind, inside, outside, kernel, count, groups), **completed(own, given))


def known(family: str) -> Callable[..., Graph]:
    """The function of a family. Raises `GraphError` if there is none of this name."""
    if not isinstance(family, str) or family not in FAMILIES:
        raise error(f"family '{family}' is not known.", f"Families: {', '.join(FAMILIES)}.{nearest(family, FAMILIES)}")
    return FAMILIES[family]


def settings(family: str) -> dict[str, bool]:
    """The keywords that a family takes in addition to those of every weight, and whether each is required."""
    parameters = inspect.signature(known(family)).parameters.values()
    return {one.name: one.default is one.empty for one in parameters if one.kind is one.KEYWORD_ONLY}
