"""Networks of quimb: tensors with named indices, of any graph that has one term."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tnmars.arguments import check_arguments
from tnmars.errors import Problem, TnmarsError, listing, plural
from tnmars.graph import Role
from tnmars.graph.parts import is_identifier
from tnmars.interchange.labelled import as_tensor, layer_of, library, plain
from tnmars.layer.module import TNModule

EXTRA = "interchange"


def from_quimb(
    network: Any,
    *,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] | None = None,
) -> TNModule:
    """A compiled layer of a `TensorNetwork` of quimb: each tensor a core, each inner index a bond.

    Args:
        network: A network, or one tensor. An index of three or more tensors is a hyperedge.
        inputs: The outer indices that are inputs, in order: the layer is then linear, without a bias.
        outputs: The other outer indices in the order of the weight's axes; by default as the network has them. An
            index that is given here and is on several tensors is a shared mode.

    Returns:
        The layer: a `tensor` without `inputs`. A core has the name of a tag that only its tensor has, if that is an
        identifier. Indices keep their names where these are identifiers.

    Raises:
        TnmarsError: An index is not one of the network, or an index stands twice on a tensor.

    Example:
        >>> import quimb.tensor as qtn, tnmars  # doctest: +SKIP
        >>> layer = tnmars.interchange.from_quimb(qtn.MPS_rand_state(4, 3))  # doctest: +SKIP
        >>> layer.graph.dense_shape  # doctest: +SKIP
        (2, 2, 2, 2)
    """
    check_arguments(from_quimb, locals())
    quimb = library("quimb.tensor", EXTRA)
    held = network.as_network() if isinstance(network, quimb.Tensor) else network
    if not isinstance(held, quimb.TensorNetwork):
        raise TnmarsError(f"{type(network).__name__} is not a TensorNetwork of quimb.")
    tensors = list(held.tensors)
    _refuse_traces(tensors)
    scale = 10.0 ** float(held.exponent)
    every = list(dict.fromkeys(index for tensor in tensors for index in tensor.inds))
    taken = list(inputs)
    outside = [index for index in held.outer_inds() if index not in taken] if outputs is None else list(outputs)
    unknown = [index for index in (*taken, *outside) if index not in every]
    if unknown:
        raise TnmarsError(Problem(f"'{unknown[0]}' is not an index of the network.", f"Indices: {listing(every)}."))
    left = [index for index in held.outer_inds() if index not in {*taken, *outside}]
    if left:
        raise TnmarsError(f"outer {plural(len(left), 'index')[2:]} {listing(left)} is neither an input nor an output.")
    label = _identifiers(every, "e")
    kind = "linear" if taken else "tensor"
    roles = [*((index, Role.IN) for index in taken), *((index, Role.OUT if taken else Role.FREE) for index in outside)]
    counts = {index: sum(index in tensor.inds for tensor in tensors) for index in every}
    shared = [label[index] for index, _ in roles if counts[index] > 1]
    cores = {}
    for at, (name, tensor) in enumerate(zip(_names(tensors), tensors, strict=True)):
        value = as_tensor(tensor.data)
        cores[name] = ([label[index] for index in tensor.inds], value * scale if at == 0 and scale != 1.0 else value)
    return layer_of(kind, [(label[index], role) for index, role in roles], cores, shared=shared)


def _refuse_traces(tensors: Sequence[Any]) -> None:
    for tensor in tensors:
        twice = [index for index in tensor.inds if tensor.inds.count(index) > 1]
        if twice:
            raise TnmarsError(f"index '{twice[0]}' stands twice on a tensor; contract that trace first.")


def _identifiers(names: Iterable[str], letter: str) -> dict[str, str]:
    """Names that a graph can have, for names that need not be such."""
    found: dict[str, str] = {}
    for name in names:
        plain_name = name if is_identifier(name) else re.sub(r"\W", "_", f"{letter}{name}", flags=re.ASCII)
        while plain_name in found.values():
            plain_name += "_"
        found[name] = plain_name
    return found


def _names(tensors: Sequence[Any]) -> list[str]:
    """A name for each tensor: a tag that no other has, or its number."""
    tags = [tag for tensor in tensors for tag in tensor.tags]
    names = []
    for at, tensor in enumerate(tensors, 1):
        own = [tag for tag in tensor.tags if tags.count(tag) == 1 and is_identifier(tag)]
        names.append(own[0] if own else f"T{at}")
    return (
        list(_identifiers(names, "T").values())
        if len(set(names)) == len(names)
        else [f"T{at}" for at in range(1, len(tensors) + 1)]
    )


def to_quimb(layer: TNModule) -> Any:
    """The weight of a compiled layer as a `TensorNetwork` of quimb: each core a tensor, each edge an index.

    Args:
        layer: A layer of one term, without gates and padding. Its bias, if any, is left out.

    Returns:
        The network, with torch tensors that are copies of the cores; a conjugate core becomes the conjugate of its
        numbers. A tensor's tag is the name of its core. Shared modes are outer indices of several tensors: name them
        as `output_inds` when you contract.

    Raises:
        TnmarsError: The graph has several terms, or none.

    Example:
        >>> import tnmars
        >>> layer = tnmars.compile(tnmars.families.tt("tensor", free=(4, 5, 6), rank=2))
        >>> tnmars.interchange.to_quimb(layer).outer_inds()  # doctest: +SKIP
        ('n1', 'n2', 'n3')
    """
    check_arguments(to_quimb, locals())
    quimb = library("quimb.tensor", EXTRA)
    layer = plain(layer, "quimb", groups=True)
    graph = layer.graph
    if len(graph.terms) != 1:
        text = f"the graph is a sum of {plural(len(graph.terms), 'term')}, but a network of quimb is one product."
        raise TnmarsError(Problem(text, "Convert one term at a time."))
    (term,) = graph.terms
    traced = [core.name for core in term.cores if core.has_trace]
    if traced:
        text = f"core '{traced[0]}' has a trace, and a tensor of quimb has each index once."
        raise TnmarsError(Problem(text, "Compile a graph without the trace."))
    tensors = []
    for core in term.cores:
        held = layer.cores.get(core.name).detach()
        used = held.conj().resolve_conj() if core.conj else held
        value = used.clone(memory_format=torch.contiguous_format)
        tensors.append(quimb.Tensor(value, inds=core.edges, tags=[core.name]))
    return quimb.TensorNetwork(tensors)
