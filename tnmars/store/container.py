"""Tensors and a header of plain data in one safetensors file, with a digest over all its bytes.

The digest stands at a fixed place of the header and counts as zeros in itself, so it covers every byte of the file. A
read checks it before it looks at anything else. This module does not know what the tensors mean.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy
import torch
from torch import Tensor

from tnmars.errors import CheckpointError, Problem, TnmarsError
from tnmars.files import unique, write_bytes
from tnmars.spec.nodes import START

VERSION = 1
DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}
KINDS = {name: kind for kind, name in DTYPES.items()}
METADATA = "__metadata__"
MIDDLE = b'","tnmars.bytes":"'
DIGITS, LENGTH = 64, 16
"""The letters of a digest, and the digits of the file's length after it."""
DIGEST = 8 + len(START)
"""Where the digest starts: after the header's length, which takes eight bytes."""
SIZE = DIGEST + DIGITS + len(MIDDLE)
"""Where the file's length starts."""
END = SIZE + LENGTH
PIECE = 2**20
"""The bytes that are read at a time to check a file."""
LEVELS = 400
"""How deep a header may be nested. What `tnmars.store.plain` writes is far below, and Python fails far above."""

Buffer = bytes | memoryview
Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, and the times of the last write and of the last change of any kind."""

_written: dict[str, Stamp] = {}
"""What the system said about the files that this process wrote, right afterwards; see `is_whole`."""


@dataclass(frozen=True)
class Container:
    """What a file holds. Names with the same tensor object share it, and it is stored once."""

    header: Mapping[str, Any]
    """Data that `json` writes."""
    tensors: Mapping[str, Tensor]
    source: str = "the file"
    """What messages call the file."""

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names start with a prefix, by the rest of their names."""
        return {name[len(prefix) :]: value for name, value in self.tensors.items() if name.startswith(prefix)}


def write(path: str | Path, held: Container, *, keep_previous: bool = False) -> None:
    """Writes a file completely or not at all, in one pass over its tensors.

    The digest is known only at the end, so it is put into the header then. Raises `TnmarsError` if a tensor or the
    file cannot be written.
    """
    stored, shared = _once(held.tensors)
    pairs = [name for name, value in stored.items() if value.is_complex()]
    names = sorted(stored, key=lambda name: (-stored[name].element_size(), name))
    stored = {name: _real(value) for name, value in stored.items()}
    header = {**held.header, "complex": pairs} if pairs else held.header
    head, size = _head(header, {name: stored[name] for name in names}, shared)
    digest = hashlib.sha256()
    stamped = 0

    def pieces() -> Iterator[Buffer]:
        digest.update(head)
        yield head
        for name in names:
            data = _raw(stored[name])
            digest.update(data)
            yield data

    def finish(stream: BinaryIO) -> None:
        nonlocal stamped
        stream.seek(DIGEST)
        stream.write(digest.hexdigest().encode())
        stream.flush()
        stamped = _stamp(stream)

    write_bytes(path, pieces(), keep_previous=keep_previous, finish=finish)
    _remember(path, size, stamped)


def _head(header: Mapping[str, Any], stored: Mapping[str, Tensor], shared: Mapping[str, str]) -> tuple[bytes, int]:
    """Everything before the tensors, with zeros for the digest; and the size of the file."""
    ends = list(accumulate(map(_bytes, stored.values()), initial=0))
    about = json.dumps({"version": VERSION, "shared": shared, **header})
    table: dict[str, Any] = {
        METADATA: {"tnmars.digest": "0" * DIGITS, "tnmars.bytes": "0" * LENGTH, "tnmars": about},
    }
    for name, start, end in zip(stored, ends, ends[1:], strict=False):
        value = stored[name]
        table[name] = {"dtype": _dtype(name, value), "shape": list(value.shape), "data_offsets": [start, end]}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    size = 8 + len(text) + ends[-1]
    head = len(text).to_bytes(8, "little") + text
    return head[:SIZE] + b"%0*d" % (LENGTH, size) + head[END:], size


def _once(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor under its first name, and for other names of the same tensor that first one."""
    first: dict[int, str] = {}
    stored, shared = {}, {}
    for name, value in tensors.items():
        if id(value) in first:
            shared[name] = first[id(value)]
        else:
            first[id(value)] = name
            stored[name] = value
    return stored, shared


def _dtype(name: str, value: Tensor) -> str:
    if name == METADATA:
        raise TnmarsError(f"tensor '{name}' has a name that the file format reserves, so it cannot be saved.")
    if value.dtype not in DTYPES or value.is_meta or value.layout is not torch.strided:
        what = "on the meta device" if value.is_meta else f"of type {value.dtype}, {value.layout}"
        raise TnmarsError(f"tensor '{name}' is {what}, which cannot be saved.")
    return DTYPES[value.dtype]


def _real(value: Tensor) -> Tensor:
    """A complex tensor as the format holds it: real, with a last axis for the two parts. Any other as it is.

    The format has no complex numbers of 16 bytes, and other readers know none at all.
    """
    is_pair = value.is_complex() and not value.is_meta and value.layout is torch.strided
    return torch.view_as_real(value.detach().resolve_conj()) if is_pair else value


def _complex(pairs: Tensor) -> Tensor:
    """The inverse of `_real`; a copy where the tensor does not lie at a multiple of its size, as torch needs it."""
    is_odd = pairs.storage_offset() % 2 or pairs.data_ptr() % (2 * pairs.element_size())
    return torch.view_as_complex(pairs.clone() if is_odd else pairs)


def _bytes(value: Tensor) -> int:
    return value.numel() * value.element_size()


def _raw(value: Tensor) -> Buffer:
    """The bytes of a tensor, row-major."""
    flat = value.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _stamp(stream: BinaryIO) -> int:
    """Sets the time of a file's last write to this nanosecond, and returns it; 0 if the system cannot.

    The system's own clock for this has a resolution of some milliseconds. So every later write, however soon, changes
    it.
    """
    now = time.time_ns()
    if os.utime not in os.supports_fd:
        return 0
    os.utime(stream.fileno(), ns=(now, now))
    return now


def _remember(path: str | Path, size: int, stamped: int) -> None:
    """Notes what the system says about a file that was just written, if it keeps times to the nanosecond."""
    _written.pop(str(Path(path).absolute()), None)
    stamp = _stamp_of(path)
    if stamp is not None and stamped % 1000 and stamp[2:4] == (size, stamped):
        _written[str(Path(path).absolute())] = stamp


def _stamp_of(path: str | Path) -> Stamp | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def is_whole(path: str | Path) -> bool:
    """Whether there is a file without damage.

    A file that this process wrote, and that nobody has written, replaced or touched since, is not read again.
    """
    known = _written.get(str(Path(path).absolute()))
    if known is not None and known == _stamp_of(path):
        return True
    try:
        with Path(path).open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            return not _damage(stream.read(END), size, iter(partial(stream.read, PIECE), b""))
    except (OSError, ValueError):  # a path may hold what no file system takes
        return False


def read(path: str | Path) -> Container:
    """What a file holds. Raises `CheckpointError` if it cannot be read, is damaged, or was not written by tnmars.

    All tensors are views of one buffer, the bytes of the file, so that nothing is in memory twice.
    """
    data = _verified(path)
    try:
        length = int.from_bytes(data[:8], "little")
        table = json.loads(bytes(data[8 : 8 + length]), object_pairs_hook=unique)
        about = json.loads(table.pop(METADATA)["tnmars"], object_pairs_hook=unique)
        _check_levels(about)
        values = torch.from_numpy(data[8 + length :])
        tensors = {name: _view(values, **entry) for name, entry in table.items()}
        _check_overlap(table)
        tensors |= {name: _complex(tensors[name]) for name in about.pop("complex", ())}
        if about["version"] == VERSION:
            tensors |= {name: tensors[other] for name, other in about.pop("shared").items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, RuntimeError) as error:
        raise CheckpointError(f"{path}: is not a file that tnmars wrote: {type(error).__name__} {error}.") from None
    if about["version"] != VERSION:
        text = f"{path}: has version {about['version']!r} of the format, but this tnmars reads version {VERSION}."
        raise CheckpointError(Problem(text, "Read it with the tnmars that wrote it, or a newer one."))
    return Container(about, dict(sorted(tensors.items())), str(path))


def _check_levels(about: object) -> None:
    """Raises `ValueError` for a header whose depth could exhaust the stack of whoever walks over it."""
    level = [about]
    for _ in range(LEVELS):
        level = [
            entry
            for value in level
            if isinstance(value, (dict, list))
            for entry in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise ValueError(f"it is nested over {LEVELS} levels deep")


def _check_overlap(table: Mapping[str, Any]) -> None:
    """Raises `ValueError` if two tensors share bytes: a small file could claim any amount of memory."""
    offsets = [entry["data_offsets"] for entry in table.values()]
    spans = sorted((start, end) for start, end in offsets if start < end)
    if any(before[1] > after[0] for before, after in pairwise(spans)):
        raise ValueError("tensors overlap")


def _view(values: Tensor, dtype: str, shape: list[int], data_offsets: list[int]) -> Tensor:
    """One tensor of a file."""
    start, end = data_offsets
    kind = KINDS[dtype]
    is_inside = 0 <= start <= end <= values.numel() and min(shape, default=0) >= 0
    if not is_inside or prod(shape) * kind.itemsize != end - start:
        raise ValueError(f"shape {shape} of {dtype} at {data_offsets}")
    return values[start:end].view(kind).reshape(shape)


def _verified(path: str | Path) -> numpy.ndarray[Any, numpy.dtype[numpy.uint8]]:
    """The bytes of a file, once its digest is checked. Raises `CheckpointError`."""
    try:
        with Path(path).open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            head = stream.read(END)
            wrong = _head_damage(head, size)
            if wrong:  # before memory is taken for all of it
                raise CheckpointError(f"{path}: {wrong}")
            data = numpy.empty(size, dtype=numpy.uint8)
            stream.seek(0)
            filled = 0
            while count := stream.readinto(data[filled:].data):
                filled += count
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except TnmarsError:
        raise
    except ValueError as error:  # a path may hold what no file system takes
        raise CheckpointError(f"{str(path)!a}: cannot be read: {error}.") from None
    except MemoryError:
        raise CheckpointError(f"{path}: has {size:,} bytes, for which there is not enough memory.") from None
    wrong = damage(data[:filled].data)
    if wrong:
        raise CheckpointError(f"{path}: {wrong}")
    return data


def damage(data: Buffer) -> str:
    """What is wrong with the bytes of a file, or nothing."""
    return _damage(bytes(data[:END]), len(data), [memoryview(data)[END:]])


def _head_damage(head: bytes, count: int) -> str:
    """The same, as far as the first bytes of a file of `count` bytes tell."""
    if len(head) < END:
        return f"is damaged: it has {count:,} bytes, too few for a file that tnmars wrote."
    if head[8:DIGEST] != START or head[DIGEST + DIGITS : SIZE] != MIDDLE:
        return "is not a file that tnmars wrote, or its first bytes are damaged."
    size = head[SIZE:END]
    if size != b"%0*d" % (LENGTH, count):
        said = f"{int(size):,}" if size.isdigit() else "another number"
        return f"is damaged: it has {count:,} bytes, but says that {said} were written."
    return ""


def _damage(head: bytes, count: int, rest: Iterable[Buffer]) -> str:
    """The same for a file of `count` bytes: its first ones, and all others in pieces."""
    wrong = _head_damage(head, count)
    if wrong:
        return wrong
    digest = hashlib.sha256(head[:DIGEST] + b"0" * DIGITS + head[DIGEST + DIGITS :])
    for piece in rest:
        digest.update(piece)
    if digest.hexdigest().encode() != head[DIGEST : DIGEST + DIGITS]:
        return "is damaged: its bytes do not have the digest (sha256) that it was written with."
    return ""
