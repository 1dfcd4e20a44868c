"""The graph: how a weight is decomposed into cores joined by named bonds. A frozen value, valid once built.

A network is a sum of terms over the same modes; a term is a set of cores that list edges by name. An edge that three
or more cores list is a hyperedge and has no class of its own: incidence is derived from the cores, never stored twice.
Nothing here knows the name of a decomposition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite, prod

from tnmars.errors import GraphError, Problem, nearest
from tnmars.graph import options as layer_options
from tnmars.graph import rules
from tnmars.graph.kinds import KINDS, MODE_ROLES, Kind, Role
from tnmars.graph.options import OptionValue
from tnmars.graph.parts import MAIN, Axis, Core, Edge, Operand, Term, axis_text, flat_size, is_identifier, names, whole
from tnmars.graph.window import Window

__all__ = ["MAIN", "Axis", "Core", "Edge", "Graph", "Operand", "Role", "Term"]

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

MAX_NAME = 200

_ROLE_ORDER = {role: at for at, role in enumerate(Role)}


@dataclass(frozen=True)
class Graph:
    """A decomposed weight: its kind, its modes and the terms whose sum it is.

    Kind, modes, terms, features and options make up equality; `name` and `origin` do not. What is equal in meaning is
    stored alike: modes are grouped by role, options that are torch's defaults and features without padding are left
    out, and a convolution's `kernel_size` is always filled in. Raises `GraphError` with every problem at once.

    >>> r = Edge("r", 2)
    >>> modes = (Edge("i", 8, Role.IN), Edge("o", 6, Role.OUT))
    >>> g = Graph("linear", modes, (Term("main", (r,), (Core("A", ("i", "r")), Core("B", ("r", "o")))),))
    >>> g.dense_shape, g.bonds
    ((6, 8), {'r': Edge(name='r', size=2, role=<Role.BOND: 'bond'>)})
    """

    kind: str
    modes: tuple[Edge, ...]
    terms: tuple[Term, ...]
    shared: tuple[str, ...] = ()
    features: tuple[tuple[Role, int], ...] = ()
    kernel_size: tuple[int, ...] = ()
    inputs: tuple[Operand, ...] = ()
    output: tuple[Axis, ...] = ()
    options: tuple[tuple[str, OptionValue], ...] = ()
    name: str = field(default="", compare=False)
    origin: Mapping[str, Json] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        fields = self._fields()
        found = rules.problems(fields)
        if not isinstance(self.name, str) or not self.name.isprintable() or len(self.name) > MAX_NAME:
            found.append(Problem("the graph's name is not one line of text.", f"It has up to {MAX_NAME} characters."))
        found += _origin_problems(self.origin)
        if found:
            raise GraphError(found)
        for key, value in _canonical(fields).items():
            object.__setattr__(self, key, value)

    @classmethod
    def of(cls, fields: rules.Fields, name: str = "", origin: Mapping[str, Json] | None = None) -> Graph:
        """The graph with these fields."""
        given = {key: getattr(fields, key) for key in fields.__dataclass_fields__}
        given["features"] = tuple(fields.features.items())
        given["options"] = tuple(fields.options.items())
        return cls(**given, name=name, origin=origin)

    def _fields(self) -> rules.Fields:
        return rules.Fields(
            self.kind,
            tuple(self.modes),
            tuple(self.terms),
            names("shared is", self.shared),
            {feature_role(role): whole(size) for role, size in self.features},  # type: ignore[misc]  # the rules look
            tuple(map(whole, self.kernel_size)),  # type: ignore[arg-type]  # at what is no number
            tuple(self.inputs),
            tuple(names("the output has axis", axis) for axis in self.output),
            {key: layer_options.plain(value) for key, value in self.options},
        )

    @property
    def rules(self) -> Kind:
        """What this kind of layer may have."""
        return KINDS[self.kind]

    def of_role(self, role: Role) -> tuple[Edge, ...]:
        """The modes with a role, in declared order."""
        return tuple(mode for mode in self.modes if mode.role is role)

    def sizes(self, term: Term) -> dict[str, int]:
        """The size of every edge that a core of the term may list."""
        return {edge.name: edge.size for edge in (*self.modes, *term.bonds)}

    def shape(self, term: Term, core: Core) -> tuple[int, ...]:
        """The shape of a core."""
        sizes = self.sizes(term)
        return tuple(sizes[edge] for edge in core.edges)

    def qualified(self, term: Term, name: str) -> str:
        """The name of a bond or core among those of all terms: `t1.r1` where there are several terms, else `r1`."""
        return name if len(self.terms) == 1 else f"{term.name}.{name}"

    @property
    def bonds(self) -> dict[str, Edge]:
        """Every bond by its qualified name."""
        return {self.qualified(term, bond.name): bond for term in self.terms for bond in term.bonds}

    @property
    def cores(self) -> dict[str, tuple[int, ...]]:
        """The shape of every core by its qualified name."""
        found = {}
        for term in self.terms:
            sizes = self.sizes(term)
            for core in term.cores:
                found[self.qualified(term, core.name)] = tuple(sizes[edge] for edge in core.edges)
        return found

    def edges_of(self, core: str) -> tuple[str, ...]:
        """The edges of a core by its qualified name."""
        return next(
            found.edges for term in self.terms for found in term.cores if self.qualified(term, found.name) == core
        )

    def bonds_of(self, core: str) -> tuple[str, ...]:
        """For each axis of a core, both by qualified name, its bond; empty for a mode."""
        return self._core_bonds[core]

    def real_size(self, role: Role) -> int:
        """The length of the flat axis of a role without its padding; for `in`, channels also under patch modes."""
        return self._real[role]  # reckoned once, for a layer asks at every call

    @cached_property
    def _real(self) -> dict[Role, int]:
        fields, given = self._fields(), dict(self.features)
        found: dict[Role, int] = {}
        for role in MODE_ROLES:
            held, unit = rules.holders(fields, role)
            found[role] = given.get(role, flat_size(held) // unit)
        return found

    @cached_property
    def _core_bonds(self) -> dict[str, tuple[str, ...]]:
        found = {}
        for term in self.terms:
            bonds = {bond.name: self.qualified(term, bond.name) for bond in term.bonds}
            for core in term.cores:
                found[self.qualified(term, core.name)] = tuple(bonds.get(edge, "") for edge in core.edges)
        return found

    @property
    def in_features(self) -> int:
        return self.real_size(Role.IN)

    @property
    def out_features(self) -> int:
        return self.real_size(Role.OUT)

    @property
    def vocab(self) -> int:
        return self.real_size(Role.LOOKUP)

    @property
    def tap_groups(self) -> tuple[tuple[int, ...], ...]:
        """For each kernel mode, the spatial axes that it holds."""
        found = rules.tap_groups([mode.size for mode in self.of_role(Role.KERNEL)], self.kernel_size)
        return tuple(found or ())

    @property
    def has_bias(self) -> bool:
        return bool(dict(self.options).get("bias", self.rules.has_bias))

    @property
    def dense_shape(self) -> tuple[int, ...]:
        """The shape of the weight in torch's layout, without padding; one axis per mode where torch has none."""
        if not self.rules.layout:
            return tuple(mode.size for mode in self.modes)
        axes = [self.kernel_size if role is Role.KERNEL else (self.real_size(role),) for role in self.rules.layout]
        return tuple(size for axis in axes for size in axis)

    @cached_property
    def weight_axes(self) -> tuple[Axis, ...]:
        """The modes on each axis of the dense weight, in torch's order, before padding is cut off.

        One axis for each role of the kind's layout, patch modes on the axis of the inputs; a role without modes has an
        empty axis. One axis per mode where torch has no layout.
        """
        if not self.rules.layout:
            return tuple((mode.name,) for mode in self.modes)
        held = ((role, Role.PATCH) if role is Role.IN else (role,) for role in self.rules.layout)
        return tuple(tuple(mode.name for role in roles for mode in self.of_role(role)) for roles in held)

    @cached_property
    def weight_lengths(self) -> tuple[int, ...]:
        """The length of each of the `weight_axes` once padding is cut off; `dense_shape` splits them further."""
        modes = {mode.name: mode for mode in self.modes}
        padding = self.padding
        lengths = []
        for axis in self.weight_axes:
            role = modes[axis[0]].role if axis else None
            lengths.append(padding[role][1] if role in padding else prod(modes[name].size for name in axis))
        return tuple(lengths)

    @cached_property
    def is_lookup(self) -> bool:
        """Whether a call takes indices, of rows or of entries, rather than inputs to contract."""
        return any(mode.role in (Role.LOOKUP, Role.FREE) for mode in self.modes)

    @cached_property
    def window(self) -> Window:
        """The kernel with its stride, dilation and padding; without axes where the layer is not a convolution."""
        return Window.of(self.kernel_size, dict(self.options))

    @property
    def padding(self) -> dict[Role, tuple[int, int]]:
        """For each padded axis, the entries that its modes hold and how many of them are real."""
        found = {}
        for role, real in self.features:
            held, unit = rules.holders(self._fields(), role)
            found[held[0].role] = (flat_size(held), real * unit)
        return found

    @property
    def signature(self) -> str:
        """What the layer maps to what, in numbers."""
        if self.kind == "linear":
            return f"{self.in_features} -> {self.out_features}"
        if self.kind == "conv":
            return f"{self.in_features} -> {self.out_features}, kernel {'x'.join(map(str, self.kernel_size))}"
        if self.kind == "embedding":
            return f"{self.vocab} rows of {self.out_features}"
        shape = "x".join(map(str, self.dense_shape))
        if self.inputs:
            return f"{', '.join(operand.name for operand in self.inputs)} -> output, weight {shape}"
        return shape

    def with_terms(self, terms: Sequence[Term]) -> Graph:
        """The same graph with other terms over its modes; a mode that none of them shares is no longer shared."""
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
        if self.output:
            lines.append(f"  output [{', '.join(map(axis_text, self.output))}]")
        if self.options:
            lines.append(f"  option {' '.join(f'{key}={_option(value)}' for key, value in self.options)}")
        for term in self.terms:
            if len(self.terms) > 1 or term.name != MAIN:
                lines.append(f"  term {term.name}")
            lines.append(f"  bonds  {' '.join(map(str, term.bonds)) or 'none'}")
            lines.append(f"  cores  {term}")
        return "\n".join(lines)


def feature_role(name: str) -> Role:
    """The role of that name. Raises `GraphError` where there is none."""
    known = [str(role) for role in MODE_ROLES]
    if name not in known:
        text = f"features has no role '{name}'."
        raise GraphError(Problem(text, f"Roles: {', '.join(known)}.{nearest(str(name), known)}"))
    return Role(name)


def _option(value: OptionValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)


def _origin_problems(origin: object) -> list[Problem]:
    """What a spec file could not carry: `origin` is plain data with identifiers as its keys."""
    if origin is None:
        return []
    if (
        not isinstance(origin, Mapping)
        or not all(map(is_identifier, origin))
        or not all(map(_is_data, origin.values()))
    ):
        return [Problem("origin is not plain data.", "It is a table of names with numbers, text, lists and tables.")]
    return []


def _is_data(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_data(entry) for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_data, value))
    return value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and isfinite(value))


def _canonical(fields: rules.Fields) -> dict[str, object]:
    """The fields in the form in which equal graphs are equal values."""
    kind = KINDS[fields.kind]
    modes = tuple(sorted(fields.modes, key=lambda mode: _ROLE_ORDER[mode.role]))
    kernel_size = fields.kernel_size
    if kind.is_spatial and not kernel_size:
        kernel_size = tuple(mode.size for mode in fields.of_role(Role.KERNEL))
    sized = replace(fields, kernel_size=kernel_size)
    features = {}
    for role in kind.sized:
        held, unit = rules.holders(sized, role)
        if role in fields.features and fields.features[role] * unit != flat_size(held):
            features[role] = fields.features[role]
    rows = features.get(Role.LOOKUP, flat_size(fields.of_role(Role.LOOKUP)))
    return {
        "modes": modes,
        "terms": fields.terms,
        "shared": tuple(mode.name for mode in modes if mode.name in fields.shared),
        "features": tuple(features.items()),
        "kernel_size": kernel_size,
        "inputs": fields.inputs,
        "output": fields.output,
        "options": layer_options.canonical(kind, fields.options, rows),
    }
