"""All scalings of a layer's cores by its gates as one operation: what the `Scale` instructions of a program do, in one
node of the autograd graph.

Small layers spend more time on the bookkeeping of many small operations than on their numbers. Under `torch.compile`,
`torch.export` and functorch the instructions themselves are run instead; the values are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tnmars.graph import Graph
from tnmars.masking import homes
from tnmars.masks import Masks


@dataclass(frozen=True)
class Scaled:
    """A core and the gates that scale it: for each its number, the shape to spread it over the core, and the axes of
    the core without it."""

    core: str
    gates: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]


@lru_cache(maxsize=512)
def scalings(graph: Graph) -> tuple[Scaled, ...]:
    """The cores of a graph that are scaled."""
    number = {name: at for at, name in enumerate(graph.bonds)}
    found = []
    for core, bonds in homes(graph).items():
        edges = graph.edges_of(core)
        gates = []
        for edge, bond in bonds:
            shape = tuple(-1 if axis == edge else 1 for axis in edges)
            gates.append((number[bond], shape, tuple(at for at, axis in enumerate(edges) if axis != edge)))
        found.append(Scaled(core, tuple(gates)))
    return tuple(found)


def is_plain() -> bool:
    """Whether torch runs as it is: not traced, not under functorch, without forward-mode derivatives."""
    return not (
        torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    )


def scaled_cores(
    entries: tuple[Scaled, ...], masks: Masks, logits: Sequence[Tensor], cores: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The cores with this step's gates multiplied in."""
    masks.watch()
    found = dict(cores)
    given = (*logits, *(cores[entry.core] for entry in entries))
    values: tuple[Tensor, ...] = _Scale.apply(masks, entries, len(logits), *given)  # type: ignore[no-untyped-call]
    found.update(zip((entry.core for entry in entries), values, strict=True))
    return found


def scaled(entries: Sequence[Scaled], gates: Mapping[str, Tensor], cores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The cores with given gates multiplied in, in operations of torch alone."""
    parts = list(gates.values())
    return {**cores, **{entry.core: _scaled(cores[entry.core], entry, parts) for entry in entries}}


def _scaled(value: Tensor, entry: Scaled, parts: Sequence[Tensor], without: int = -1) -> Tensor:
    """A value of a core's shape times the core's gates, but for one of them."""
    factor: Tensor | None = None
    for gate, shape, _ in entry.gates:
        if gate != without:
            spread = parts[gate].reshape(shape)
            factor = spread if factor is None else factor * spread
    return value if factor is None else value * factor


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, masks: Masks, entries: tuple[Scaled, ...], count: int, *tensors: Tensor) -> Any:
        flat = torch.cat(tensors[:count]) if count > 1 else tensors[0]
        gates, slope = masks.selector.sample_and_slope(flat, masks.noise, masks.temperature)
        parts = torch.split(gates.to(tensors[-1].dtype), masks.lengths)
        ctx.masks, ctx.entries, ctx.count = masks, entries, count
        ctx.save_for_backward(gates, slope, masks.noise.clone(), masks.temperature.clone(), *tensors)
        return tuple(_scaled(core, entry, parts) for core, entry in zip(tensors[count:], entries, strict=True))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        gates, slope, noise, temperature, *tensors = ctx.saved_tensors
        logits, cores = tensors[: ctx.count], tensors[ctx.count :]
        if torch.is_grad_enabled():  # a gradient of the gradient is wanted
            made = _plainly(ctx.masks, ctx.entries, logits, cores, noise, temperature)
            return (None, None, None, *torch.autograd.grad(made, tensors, slopes, create_graph=True))
        parts = torch.split(gates.to(cores[-1].dtype), ctx.masks.lengths)
        of_gates: list[Tensor] = [gates] * ctx.count
        of_cores = []
        for entry, core, above in zip(ctx.entries, cores, slopes, strict=True):
            of_cores.append(_scaled(above, entry, parts))
            product = above * core
            for gate, _, axes in entry.gates:
                value = _scaled(product, entry, parts, gate)
                of_gates[gate] = value.sum(axes) if axes else value
        flat = (torch.cat(of_gates) if ctx.count > 1 else of_gates[0]).to(slope.dtype) * slope
        return (None, None, None, *torch.split(flat, ctx.masks.lengths), *of_cores)


def _plainly(
    masks: Masks,
    entries: Sequence[Scaled],
    logits: Sequence[Tensor],
    cores: Sequence[Tensor],
    noise: Tensor,
    temperature: Tensor,
) -> list[Tensor]:
    """The same in operations that torch can differentiate as often as one likes."""
    gates = masks.selector.sample(torch.cat(tuple(logits)), noise, temperature)
    parts = torch.split(gates.to(cores[-1].dtype), masks.lengths)
    return [_scaled(core, entry, parts) for core, entry in zip(cores, entries, strict=True)]
