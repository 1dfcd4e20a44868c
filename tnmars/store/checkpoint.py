"""Training checkpoints: model, optimizer, schedules, random states and the position in the data, in one file.

A resumed run continues bit for bit on the same kind of machine with the same number of threads. A file is written
completely or not at all, and the previous one is kept. Nothing is pickled.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from tnmars.arguments import check_arguments
from tnmars.errors import CheckpointError, Problem, TnmarsError
from tnmars.files import clear_abandoned
from tnmars.files import previous as previous_of
from tnmars.graph.parts import is_int
from tnmars.layer.distributed import is_first_rank
from tnmars.layer.module import layers
from tnmars.select.base import is_number
from tnmars.spec.nodes import shorten
from tnmars.store import optimizer as optimizers
from tnmars.store import random_states, trial
from tnmars.store.container import Container, is_whole, read, write
from tnmars.store.model import MODEL, contents, prepare, stored
from tnmars.store.plain import decode, encode
from tnmars.store.random_states import RandomStates
from tnmars.store.undo import uninterrupted
from tnmars.training.schedule import MaskSchedule

OPTIMIZER = "optimizer."
TORCH = "random.torch"


@runtime_checkable
class HasState(Protocol):
    """What a learning-rate scheduler offers."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Resumed:
    """What `load_checkpoint` returns, besides what it has restored in place."""

    model: nn.Module
    """The model given; or its replacement, if it is a single layer that was not compiled."""
    position: Any
    """The `position` given to `save_checkpoint`."""
    extra: Any
    """The `extra` given to `save_checkpoint`."""


def save_checkpoint(
    path: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: MaskSchedule | None = None,
    lr_scheduler: HasState | None = None,
    position: Any = None,
    extra: Any = None,
) -> None:
    """Writes everything that a training run needs to continue, in one file.

    The checkpoint that was at `path` is kept as `PATH.previous`, unless it is damaged. A crash at any moment leaves a
    complete checkpoint at `path`. Random states of Python, numpy and torch's CPU generator are saved too. Gradients are
    not: call it after a step of the optimizer. Under several processes all of them must call it, and rank 0 writes.

    Args:
        path: The file to write. Its folder must exist.
        model: The model. Save what is inside a DDP wrapper (`model.module`): names in the file are those of the model
            given.
        optimizer: Its optimizer. All of its parameters must belong to the model.
        schedule: The `tnmars.MaskSchedule`, if there is one.
        lr_scheduler: The learning-rate scheduler, if there is one; anything with `state_dict` and `load_state_dict`.
        position: Plain data of your own that says where in the data the run is, such as `{"epoch": 3, "batch": 70}`.
        extra: More plain data of your own, such as losses so far or the state of a `tnmars.ShutSlices`.

    Raises:
        TnmarsError: If something cannot be saved, such as an object that is not plain data, or the file cannot be
            written.

    Example:
        >>> import tempfile, tnmars
        >>> model = nn.Linear(3, 2)
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> path = Path(tempfile.mkdtemp()) / "run.ckpt"
        >>> tnmars.save_checkpoint(path, model, optimizer, position={"epoch": 3})
        >>> tnmars.load_checkpoint(path, model, optimizer).position
        {'epoch': 3}
    """
    check_arguments(save_checkpoint, locals())
    header, tensors = contents(model)
    about, held = optimizers.to_json(optimizer, model)
    header |= {
        "kind": "checkpoint",
        "optimizer": about,
        "schedule": None if schedule is None else encode(schedule.state_dict(), "schedule"),
        "lr_scheduler": None if lr_scheduler is None else _scheduler(lr_scheduler),
        "random": random_states.to_json(),
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


def load_checkpoint(
    path: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: MaskSchedule | None = None,
    lr_scheduler: HasState | None = None,
    *,
    previous: bool = False,
) -> Resumed:
    """Restores a training run in place from a checkpoint, and returns its position.

    Compiled layers are rebuilt as they were, pruned ones included, whatever the model has in their places. The
    optimizer's groups and state are matched by the names of parameters.

    Args:
        path: The file of `save_checkpoint`.
        model: A model with the same module names. Under DDP or FSDP2, load before the model is wrapped.
        optimizer: An optimizer of the same kind for this model.
        schedule: A `tnmars.MaskSchedule` for this model; exactly if one was given to `save_checkpoint`.
        lr_scheduler: A learning-rate scheduler of the same kind; exactly if one was given to `save_checkpoint`.
        previous: Whether to read the checkpoint before the last, `PATH.previous`.

    Returns:
        The model with `position` and `extra`. `Resumed.model` is the model given, except if that is a single layer
        that was not compiled: then it is the compiled one.

    Raises:
        CheckpointError: If the file is damaged or cannot be read; the message says whether the other one is intact.
        TnmarsError: With everything that does not fit. Nothing was changed then.

    Example:
        >>> import tempfile, tnmars
        >>> model = nn.Linear(3, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> path = Path(tempfile.mkdtemp()) / "run.ckpt"
        >>> for epoch in (1, 2):
        ...     tnmars.save_checkpoint(path, model, optimizer, position=epoch)
        >>> tnmars.load_checkpoint(path, model, optimizer, previous=True).position
        1
    """
    check_arguments(load_checkpoint, locals())
    source = previous_of(path) if previous else Path(path)
    held = _read(source, Path(path))
    loading = prepare(model, stored(held), str(source))
    saved = _saved(held, str(source))
    problems = [
        *optimizers.problems(
            optimizer, saved.optimizer, model, loading.prefixes, loading.parameters, loading.held.tensors
        ),
        *_pairs(saved, {"schedule": schedule, "lr_scheduler": lr_scheduler}),
    ]
    if problems:
        raise TnmarsError([*problems, Problem("Nothing was changed.")], source=str(source))
    with uninterrupted(), optimizers.kept(optimizer), _loaded(lr_scheduler, saved.lr_state, str(source)):
        loaded = loading.apply()
        optimizers.load_(optimizer, saved.optimizer, loaded)
        if schedule is not None:
            schedule.model = loaded if schedule.model is model else schedule.model
            _load_schedule(schedule, saved.schedule or {})
        saved.random.set_()
    return Resumed(loaded, saved.position, saved.extra)


@dataclass(frozen=True)
class _Saved:
    """What a checkpoint holds besides the model, checked as far as it can be before anything is changed."""

    optimizer: optimizers.Saved
    schedule: Mapping[str, Any] | None
    lr_kind: str | None
    """The class of the learning-rate scheduler; None if there was none."""
    lr_state: dict[str, Any]
    random: RandomStates
    position: Any
    extra: Any


def _saved(held: Container, source: str) -> _Saved:
    header = held.header
    try:
        for key in ("optimizer", "schedule", "lr_scheduler", "random", "position", "extra"):
            if key not in header:
                raise CheckpointError(f"the file has no '{key}'.")
        kind, state = _scheduler_of(header["lr_scheduler"])
        return _Saved(
            optimizers.from_json(header["optimizer"], held.under(OPTIMIZER)),
            _schedule_of(header["schedule"]),
            kind,
            state,
            random_states.from_json(header["random"], held.tensors.get(TORCH)),
            decode(header["position"]),
            decode(header["extra"]),
        )
    except CheckpointError as error:
        raise CheckpointError([*error.problems, Problem("Nothing was changed.")], source=source) from None


def _scheduler_of(data: Any) -> tuple[str | None, dict[str, Any]]:
    """The class and the state of the learning-rate scheduler in a file."""
    if data is None:
        return None, {}
    if not (isinstance(data, dict) and isinstance(data.get("kind"), str) and isinstance(data.get("state"), dict)):
        raise CheckpointError("the lr_scheduler of the file is not one that tnmars writes.")
    return data["kind"], decode(data["state"])


def _schedule_of(data: Any) -> Mapping[str, Any] | None:
    """The state of the schedule in a file."""
    if data is None:
        return None
    state: dict[str, Any] = decode(data)
    least = {"warmup_steps": 0, "every": 1, "seed": -inf, "steps": 0}
    is_right = isinstance(state, dict) and all(is_int(state.get(key), low) for key, low in least.items())
    if not is_right or not is_number(state.get("decay_steps")) or state["decay_steps"] <= 0:
        raise CheckpointError("the schedule of the file is not one that tnmars writes.")
    return state


@contextmanager
def _loaded(lr_scheduler: HasState | None, state: dict[str, Any], source: str) -> Iterator[None]:
    """Loads the state of a learning-rate scheduler; if it or the block fails, the scheduler keeps its own state."""
    if lr_scheduler is None:
        yield
        return
    before = copy.deepcopy(lr_scheduler.state_dict())
    try:
        try:
            lr_scheduler.load_state_dict(state)
        except Exception as error:
            text = f"the lr_scheduler does not take its state: {type(error).__name__} {error}."
            raise CheckpointError([Problem(text), Problem("Nothing was changed.")], source=source) from error
        yield
    except BaseException:
        lr_scheduler.load_state_dict(before)
        raise


def _read(source: Path, path: Path) -> Container:
    """The file, if it is an intact checkpoint; otherwise an error that says whether another one is."""
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
    what = "The previous checkpoint is intact" if other != path else "The last checkpoint is intact"
    call = f"load_checkpoint({str(path)!r}, ...{', previous=True' if other != path else ''})"
    return f"{what}: {other}. To continue from it: {call}."


def _pairs(saved: _Saved, given: Mapping[str, object]) -> Iterator[Problem]:
    """What is in the file but not given, and what is given but not in the file."""
    there = {"schedule": saved.schedule, "lr_scheduler": saved.lr_kind}
    for name, value in given.items():
        if (there[name] is None) != (value is None):
            has, lacks = ("the file", "was not given") if value is None else ("the call", "is not in the file")
            yield Problem(f"{has} has {name}, which {lacks}.", f"Give {name}=... exactly if it was given to save.")
        elif name == "lr_scheduler" and value is not None and saved.lr_kind != type(value).__name__:
            yield Problem(f"the lr_scheduler is {type(value).__name__}, but {saved.lr_kind} in the file.")
        elif isinstance(value, HasState):
            live = value.state_dict()
            yield from trial.unlike(saved.lr_state, live, "the lr_scheduler")
            # a scheduler of torch takes each entry as an attribute, which must not hide its methods or its optimizer
            for key in saved.lr_state:
                if key not in live and hasattr(value, key):
                    yield Problem(f"the lr_scheduler of the file has '{shorten(key)}', which is not part of its state.")


def _load_schedule(schedule: MaskSchedule, state: Mapping[str, Any]) -> None:
    """Sets a schedule; the noise stays the file's, which may have been drawn before a cut."""
    buffers = [
        value for _, layer in layers(schedule.model) if layer.masks is not None for value in layer.masks.buffers()
    ]
    held = [value.clone() for value in buffers]
    schedule.load_state_dict(state)
    for value, was in zip(buffers, held, strict=True):
        value.copy_(was)
