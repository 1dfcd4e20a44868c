"""Arrays of a user's own that mean harm: .npy and .safetensors files."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import numpy
from forging import CODE, Attack, deep, pickled, torch_file, zipped

MAGIC = b"\x93NUMPY"


def npy(header: str | bytes, body: bytes = b"", version: int = 1, length: int | None = None) -> bytes:
    """A .npy file with any header; `length` is what it says about the header's length."""
    text = header.encode("latin-1") if isinstance(header, str) else header
    said = len(text) if length is None else length
    return MAGIC + bytes([version, 0]) + said.to_bytes(2 if version == 1 else 4, "little") + text + body


def about(shape: str, dtype: str = "'<f8'", order: str = "False") -> str:
    return f"{{'descr': {dtype}, 'fortran_order': {order}, 'shape': {shape}}}\n"


def objects() -> bytes:
    """An array of objects, whose entries numpy would have to unpickle."""
    stream = io.BytesIO()
    numpy.lib.format.write_array_header_1_0(stream, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    return stream.getvalue() + pickled()


def arrays() -> Iterator[tuple[str, bytes, str]]:
    yield "pickle", pickled(), "cannot be read"
    yield "torch_save", torch_file(), "cannot be read|several arrays"
    yield "objects", objects(), "cannot be read"
    yield "objects_inside", npy(about("(1,)", "[('a', '|O')]"), pickled()), "cannot be read"
    yield "zip_bomb", zipped("a.npy", npy(about("(50000000,)", "'|u1'"), bytes(50_000_000))), "several arrays"
    yield "code_as_header", npy(CODE), "cannot be read"
    yield "code_as_shape", npy(about(f"({CODE},)")), "cannot be read"
    yield "code_as_type", npy(about("(1,)", f"'{CODE[:10]}'"), bytes(8)), "cannot be read"
    yield "huge_shape", npy(about("(10000000000, 10000000000)")), "header says"
    yield "shape_that_wraps", npy(about(f"({2**61}, 8)")), "header says"
    yield "negative_shape", npy(about("(-1, -8)"), bytes(64)), "header says|cannot be read"
    yield "header_of_gigabytes", npy(about("(1,)"), bytes(8), version=2, length=2**32 - 1), "cannot be read"
    yield "deep_header", npy(deep(60_000, "(", ")"), version=2), "cannot be read"
    yield "many_digits", npy(about(f"({'9' * 60_000},)"), version=2), "cannot be read"
    yield "other_version", npy(about("(1,)"), bytes(8), version=9), "cannot be read"
    yield "text_as_numbers", npy(about("(1,)", "'<U4'"), "abcd".encode("utf-32-le")), "real numbers"
    yield "empty", b"", "cannot be read"


def safetensors(table: str | dict[str, Any], body: bytes = b"", length: int | None = None) -> bytes:
    text = (table if isinstance(table, str) else json.dumps(table)).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def tables() -> Iterator[tuple[str, bytes, str]]:
    def entry(shape: list[int], offsets: list[int], dtype: str = "F32") -> dict[str, Any]:
        return {"dtype": dtype, "shape": shape, "data_offsets": offsets}

    wrong = "cannot be read as a safetensors file"
    yield "pickle", pickled(), wrong
    yield "torch_save", torch_file(), wrong
    yield "long_header", safetensors({}, length=2**62), wrong
    yield "overlap", safetensors({"a": entry([2], [0, 8]), "b": entry([2], [4, 12])}, bytes(12)), wrong
    yield "beyond_the_end", safetensors({"a": entry([4], [0, 16])}, bytes(8)), wrong
    yield "huge_shape", safetensors({"a": entry([2**40, 2**40], [0, 8])}, bytes(8)), wrong
    yield "unknown_type", safetensors({"a": entry([2], [0, 8], CODE)}, bytes(8)), wrong
    yield "deep_header", safetensors(deep(100_000)), wrong
    yield "nothing_inside", safetensors({}), "holds"


def attacks() -> list[Attack]:
    found = [Attack(f"npy_{name}", "npy", data, says) for name, data, says in arrays()]
    return found + [Attack(f"safetensors_{name}", "safetensors", data, says) for name, data, says in tables()]
