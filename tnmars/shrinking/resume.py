"""A path that continues: what a checkpoint says, compared with what is asked for now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from tnmars.errors import CheckpointError, Problem
from tnmars.shrinking.curve import Curve, curve_of
from tnmars.shrinking.folder import TABLE, read_table, stored, write_table
from tnmars.shrinking.settings import Staircase


@dataclass(frozen=True)
class Record:
    """What must be the same for a path to continue."""

    settings: Staircase
    goals: str
    ranks: Mapping[str, Mapping[str, int]]
    """The ranks of the model at the start of the path."""

    def data(self) -> dict[str, Any]:
        return {
            "settings": asdict(self.settings),
            "goals": self.goals,
            "ranks": {name: dict(sizes) for name, sizes in self.ranks.items()},
        }


@dataclass(frozen=True)
class State:
    """Where a path is, besides its points."""

    position: Mapping[str, int] | None
    """The user's own place, such as that in the training data."""
    share: float
    """The share of all rates that is left."""
    steps: int
    """The training steps so far, those of repeated stages included."""


def write(folder: str | Path, record: Record, curve: Curve, state: State) -> None:
    """Writes the table of a path as it is now."""
    place = None if state.position is None else dict(state.position)
    now = {"position": place, "share": state.share, "steps": state.steps}
    write_table(folder, {**curve.table(), "run": record.data(), "state": now})


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
    except (KeyError, TypeError) as error:
        text = f"{where}: is not the checkpoint of a path: {type(error).__name__} {error}."
        raise CheckpointError(
            Problem(text, "A curve that Curve.save wrote can be loaded, but not continued.")
        ) from None
    wanted = record.data()
    different = [name for name in wanted if run.get(name) != wanted[name]]
    if different:
        name = different[0]
        text = f"{where}: is another path: its {name} are {run.get(name)}, but now {wanted[name]}."
        raise CheckpointError(Problem(text, "Give another folder, or the same model and settings."))
    return curve, state
