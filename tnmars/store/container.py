"""Tensors and a header of plain data in one safetensors file, with a digest over all its bytes.

The digest stands at a fixed place of the header and counts as zeros in itself, so every byte of the file is covered.
A read checks it before anything else is looked at. Nothing here knows what the tensors mean.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from tnmars.errors import CheckpointError, Problem, TnmarsError
from tnmars.files import write_bytes

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
START = b'{"__metadata__":{"tnmars.digest":"'
MIDDLE = b'","tnmars.bytes":"'
DIGITS, LENGTH = 64, 16
"""The letters of a digest, and the digits of the file's length after it."""
DIGEST = 8 + len(START)
"""Where the digest starts: the length of the header, in eight bytes, is before it."""
SIZE = DIGEST + DIGITS + len(MIDDLE)


@dataclass(frozen=True)
class Container:
    """What a file holds. Names with the same tensor object share it, and it is stored once."""

    header: Mapping[str, Any]
    """Data that `json` writes."""
    tensors: Mapping[str, Tensor]

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names start with a prefix, by the rest of their names."""
        return {name[len(prefix) :]: value for name, value in self.tensors.items() if name.startswith(prefix)}


def write(path: str | Path, held: Container, *, keep_previous: bool = False) -> None:
    """Writes a file that is whole or not there. Raises `TnmarsError` where a tensor or the file cannot be written."""
    stored, shared = _once(held.tensors)
    names = sorted(stored, key=lambda name: (-stored[name].element_size(), name))
    ends = list(accumulate((_bytes(stored[name]) for name in names), initial=0))
    table: dict[str, Any] = {
        name: {"dtype": _dtype(name, stored[name]), "shape": list(stored[name].shape), "data_offsets": [start, end]}
        for name, start, end in zip(names, ends, ends[1:], strict=False)
    }
    about = json.dumps({"version": VERSION, "shared": shared, **held.header})
    rest = f'"tnmars":{json.dumps(about)}}},{json.dumps(table)[1:]}' if table else f'"tnmars":{json.dumps(about)}}}}}'
    text = rest.encode()
    room = len(START) + DIGITS + len(MIDDLE) + LENGTH + len(b'",')
    text += b" " * (-(room + len(text)) % 8)
    header = room + len(text)
    size = b"%0*d" % (LENGTH, 8 + header + ends[-1])
    head = [header.to_bytes(8, "little"), START, b"0" * DIGITS, MIDDLE, size, b'",', text]
    digest = hashlib.sha256(b"".join(head))
    for name in names:
        digest.update(_raw(stored[name]))
    head[2] = digest.hexdigest().encode()

    def pieces() -> Iterator[bytes | memoryview]:
        yield b"".join(head)
        for name in names:
            yield _raw(stored[name])

    write_bytes(path, pieces(), keep_previous=keep_previous)


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
    if value.dtype not in DTYPES or value.is_meta or value.layout is not torch.strided:
        what = "on the meta device" if value.is_meta else f"of type {value.dtype}, {value.layout}"
        raise TnmarsError(f"tensor '{name}' is {what}, which cannot be saved.")
    return DTYPES[value.dtype]


def _bytes(value: Tensor) -> int:
    return value.numel() * value.element_size()


def _raw(value: Tensor) -> bytes | memoryview:
    """The bytes of a tensor, row-major."""
    flat = value.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def read(path: str | Path) -> Container:
    """What a file holds. Raises `CheckpointError` where it cannot be read, is damaged, or is not one of tnmars."""
    data = verified(path)
    try:
        length = int.from_bytes(data[:8], "little")
        about = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["tnmars"])
        tensors = safetensors.torch.load(data)
        if about["version"] == VERSION:
            tensors |= {name: tensors[other] for name, other in about.pop("shared").items()}
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not a file that tnmars wrote: {type(error).__name__} {error}.") from None
    if about["version"] != VERSION:
        text = f"{path}: has version {about['version']!r} of the format; this tnmars reads version {VERSION}."
        raise CheckpointError(Problem(text, "Read it with the tnmars that wrote it, or a newer one."))
    return Container(about, dict(sorted(tensors.items())))


def verified(path: str | Path) -> bytes:
    """The bytes of a file, once its digest is checked. Raises `CheckpointError`."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}.") from None
    wrong = damage(data)
    if wrong:
        raise CheckpointError(f"{path}: {wrong}")
    return data


def damage(data: bytes) -> str:
    """What is wrong with the bytes of a file, or nothing."""
    end = SIZE + LENGTH
    if len(data) < end:
        return f"is damaged: it has {len(data):,} bytes, too few for a file that tnmars wrote."
    if data[8:DIGEST] != START or data[DIGEST + DIGITS : SIZE] != MIDDLE:
        return "is not a file that tnmars wrote, or its first bytes are damaged."
    size = data[SIZE:end]
    if size != b"%0*d" % (LENGTH, len(data)):
        said = f"{int(size):,}" if size.isdigit() else "another number"
        return f"is damaged: it has {len(data):,} bytes, but says that {said} were written."
    digest = hashlib.sha256(data[:DIGEST])
    digest.update(b"0" * DIGITS)
    digest.update(memoryview(data)[DIGEST + DIGITS :])
    if digest.hexdigest().encode() != data[DIGEST : DIGEST + DIGITS]:
        return "is damaged: its bytes do not have the digest (sha256) that it was written with."
    return ""
