"""MNIST from its published files: located, checked against known digests, and read into memory."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from torch import Tensor

from tnmars.errors import Problem, TnmarsError
from tnmars.files import write_bytes

PAGE = "https://ossci-datasets.s3.amazonaws.com/mnist/"
"""The mirror that torchvision uses; the official page asks scripts to use a copy."""
FILES = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}

MAX_BYTES = 64_000_000
"""The size of the largest file of a data set, once it is unpacked. A file of a few kilobytes could hold gigabytes."""


@dataclass(frozen=True)
class Mnist:
    """Images as rows of pixels in [0, 1], and their labels."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def folder(given: str | Path | None = None) -> Path:
    """The folder of the data sets: as given, `$TNMARS_DATA`, or a folder in the user's cache."""
    if given is not None:
        return Path(given)
    if os.environ.get("TNMARS_DATA"):
        return Path(os.environ["TNMARS_DATA"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tnmars" / "data"


def is_there(given: str | Path | None = None) -> bool:
    """Whether the data set is on this machine."""
    return all((folder(given) / "mnist" / name).exists() for name in FILES)


def mnist(given: str | Path | None = None, *, download: bool = True) -> Mnist:
    """The data set. Missing files are downloaded if `download` is true. Raises `TnmarsError`."""
    where = folder(given) / "mnist"
    for name, digest in FILES.items():
        if not (where / name).exists():
            if not download:
                raise TnmarsError(_missing(where))
            _fetch(where, name)
        actual = hashlib.sha256((where / name).read_bytes()).hexdigest()
        if actual != digest:
            text = (
                f"{where / name} is not the published file: its SHA-256 starts with {actual[:16]}, not {digest[:16]}."
            )
            raise TnmarsError(Problem(text, "Remove it; it is then downloaded again."))
    images, labels, more_images, more_labels = (read_idx(where / name) for name in FILES)
    return Mnist(
        torch.from_numpy(images.reshape(len(images), -1).astype(numpy.float32) / 255.0),
        torch.from_numpy(labels.astype(numpy.int64)),
        torch.from_numpy(more_images.reshape(len(more_images), -1).astype(numpy.float32) / 255.0),
        torch.from_numpy(more_labels.astype(numpy.int64)),
    )


def unpacked(path: Path) -> bytes:
    """The contents of an `.xz` file. Raises `TnmarsError` if it is damaged or too large."""
    try:
        stream = lzma.LZMADecompressor(memlimit=MAX_BYTES + MAX_BYTES // 2)
        data = stream.decompress(path.read_bytes(), MAX_BYTES + 1)
    except (OSError, lzma.LZMAError) as error:
        raise TnmarsError(f"{path} cannot be unpacked: {error}.") from None
    if len(data) > MAX_BYTES:
        raise TnmarsError(f"{path} holds over {MAX_BYTES:,} bytes, which no file of a data set has.")
    if not stream.eof:
        raise TnmarsError(f"{path} cannot be unpacked: its end is missing.")
    return data


def read_idx(path: Path) -> numpy.ndarray:
    """The array in a gzipped IDX file of bytes."""
    raw = gzip.decompress(path.read_bytes())
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise TnmarsError(f"{path} is not an IDX file of bytes.")
    count = raw[3]
    shape = [int(size) for size in numpy.frombuffer(raw, ">u4", count, 4)]
    values = numpy.frombuffer(raw, numpy.uint8, offset=4 + 4 * count)
    if values.size != int(numpy.prod(shape)):
        raise TnmarsError(f"{path} holds {values.size:,} bytes, but its header says {shape}.")
    return values.reshape(shape)


def _missing(where: Path) -> str:
    return (
        f"MNIST is not in {where}.\n  Put its four published files there ({', '.join(FILES)}), or name the folder that "
        "has them in a subfolder 'mnist': with --data DIR, or with the environment variable TNMARS_DATA."
    )


def _fetch(where: Path, name: str) -> None:
    """Downloads a file; a terminal shows a progress bar."""
    from rich.progress import Progress

    where.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(PAGE + name, timeout=20) as answer, Progress(transient=True) as bar:
            task = bar.add_task(name, total=int(answer.headers.get("Content-Length") or 0) or None)
            pieces = []
            while piece := answer.read(1 << 16):
                pieces.append(piece)
                bar.advance(task, len(piece))
    except (OSError, urllib.error.URLError) as error:
        raise TnmarsError(f"{name} could not be downloaded ({error}).\n  {_missing(where)}") from None
    if hashlib.sha256(b"".join(pieces)).hexdigest() != FILES[name]:
        raise TnmarsError(f"{name}: the downloaded file is not the published one.\n  {_missing(where)}")
    write_bytes(where / name, pieces)
