"""Results of tuning that are kept, so that equal layers are timed once: in the process, and in the user's cache folder.

A record says which of some candidates won, whether with a planned training step, and how long it took relative to
torch's own layer. It belongs to the
candidates with their estimates (and so to the graph, the cost model, the batch and the image), to the mode, the dtype,
the device, the number of threads, the memory layout of the inputs, the processor, and the versions of tnmars and torch.
A file that is damaged or cannot be written is no error: timings are then made again.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from tnmars import __version__
from tnmars.errors import TnmarsError
from tnmars.files import make_folder, write_text
from tnmars.graph import Graph
from tnmars.plan.cost import cache_file
from tnmars.program.form import Form
from tnmars.timing.machine import processor

SETTING = "TNMARS_TUNED"
"""The environment variable that turns the file off if it is `off`."""
MOST = 4096
"""The number of records that are kept; the oldest in the file are dropped."""
MAX_BYTES = 4_000_000
"""A larger file is not one of ours."""

Key = tuple[object, ...]


@dataclass(frozen=True)
class Record:
    """The outcome of a race: the place of the winner among the candidates, and its time relative to torch's layer."""

    winner: int
    ratio: float
    """Measured time of the winner over that of torch's own layer; 0 if torch has none, or its weight is too large."""
    is_planned: bool = False
    """Whether its training step has a planned backward pass."""


_KNOWN: dict[Key, Record] = {}
_LOCK = Lock()


def key_of(
    graph: Graph, forms: Sequence[Form], mode: str, inputs: Sequence[Tensor], device: object, dtype: object
) -> Key:
    """What a race depends on, as a value."""
    layouts = tuple((tuple(value.shape), value.stride(), str(value.dtype)) for value in inputs)
    kind = torch.device(str(device)) if device is not None else torch.get_default_device()
    number = str(dtype or torch.get_default_dtype())
    return graph, tuple(forms), mode, layouts, str(kind), number, torch.get_num_threads()


def find(key: Key) -> Record | None:
    """The record of an equal race, from this process or an earlier one."""
    found = _KNOWN.get(key)
    if found is None and _is_on():
        with _LOCK:
            written = _read().get(_digest(key))
        if written is not None and written.winner < len(_forms(key)):
            found = _KNOWN[key] = written
    return found


def keep(key: Key, record: Record) -> None:
    """Keeps a record, also for later processes."""
    if len(_KNOWN) >= MOST:
        _KNOWN.clear()
    _KNOWN[key] = record
    if not _is_on():
        return
    with _LOCK:
        records = {**_read(), _digest(key): record}  # read again: other processes write, too
        last = list(records.items())[-MOST:]
        rows = {name: {"winner": kept.winner, "ratio": kept.ratio, "planned": kept.is_planned} for name, kept in last}
        try:
            path = file()
            make_folder(path.parent)
            write_text(path, json.dumps(rows, indent=0) + "\n")
        except TnmarsError:
            return


def forget() -> None:
    """Forgets what this process keeps. The file stays."""
    _KNOWN.clear()


def file() -> Path:
    """Where records are kept: beside the calibrated cost model."""
    return cache_file().with_name("tuned.json")


def _is_on() -> bool:
    return os.environ.get(SETTING) != "off"


def _forms(key: Key) -> tuple[Form, ...]:
    forms = key[1]
    assert isinstance(forms, tuple)
    return forms


def _digest(key: Key) -> str:
    """A name for a race that is the same in every process. Programs that differ print differently."""
    _, _, *others = key
    programs: dict[str, int] = {}  # chunked forms share them
    rows = [
        (form.name, form.cost, form.chunk, form.keep, form.frame, programs.setdefault(str(form.program), len(programs)))
        for form in _forms(key)
    ]
    texts = [repr(rows), *programs, repr(_forms(key)[0].program.sizes), repr(others), *_machine()]
    return sha256("\n".join(texts).encode()).hexdigest()[:32]


def _machine() -> list[str]:
    capability = torch.backends.cpu.get_cpu_capability()
    return [__version__, str(torch.__version__), platform.machine(), processor(), capability, _device_name()]


def _device_name() -> str:
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "" if device is None else f"{device.type} {torch.get_device_module(device).get_device_name()}"


def _read() -> dict[str, Record]:
    """The records in the file; none if there is no file, or it is damaged."""
    try:
        with file().open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        rows = json.loads(data) if len(data) <= MAX_BYTES else {}
        return {name: _record(row) for name, row in rows.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, TnmarsError):
        return {}


def _record(row: Mapping[str, Any]) -> Record:
    winner, ratio, is_planned = row["winner"], row["ratio"], row["planned"]
    if type(winner) is not int or winner < 0 or type(ratio) not in (int, float) or not isfinite(ratio) or ratio < 0:
        raise ValueError("this is not a record")
    if type(is_planned) is not bool:
        raise ValueError("this is not a record")
    return Record(winner, float(ratio), is_planned)
