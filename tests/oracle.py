"""The naive truth: one float64 einsum over everything, unplanned and unpruned; and what to feed it.

The weight is made from the cores at once, then given to torch's own layer. All of it is differentiable, so that
gradients have a truth too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import opt_einsum
import pytest
import torch
import torch.backends.opt_einsum  # torch does not always load it by itself
import torch.nn.functional as F
from torch import Tensor, nn

import tnmars
from tnmars.graph import Core, Graph, Role, Term
from tnmars.program import choice

FLOOR = 1.0
"""Errors are relative to the norm of what is wanted, or to this where it is smaller: the values are about 1 in size, so
less is cancellation."""


def tensor(
    graph: Graph,
    cores: Mapping[str, np.ndarray],
    masks: Mapping[str, np.ndarray] | None = None,
    *,
    optimize: bool = False,
) -> np.ndarray:
    """The whole weight with one axis per mode, padding included; each bond's mask multiplied in once.

    `optimize` lets opt_einsum contract in pairs: for weights that are too large for the naive way.
    """
    total = np.zeros([mode.size for mode in graph.modes])
    for term in graph.terms:
        labels = {edge: at for at, edge in enumerate([*(m.name for m in graph.modes), *(b.name for b in term.bonds)])}
        operands: list[object] = []
        for core in term.cores:
            operands += [
                np.asarray(cores[held_by(graph, term, core)], np.float64),
                [labels[e] for e in core.edges],
            ]
        for bond in term.bonds:
            key = graph.bond_name(term, bond.name)
            if masks is not None and key in masks:
                operands += [np.asarray(masks[key], np.float64), [labels[bond.name]]]
        output = [labels[mode.name] for mode in graph.modes]
        pairs = partial(opt_einsum.contract, optimize="greedy") if optimize else partial(np.einsum, optimize=False)
        total += pairs(*operands, output)
    return total


def whole(graph: Graph, cores: Mapping[str, Tensor]) -> Tensor:
    """The same as `tensor`, without masks and differentiable: every core spread over all edges, multiplied, summed."""
    total = torch.zeros([mode.size for mode in graph.modes], dtype=torch.float64)
    for term in graph.terms:
        edges = [*(mode.name for mode in graph.modes), *(bond.name for bond in term.bonds)]
        entries = torch.ones((), dtype=torch.float64)
        for core in term.cores:
            value = cores[held_by(graph, term, core)].double()
            axes = list(dict.fromkeys(core.edges))
            value = torch.einsum(value, [edges.index(e) for e in core.edges], [edges.index(e) for e in axes])
            order = sorted(range(value.dim()), key=lambda at: edges.index(axes[at]))
            shape = [graph.sizes(term)[edge] if edge in core.edges else 1 for edge in edges]
            entries = entries * value.permute(order).reshape(shape)
        entries = entries.expand([graph.sizes(term)[edge] for edge in edges])
        total = total + entries.flatten(len(graph.modes)).sum(-1) if term.bonds else total + entries
    return total


def held_by(graph: Graph, term: Term, core: Core) -> str:
    """The name of the numbers of a core: its own, or that of the core that it is tied to."""
    if "." in core.tied:
        return core.tied
    return graph.qualified(term, core.tied or core.name)


def dense(graph: Graph, whole: Tensor) -> Tensor:
    """The weight in torch's layout, padding cut off and the row of `padding_idx` zero, from the whole one."""
    if not graph.rules.layout:
        return whole
    names = [mode.name for mode in graph.modes]
    groups = []
    for role in graph.rules.layout:
        wanted = (Role.IN, Role.PATCH) if role is Role.IN else (role,)
        wanted = (Role.GROUP, *wanted) if role is (Role.IN if graph.kind == "conv_transpose" else Role.OUT) else wanted
        groups.append([names.index(mode.name) for own in wanted for mode in graph.modes if mode.role is own])
    sizes = [prod(graph.modes[at].size for at in group) for group in groups]
    flat = whole.permute([at for group in groups for at in group]).reshape(sizes)
    for axis, group in enumerate(groups):
        role = graph.modes[group[-1]].role if group else None
        if role in graph.padding:
            flat = flat.narrow(axis, 0, graph.padding[role][1])
    options = dict(graph.options)
    if "padding_idx" in options:
        flat = flat.index_fill(0, torch.tensor([options["padding_idx"]]), 0.0)
    return flat.reshape(graph.dense_shape)


def rebuilt(found: tnmars.Decomposed) -> Tensor:
    """The weight of a decomposition in torch's layout; a row of `padding_idx` is as the cores have it."""
    whole = tensor(found.graph, {name: core.numpy() for name, core in found.cores.items()}, optimize=True)
    return dense(replace(found.graph, options=()), torch.tensor(whole))


def layer(graph: Graph, weight: Tensor, bias: Tensor | None, *inputs: Tensor) -> Tensor:
    """What torch's own layer gives with the dense weight; for a map, one einsum."""
    options = dict(graph.options)
    groups = prod(mode.size for mode in graph.modes if mode.role is Role.GROUP)
    if graph.kind == "linear":
        return F.linear(inputs[0], torch.block_diag(*weight.chunk(groups)) if groups > 1 else weight, bias)
    if graph.kind == "conv":
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(graph.kernel_size) - 1]
        own = {**options, "bias": bias is not None, "groups": groups, "device": "meta", "dtype": weight.dtype}
        conv = kind(weight.shape[1] * groups, weight.shape[0], graph.kernel_size, **own)
        state = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        return torch.func.functional_call(conv, state, (inputs[0],))
    if graph.kind == "conv_transpose":
        kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[len(graph.kernel_size) - 1]
        own = {**options, "bias": bias is not None, "groups": groups, "device": "meta", "dtype": weight.dtype}
        conv = kind(weight.shape[0], weight.shape[1] * groups, graph.kernel_size, **own)
        state = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        return torch.func.functional_call(conv, state, (inputs[0],))
    if "mode" in options:
        return F.embedding_bag(inputs[0], weight, mode=options["mode"], padding_idx=options.get("padding_idx"))
    if graph.kind == "embedding":
        rows = weight[inputs[0].long()]
        skipped = inputs[0].eq(options["padding_idx"]) if "padding_idx" in options else torch.tensor(False)
        return rows.masked_fill(skipped.unsqueeze(-1), 0.0)
    if graph.kind == "tensor":
        return weight if not inputs else weight[tuple(inputs[0].long().unbind(-1))]
    return _map(graph, weight, inputs)


def _map(graph: Graph, weight: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    size = {mode.name: mode.size for mode in graph.modes}
    letters: dict[str, int] = {}
    operands: list[object] = [weight, [letters.setdefault(mode.name, len(letters)) for mode in graph.modes]]
    given = dict(zip((operand.name for operand in graph.inputs if not operand.same), inputs, strict=True))
    for operand in graph.inputs:
        value, shape = given[operand.same or operand.name], []
        for axis, length in zip(operand.axes, value.shape, strict=True):
            shape += [size[name] for name in axis] if len(axis) > 1 else [length]
        names = [name for axis in operand.axes for name in axis]
        operands += [value.reshape(shape), [letters.setdefault(name, len(letters)) for name in names]]
    output = [letters[name] for axis in graph.output for name in axis]
    with torch.backends.opt_einsum.flags(enabled=False):
        found = torch.einsum(*operands, output)
    shape, at = [], 0
    for axis in graph.output:
        shape.append(prod(found.shape[at : at + len(axis)]))
        at += len(axis)
    return found.reshape(shape)


# --- what to feed it -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """Cores, a bias and inputs for a graph, in float64, all of them leaves that want a gradient if they can."""

    graph: Graph
    cores: dict[str, Tensor]
    bias: Tensor | None
    inputs: tuple[Tensor, ...]

    @property
    def leaves(self) -> list[Tensor]:
        """What has a gradient: cores in the graph's order, then the bias, then inputs."""
        bias = [] if self.bias is None else [self.bias]
        return [*self.cores.values(), *bias, *(value for value in self.inputs if value.is_floating_point())]

    def answer(self) -> Tensor:
        """The truth."""
        return layer(self.graph, dense(self.graph, whole(self.graph, self.cores)), self.bias, *self.inputs)


def problem(
    graph: Graph, batch: int, seed: int = 0, *, image: Sequence[int] = (5, 6, 4), is_whole: bool = False
) -> Problem:
    """Random values for a graph: `batch` rows, tokens or index tuples; the first data axis of a map has that length.

    The weight's entries are about 1 in size, so that errors are too. `is_whole` asks a tensor for all its entries.
    """
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    cores = {}
    for term in graph.terms:
        scale = prod(bond.size for bond in term.bonds) ** (-0.5 / len(term.cores))
        for core in (core for core in term.cores if not core.tied):
            cores[graph.qualified(term, core.name)] = (normal(*graph.shape(term, core)) * scale).requires_grad_()
    bias = normal(graph.out_features).requires_grad_() if graph.has_bias else None
    if graph.kind == "linear":
        inputs: tuple[Tensor, ...] = (normal(batch, graph.in_features),)
    elif graph.kind in ("conv", "conv_transpose"):
        inputs = (normal(batch, graph.in_features, *image_for(graph, image)),)
    elif graph.kind == "embedding":
        bag = (3,) if "mode" in dict(graph.options) else ()
        inputs = (torch.randint(graph.vocab, (batch, *bag), generator=random),)
    elif graph.kind == "tensor":
        columns = [torch.randint(mode.size, (batch,), generator=random) for mode in graph.modes]
        inputs = () if is_whole else (torch.stack(columns, dim=-1),)
    else:
        inputs = tuple(normal(*shape) for shape in map_shapes(graph, batch))
    wanted = tuple(value.requires_grad_() if value.is_floating_point() else value for value in inputs)
    return Problem(graph, cores, bias, wanted)


def image_for(graph: Graph, image: Sequence[int]) -> tuple[int, ...]:
    """The lengths of the spatial axes: those given, or longer where the kernel would not fit without padding."""
    dilation = dict(graph.options).get("dilation", 1)
    steps = dilation if isinstance(dilation, tuple) else (int(dilation),) * len(graph.kernel_size)
    reach = [step * (taps - 1) + 1 for step, taps in zip(steps, graph.kernel_size, strict=True)]
    padding = dict(graph.options).get("padding", 0)
    sides = padding if isinstance(padding, tuple) else (0 if padding == "same" else int(padding),) * len(reach)
    if graph.kind == "conv_transpose":  # of whose output the padding is cut off
        reach = [2 * size + 1 for size in sides]
    elif "padding_mode" in dict(graph.options):  # what is padded comes from the image
        reach = [max(pair) for pair in zip(reach, (size + 1 for size in sides), strict=True)]
    return tuple(map(max, zip(image, reach, strict=False)))


def map_shapes(graph: Graph, batch: int) -> list[tuple[int, ...]]:
    """The shapes of the inputs that a map is given, its data axes in alphabetical order being `batch`, 3, 2, 4 long."""
    sizes = {mode.name: mode.size for mode in graph.modes}
    data = sorted({axis[0] for operand in graph.inputs for axis in operand.axes} - set(sizes))
    sizes |= {name: (batch, 3, 2, 4)[at % 4] for at, name in enumerate(data)}
    given = (operand for operand in graph.inputs if not operand.same)
    return [tuple(prod(sizes[name] for name in axis) for axis in operand.axes) for operand in given]


# --- comparing -------------------------------------------------------------------------------------------------------


def error(found: Tensor, wanted: Tensor) -> float:
    """The norm of the difference over the norm of what is wanted; infinite where shapes differ or a number is none."""
    if found.shape != wanted.shape:
        return float("inf")
    distance = (found.detach().double() - wanted.detach().double()).norm().item()
    ratio = distance / max(wanted.detach().double().norm().item(), FLOOR)
    return ratio if ratio == ratio else float("inf")


def gradients(answer: Tensor, leaves: Sequence[Tensor], seed: int = 0) -> list[Tensor]:
    """The gradients of a random weighting of an answer; zeros where it does not depend on a leaf."""
    random = torch.Generator().manual_seed(seed)
    along = torch.randn(answer.shape, generator=random, dtype=torch.float64).to(answer.dtype)
    if not answer.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(answer, list(leaves), along, allow_unused=True)
    return [torch.zeros_like(leaf) if value is None else value for leaf, value in zip(leaves, found, strict=True)]


# --- asking a layer --------------------------------------------------------------------------------------------------


def spec(name: str) -> Path:
    """The file of a worked example."""
    return Path(__file__).parent.parent / "specs" / f"{name}.yaml"


def compiled(graph: Graph | Path, batch: int = 16, **keywords: object) -> tnmars.TNModule:
    """A layer planned for this batch alone, for planning several is most of what compiling costs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "BATCHES", ())
        patch.setattr(choice, "TOKEN_COUNTS", ())
        return tnmars.compile(graph, batch=batch, **keywords)


@torch.no_grad()
def load(layer: torch.nn.Module, problem: Problem, *, strict: bool = True) -> None:
    """Gives a compiled layer the cores and the bias of a problem, by their names in the state dict."""
    state = {f"cores.{name}": value for name, value in problem.cores.items()}
    if problem.bias is not None:
        state["bias"] = problem.bias
    layer.load_state_dict(state, strict=strict)


def ask(layer: torch.nn.Module, problem: Problem) -> tuple[Tensor, list[Tensor]]:
    """What a compiled layer answers, in its dtype, and its gradients in the order of the problem's leaves."""
    inputs = [
        value.detach().to(layer.dtype).requires_grad_() if value.is_floating_point() else value
        for value in problem.inputs
    ]
    answer = layer(*inputs)
    bias = [] if problem.bias is None else [layer.bias]
    named = dict(layer.named_parameters())  # not `get_parameter`, for which a core named `type` is a method
    cores = [named[f"cores.{name}"] for name in problem.cores]
    return answer, gradients(answer, [*cores, *bias, *(value for value in inputs if value.is_floating_point())])
