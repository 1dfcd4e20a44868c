"""The graph: how a weight is decomposed into cores joined by named bonds. A frozen value, valid once built.

The weight is a sum of terms over the same modes; a term is a set of cores that list edges by name. An edge that three
or more cores list is a hyperedge and has no class of its own: incidence is derived from the cores, never stored twice.
Nothing here knows the name of a decomposition.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import prod
from types import MappingProxyType

from tnmars.errors import GraphError
from tnmars.graph import layer_rules, rules, ties
from tnmars.graph import options as layer_options
from tnmars.graph.fields import Fields
from tnmars.graph.kinds import KINDS, MODE_ROLES, Kind, Role
from tnmars.graph.labels import label_problems
from tnmars.graph.options import OptionValue
from tnmars.graph.parts import MAIN, Axis, Core, Edge, Operand, Term, axis_text, flat_size
from tnmars.graph.window import Window

__all__ = ["MAIN", "Axis", "Core", "Edge", "Graph", "Operand", "Role", "Term"]

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

_ROLE_ORDER = {role: at for at, role in enumerate(Role)}


@dataclass(frozen=True)
class Graph(Fields):
    """A decomposed weight: its kind, its modes, and the terms whose sum it is. A frozen, hashable value.

    Graphs with the same meaning are equal: modes are grouped by role, options with torch's default values and features
    without padding are dropped, and a convolution's `kernel_size` is filled in. `name` and `origin` do not count.
    Usually `tnmars.network`, a family or a spec file makes a graph.

    Args:
        kind: What the layer does: `"linear"`, `"conv"`, `"conv_transpose"`, `"embedding"`, `"tensor"` or
            `"map"`.
        modes: The open edges. Within a role their order is that of the flattened axis, first mode slowest.
        terms: The summands. Without any, the weight is zero.
        shared: Names of modes that sit on several cores; each of their values selects a slice of all these cores.
            Group modes may sit on several cores without being named here.
        features: Real sizes by role if the product of the modes is larger; the rest is padding.
        kernel_size: The taps along each spatial axis of a convolution; by default the kernel modes, an axis each.
        inputs: The inputs of a map.
        output: The axes of a map's output; none if it is one number.
        options: Options of the torch layer, such as `("stride", 2)`.
        name: A name for people.
        origin: Where a pruned graph came from: plain data, for information only.

    Raises:
        GraphError: With every problem at once, each with the path of the part it is about.

    Example:
        >>> r = Edge("r", 2)
        >>> modes = (Edge("i", 8, Role.IN), Edge("o", 6, Role.OUT))
        >>> term = Term("main", (r,), (Core("A", ("i", "r")), Core("B", ("r", "o"))))
        >>> g = Graph("linear", modes, (term,))
        >>> g.dense_shape, g.bonds["r"].size, g.cores["B"]
        ((6, 8), 2, (2, 6))
    """

    name: str = field(default="", compare=False)
    origin: Mapping[str, Json] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = [*rules.problems(self), *label_problems(self.name, self.origin)]
        if problems:
            raise GraphError(problems)
        self._set(**_canonical(self))

    @classmethod
    def of(cls, given: Fields, name: str = "", origin: Mapping[str, Json] | None = None) -> Graph:
        """The graph with these fields."""
        return cls(**{entry.name: getattr(given, entry.name) for entry in fields(Fields)}, name=name, origin=origin)

    def with_origin(self, origin: Mapping[str, Json] | None) -> Graph:
        """The same graph with another `origin`. Only the origin is checked, because nothing else changes."""
        problems = label_problems(self.name, origin)
        if problems:
            raise GraphError(problems)
        noted = copy.copy(self)
        noted._set(origin=origin)
        return noted

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, entry.name) for entry in fields(self) if entry.compare))

    def __hash__(self) -> int:
        return self._hash  # graphs are keys of the caches of plans

    @property
    def rules(self) -> Kind:
        """The roles, layout and options of this kind of layer."""
        return KINDS[self.kind]

    def sizes(self, term: Term) -> dict[str, int]:
        """The size of every edge that a core of the term may list."""
        return {**self._mode_sizes, **term.bond_sizes}

    def shape(self, term: Term, core: Core) -> tuple[int, ...]:
        """The shape of a core."""
        modes, bonds = self._mode_sizes, term.bond_sizes
        return tuple(modes[edge] if edge in modes else bonds[edge] for edge in core.edges)

    @cached_property
    def _mode_sizes(self) -> Mapping[str, int]:
        return {mode.name: mode.size for mode in self.modes}

    def qualified(self, term: Term, name: str) -> str:
        """The name of a bond or core that is unique in the graph: `t1.r1` if there are several terms, else `r1`."""
        return name if len(self.terms) == 1 else f"{term.name}.{name}"

    def _at(self, place: tuple[str, str]) -> str:
        return place[1] if len(self.terms) == 1 else ".".join(place)

    @cached_property
    def bonds(self) -> Mapping[str, Edge]:
        """Every bond by its qualified name. Of bonds that tied cores make one, the first stands for all of them."""
        every = ((self.qualified(term, bond.name), bond) for term in self.terms for bond in term.bonds)
        return MappingProxyType({name: bond for name, bond in every if self._bond_names[name] == name})

    def bond_name(self, term: Term, bond: str) -> str:
        """The name among `bonds` of a bond of a term: its own, or that of the bond that it is one with by ties."""
        return self._bond_names[self.qualified(term, bond)]

    @cached_property
    def _bond_names(self) -> Mapping[str, str]:
        return {self._at(one): self._at(two) for one, two in ties.united(self.terms).items()}

    @cached_property
    def cores(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every core by its qualified name. One that is tied to another has no numbers of its own."""
        return MappingProxyType(
            {
                self.qualified(term, core.name): self.shape(term, core)
                for term in self.terms
                for core in term.cores
                if not core.tied
            }
        )

    @cached_property
    def nodes(self) -> Mapping[str, str]:
        """For every core by its qualified name, tied ones included, the core among `cores` that holds its numbers."""
        every = ((term, core) for term in self.terms for core in term.cores)
        return MappingProxyType(
            {self.qualified(term, core.name): self._at(ties.holder(term, core)) for term, core in every}
        )

    @cached_property
    def is_plain(self) -> bool:
        """Whether no core is tied to another, and none has a trace."""
        return not any(core.tied or core.has_trace for term in self.terms for core in term.cores)

    def edges_of(self, core: str) -> tuple[str, ...]:
        """The edges of a core by its qualified name."""
        return self._core_edges[core]

    def bonds_of(self, core: str) -> tuple[str, ...]:
        """For each axis of a core the name of its bond among `bonds`, or an empty text for a mode."""
        return self._core_bonds[core]

    @cached_property
    def conjugated(self) -> frozenset[str]:
        """The qualified names of the cores whose complex conjugates are used."""
        return frozenset(self.qualified(term, core.name) for term in self.terms for core in term.cores if core.conj)

    @cached_property
    def _core_edges(self) -> Mapping[str, tuple[str, ...]]:
        return {self.qualified(term, core.name): core.edges for term in self.terms for core in term.cores}

    @cached_property
    def _core_bonds(self) -> Mapping[str, tuple[str, ...]]:
        found = {}
        for term in self.terms:
            bonds = {bond.name: self.bond_name(term, bond.name) for bond in term.bonds}
            for core in term.cores:
                found[self.qualified(term, core.name)] = tuple(bonds.get(edge, "") for edge in core.edges)
        return found

    def real_size(self, role: Role) -> int:
        """The length of the flat axis of a role without its padding; for `in`, channels also under patch modes.

        Inputs and outputs are those of all groups, which lie on the same axis.
        """
        return self._real_sizes[role]

    @cached_property
    def _real_sizes(self) -> Mapping[Role, int]:
        given = dict(self.features)
        sizes: dict[Role, int] = {}
        for role in MODE_ROLES:
            held, unit = self.holders(role)
            own = given.get(role, flat_size(held) // unit)
            sizes[role] = own * self.groups if role in (Role.IN, Role.OUT) else own
        return sizes

    @property
    def fan_in(self) -> int:
        """The number of inputs that an output depends on, taps included."""
        return self.in_features // self.groups * prod(self.kernel_size)

    @property
    def fan_out(self) -> int:
        """The number of outputs that an input has an effect on, taps included."""
        return self.out_features // self.groups * prod(self.kernel_size)

    @property
    def in_features(self) -> int:
        return self.real_size(Role.IN)

    @property
    def out_features(self) -> int:
        return self.real_size(Role.OUT)

    @property
    def vocab(self) -> int:
        return self.real_size(Role.LOOKUP)

    @cached_property
    def tap_groups(self) -> tuple[tuple[int, ...], ...]:
        """For each kernel mode, the spatial axes that it holds."""
        found = layer_rules.tap_groups([mode.size for mode in self.of_role(Role.KERNEL)], self.kernel_size)
        return tuple(found or ())

    @property
    def has_bias(self) -> bool:
        return bool(dict(self.options).get("bias", self.rules.has_bias))

    @cached_property
    def dense_shape(self) -> tuple[int, ...]:
        """The shape of the weight in torch's layout, without padding; one axis per mode if torch has no layout.

        With groups, as torch has it: all outputs by the inputs of one group; if the inputs come first, the reverse.
        """
        if not self.rules.layout:
            return tuple(mode.size for mode in self.modes)
        within = Role.OUT if self.rules.is_transposed else Role.IN
        lengths = {**self._real_sizes, within: self._real_sizes[within] // self.groups}
        axes = [self.kernel_size if role is Role.KERNEL else (lengths[role],) for role in self.rules.layout]
        return tuple(size for axis in axes for size in axis)

    @cached_property
    def weight_axes(self) -> tuple[Axis, ...]:
        """The modes on each axis of the dense weight, in torch's order, before padding is cut off.

        One axis for each role of the kind's layout, patch modes on the axis of the inputs, group modes in front of the
        outputs, or of the inputs if they come first; a role without modes has an empty axis. One axis
        per mode if torch has no layout.
        """
        if not self.rules.layout:
            return tuple((mode.name,) for mode in self.modes)
        along = {Role.IN: (Role.IN, Role.PATCH), Role.OUT: (Role.GROUP, Role.OUT)}
        if self.rules.is_transposed:
            along = {Role.IN: (Role.GROUP, Role.IN)}
        held = (along.get(role, (role,)) for role in self.rules.layout)
        return tuple(tuple(mode.name for role in roles for mode in self.of_role(role)) for roles in held)

    @cached_property
    def weight_lengths(self) -> tuple[int, ...]:
        """The length of each of the `weight_axes` once padding is cut off; `dense_shape` splits them further."""
        roles = {mode.name: mode.role for mode in self.modes}
        lengths = []
        for axis in self.weight_axes:
            held = prod(self._mode_sizes[name] for name in axis)
            _, real = self.padding.get(roles[axis[0]], (held, held)) if axis else (held, held)
            lengths.append(real)
        return tuple(lengths)

    @property
    def has_torch_layer(self) -> bool:
        """Whether torch has a function that takes the dense weight; its linear layer has no groups."""
        return bool(self.rules.layout) and (len(self.of_role(Role.GROUP)) == 0 or self.rules.is_spatial)

    @cached_property
    def is_lookup(self) -> bool:
        """Whether a call takes indices, of rows or of entries, rather than inputs to contract."""
        return any(mode.role in (Role.LOOKUP, Role.FREE) for mode in self.modes)

    @cached_property
    def window(self) -> Window:
        """The kernel with its stride, dilation and padding; it has no axes if the layer is not a convolution."""
        return Window.of(self.kernel_size, dict(self.options), is_transposed=self.rules.is_transposed)

    @cached_property
    def padding(self) -> Mapping[Role, tuple[int, int]]:
        """For each padded axis, the entries that its modes hold and how many of them are real."""
        padded = {}
        for role, real in self.features:
            held, unit = self.holders(role)
            padded[held[0].role] = (flat_size(held), real * unit)
        return MappingProxyType(padded)

    @property
    def signature(self) -> str:
        """The sizes of the layer's input and output, as text."""
        groups = f", {self.groups} groups" if self.of_role(Role.GROUP) else ""
        if self.kind == "linear":
            return f"{self.in_features} -> {self.out_features}{groups}"
        if self.rules.is_spatial:
            return f"{self.in_features} -> {self.out_features}, kernel {'x'.join(map(str, self.kernel_size))}{groups}"
        if self.kind == "embedding":
            return f"{self.vocab} rows of {self.out_features}"
        shape = "x".join(map(str, self.dense_shape))
        if self.inputs:
            given = ", ".join(operand.name for operand in self.inputs if not operand.same)
            return f"{given} -> {'output' if self.output else 'a number'}, weight {shape}"
        return shape

    def with_terms(self, terms: Sequence[Term]) -> Graph:
        """The same graph with other terms. A mode that no term has on two cores is no longer shared.

        If a core is gone that others are tied to, the first of these takes its place.
        """
        terms = ties.reheld(terms)
        ends = [term.ends() for term in terms]
        shared = tuple(name for name in self.shared if any(len(found.get(name, ())) > 1 for found in ends))
        return replace(self, terms=tuple(terms), shared=shared)

    def __str__(self) -> str:
        lines = [f"{self.kind} {self.name or '(unnamed)'}: {self.signature}"]
        for role in self.rules.roles:
            if self.of_role(role):
                lines.append(f"  {role:<7}{' '.join(map(str, self.of_role(role)))}")
        if self.shared:
            lines.append(f"  shared {' '.join(self.shared)}")
        lines += [f"  input  {operand}" for operand in self.inputs]
        if self.rules.has_operands:
            lines.append(f"  output [{', '.join(map(axis_text, self.output))}]")
        if self.options:
            lines.append(f"  option {' '.join(f'{key}={_option(value)}' for key, value in self.options)}")
        for term in self.terms:
            if len(self.terms) > 1 or term.name != MAIN:
                lines.append(f"  term {term.name}")
            lines.append(f"  bonds  {' '.join(map(str, term.bonds)) or 'none'}")
            lines.append(f"  cores  {term}")
        return "\n".join(lines)


def _option(value: OptionValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)


def _canonical(given: Fields) -> dict[str, object]:
    """The fields that are stored in one way only, so that equal graphs are equal values."""
    kind = KINDS[given.kind]
    modes = tuple(sorted(given.modes, key=lambda mode: _ROLE_ORDER[mode.role]))
    kernel_size = given.kernel_size
    if kind.is_spatial and not kernel_size:
        kernel_size = tuple(mode.size for mode in given.of_role(Role.KERNEL))
    stated, features = dict(given.features), {}
    for role in kind.sized:
        held, unit = given.holders(role)  # patch modes, whose unit is their taps, always state kernel_size
        if role in stated and stated[role] * unit != flat_size(held):
            features[role] = stated[role]
    rows = features.get(Role.LOOKUP, flat_size(given.of_role(Role.LOOKUP)))
    ends = [term.ends() for term in given.terms]
    shared = set(given.shared) | {
        mode.name for mode in given.of_role(Role.GROUP) if any(len(cores.get(mode.name, ())) > 1 for cores in ends)
    }
    return {
        "modes": modes,
        "shared": tuple(mode.name for mode in modes if mode.name in shared),
        "features": tuple(features.items()),
        "kernel_size": kernel_size,
        "options": layer_options.canonical(kind, dict(given.options), rows),
    }
