"""Training checkpoints: model, optimiser, schedules, random states and the place in the data, in one file.

A run that is resumed goes on bit for bit: same machine kind, same number of threads. A file is whole or not there, and
the one before it is kept. Nothing is pickled.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy
import torch
from torch import Tensor, nn

from tnmars.errors import CheckpointError, Problem, TnmarsError
from tnmars.files import clear_abandoned
from tnmars.files import previous as previous_of
from tnmars.layer.distributed import is_first_rank
from tnmars.layer.module import layers
from tnmars.store import optimizer as optimizers
from tnmars.store.container import Container, is_whole, read, write
from tnmars.store.model import MODEL, contents, prepare, stored
from tnmars.store.plain import decode, encode
from tnmars.training.schedule import MaskSchedule

OPTIMIZER = "optimizer."
TORCH = "random.torch"


class HasState(Protocol):
    """What a learning-rate scheduler has."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Resumed:
    """What `load_checkpoint` gives back, besides what it has put in place."""

    model: nn.Module
    """The model given; where it is one layer that was not compiled, the one in its place."""
    position: Any
    extra: Any


def save_checkpoint(
    path: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: MaskSchedule | None = None,
    lr_scheduler: HasState | None = None,
    position: Any = None,
    extra: Any = None,
) -> None:
    """Writes all that a run needs to go on from here, and keeps the checkpoint before as `PATH.previous`.

    `position` and `extra` are plain data of your own, such as epoch and batch. Gradients are not saved: write it after
    a step of the optimiser. Under several processes all call it, and rank 0 writes.
    """
    header, tensors = contents(model)
    about, held = optimizers.to_json(optimizer, model)
    header |= {
        "kind": "checkpoint",
        "optimizer": about,
        "schedule": None if schedule is None else encode(schedule.state_dict(), "schedule"),
        "lr_scheduler": None if lr_scheduler is None else _scheduler(lr_scheduler),
        "random": _random_states(),
        "position": encode(position, "position"),
        "extra": encode(extra, "extra"),
    }
    named = {f"{MODEL}{key}": value for key, value in tensors.items()}
    named |= {f"{OPTIMIZER}{key}": value for key, value in held.items()}
    named[TORCH] = torch.get_rng_state()
    if is_first_rank():
        write(path, Container(header, named), keep_previous=is_whole(path))
        clear_abandoned(path)


def _scheduler(lr_scheduler: HasState) -> dict[str, Any]:
    return {"kind": type(lr_scheduler).__name__, "state": encode(lr_scheduler.state_dict(), "lr_scheduler")}


def _random_states() -> dict[str, Any]:
    return {
        "python": encode(random.getstate(), "random"),
        "numpy": encode(_listed(numpy.random.get_state(legacy=False)), "numpy.random"),
    }


def _listed(value: Any) -> Any:
    """A state of numpy with its arrays as lists."""
    if isinstance(value, Mapping):
        return {key: _listed(entry) for key, entry in value.items()}
    return value.tolist() if isinstance(value, numpy.ndarray) else value


def load_checkpoint(
    path: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: MaskSchedule | None = None,
    lr_scheduler: HasState | None = None,
    *,
    previous: bool = False,
) -> Resumed:
    """Puts everything back as it was when the checkpoint was written; the position is in what it returns.

    The model is built anew as it was, pruned layers included, and the optimiser's groups follow by name. With
    `previous` the checkpoint before is read. Raises `CheckpointError` where the file is damaged, and `TnmarsError` with
    all that does not fit; then nothing was changed. Under DDP or FSDP2, load before the model is wrapped.
    """
    source = previous_of(path) if previous else Path(path)
    held = _read(source, Path(path))
    loading = prepare(model, stored(held), str(source))
    compiled = tuple(f"{name}." if name else "" for name in loading.made)
    problems = [
        *optimizers.problems(optimizer, held.header["optimizer"], model, compiled),
        *_pairs(held.header, {"schedule": schedule, "lr_scheduler": lr_scheduler}),
    ]
    if problems:
        raise TnmarsError([*problems, Problem("Nothing was changed.")], source=str(source))
    loaded = loading.apply()
    optimizers.load_(optimizer, held.header["optimizer"], held.under(OPTIMIZER), loaded)
    if schedule is not None:
        schedule.model = loaded if schedule.model is model else schedule.model
        _load_schedule(schedule, decode(held.header["schedule"]))
    if lr_scheduler is not None:
        lr_scheduler.load_state_dict(decode(held.header["lr_scheduler"]["state"]))
    _set_random_states(held.header["random"], held.tensors[TORCH])
    return Resumed(loaded, decode(held.header["position"]), decode(held.header["extra"]))


def _read(source: Path, path: Path) -> Container:
    """The file, if it is a whole checkpoint; else an error that says what else there is."""
    try:
        held = read(source)
    except CheckpointError as error:
        raise CheckpointError(Problem(error.problems[0].text, _way_out(source, path))) from None
    if held.header.get("kind") != "checkpoint":
        fix = "tnmars.load_into reads the model alone."
        raise CheckpointError(Problem(f"{source}: is a saved model, not a training checkpoint.", fix))
    return held


def _way_out(source: Path, path: Path) -> str:
    """What to do about a file that cannot be read."""
    other = path if source != path else previous_of(path)
    if not is_whole(other):
        return f"There is no other: {other} {'is damaged too' if other.exists() else 'does not exist'}."
    what = "The previous checkpoint is there and whole" if other != path else "The last checkpoint is there and whole"
    call = f"load_checkpoint({str(path)!r}, ...{', previous=True' if other != path else ''})"
    return f"{what}: {other}. To go on from it: {call}."


def _pairs(header: Mapping[str, Any], given: Mapping[str, object]) -> Iterator[Problem]:
    """What is in the file, but not given, or the other way round."""
    for name, value in given.items():
        if (header[name] is None) != (value is None):
            has, lacks = ("the file", "was not given") if value is None else ("the call", "is not in the file")
            yield Problem(f"{has} has {name}, which {lacks}.", f"Give {name}=... exactly where it was given to save.")
        elif name == "lr_scheduler" and value is not None and header[name]["kind"] != type(value).__name__:
            yield Problem(f"the lr_scheduler is {type(value).__name__}, but {header[name]['kind']} in the file.")


def _load_schedule(schedule: MaskSchedule, state: Mapping[str, Any]) -> None:
    """Sets a schedule; the noise stays that of the file, which may come from before a cut."""
    buffers = [
        value for _, layer in layers(schedule.model) if layer.masks is not None for value in layer.masks.buffers()
    ]
    held = [value.clone() for value in buffers]
    schedule.load_state_dict(state)
    for value, was in zip(buffers, held, strict=True):
        value.copy_(was)


def _set_random_states(states: Mapping[str, Any], generator: Tensor) -> None:
    random.setstate(decode(states["python"]))
    numpy.random.set_state(_arrays(decode(states["numpy"])))
    torch.set_rng_state(generator.clone())  # torch casts it: a view at an odd address would crash the process


def _arrays(state: dict[str, Any]) -> dict[str, Any]:
    inner = state["state"]
    return {**state, "state": {**inner, "key": numpy.array(inner["key"], dtype=numpy.uint32)}}
