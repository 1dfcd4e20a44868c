"""A path that continues: what a checkpoint says, compared with what is asked for now."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.errors import CheckpointError, Problem
from tnmars.shrinking.curve import Curve, curve_of
from tnmars.shrinking.folder import START, TABLE, read_table, stored, write_table
from tnmars.shrinking.settings import Staircase


@dataclass(frozen=True)
class Record:
    """What must be the same for a path to continue."""

    function: str
    """What writes the checkpoint: `shrink` or `Stages`."""
    settings: Staircase
    goals: str
    ranks: Mapping[str, Mapping[str, int]]
    """The ranks of the model at the start of the path."""
    weights: str
    """The `fingerprint` of the model at the start of the path."""
    saliency: str
    train_samples: int | None

    def data(self) -> dict[str, Any]:
        return asdict(self)


def fingerprint(model: nn.Module) -> str:
    """A hash of all parameters and buffers of a model."""
    found = hashlib.sha256()
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


@dataclass(frozen=True)
class State:
    """Where a path is, besides its points."""

    position: Mapping[str, int] | None
    """The user's own place, such as that in the training data."""
    share: float
    """The share of all rates that is left."""
    steps: int
    """The training steps so far, those of repeated stages included."""
    rest_ms: float
    """The milliseconds of all parts that are not compiled, if they were measured."""
    untaken: Sequence[int] | None = None
    """The places of the points that are still to be trained once more; None before the end of the path."""


def measured_ms(folder: str | Path) -> float | None:
    """The milliseconds of parts that are not compiled, as measured when the path began; None if it did not."""
    state = (read_table(folder) or {}).get("state")
    found = state.get("rest_ms") if isinstance(state, dict) else None
    return found if isinstance(found, float) else None


def write(folder: str | Path, record: Record, curve: Curve, state: State) -> None:
    """Writes the table of a path as it is now."""
    write_table(folder, {**curve.table(), "run": record.data(), "state": asdict(state)})


def resumed(folder: str | Path, record: Record, template: nn.Module) -> tuple[Curve, State] | None:
    """The path in a folder, and where it is; None if the folder has none.

    Raises `CheckpointError` if it is another path, or damaged.
    """
    table = read_table(folder)
    if table is None:
        return None
    where = Path(folder) / TABLE
    try:
        run, state = table["run"], State(**table["state"])
        curve = curve_of(table, lambda stage: stored(folder, stage, template))
    except (LookupError, TypeError) as error:
        text = f"{where}: is not the checkpoint of a path: {type(error).__name__} {error}."
        raise CheckpointError(
            Problem(text, "A curve that Curve.save wrote can be loaded, but not continued.")
        ) from None
    asked = record.data()
    different = [name for name in asked if run.get(name) != asked[name]]
    if different:
        raise CheckpointError(_difference(folder, different[0], run.get(different[0]), asked[different[0]]))
    return curve, state


def _difference(folder: str | Path, name: str, then: object, now: object) -> Problem:
    """What is different about a path, in words."""
    where = Path(folder) / TABLE
    if name == "function":
        return Problem(f"{where}: was written by tnmars.{then}, not by tnmars.{now}.", "Give another folder.")
    if name == "weights":
        text = f"{where}: is another path: it began with other weights than the model given."
        fix = f"To continue it, give the model that it began with: tnmars.load_into(model, '{Path(folder) / START}')."
        return Problem(text, f"{fix} To begin again, give another folder.")
    verb = "are" if name in ("settings", "goals", "ranks") else "is"
    text = f"{where}: is another path: its {name} {verb} {then}, but now {now}."
    return Problem(text, "Give another folder, or the same model, data and settings.")
