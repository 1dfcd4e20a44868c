"""Pruning of a model in a file, without the user's classes: its compiled layers are cut, all else stays as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph
from tnmars.graph.difference import Difference, difference
from tnmars.layer.module import TNModule
from tnmars.pruning.prune_model import prune
from tnmars.store import layer as record
from tnmars.store.container import Container, read, write
from tnmars.store.model import Stored, stored

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
"""What is not taken over from a layer's name into that of a file."""


@dataclass(frozen=True)
class Cut:
    """A layer that was pruned."""

    name: str
    graph: Graph
    difference: Difference


def prune_file(source: str | Path, target: str | Path) -> list[Cut]:
    """Writes the model of a saved file or a checkpoint with its gated layers pruned. Returns what was done to them.

    A step that a checkpoint's schedule has counted is noted in the pruned graphs' origin.
    """
    held = read(source)
    model = stored(held)
    if not any(entry["gates"] for entry in model.layers):
        fix = "Only layers that were compiled with a selector, and not pruned yet, have some."
        raise TnmarsError(Problem(f"{source}: no layer has gates, so there is nothing to prune.", fix))
    schedule = held.header.get("schedule")
    tensors = dict(model.tensors)
    entries, cuts = [], []
    for entry in model.layers:
        if not entry["gates"]:
            entries.append(entry)
            continue
        layer = built(model, entry)
        small = prune(layer, step=schedule["steps"] if schedule else None)
        assert isinstance(small, TNModule)
        entries.append({"names": entry["names"], **record.to_json(small)})
        _exchange(tensors, entry["names"], small.state_dict(keep_vars=True))
        cuts.append(Cut(entry["names"][0], small.graph, difference(layer.graph, small.graph)))
    write(target, Container({"kind": "model", "layers": entries}, tensors))
    return cuts


def built(model: Stored, entry: Mapping[str, Any]) -> TNModule:
    """A layer of a file, by itself."""
    try:
        layer = record.from_json(entry)
        own = {name: value.clone() for name, value in model.of(entry).items()}  # not views of the whole file
        layer.load_state_dict(own, strict=True, assign=True)
    except (TnmarsError, RuntimeError) as error:
        raise TnmarsError(f"layer '{entry['names'][0]}': {error}") from None
    return layer


def _exchange(tensors: dict[str, Tensor], names: list[str], state: Mapping[str, Tensor]) -> None:
    """Puts the tensors of a layer in the place of those it had, under each of its names."""
    for name in names:
        prefix = f"{name}." if name else ""
        for key in [key for key in tensors if key.startswith(prefix)]:
            del tensors[key]
        tensors.update({f"{prefix}{key}": value for key, value in state.items()})


def spec_paths(cuts: Sequence[Cut], path: str | Path) -> dict[str, Path]:
    """Where the graph of each layer is written: the path itself for one layer, with the layer's name for several."""
    base = Path(path)
    if len(cuts) == 1:
        return {cuts[0].name: base}
    found: dict[str, Path] = {}
    for cut in cuts:
        name = f"{base.stem}.{_UNSAFE.sub('_', cut.name)}"
        while base.with_name(f"{name}{base.suffix}") in found.values():
            name += "_"
        found[cut.name] = base.with_name(f"{name}{base.suffix}")
    return found
