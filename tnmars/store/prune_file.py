"""Pruning of a model in a file, without the user's classes: compiled layers are cut, everything else stays as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph
from tnmars.graph.difference import Difference, difference
from tnmars.graph.parts import is_int
from tnmars.layer.module import TNModule
from tnmars.pruning.prune_model import LayerCut, apply, layer_keep
from tnmars.store import layer as record
from tnmars.store.container import Container, read, write
from tnmars.store.loading import Stored, owner
from tnmars.store.model import stored

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
"""The letters of a layer's name that are replaced in the name of a file."""


@dataclass(frozen=True)
class PrunedLayer:
    """A layer of a file after pruning."""

    name: str
    graph: Graph
    difference: Difference


def prune_file(source: str | Path, target: str | Path) -> list[PrunedLayer]:
    """Writes the model of a saved file or a checkpoint with its layers pruned, and returns those that a selector cuts.

    The step that a checkpoint's schedule has reached is noted in the pruned graphs' origin. Cores that layers share
    stay shared. Raises `TnmarsError`, before anything is written, if no selector chooses slices, or as
    `tnmars.prune` does.
    """
    held, layers = pruned(source)
    write(target, held)
    return layers


def pruned(source: str | Path) -> tuple[Container, list[PrunedLayer]]:
    """What `prune_file` writes, and the layers that it returns."""
    held = read(source)
    model = stored(held)
    selecting = [entry for entry in model.layers if _is_selecting(model, entry)]
    if not selecting:
        fix = "Compile layers with one that does, such as Mars() or Ard(). Gates are gone once a layer is pruned."
        raise TnmarsError(Problem(f"{source}: no selector chooses slices, so there is nothing to prune.", fix))
    _check_gates(model, selecting)
    schedule = held.header.get("schedule")
    steps = schedule.get("steps") if isinstance(schedule, Mapping) else None
    step = steps if is_int(steps, 0) else None
    shared: dict[int, nn.Parameter] = {}
    layers = {entry["names"][0]: built(model, entry, shared) for entry in selecting}
    before = {name: layer.graph for name, layer in layers.items()}
    cuts = [LayerCut(layer, name, layer_keep(layer), step, False, True) for name, layer in layers.items()]
    apply(cuts, _outside(model, selecting, shared))
    tensors = dict(model.tensors)
    for entry in selecting:
        _exchange(tensors, entry["names"], layers[entry["names"][0]].state_dict(keep_vars=True))
    entries = [
        {"names": entry["names"], **record.to_json(layers[entry["names"][0]])} if entry in selecting else entry
        for entry in model.layers
    ]
    cut = [PrunedLayer(name, layer.graph, difference(before[name], layer.graph)) for name, layer in layers.items()]
    return Container({"kind": "model", "layers": entries}, tensors), cut


def _is_selecting(model: Stored, entry: Mapping[str, Any]) -> bool:
    try:
        return record.is_selecting(entry)
    except TnmarsError as error:
        raise _placed(error, model, entry) from None


def _placed(error: Exception, model: Stored, entry: Mapping[str, Any]) -> TnmarsError:
    """An error about a layer, with the file and the layer in front of each problem."""
    problems = error.problems if isinstance(error, TnmarsError) else (Problem(str(error)),)
    place = f"{model.source}: layer '{entry['names'][0]}'"
    return TnmarsError([Problem(f"{place}: {one.text}", one.hint) for one in problems])


def _check_gates(model: Stored, selecting: Sequence[Mapping[str, Any]]) -> None:
    """Raises `TnmarsError` if a gate of the file is NaN or infinite, before a layer is built."""
    for entry in selecting:
        for name, value in model.of(entry).items():
            if name.startswith("gates.") and not bool(value.isfinite().all()):
                text = f"{model.source}: '{name}' of layer '{entry['names'][0]}' is NaN or infinite."
                raise TnmarsError(Problem(text, "Training has diverged: prune an earlier checkpoint."))


def built(model: Stored, entry: Mapping[str, Any], shared: dict[int, nn.Parameter] | None = None) -> TNModule:
    """A layer of a file, by itself.

    Layers that are built with the same `shared` share the parameters that are one tensor in the file, by its `id`.
    """
    held = model.of(entry)
    try:
        layer = record.from_json(entry, held)
        layer.load_state_dict({name: value.clone() for name, value in held.items()}, strict=True, assign=True)
    except (TnmarsError, RuntimeError) as error:
        raise _placed(error, model, entry) from None
    if shared is not None:
        for name, value in dict(layer.named_parameters(remove_duplicate=False)).items():
            place, key = owner(layer, name)
            place._parameters[key] = shared.setdefault(id(held[name]), value)
    return layer


def _outside(
    model: Stored, selecting: Sequence[Mapping[str, Any]], shared: Mapping[int, nn.Parameter]
) -> dict[nn.Parameter, str]:
    """The parameters of layers to cut that other parts of the model have too, with their names there."""
    prefixes = tuple(f"{name}." if name else "" for entry in selecting for name in entry["names"])
    others = {name: value for name, value in model.tensors.items() if not name.startswith(prefixes)}
    return {shared[id(value)]: name for name, value in others.items() if id(value) in shared}


def _exchange(tensors: dict[str, Tensor], names: list[str], state: Mapping[str, Tensor]) -> None:
    """Replaces the tensors of a layer under each of its names."""
    for name in names:
        prefix = f"{name}." if name else ""
        for key in [key for key in tensors if key.startswith(prefix)]:
            del tensors[key]
        tensors.update({f"{prefix}{key}": value for key, value in state.items()})


def spec_paths(layers: Sequence[PrunedLayer], path: str | Path) -> dict[str, Path]:
    """Where the graph of each layer is written: the path itself for one layer, with the layer's name for several."""
    base = Path(path)
    if len(layers) == 1:
        return {layers[0].name: base}
    paths: dict[str, Path] = {}
    for layer in layers:
        name = f"{base.stem}.{_UNSAFE.sub('_', layer.name)}"
        while base.with_name(f"{name}{base.suffix}") in paths.values():
            name += "_"
        paths[layer.name] = base.with_name(f"{name}{base.suffix}")
    return paths
