"""What a save and a load cost: each tensor is fetched once, nothing is read that is known, nothing is held twice."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest
import torch
from kit import LINUX, memory
from torch import nn

import tnmars
from tnmars.errors import CheckpointError, TnmarsError
from tnmars.store.container import Container, read, write


class Distant(torch.Tensor):
    """A tensor that counts how often it is brought to the host."""

    fetched = 0

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        Distant.fetched += 1
        return self.as_subclass(torch.Tensor)


def test_each_tensor_is_brought_to_the_host_once(tmp_path: Path) -> None:
    values = {name: torch.randn(5).as_subclass(Distant) for name in "abc"}
    Distant.fetched = 0
    write(tmp_path / "a", Container({}, values))
    assert Distant.fetched == 3
    assert all(torch.equal(value, values[name].cpu()) for name, value in read(tmp_path / "a").tensors.items())


def bytes_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def run() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(1000, 1000)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def positions(path: Path) -> tuple[object, object]:
    """What the checkpoint and the one before it hold."""
    model, optimizer = run()
    return tuple(tnmars.load_checkpoint(path, model, optimizer, previous=way).position for way in (False, True))


@LINUX
def test_a_save_does_not_read_the_checkpoint_before(tmp_path: Path) -> None:
    path, (model, optimizer) = tmp_path / "run", run()
    tnmars.save_checkpoint(path, model, optimizer, position=1)
    before = bytes_read()
    tnmars.save_checkpoint(path, model, optimizer, position=2)
    assert bytes_read() - before < path.stat().st_size / 10
    assert positions(path) == (2, 1)


@LINUX
def test_a_checkpoint_of_another_process_is_read(tmp_path: Path) -> None:
    """Nothing is known about it, although it is whole."""
    path, (model, optimizer) = tmp_path / "run", run()
    tnmars.save_checkpoint(tmp_path / "other", model, optimizer, position=1)
    path.write_bytes((tmp_path / "other").read_bytes())
    before = bytes_read()
    tnmars.save_checkpoint(path, model, optimizer, position=2)
    assert bytes_read() - before >= path.stat().st_size
    assert positions(path) == (2, 1)


@pytest.mark.parametrize("hides", [False, True])
def test_damage_right_after_a_save_is_seen(hides: bool, tmp_path: Path) -> None:
    """One bit, in place, without a pause; also where the time of the last change is set back."""
    path, (model, optimizer) = tmp_path / "run", run()
    for position in range(1, 6):
        tnmars.save_checkpoint(path, model, optimizer, position=position)
    told = path.stat()
    if hides:
        time.sleep(0.05)  # what the system notes for itself is no finer than its clock
    with path.open("r+b") as stream:
        stream.seek(-1000, os.SEEK_END)
        byte = stream.read(1)[0]
        stream.seek(-1000, os.SEEK_END)
        stream.write(bytes([byte ^ 1]))
    if hides:
        os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
    tnmars.save_checkpoint(path, model, optimizer, position=6)
    assert positions(path) == (6, 4), "the damaged one, 5, is gone"


@LINUX
def test_a_file_is_not_held_twice(tmp_path: Path) -> None:
    size = 64 * 2**20
    write(tmp_path / "a", Container({}, {"a": torch.randn(size // 8), "b": torch.randn(size // 8)}))
    read(tmp_path / "a")  # what is loaded or allocated on first use
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    held = read(tmp_path / "a")
    assert memory("VmHWM") - before < 1.3 * size
    assert held.tensors["a"].numel() == size // 8


# --- the header ------------------------------------------------------------------------------------------------------


def test_the_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    """Eight bytes of length, JSON that begins with digest and size, then tensors; the digest counts as zeros."""
    write(tmp_path / "a", Container({"kind": "x"}, {"b": torch.arange(3), "a": torch.ones(2, 2)}))
    data = (tmp_path / "a").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    about = header.pop("__metadata__")
    assert data[8:].startswith(b'{"__metadata__":{"tnmars.digest":"') and length % 8 == 0
    digest = about["tnmars.digest"]
    assert int(about["tnmars.bytes"]) == len(data) == 8 + length + 24 + 16
    assert hashlib.sha256(data.replace(digest.encode(), b"0" * 64)).hexdigest() == digest
    assert json.loads(about["tnmars"]) == {"version": 1, "shared": {}, "kind": "x"}
    assert header == {
        "b": {"dtype": "I64", "shape": [3], "data_offsets": [0, 24]},
        "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [24, 40]},
    }


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 8000]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-16, -8]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
        {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": "ab", "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2]},
        [],
        3,
    ],
)
def test_a_table_that_does_not_fit_is_refused(entry: object, tmp_path: Path) -> None:
    write(tmp_path / "a", Container({}, {"a": torch.ones(2), "b": torch.ones(2)}))
    data = (tmp_path / "a").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["a"] = entry
    digest = header["__metadata__"]["tnmars.digest"]
    text = json.dumps(header, separators=(",", ":")).ljust(length + 64).encode()
    forged = len(text).to_bytes(8, "little") + text + data[8 + length :]
    forged = forged.replace(b'bytes":"%016d' % len(data), b'bytes":"%016d' % len(forged))
    forged = forged.replace(digest.encode(), b"0" * 64)
    (tmp_path / "a").write_bytes(forged.replace(b"0" * 64, hashlib.sha256(forged).hexdigest().encode(), 1))
    with pytest.raises(CheckpointError, match="is not a file that tnmars wrote"):
        read(tmp_path / "a")


def test_a_tensor_cannot_take_the_place_of_the_header(tmp_path: Path) -> None:
    with pytest.raises(TnmarsError, match="tensor '__metadata__' has a name that the file format reserves"):
        write(tmp_path / "a", Container({}, {"__metadata__": torch.ones(2)}))
