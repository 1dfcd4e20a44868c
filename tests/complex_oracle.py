"""The naive truth for complex layers: one complex128 product over everything, and torch's real layers part by part.

It does not share code with the layers: conjugates are taken of the cores as they are, a convolution is four real ones
of torch, bags are summed by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import oracle
import torch
from oracle import FLOOR, compiled, dense
from torch import Tensor

from tnmars.graph import Graph

__all__ = ["Asked", "ask", "compiled", "error", "problem", "whole"]


def whole(graph: Graph, cores: dict[str, Tensor]) -> Tensor:
    """The weight with one axis per mode: every core spread over all edges, multiplied, summed."""
    total = torch.zeros([mode.size for mode in graph.modes], dtype=torch.complex128)
    for term in graph.terms:
        edges = [*(mode.name for mode in graph.modes), *(bond.name for bond in term.bonds)]
        entries = torch.ones((), dtype=torch.complex128)
        for core in term.cores:
            value = cores[graph.qualified(term, core.name)].to(torch.complex128)
            value = torch.complex(value.real, -value.imag) if core.conj else value
            order = sorted(range(value.dim()), key=lambda at: edges.index(core.edges[at]))
            shape = [graph.sizes(term)[edge] if edge in core.edges else 1 for edge in edges]
            entries = entries * value.permute(order).reshape(shape)
        entries = entries.expand([graph.sizes(term)[edge] for edge in edges])
        total = total + (entries.flatten(len(graph.modes)).sum(-1) if term.bonds else entries)
    return total


def layer(graph: Graph, weight: Tensor, bias: Tensor | None, *inputs: Tensor) -> Tensor:
    """What the layer gives with the dense weight: torch's own, on real and imaginary parts."""
    if not inputs or not inputs[0].is_complex():
        real, imaginary = (oracle.layer(graph, part, None, *inputs) for part in (weight.real, weight.imag))
        return torch.complex(real, imaginary)
    if len(inputs) > 1 or graph.inputs:
        return oracle.layer(graph, weight, None, *inputs)  # one einsum
    (x,) = inputs
    real = oracle.layer(graph, weight.real, None, x.real) - oracle.layer(graph, weight.imag, None, x.imag)
    imaginary = oracle.layer(graph, weight.real, None, x.imag) + oracle.layer(graph, weight.imag, None, x.real)
    found = torch.complex(real, imaginary)
    if bias is None:
        return found
    return found + bias.reshape(-1, *[1] * len(graph.kernel_size))


@dataclass(frozen=True)
class Asked:
    """Cores, a bias and inputs for a graph, in complex128."""

    graph: Graph
    cores: dict[str, Tensor]
    bias: Tensor | None
    inputs: tuple[Tensor, ...]

    @property
    def leaves(self) -> list[Tensor]:
        bias = [] if self.bias is None else [self.bias]
        return [*self.cores.values(), *bias, *(value for value in self.inputs if value.is_complex())]

    def answer(self) -> Tensor:
        return layer(self.graph, dense(self.graph, whole(self.graph, self.cores)), self.bias, *self.inputs)

    def gradients(self, answer: Tensor) -> list[Tensor]:
        return gradients(answer, self.leaves)


def problem(graph: Graph, batch: int, seed: int = 0, *, is_whole: bool = False) -> Asked:
    """Random complex values for a graph, with the shapes of the real ones."""
    real, other = (oracle.problem(graph, batch, seed + at, is_whole=is_whole) for at in (0, 1))

    def both(one: Tensor, two: Tensor) -> Tensor:
        if not one.is_floating_point():
            return one
        return (torch.complex(one.detach(), two.detach()) / 2**0.5).requires_grad_()

    cores = {name: both(value, other.cores[name]) for name, value in real.cores.items()}
    bias = None if real.bias is None or other.bias is None else both(real.bias, other.bias)
    return Asked(graph, cores, bias, tuple(map(both, real.inputs, other.inputs)))


def gradients(answer: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """The gradients of the real part of a random weighting of an answer; zeros where it does not depend on a leaf."""
    along = torch.randn(answer.shape, generator=torch.Generator().manual_seed(1), dtype=torch.complex128)
    if not answer.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(answer, leaves, along.to(answer.dtype), allow_unused=True)
    return [torch.zeros_like(leaf) if value is None else value for leaf, value in zip(leaves, found, strict=True)]


def ask(layer: torch.nn.Module, asked: Asked) -> tuple[Tensor, list[Tensor]]:
    """What a layer answers, and its gradients in the order of the leaves."""
    inputs = [
        value.detach().to(layer.dtype).requires_grad_() if value.is_complex() else value for value in asked.inputs
    ]
    answer = layer(*inputs)
    named = dict(layer.named_parameters())
    bias = [] if asked.bias is None else [layer.bias]
    cores = [named[f"cores.{name}"] for name in asked.cores]
    return answer, gradients(answer, [*cores, *bias, *(value for value in inputs if value.is_complex())])


def error(found: Tensor, wanted: Tensor) -> float:
    """The norm of the difference over the norm of what is wanted; infinite where shapes differ or a number is none."""
    if found.shape != wanted.shape:
        return float("inf")
    distance = (found.detach() - wanted.detach()).norm().item()
    ratio = distance / max(wanted.detach().norm().item(), FLOOR)
    return ratio if ratio == ratio else float("inf")
