"""Ranks from a target: given, by an error, by a share of the squared norm, by a number of parameters, or by EVBMF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, prod

from torch import Tensor

from tnmars.decomposing.tensors import with_sizes
from tnmars.errors import Problem, TnmarsError, listing, nearest
from tnmars.graph import Graph
from tnmars.graph.counts import count
from tnmars.graph.parts import as_int, is_int

Ranks = int | Mapping[str, int] | Sequence[int] | str
EVBMF = "evbmf"
TARGETS = ("ranks", "error", "energy", "parameters")


@dataclass(frozen=True)
class Aim:
    """What decides about the ranks: exactly one of these, or none for the graph's own sizes."""

    ranks: Ranks | None = None
    error: float | None = None
    energy: float | None = None
    parameters: int | None = None

    def __post_init__(self) -> None:
        given = [name for name in TARGETS if getattr(self, name) is not None]
        if len(given) > 1:
            text = f"{' and '.join(given)} are both given." if len(given) == 2 else f"{', '.join(given)} are all given."
            raise TnmarsError(Problem(text, "Give one of ranks, error, energy and parameters."))
        _check_share("error", self.error, least=0.0)
        _check_share("energy", self.energy, least=0.0)
        wanted = self.parameters
        if wanted is not None and not (is_int(as_int(wanted)) and wanted > 0):
            raise TnmarsError(f"parameters is {wanted!r}, but must be a whole number of at least 1.")

    @property
    def name(self) -> str:
        """The name of what is given, or an empty text."""
        return next(
            (name for name in ("ranks", "error", "energy", "parameters") if getattr(self, name) is not None), ""
        )

    @property
    def is_empty(self) -> bool:
        return not self.name

    @property
    def tolerance(self) -> float | None:
        """The relative error that is allowed, or `None` if the aim is another."""
        if self.energy is not None:
            return float((1.0 - self.energy) ** 0.5)
        return self.error


def _check_share(name: str, value: float | None, least: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or not least <= value <= 1:
        raise TnmarsError(f"{name} is {value!r}, but must be a number from {least:g} to 1.")


def given_sizes(graph: Graph, ranks: object) -> dict[str, int]:
    """The sizes of all bonds: the graph's, or as given.

    Raises `TnmarsError` for a bond that is not there, a wrong number of sizes, or a size below 1.
    """
    own = {name: bond.size for name, bond in graph.bonds.items()}
    if ranks is None:
        return own
    found: dict[str, int]
    if isinstance(ranks, str):
        raise TnmarsError(f"ranks is '{ranks}', but as a word must be '{EVBMF}'.")
    if isinstance(ranks, Mapping):
        found = {**own, **ranks}
        for name in ranks:
            if name not in own:
                hint = f"Bonds: {listing(list(own))}.{nearest(str(name), own)}"
                raise TnmarsError(Problem(f"ranks names bond '{name}', which the graph does not have.", hint))
    elif isinstance(ranks, Sequence):
        if len(ranks) != len(own):
            text = f"ranks has {len(ranks)} sizes, but the graph has {len(own)} bonds."
            raise TnmarsError(Problem(text, f"Give one for each bond, in this order: {listing(list(own))}."))
        found = dict(zip(own, ranks, strict=True))
    elif isinstance(ranks, int):
        found = dict.fromkeys(own, ranks)
    else:
        text = f"ranks is {ranks!r}, but must be a number, a table of bonds, a list, or '{EVBMF}'."
        raise TnmarsError(text)
    for name, size in found.items():
        if not is_int(as_int(size)) or size < 1:
            raise TnmarsError(f"ranks has {size!r} for bond '{name}', but must have a whole number of at least 1.")
    return {name: int(size) for name, size in found.items()}


@dataclass
class Within:
    """The rule that keeps as few slices as an allowed loss permits, shared out over the bonds still to come."""

    allowed: float
    """The sum of squared singular values that may be discarded."""
    bonds: int
    """The number of bonds of the sweep."""
    chosen: dict[str, int] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)

    def __call__(self, bond: str, spectrum: Tensor) -> int:
        before = sum(self.spent.values()) - self.spent.get(bond, 0.0)
        left = self.bonds - len(self.spent.keys() - {bond})
        share = max(self.allowed - before, 0.0) / max(left, 1)
        tails = spectrum.flip(0).cumsum(0).flip(0)
        kept = max(int((tails > share).sum()), 1)
        self.spent[bond] = float(tails[kept]) if kept < len(tails) else 0.0
        self.chosen[bond] = kept
        return kept


def sizes_for_parameters(graph: Graph, spectra: Mapping[str, Tensor], most: int) -> dict[str, int]:
    """Sizes with at most `most` parameters: the slice with the largest value per parameter is added next.

    Raises `TnmarsError` if bonds of size 1 need more.
    """
    sizes = dict.fromkeys(graph.bonds, 1)
    shapes = _Shapes(graph)
    least = shapes.total(sizes)
    if least > most:
        text = f"parameters is {most:,}, but the graph needs at least {least:,}, with every bond of size 1."
        raise TnmarsError(Problem(text, "Ask for more parameters, or use another graph."))
    values = {name: spectrum.tolist() for name, spectrum in spectra.items()}
    held, is_open = least, set(sizes)
    while is_open:
        prices = {name: shapes.price(sizes, name) for name in is_open if sizes[name] < len(values[name])}
        prices = {name: price for name, price in prices.items() if held + price <= most}
        if not prices:
            break
        best = max(prices, key=lambda name: values[name][sizes[name]] / max(prices[name], 1e-9))
        if values[best][sizes[best]] <= 0.0:
            is_open.discard(best)
            continue
        held += prices[best]
        sizes[best] += 1
    return sizes


class _Shapes:
    """The number of parameters of a graph as a function of its bonds."""

    def __init__(self, graph: Graph) -> None:
        modes = {mode.name: mode.size for mode in graph.modes}
        self.cores = [
            (prod(modes.get(edge, 1) for edge in graph.edges_of(name)), [bond for bond in graph.bonds_of(name) if bond])
            for name in graph.cores
        ]

    def total(self, sizes: Mapping[str, int]) -> int:
        return sum(fixed * prod(sizes[bond] for bond in bonds) for fixed, bonds in self.cores)

    def price(self, sizes: Mapping[str, int], bond: str) -> int:
        """What one more slice of a bond costs."""
        touching = (entry for entry in self.cores if bond in entry[1])
        return sum(fixed * prod(sizes[other] for other in bonds if other != bond) for fixed, bonds in touching)


def parameters(graph: Graph, sizes: Mapping[str, int]) -> int:
    """The number of parameters of the graph with these sizes of bonds."""
    return count(with_sizes(graph, sizes)).cores
