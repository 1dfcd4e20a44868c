"""The fields of a graph before they are known to be valid: what the rules look at, and what a `Graph` is made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from tnmars.errors import GraphError, Problem, nearest
from tnmars.graph.kinds import MODE_ROLES, Role
from tnmars.graph.options import OptionValue, plain
from tnmars.graph.parts import Axis, Edge, Operand, Term, Value, as_int, name_list, parts_of, table_of


@dataclass(frozen=True)
class Fields(Value):
    """Everything that decides what a graph computes. Sequences become tuples, and integers Python's own.

    Features and options may be given as mappings.
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

    def __post_init__(self) -> None:
        features = table_of("features", self.features).items()
        self._set(
            modes=parts_of("modes", self.modes, Edge),
            terms=parts_of("terms", self.terms, Term),
            shared=name_list("shared is", self.shared),
            features=tuple((feature_role(role), as_int(size)) for role, size in features),
            kernel_size=tuple(map(as_int, parts_of("kernel_size", self.kernel_size))),
            inputs=parts_of("inputs", self.inputs, Operand),
            output=tuple(name_list("the output has axis", axis) for axis in parts_of("output", self.output)),
            options=tuple((key, plain(value)) for key, value in table_of("options", self.options).items()),
        )

    def _set(self, **values: object) -> None:
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def of_role(self, role: Role) -> tuple[Edge, ...]:
        """The modes with a role, in declared order."""
        return self._by_role.get(role, ())

    @cached_property
    def _by_role(self) -> dict[Role, tuple[Edge, ...]]:
        return {role: tuple(mode for mode in self.modes if mode.role is role) for role in Role}

    @property
    def groups(self) -> int:
        """The number of groups that input and output share, as torch's `groups`; 1 without group modes."""
        return prod([mode.size for mode in self.of_role(Role.GROUP)])  # torch.compile traces no generator here

    def holders(self, role: Role) -> tuple[tuple[Edge, ...], int]:
        """The modes that hold the flat axis of a role, and how many of their entries one feature takes.

        Input channels under patch modes take as many entries as the kernel has taps.
        """
        patch = self.of_role(Role.PATCH)
        if role is Role.IN and patch:
            return patch, prod(self.kernel_size)
        return self.of_role(role), 1


def feature_role(name: str) -> Role:
    """The role of that name. Raises `GraphError` if there is none."""
    known = [str(role) for role in MODE_ROLES]
    if name not in known:
        text = f"features has no role '{name}'."
        raise GraphError(Problem(text, f"Roles: {', '.join(known)}.{nearest(str(name), known)}"))
    return Role(name)
