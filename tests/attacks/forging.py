"""What an attack is, and how files are forged: a good model, and the same with one thing changed and a right digest."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import tnmars
from tnmars.spec.model_file import START
from tnmars.store import container
from tnmars.store.container import Container

CODE = "__import__('os').system('touch canary')"
"""Python that leaves a file behind, wherever it may be run."""


@dataclass(frozen=True)
class Attack:
    """A file that means harm, for all readers of its kind."""

    name: str
    kind: str
    """What it pretends to be, such as a spec: one of the keys of `readers.READERS`."""
    data: bytes
    says: str
    """A pattern that every message about it contains."""
    fine: tuple[str, ...] = ()
    """The readers that do not look at what is wrong, and so may read it; nothing may happen there either."""


class Payload:
    """An object whose pickle runs code when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("import canary",)


def pickled() -> bytes:
    return pickle.dumps(Payload())


def torch_file() -> bytes:
    """What `torch.save` writes: a zip file with a pickle inside."""
    stream = io.BytesIO()
    torch.save({"weight": Payload()}, stream)
    return stream.getvalue()


def zipped(name: str, data: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return stream.getvalue()


# --- the good run -----------------------------------------------------------------------------------------------------


def graph() -> tnmars.Graph:
    return tnmars.families.tt("linear", inputs=(3, 2), outputs=(2, 4), rank=4, name="tt")


class Net(nn.Module):
    """A dense model with the names of the saved one."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(6, 8), nn.Linear(8, 2)


def trained() -> tuple[nn.Module, torch.optim.Optimizer, tnmars.MaskSchedule]:
    torch.manual_seed(0)
    model = Net()
    model.fc = tnmars.compile(graph(), selector=tnmars.Mars(spread=1.0), batch=16)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    schedule = tnmars.MaskSchedule(model, 20, seed=1)
    model.head(model.fc(torch.randn(3, 6))).sum().backward()
    optimizer.step()
    schedule.step()
    return model, optimizer, schedule


@cache
def model_bytes() -> bytes:
    with TemporaryDirectory() as folder:
        tnmars.save(trained()[0], f"{folder}/a")
        return Path(folder, "a").read_bytes()


@cache
def adapter_bytes() -> bytes:
    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        tnmars.save_adapters(tnmars.adapter_(Net(), rank=2), f"{folder}/a")
        return Path(folder, "a").read_bytes()


@cache
def checkpoint_bytes() -> bytes:
    with TemporaryDirectory() as folder:
        tnmars.save_checkpoint(f"{folder}/a", *trained(), position={"at": 1})
        return Path(folder, "a").read_bytes()


# --- the same, changed ------------------------------------------------------------------------------------------------

Change = Callable[[dict[str, Any], dict[str, Tensor]], object]


def changed(good: bytes, change: Change) -> bytes:
    """A file of ours whose header or tensors say something else; all the rest of it is right."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "a")
        path.write_bytes(good)
        held = container.read(path)
        header, tensors = json.loads(json.dumps(held.header)), dict(held.tensors)
        change(header, tensors)
        container.write(path, Container(header, tensors))
        return path.read_bytes()


def layer(header: dict[str, Any]) -> dict[str, Any]:
    """What a header says about its compiled layer."""
    found: dict[str, Any] = header["layers"][0]
    return found


def form(header: dict[str, Any]) -> dict[str, Any]:
    """The first plan of the compiled layer."""
    found: dict[str, Any] = next(iter(layer(header)["plans"]["train"].values()))
    return found


def sealed(about: str | Mapping[str, Any], table: str | Mapping[str, Any], body: bytes = b"") -> bytes:
    """A file with any header and any table of tensors, as text or as data, and with a right length and digest."""
    inner = about if isinstance(about, str) else json.dumps(about)
    outer = table if isinstance(table, str) else json.dumps(table)[1:-1]
    rest = f',"tnmars":{json.dumps(inner)}}}{"," if outer else ""}{outer}}}'.encode()
    size = 8 + len(START) + 64 + len(container.MIDDLE) + 16 + 1 + len(rest) + len(body)
    text = START + b"0" * 64 + container.MIDDLE + b"%016d" % size + b'"' + rest
    data = len(text).to_bytes(8, "little") + text + body
    digest = hashlib.sha256(data).hexdigest().encode()
    at = 8 + len(START)
    return data[:at] + digest + data[at + 64 :]


def about_of(good: bytes) -> dict[str, Any]:
    """What the header of a good file says, with what `container.write` adds to it."""
    length = int.from_bytes(good[:8], "little")
    found: dict[str, Any] = json.loads(json.loads(good[8 : 8 + length])["__metadata__"]["tnmars"])
    return found


def deep(levels: int, opening: str = "[", closing: str = "]") -> str:
    return opening * levels + closing * levels
