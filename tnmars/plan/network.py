"""A graph as a contraction: which labels are on which operand, which are kept, and how long each is.

A `Graph` becomes one network for each group of terms of equal shape. The terms of a group are stacked along a label of
their own, which every core of the network has. Sizes of data axes are nominal: a plan is made for
them, but its program runs for any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tnmars.graph import Graph, Role, Term
from tnmars.plan.tree import bits

BATCH = "@@b"
TOKENS = "@@n"

MAX_APART = 8
"""Graphs with at most this many terms may also be computed term by term."""

Labels = tuple[str, ...]


@dataclass(frozen=True)
class Leaf:
    """An operand: cores stacked over terms, or an input."""

    names: tuple[str, ...]
    """State-dict names of the stacked cores; for an input, its own name."""
    labels: Labels
    is_core: bool
    axes: tuple[Labels, ...] = ()
    """For an input, the labels on each axis of the tensor as it is given."""
    has_ones: bool = False
    """Whether the tensor has axes of size 1 that the labels leave out."""
    conj: bool = False
    """Whether the complex conjugates of the cores are taken."""
    repeated: Labels = ()
    """If a label is on several axes of a core, the labels of all axes; only their diagonal is used."""


@dataclass(frozen=True)
class Network:
    """A contraction of leaves to an output."""

    leaves: tuple[Leaf, ...]
    output: Labels
    sizes: tuple[tuple[str, int], ...]
    dynamic: frozenset[str] = frozenset()
    taps: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """For a convolution, the spatial axes that each kernel mode holds. An input carries these labels
    nominally, as if every tap were a shifted copy of it."""
    kernel: tuple[int, ...] = ()
    """The taps along each spatial axis."""
    spans: tuple[tuple[int, int], ...] = ()
    """The length of each spatial axis before its taps are summed, and after: stride and padding act there."""
    is_transposed: bool = False
    """Whether the convolution is a transposed one."""
    rows: Labels = ()
    """The modes that are looked up by an index rather than contracted, in declared order."""

    @cached_property
    def size(self) -> Mapping[str, int]:
        return dict(self.sizes)

    @cached_property
    def cores(self) -> tuple[int, ...]:
        return tuple(at for at, leaf in enumerate(self.leaves) if leaf.is_core)

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        return tuple(at for at, leaf in enumerate(self.leaves) if not leaf.is_core)

    def volume(self, labels: Labels | frozenset[str]) -> int:
        """The number of entries of a tensor with these labels."""
        return prod(self.size[label] for label in labels)

    def lengths(self, members: int) -> dict[str, int]:
        """The lengths of the spatial axes once these leaves, as bits, are contracted: summed taps have acted."""
        having = {tap: self._holder_bits.get(tap, 0) for tap, _ in self.taps}
        left = {tap for tap, leaves in having.items() if leaves & members and leaves & ~members}
        still = {axis for tap, axes in self.taps if tap in left for axis in axes}
        return {spatial(axis): span[axis not in still] for axis, span in enumerate(self.spans)}

    def without_ones(self) -> Network:
        """The same network without labels of size 1, which no step needs. Rows and taps stay, because they act."""
        acting = {*self.rows, *dict(self.taps), *self.dynamic}
        solid = {label for label, size in self.sizes if size > 1 or label in acting}
        leaves = tuple(
            Leaf(
                leaf.names,
                tuple(label for label in leaf.labels if label in solid),
                leaf.is_core,
                tuple(tuple(label for label in axis if label in solid) for axis in leaf.axes),
                has_ones=any(label not in solid for label in leaf.labels),
                conj=leaf.conj,
                repeated=_repeated(tuple(label for label in leaf.repeated if label in solid)),
            )
            for leaf in self.leaves
        )
        return replace(self, leaves=leaves, output=tuple(label for label in self.output if label in solid))

    @cached_property
    def _kept(self) -> dict[frozenset[int], frozenset[str]]:
        return {}

    @cached_property
    def _holders(self) -> dict[str, frozenset[int]]:
        """The leaves that have each label."""
        found: dict[str, set[int]] = {}
        for at, leaf in enumerate(self.leaves):
            for label in leaf.labels:
                found.setdefault(label, set()).add(at)
        return {label: frozenset(leaves) for label, leaves in found.items()}

    @cached_property
    def _final(self) -> frozenset[str]:
        return frozenset((*self.output, *self.rows))

    def kept(self, members: frozenset[int]) -> frozenset[str]:
        """The labels of the contraction of these leaves: those that another leaf or the output needs."""
        found = self._kept.get(members)
        if found is None:
            inside = {label for at in members for label in self.leaves[at].labels}
            found = frozenset(label for label in inside if label in self._final or not self._holders[label] <= members)
            self._kept[members] = found
        return found

    def still_kept(self, labels: frozenset[str], members: int) -> frozenset[str]:
        """Those of some labels that the contraction of these leaves, as bits, still has."""
        return frozenset(label for label in labels if label in self._final or self._holder_bits[label] & ~members)

    @cached_property
    def _holder_bits(self) -> dict[str, int]:
        return {label: bits(leaves) for label, leaves in self._holders.items()}


def groups(graph: Graph) -> tuple[tuple[Term, ...], ...]:
    """The terms, those with equal bonds and cores together."""
    found: dict[object, list[Term]] = {}
    for term in graph.terms:
        found.setdefault((term.bonds, term.cores), []).append(term)
    return tuple(map(tuple, found.values()))


def groupings(graph: Graph) -> list[tuple[tuple[Term, ...], ...]]:
    """Ways to compute the terms: equal ones stacked; or, if they are few, each by itself, which copies no core."""
    stacked = groups(graph)
    apart = tuple((term,) for term in graph.terms)
    return [stacked] if stacked == apart or len(apart) > MAX_APART else [stacked, apart]


def core_leaves(graph: Graph, terms: tuple[Term, ...]) -> tuple[Leaf, ...]:
    """The stacked cores of a group of terms. Bonds are labeled by the first of them, so that groups do not clash."""
    stack = (term_label(terms),) if len(terms) > 1 else ()
    bonds = {bond.name: graph.qualified(terms[0], bond.name) for bond in terms[0].bonds}
    leaves = []
    for core in terms[0].cores:
        labels = (*stack, *(bonds.get(edge, edge) for edge in core.edges))
        names = tuple(graph.qualified(term, core.name) for term in terms)
        leaves.append(Leaf(names, tuple(dict.fromkeys(labels)), True, conj=core.conj, repeated=_repeated(labels)))
    return tuple(leaves)


def _repeated(labels: Labels) -> Labels:
    """The labels if one of them is there several times, else none."""
    return labels if len(set(labels)) < len(labels) else ()


def sizes_of(graph: Graph, terms: tuple[Term, ...]) -> dict[str, int]:
    """The sizes of the labels of a group's cores."""
    found = {mode.name: mode.size for mode in graph.modes}
    found |= {graph.qualified(terms[0], bond.name): bond.size for bond in terms[0].bonds}
    if len(terms) > 1:
        found[term_label(terms)] = len(terms)
    return found


def term_label(terms: tuple[Term, ...]) -> str:
    """The label along which the equal terms of a group are stacked."""
    return f"@{terms[0].name}"


def spatial(axis: int) -> str:
    """The label of a spatial axis of a convolution's input and output."""
    return f"@@s{axis}"


def data(name: str) -> str:
    """The label of a data axis of a map."""
    return f"#{name}"


def flat_modes(graph: Graph, *roles: Role) -> Labels:
    """The names of the modes with these roles, role by role."""
    return tuple(mode.name for role in roles for mode in graph.of_role(role))


def weight_network(graph: Graph, terms: tuple[Term, ...]) -> Network:
    """The weight alone, its modes in the order of torch's layout."""
    labels = tuple(name for axis in graph.weight_axes for name in axis)
    return Network(core_leaves(graph, terms), labels, tuple(sizes_of(graph, terms).items()))


def output_axes(graph: Graph) -> tuple[Labels, ...]:
    """The labels on each axis of a layer's output, before padding is cut off."""
    if graph.is_lookup:
        return ((TOKENS,), *((flat_modes(graph, Role.OUT),) if graph.of_role(Role.OUT) else ()))
    if graph.inputs:
        modes = {mode.name for mode in graph.modes}
        return tuple(tuple(name if name in modes else data(name) for name in axis) for axis in graph.output)
    places = ((spatial(axis),) for axis in range(len(graph.kernel_size)))
    return ((BATCH,), flat_modes(graph, Role.GROUP, Role.OUT), *places)


def lookup_network(graph: Graph, terms: tuple[Term, ...], tokens: int) -> Network:
    """The rows of the weight at some tokens: of its lookup modes, or of all modes if it has none."""
    rows = flat_modes(graph, Role.LOOKUP, Role.FREE)
    sizes = {**sizes_of(graph, terms), TOKENS: tokens}
    output = (TOKENS, *flat_modes(graph, Role.OUT))
    leaves = core_leaves(graph, terms)
    return Network(leaves, output, tuple(sizes.items()), frozenset([TOKENS]), rows=rows)


def layer_network(graph: Graph, terms: tuple[Term, ...], batch: int, image: int = 32) -> Network:
    """The layer on its inputs: one flat input, an image, patches of an image, or the operands of a map."""
    sizes = sizes_of(graph, terms)
    if graph.inputs:
        return _operand_network(graph, terms, sizes, batch)
    axes = tuple(spatial(axis) for axis in range(len(graph.kernel_size)))
    sizes |= {BATCH: batch, **dict.fromkeys(axes, image)}
    modes = flat_modes(graph, Role.GROUP, Role.IN, Role.PATCH)
    taps = flat_modes(graph, Role.KERNEL)
    given = ((BATCH,), modes, *((axis,) for axis in axes))
    after = [graph.window.out_length(image, axis) for axis in range(len(axes))]
    around = graph.window.padded() or ((0, 0),) * len(axes)
    before = [image + sum(sides) for sides in around] if taps else after  # without taps, positions are taken first
    entry = Leaf(("x",), (BATCH, *modes, *taps, *axes), False, given)
    return Network(
        (*core_leaves(graph, terms), entry),
        (BATCH, *flat_modes(graph, Role.GROUP, Role.OUT), *axes),
        tuple(sizes.items()),
        frozenset([BATCH, *axes]),
        tuple(zip(taps, graph.tap_groups, strict=True)),
        graph.kernel_size if taps else (),
        tuple(zip(before, after, strict=True)),
        graph.rules.is_transposed,
    )


def _operand_network(graph: Graph, terms: tuple[Term, ...], sizes: dict[str, int], batch: int) -> Network:
    modes = {mode.name for mode in graph.modes}
    named = [name for operand in graph.inputs for axis in operand.axes for name in axis]
    axes = {name: name if name in modes else data(name) for name in named}
    free = [label for name, label in axes.items() if name not in modes]  # in the order in which inputs list them
    dynamic = frozenset(free)
    sizes |= {label: batch if at == 0 else 16 for at, label in enumerate(free)}
    inputs = []
    for operand in graph.inputs:
        given = tuple(tuple(axes[name] for name in axis) for axis in operand.axes)
        inputs.append(Leaf((operand.name,), tuple(label for axis in given for label in axis), False, given))
    output = tuple(axes.get(name, name) for axis in graph.output for name in axis)
    return Network((*core_leaves(graph, terms), *inputs), output, tuple(sizes.items()), dynamic)
