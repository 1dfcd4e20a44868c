"""A path on disk: a folder with a table of all points, and a file for the model of each. Nothing is pickled.

A model is written before the table names it, and each file is written completely or not at all. So a path that is
killed at any moment can be continued from its last finished stage.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tnmars.errors import CheckpointError, Problem, TnmarsError
from tnmars.files import make_folder, read_json, write_text
from tnmars.layer.distributed import is_first_rank
from tnmars.layer.module import layers
from tnmars.pruning.by_rank import compiled_layers
from tnmars.pruning.prune_model import prune
from tnmars.store.model import load_into, save
from tnmars.store.plain import decode, encode

TABLE = "curve.json"
START = "start.safetensors"
"""The model that a path began with."""
VERSION = 1


@dataclass(frozen=True, eq=False)
class Make:
    """Makes the model of a point."""

    on_path: Callable[[], nn.Module]
    """Returns the model as it was on the path, with bonds of size 1. It is not to be changed."""

    def __call__(self) -> nn.Module:
        """A new model without bonds of size 1."""
        return finished(self.on_path())


def finished(model: nn.Module) -> nn.Module:
    """A copy of a model on the path without bonds of size 1, which the path itself keeps."""
    return prune(model, {name: {} for name in compiled_layers(model)}, simplify=False)


def held(model: nn.Module) -> Make:
    """What makes the model of a path as it is now."""
    now = copy.deepcopy(model)
    return Make(lambda: now)


def stored(folder: str | Path, stage: int, template: nn.Module) -> Make:
    """What reads the model of a stage into a copy of `template`."""
    return Make(lambda: load_into(copy.deepcopy(template), file_of(folder, stage)))


@torch.no_grad()
def restore_(model: nn.Module, before: nn.Module) -> None:
    """Makes a model what it was at another point of its path. Layers stay the same objects."""
    then = dict(layers(before))
    for name, layer in layers(model):
        graph = then[name].graph
        if graph != layer.graph:
            cores = {core: nn.Parameter(then[name].cores.get(core).detach().clone()) for core in graph.cores}
            layer.become_(replace(layer.planner, graph=graph), cores, {})
    model.load_state_dict(before.state_dict())


def file_of(folder: str | Path, stage: int) -> Path:
    """The file of the model of a stage."""
    return Path(folder) / f"stage-{stage:03}.safetensors"


def write_model(folder: str | Path, stage: int, model: nn.Module) -> None:
    """Writes the model of a stage. Raises `TnmarsError`."""
    save(model, file_of(make_folder(folder), stage))


def write_start(folder: str | Path, model: nn.Module) -> None:
    """Writes the model that a path began with. Raises `TnmarsError`."""
    save(model, make_folder(folder) / START)


def write_table(folder: str | Path, table: Mapping[str, Any]) -> None:
    """Writes the table of a path. Raises `TnmarsError`."""
    data = {"tnmars.curve": VERSION, **encode(dict(table), "curve")}
    if is_first_rank():
        write_text(make_folder(folder) / TABLE, json.dumps(data, indent=1) + "\n")


def read_table(folder: str | Path) -> dict[str, Any] | None:
    """The table of a path; None if the folder has none. Raises `CheckpointError` if it cannot be read."""
    path = Path(folder) / TABLE
    if not path.exists():
        return None
    try:
        data = read_json(path)
        version = data.pop("tnmars.curve")
        table: dict[str, Any] = decode(data)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        text = f"{path}: is not a table of tnmars.shrink: {type(error).__name__} {error}."
        raise CheckpointError(Problem(text, "Give another folder, or remove this one to start again.")) from None
    if version != VERSION:
        raise CheckpointError(f"{path}: has version {version!r}, but this tnmars reads version {VERSION}.")
    return table


def files_of(folder: str | Path) -> list[Path]:
    """All files of the path in a folder; other files do not count."""
    own = [Path(folder) / TABLE, Path(folder) / START, *Path(folder).glob("stage-*.safetensors")]
    return [path for path in own if path.is_file()]


def clear(folder: str | Path) -> None:
    """Removes the path in a folder. Other files stay. Raises `TnmarsError`."""
    try:
        for path in files_of(folder):
            path.unlink()
    except OSError as error:
        raise TnmarsError(f"{folder}: cannot be written: {error.strerror or error}.") from None


def link(source: str | Path, target: str | Path) -> None:
    """Makes the path in `target` that in `source`, without copies of its files. Raises `TnmarsError`."""
    clear(make_folder(target))
    try:
        for path in files_of(source):
            _link(path, Path(target) / path.name)
    except OSError as error:
        raise TnmarsError(f"{target}: cannot be written: {error.strerror or error}.") from None


def _link(source: Path, target: Path) -> None:
    """A second name of a file that is never changed, only replaced; a copy where the disk has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
