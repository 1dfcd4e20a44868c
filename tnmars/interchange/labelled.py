"""Arrays with names on their axes: what every other library's object is before it becomes a layer, and after.

`layer_of` makes a compiled layer of labelled arrays. `arranged` goes the other way: it finds the cores of a layer in a
layout that another library has, by the modes that each core holds, and returns them with axes in the layout's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.compiler import compile
from tnmars.errors import Problem, ShapeError, TnmarsError, listing
from tnmars.graph import MAIN, Core, Edge, Graph, Role, Term
from tnmars.layer.module import TNModule

Labelled = Mapping[str, tuple[Sequence[str], Tensor]]
"""For each core the names of its axes, and its values."""
Layout = Mapping[str, Sequence[str]]
"""For each core of a layout the names of its axes: modes of the graph, and bonds under the layout's own names."""
Modes = Sequence[tuple[str, Role]]
"""The modes of a weight, in order. Their sizes are those of the arrays."""


def library(name: str, extra: str) -> Any:
    """A library, imported now. Raises `TnmarsError` if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != name.partition(".")[0]:
            raise
        text = f"{name} is not installed."
        raise TnmarsError(Problem(text, f"Install it: pip install 'tnmars[{extra}]'.")) from None


def as_tensor(value: Any) -> Tensor:
    """An array of another library as a tensor. A tensor stays the same object."""
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
    if not tensor.is_floating_point() and not tensor.is_complex():
        raise TnmarsError(f"an array is of type {tensor.dtype}, but must have floating-point or complex numbers.")
    return tensor


def layer_of(
    kind: str,
    modes: Modes,
    terms: Mapping[str, Labelled] | Labelled,
    *,
    bias: Tensor | None = None,
    options: Mapping[str, Any] | None = None,
    shared: Iterable[str] = (),
    name: str = "",
) -> TNModule:
    """A compiled layer with these cores. An axis of size 1 that only one core has is dropped, if it is no mode.

    Raises `ShapeError` if the arrays do not agree about a size.
    """
    several: Any = terms if all(isinstance(value, Mapping) for value in terms.values()) else {MAIN: terms}
    known = {mode for mode, _ in modes}
    sizes: dict[str, int] = {}
    built: list[Term] = []
    values: dict[str, Tensor] = {}
    fixed: list[str] = []
    for term, labelled in several.items():
        cores = _without_ends(labelled, known)
        bonds = _sizes(cores, known, sizes)
        edges = tuple(Edge(bond, size) for bond, size in bonds.items())
        built.append(Term(term, edges, tuple(Core(core, tuple(axes)) for core, (axes, _) in cores.items())))
        prefix = f"{term}." if len(several) > 1 else ""
        values |= {f"{prefix}{core}": value for core, (_, value) in cores.items()}
        fixed += [f"{prefix}{core}" for core, (_, value) in labelled.items() if _is_fixed(value)]
    given = dict(options or {})
    if kind in ("linear", "conv"):
        given["bias"] = bias is not None
    graph = Graph(
        kind,
        tuple(Edge(mode, sizes[mode], role) for mode, role in modes),
        tuple(built),
        tuple(shared),
        options=tuple(given.items()),
        name=name,
    )
    layer = _filled(graph, values, bias)
    for core in fixed:
        layer.cores.get(core).requires_grad_(False)
    return layer


def _is_fixed(value: Tensor) -> bool:
    return isinstance(value, nn.Parameter) and not value.requires_grad


def _without_ends(cores: Labelled, modes: set[str]) -> dict[str, tuple[list[str], Tensor]]:
    axes = [axis for edges, _ in cores.values() for axis in edges]
    found = {}
    for core, (edges, value) in cores.items():
        if len(edges) != value.dim():
            raise ShapeError(f"array '{core}' has shape {tuple(value.shape)}, but must have {len(edges)} axes.")
        ends = [at for at, axis in enumerate(edges) if axes.count(axis) == 1 and axis not in modes]
        wide = [f"{value.shape[at]}" for at in ends if value.shape[at] != 1]
        if wide:
            raise ShapeError(f"array '{core}' has an outer axis of size {wide[0]}, but must have size 1 there.")
        kept = [at for at in range(value.dim()) if at not in ends]
        found[core] = ([edges[at] for at in kept], value.reshape([value.shape[at] for at in kept]) if ends else value)
    return found


def _sizes(cores: Labelled, modes: set[str], sizes: dict[str, int]) -> dict[str, int]:
    """The sizes of the bonds of a term; adds those of the modes to `sizes`."""
    bonds: dict[str, int] = {}
    for core, (edges, value) in cores.items():
        for edge, size in zip(edges, value.shape, strict=True):
            held = (sizes if edge in modes else bonds).setdefault(edge, size)
            if held != size:
                text = (
                    f"array '{core}' has shape {tuple(value.shape)}: axis '{edge}' has size {size}, but {held} before."
                )
                raise ShapeError(text)
    return bonds


def _filled(graph: Graph, values: Mapping[str, Tensor], bias: Tensor | None) -> TNModule:
    dtypes = {value.dtype for value in values.values()}
    first = next(iter(values.values()))
    if len(dtypes) > 1:
        raise TnmarsError(f"the arrays are of several types: {listing(sorted(map(str, dtypes)))}.")
    if bias is not None and not graph.has_bias:
        raise TnmarsError(f"bias is given, but a layer of kind '{graph.kind}' has none. Leave it out.")
    if bias is not None and tuple(bias.shape) != (graph.out_features,):
        raise ShapeError(f"bias has shape {tuple(bias.shape)}, but must be ({graph.out_features},).")
    with torch.random.fork_rng(devices=[]):  # cores are drawn first
        layer = compile(graph, device=first.device, dtype=first.dtype)
    with torch.no_grad():
        for name, value in values.items():
            layer.cores.get(name).copy_(value)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer


def weight_modes(graph: Graph) -> list[str]:
    """The modes in the order of the axes of the dense weight."""
    return [name for axis in graph.weight_axes for name in axis]


def plain(layer: Any, target: str, *, groups: bool = False) -> TNModule:
    """The layer, if its cores are all that there is; `groups` says whether the other side has groups. Raises
    `TnmarsError`."""
    if not isinstance(layer, TNModule):
        raise TnmarsError(f"{type(layer).__name__} is not a compiled layer of tnmars.")
    if layer.masks is not None:
        raise TnmarsError(Problem("the layer has gates.", "Prune it first: tnmars.prune(layer)."))
    if layer.graph.padding:
        hint = "Choose modes whose product is the size, or take layer.dense()."
        raise TnmarsError(Problem(f"the layer has padding, which {target} does not have.", hint))
    if layer.graph.of_role(Role.GROUP) and not groups:
        raise TnmarsError(Problem(f"the layer has groups, which {target} does not have.", "Take layer.dense()."))
    border = dict(layer.graph.options).get("padding_mode", "zeros")
    if border != "zeros":
        text = f"the layer has padding_mode '{border}', which {target} does not have."
        raise TnmarsError(Problem(text, "Pad the images yourself, and compile the layer without padding."))
    return layer


def refused(layer: TNModule, target: str, known: Iterable[str]) -> TnmarsError:
    """The error for a graph that another library does not have."""
    graph = replace(layer.graph, origin=None)
    cores = "; ".join(str(term) for term in graph.terms)
    hint = f"It has, for this kind of layer: {listing(list(known))}. to_quimb takes any graph of one term."
    return TnmarsError(Problem(f"{target} has nothing for {graph.kind} with cores {cores}.", hint))


def arranged(layer: TNModule, layout: Layout, term: int = 0) -> dict[str, Tensor] | None:
    """The cores of a term of a layer in a layout: the same names and axes. None if the graph is not the layout's.

    Cores are found by the modes that they hold, bonds by the cores that they join. A bond that the graph does not have
    has size 1. The values are detached copies.
    """
    graph = layer.graph
    modes = {mode.name for mode in graph.modes}
    own = graph.terms[term]
    if not graph.is_plain:
        return None
    places = _by_modes(layout, modes)
    cores = _by_modes({core.name: core.edges for core in own.cores}, modes)
    if places is None or cores is None or places.keys() != cores.keys():
        return None
    name_of = {cores[held]: place for held, place in places.items()}
    free: dict[frozenset[str], list[str]] = {}
    for bond in dict.fromkeys(axis for edges in layout.values() for axis in edges if axis not in modes):
        free.setdefault(frozenset(core for core, edges in layout.items() if bond in edges), []).append(bond)
    label: dict[str, str] = {mode: mode for mode in modes}
    for bond, ends in own.ends().items():
        if bond in modes:
            continue
        waiting = free.get(frozenset(name_of[end] for end in ends))
        if not waiting:
            return None
        label[bond] = waiting.pop(0)
    found = {}
    for core in own.cores:
        held = layer.cores.get(graph.qualified(own, core.name)).detach()
        value = held.conj().resolve_conj() if core.conj else held
        axes = [label[edge] for edge in core.edges]
        wanted = layout[name_of[core.name]]
        order = [axes.index(axis) for axis in wanted if axis in axes]
        shape = [value.shape[axes.index(axis)] if axis in axes else 1 for axis in wanted]
        found[name_of[core.name]] = value.permute(order).reshape(shape).clone(memory_format=torch.contiguous_format)
    return {core: found[core] for core in layout}


def _by_modes(cores: Layout, modes: set[str]) -> dict[frozenset[str], str] | None:
    """The cores by the modes that they hold; None if two hold the same."""
    found = {frozenset(edge for edge in edges if edge in modes): core for core, edges in cores.items()}
    return found if len(found) == len(cores) else None


def frozen_like(made: nn.Module, layer: TNModule) -> nn.Module:
    """The module, on the device of a layer, in its training mode, and trained if the layer's cores are."""
    trained = any(value.requires_grad for value in layer.cores.parameters())
    for value in made.parameters():
        value.requires_grad_(trained)
    return made.to(layer.device).train(layer.training)
