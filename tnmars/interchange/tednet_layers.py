"""Layers of tednet, from and to compiled ones: its linear layers and 2d convolutions.

One table says for each class how its parameters are the cores of a graph. It is read in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.arguments import check_arguments
from tnmars.errors import Problem, TnmarsError, listing
from tnmars.graph import MAIN, Role
from tnmars.interchange.labelled import arranged, as_tensor, frozen_like, layer_of, library, plain, refused
from tnmars.layer.module import TNModule

EXTRA = "interchange"
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Slot:
    """A core of a layer of tednet: the names of its axes, and the parameters that hold it."""

    edges: Sequence[str]
    names: Sequence[str]
    """One parameter; or one for each entry of the last axis, which are stacked."""
    is_reversed: bool = False
    """Whether the layer reads the numbers of the parameter with the order of the axes reversed."""

    def read(self, layer: nn.Module) -> Tensor:
        if len(self.names) > 1 or len(self.edges) > layer.get_parameter(self.names[0]).dim():
            return torch.stack([layer.get_parameter(name) for name in self.names], -1)
        value = layer.get_parameter(self.names[0])
        return value.reshape(value.shape[::-1]) if self.is_reversed else value

    def write(self, layer: nn.Module, value: Tensor) -> None:
        stacked = len(self.names) > 1 or value.dim() > layer.get_parameter(self.names[0]).dim()
        for at, name in enumerate(self.names):
            held = layer.get_parameter(name)
            held.data = (value[..., at] if stacked else value).reshape(held.shape).clone()


Terms = dict[str, dict[str, Slot]]


@dataclass(frozen=True)
class Form:
    """A class of tednet: its cores for a number of inputs, outputs and blocks, and how it is made of sizes."""

    module: str
    kind: str
    terms: Callable[[int, int, int], Terms]
    """From the numbers of inputs, outputs and blocks (or of the rank, where a block has rank 1)."""
    arguments: Callable[[Sequence[int], Sequence[int], Sequence[Sizes]], dict[str, Any]]
    """From the sizes of inputs and outputs, and of each term's bonds."""
    fits: Callable[[int, int], bool] = lambda inside, outside: True
    is_sum: bool = False
    """Whether the weight has a term for each block."""


def _bond(at: int) -> str:
    return f"r{at}"


def _train_linear(inside: int, _: int, __: int) -> Terms:
    slots = {}
    for at in range(inside):
        left = [_bond(at)] if at else []
        right = [_bond(at + 1)] if at < inside - 1 else []
        slots[f"G{at + 1}"] = Slot([f"i{at + 1}", f"o{at + 1}", *left, *right], [f"node{at}"])
    return {MAIN: slots}


def _train_conv(inside: int, _: int, __: int) -> Terms:
    slots = {"K": Slot([_bond(0), "unit", "k1", "k2"], ["kernel.weight"])}
    for at in range(inside):
        right = [_bond(at + 1)] if at < inside - 1 else []
        slots[f"G{at + 1}"] = Slot([f"i{at + 1}", f"o{at + 1}", _bond(at), *right], [f"node{at}"])
    return {MAIN: slots}


def _ring_linear(inside: int, outside: int, _: int) -> Terms:
    modes = [*(f"i{at + 1}" for at in range(inside)), *(f"o{at + 1}" for at in range(outside))]
    count = len(modes)
    return {
        MAIN: {
            f"G{at + 1}": Slot([_bond(at), mode, _bond((at + 1) % count)], [f"node{at}"])
            for at, mode in enumerate(modes)
        }
    }


def _ring_conv(inside: int, outside: int, _: int) -> Terms:
    last = inside + outside + 1
    slots = {f"G{at + 1}": Slot([_bond(at), f"i{at + 1}", _bond(at + 1)], [f"in_node{at}"]) for at in range(inside)}
    slots["K"] = Slot([_bond(inside + 1), _bond(inside), "k1", "k2"], ["kernel.weight"])
    for at in range(outside):
        left = inside + 1 + at
        slots[f"H{at + 1}"] = Slot([_bond(left), f"o{at + 1}", _bond((left + 1) % last)], [f"out_node{at}"])
    return {MAIN: slots}


def _blocks_linear(inside: int, outside: int, blocks: int) -> Terms:
    modes = [*(f"i{at + 1}" for at in range(inside)), *(f"o{at + 1}" for at in range(outside))]
    return {
        MAIN: {
            f"A{at + 1}": Slot([mode, "r"], [f"node{at}_block{block}" for block in range(blocks)])
            for at, mode in enumerate(modes)
        }
    }


def _blocks_conv(_: int, __: int, blocks: int) -> Terms:
    names = {"i1": "in", "o1": "out", "k1": "k0", "k2": "k1"}
    return {
        MAIN: {
            f"A{at}": Slot([mode, "r"], [f"node_{name}_block{block}" for block in range(blocks)])
            for at, (mode, name) in enumerate(names.items(), 1)
        }
    }


def _two_linear(inside: int, _: int, __: int) -> Terms:
    middle = {"G": Slot(["i2", "i3", "r1", "r2"], ["node_core"])} if inside > 1 else {}
    last = "r2" if inside > 1 else "r1"
    return {MAIN: {"A": Slot(["i1", "r1"], ["node0"]), **middle, "B": Slot([last, "o1"], ["node1"])}}


def _two_conv(_: int, __: int, ___: int) -> Terms:
    kernel = Slot(["r2", "r1", "k1", "k2"], ["kernel.weight"])
    return {MAIN: {"A": Slot(["i1", "r1"], ["node0"]), "G": kernel, "B": Slot(["r2", "o1"], ["node1"])}}


def _hubs(inside: int, blocks: int, factor: str, taps: bool) -> Terms:
    found = {}
    for block in range(blocks):
        bonds = [f"r{at + 1}" for at in range(inside)] + (["s1", "s2"] if taps else [])
        # its linear layer multiplies by the numbers of the core as if the order of its axes were reversed
        slots = {"G": Slot(bonds if taps else bonds[::-1], [f"core_block{block}"], is_reversed=not taps)}
        for at in range(inside):
            name = f"{factor}{at}_block{block}"
            slots[f"U{at + 1}"] = Slot([f"i{at + 1}", f"o{at + 1}", f"r{at + 1}"], [name])
        for at in range(2 if taps else 0):
            slots[f"V{at + 1}"] = Slot([f"k{at + 1}", f"s{at + 1}"], [f"k{at}_factor_block{block}"])
        found[f"t{block + 1}" if blocks > 1 else MAIN] = slots
    return found


def _bonds(sizes: Sizes, first: str = "r", start: int = 1) -> list[int]:
    """The sizes of the bonds `r1`, `r2`, ... in order."""
    found = []
    while f"{first}{start}" in sizes:
        found.append(sizes[f"{first}{start}"])
        start += 1
    return found


def _shapes(inside: Sequence[int], outside: Sequence[int], **more: Any) -> dict[str, Any]:
    return {"in_shape": list(inside), "out_shape": list(outside), **more}


def _channels(inside: Sequence[int], outside: Sequence[int], **more: Any) -> dict[str, Any]:
    return {"c_in": inside[0], "c_out": outside[0], **more}


def _pairs(inside: int, outside: int) -> bool:
    return inside == outside


def _one_each(inside: int, outside: int) -> bool:
    return inside == outside == 1


FORMS = {
    "TTLinear": Form(
        "tednet.tnn.tensor_train", "linear", _train_linear, lambda i, o, s: _shapes(i, o, ranks=_bonds(s[0])), _pairs
    ),
    "TTConv2D": Form(
        "tednet.tnn.tensor_train",
        "conv",
        _train_conv,
        lambda i, o, s: _shapes(i, o, ranks=_bonds(s[0], start=0)),
        _pairs,
    ),
    "CPLinear": Form("tednet.tnn.cp", "linear", _blocks_linear, lambda i, o, s: _shapes(i, o, rank=s[0]["r"])),
    "CPConv2D": Form("tednet.tnn.cp", "conv", _blocks_conv, lambda i, o, s: _channels(i, o, rank=s[0]["r"]), _one_each),
    "TK2Linear": Form(
        "tednet.tnn.tucker2",
        "linear",
        _two_linear,
        lambda i, o, s: {"in_shape": list(i), "out_size": o[0], "ranks": _bonds(s[0])},
        lambda inside, outside: inside in (1, 3) and outside == 1,
    ),
    "TK2Conv2D": Form(
        "tednet.tnn.tucker2", "conv", _two_conv, lambda i, o, s: _channels(i, o, ranks=_bonds(s[0])), _one_each
    ),
    "TRLinear": Form(
        "tednet.tnn.tensor_ring", "linear", _ring_linear, lambda i, o, s: _shapes(i, o, ranks=_bonds(s[0], start=0))
    ),
    "TRConv2D": Form(
        "tednet.tnn.tensor_ring", "conv", _ring_conv, lambda i, o, s: _shapes(i, o, ranks=_bonds(s[0], start=0))
    ),
    "BTTLinear": Form(
        "tednet.tnn.bt_tucker",
        "linear",
        lambda i, o, blocks: _hubs(i, blocks, "factor", False),
        lambda i, o, s: _shapes(i, o, ranks=_bonds(s[0]), block_num=len(s)),
        _pairs,
        is_sum=True,
    ),
    "BTTConv2D": Form(
        "tednet.tnn.bt_tucker",
        "conv",
        lambda i, o, blocks: _hubs(i, blocks, "c_factor", True),
        lambda i, o, s: _shapes(i, o, ranks=[*_bonds(s[0]), *_bonds(s[0], "s")], block_num=len(s)),
        _pairs,
        is_sum=True,
    ),
}
"""The classes of tednet by name, in the order in which they are tried."""


def from_tednet(layer: nn.Module) -> TNModule:
    """A compiled layer that computes what a layer of tednet computes, with the same numbers.

    Args:
        layer: One of tednet's linear layers or 2d convolutions, such as `TTLinear` or `CPConv2D`.

    Returns:
        The layer, with options, bias, dtype and device of the given one.

    Raises:
        TnmarsError: It is none of these.

    Example:
        >>> import tednet.tnn.tensor_ring as ring, tnmars  # doctest: +SKIP
        >>> layer = ring.TRLinear([4, 5], [3, 6], [2, 2, 2, 2])  # doctest: +SKIP
        >>> tnmars.interchange.from_tednet(layer).graph.signature  # doctest: +SKIP
        '20 -> 18'
    """
    check_arguments(from_tednet, locals())
    library("tednet", EXTRA)
    name = type(layer).__name__
    if name not in FORMS or not type(layer).__module__.startswith("tednet."):
        raise TnmarsError(Problem(f"{name} is not known.", f"tnmars takes {listing(list(FORMS))} of tednet."))
    form, held = FORMS[name], _any(layer)
    inside, outside = len(held.in_shape), len(held.out_shape)
    blocks = int(held.block_num) if form.is_sum else int(held.ranks[0])
    terms = form.terms(inside, outside, blocks)
    modes: list[tuple[str, Role]] = [(f"i{at + 1}", Role.IN) for at in range(inside)]
    modes += [(f"o{at + 1}", Role.OUT) for at in range(outside)]
    options = {}
    if form.kind == "conv":
        modes += [("k1", Role.KERNEL), ("k2", Role.KERNEL)]
        options = {"stride": held.stride, "padding": held.padding}
    read = {
        term: {core: (slot.edges, as_tensor(slot.read(layer))) for core, slot in slots.items()}
        for term, slots in terms.items()
    }
    made = layer_of(form.kind, modes, read, bias=held.bias, options=options)
    return made.train(layer.training)


def _any(layer: nn.Module) -> Any:
    return layer


def to_tednet(layer: TNModule) -> nn.Module:
    """A layer of tednet that computes what a compiled layer computes, with the same numbers.

    Args:
        layer: A linear layer or a 2d convolution, without gates and padding of its modes.

    Returns:
        The layer, of the first class of tednet that the graph fits, with new parameters.

    Raises:
        TnmarsError: tednet has no class for the graph.

    Example:
        >>> import tnmars
        >>> layer = tnmars.Linear(20, 18, family="tt", rank=3, ways=2)
        >>> type(tnmars.interchange.to_tednet(layer)).__name__  # doctest: +SKIP
        'TTLinear'
    """
    check_arguments(to_tednet, locals())
    library("tednet", EXTRA)
    layer = plain(layer, "tednet")
    graph = layer.graph
    options = dict(graph.options)
    inside, outside = graph.of_role(Role.IN), graph.of_role(Role.OUT)
    sizes = [mode.size for mode in inside], [mode.size for mode in outside]
    fitting = [name for name, form in FORMS.items() if form.kind == graph.kind]
    if graph.kind == "conv" and (len(graph.of_role(Role.KERNEL)) != 2 or not _is_plain(options)):
        raise refused(layer, "tednet", fitting)
    for name in fitting:
        form = FORMS[name]
        if not form.fits(*map(len, sizes)):
            continue
        found = _found(layer, form)
        if found is None:
            continue
        terms, values, bonds = found
        module = library(form.module, EXTRA)
        given = {**form.arguments(*sizes, bonds), "bias": graph.has_bias}
        if graph.kind == "conv":
            given |= {"kernel_size": graph.kernel_size, "stride": options.get("stride", 1)}
            given["padding"] = options.get("padding", 0)
        with redirect_stdout(StringIO()), torch.random.fork_rng(devices=[]):  # it prints, and draws numbers
            made: nn.Module = getattr(module, name)(**given)
        for slots, arrays in zip(terms, values, strict=True):
            for core, slot in slots.items():
                slot.write(made, arrays[core])
        if layer.bias is not None:
            made.bias = nn.Parameter(layer.bias.detach().clone())
        return frozen_like(made, layer)
    raise refused(layer, "tednet", fitting)


def _is_plain(options: Mapping[str, Any]) -> bool:
    """Whether tednet's convolutions have these options."""
    dilation = options.get("dilation", 1)
    ones = dilation == 1 or set(dilation if isinstance(dilation, tuple) else [dilation]) == {1}
    return ones and not isinstance(options.get("padding"), str)


Found = tuple[list[dict[str, Slot]], list[dict[str, Tensor]], list[Sizes]]


def _found(layer: TNModule, form: Form) -> Found | None:
    """The cores of a layer in the layout of a class: slots, values and sizes of bonds, for each term."""
    graph = layer.graph
    count = len(graph.terms)
    if count > 1 and not form.is_sum:
        return None
    inside, outside = len(graph.of_role(Role.IN)), len(graph.of_role(Role.OUT))
    own = {
        f"{letter}{at}": mode.name
        for letter, role in zip("iok", (Role.IN, Role.OUT, Role.KERNEL), strict=True)
        for at, mode in enumerate(graph.of_role(role), 1)
    }
    blocks = count if form.is_sum else max((bond.size for bond in graph.bonds.values()), default=1)
    terms = list(form.terms(inside, outside, blocks).values())
    values: list[dict[str, Tensor]] = []
    sizes: list[Sizes] = []
    for at, slots in enumerate(terms):
        layout = {core: [own.get(edge, edge) for edge in slot.edges] for core, slot in slots.items()}
        found = arranged(layer, layout, at)
        if found is None:
            return None
        values.append(found)
        sizes.append({edge: found[core].shape[k] for core, slot in slots.items() for k, edge in enumerate(slot.edges)})
    if any(entry != sizes[0] for entry in sizes[1:]):
        return None  # blocks of tednet have equal ranks
    return terms, values, sizes
