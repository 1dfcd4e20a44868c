"""A model for a report: one in memory, or one in a file of `save` or `save_checkpoint`, without the user's classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tnmars.errors import Problem, TnmarsError
from tnmars.layer.module import TNModule, layers
from tnmars.store.container import read
from tnmars.store.model import stored
from tnmars.store.plain import decode
from tnmars.store.prune_file import built

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""What torch's layers call tensors that are not parameters; a file does not mark them in any other way."""


@dataclass(frozen=True)
class Source:
    """What a report needs from a model."""

    layers: Mapping[str, TNModule]
    cores: int
    """The parameters of all cores; one that several layers share counts once."""
    other: int
    """All other parameters but the logits of gates: biases, and layers that are not compiled."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """Parameters by all their names; in a file, all tensors."""
    history: Sequence[Mapping[str, Any]] = ()
    """What a checkpoint of the training loop says about each epoch."""


def opened(model: object) -> Source:
    """A model, or what the file at a path holds. Raises `TnmarsError` if it is neither."""
    if isinstance(model, nn.Module):
        held = dict(layers(model))
        cores = {id(value): value.numel() for layer in held.values() for value in layer.cores.parameters()}
        named: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
        return Source(held, sum(cores.values()), _other(model.parameters(), held.values()), named)
    if not isinstance(model, (str, Path)):
        fix = "Give an nn.Module, or the path of a file of tnmars.save or tnmars.save_checkpoint."
        raise TnmarsError(Problem(f"a {type(model).__name__} is not a model.", fix))
    return _from_file(model)


def _other(values: Iterable[Tensor], held: Iterable[TNModule]) -> int:
    known = {id(value) for layer in held for value in (*layer.cores.parameters(), *layer.logits())}
    return sum(value.numel() for value in values if id(value) not in known)


def _from_file(path: str | Path) -> Source:
    held = read(path)
    model = stored(held)
    shared: dict[int, nn.Parameter] = {}
    found = {entry["names"][0]: built(model, entry, shared) for entry in model.layers}
    prefixes = tuple(f"{name}." if name else "" for entry in model.layers for name in entry["names"])
    rest = {id(value): value for name, value in model.tensors.items() if _counts(name, value, prefixes)}
    biases = sum(layer.bias.numel() for layer in found.values() if layer.bias is not None)
    # Tied tensors are one object here; in the layers that were built each has its own parameter.
    cores = {id(v): v.numel() for entry in model.layers for k, v in model.of(entry).items() if k.startswith("cores.")}
    other = biases + sum(value.numel() for value in rest.values())
    return Source(found, sum(cores.values()), other, model.tensors, _history(held.header))


def _counts(name: str, value: Tensor, prefixes: tuple[str, ...]) -> bool:
    is_statistic = name.rpartition(".")[2] in STATISTICS
    return not name.startswith(prefixes) and value.is_floating_point() and not is_statistic


def _history(header: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    extra = decode(header["extra"]) if header.get("extra") is not None else None
    found = extra.get("history") if isinstance(extra, Mapping) else None
    return found if isinstance(found, (list, tuple)) else ()
