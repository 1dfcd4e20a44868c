"""Initial values of cores that give the dense weight a requested variance, for any graph.

An entry of a term is a sum over all its bonds of products of one entry of each core, so with independent cores of
variance s^2 its variance is s^(2 * cores) times the product of the bonds' sizes; terms add up. For a tensor train this
is the "Glorot-like" rule of the MARS reference. The variance of a complex number z is E|z|^2, half of it in each part,
as torch's `normal_` draws it; then the same holds.
"""

from __future__ import annotations

from math import isfinite, prod

import torch

from tnmars.arguments import shown
from tnmars.errors import TnmarsError
from tnmars.graph import Graph

RULES = ("glorot", "kaiming")
BITS = 512
"""The leading bits of a product of sizes that are divided by; a hundred bonds of 4,096 do not fit a float."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
"""The types that a layer can be made with, and saved with."""


def check_place(device: torch.device | str | None, dtype: torch.dtype | None) -> None:
    """Raises `TnmarsError` if torch has no such device, or no layer can be made with a type."""
    if dtype is not None and dtype not in DTYPES:
        raise TnmarsError(f"dtype is {dtype}, but must be one of {', '.join(map(str, DTYPES))}.")
    if isinstance(device, str):
        try:
            torch.device(device)
        except RuntimeError as error:
            raise TnmarsError(f"device is '{device}', but must be a device of torch: {error}") from None


def place(
    device: torch.device | str | int | None, dtype: object
) -> tuple[torch.device | str | None, torch.dtype | None]:
    """A device and a type as torch's layers take them: a number is that of an accelerator, `float` is float64.

    Raises `TnmarsError` if torch has no such device, or no layer can be made with the type.
    """
    kind = torch.float64 if dtype is float else dtype
    if kind is not None and not isinstance(kind, torch.dtype):
        raise TnmarsError(f"dtype is {shown(dtype)}, but must be one of {', '.join(map(str, DTYPES))}.")
    if isinstance(device, int):
        count = torch.accelerator.device_count()
        if not 0 <= device < count:
            there = (
                f"the numbers of this machine's accelerators are 0 to {count - 1}"
                if count
                else "there is no accelerator"
            )
            raise TnmarsError(f"device is {shown(device)}, but must be a device of torch: {there}.")
        device = torch.device(device)
    check_place(device, kind)
    return device, kind


def variance(graph: Graph, rule: str | float | None = None) -> float:
    """The variance of an entry of the weight: by a rule, or as given. By default 1 for a table, else Glorot."""
    if isinstance(rule, (int, float)):
        if isinstance(rule, bool) or not (isfinite(rule) and rule >= 0):
            raise TnmarsError(
                f"init is {shown(rule)}, but must be a variance of at least 0, or one of {', '.join(RULES)}."
            )
        return float(rule)
    if rule is None:
        rule = "unit" if graph.is_lookup else "glorot"
    fan_in, fan_out = graph.fan_in, graph.fan_out
    if not isinstance(rule, str):
        raise TnmarsError(f"init is {shown(rule)}, but must be a variance, or one of {', '.join(RULES)}.")
    if rule == "unit":
        return 1.0
    if rule == "glorot":
        return 2.0 / (fan_in + fan_out)
    if rule == "kaiming":
        return 2.0 / fan_in
    raise TnmarsError(f"init is {shown(rule)}, but must be a variance, or one of {', '.join(RULES)}.")


def deviations(graph: Graph, target: float) -> dict[str, float]:
    """The standard deviation of the entries of each core, so that the weight has the target variance."""
    found = {}
    for term in graph.terms:
        sums, power = prod(bond.size for bond in term.bonds), 0.5 / len(term.cores)
        beyond = max(0, sums.bit_length() - BITS)
        deviation = (target / len(graph.terms) / (sums >> beyond)) ** power * 2.0 ** (-beyond * power)
        found.update({graph.qualified(term, core.name): deviation for core in term.cores if not core.tied})
    return found


@torch.no_grad()
def fill_(cores: dict[str, torch.nn.Parameter], graph: Graph, rule: str | float | None = None) -> None:
    """Fills every core with random entries."""
    for name, deviation in deviations(graph, variance(graph, rule)).items():
        cores[name].normal_(0.0, deviation)
