"""Files that are whole or not there: written under a temporary name, synced, then renamed."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from tnmars.errors import TnmarsError

ABANDONED = 3600.0
"""After how many seconds without a write a temporary file was left behind by a process that was killed."""


def write_text(path: str | Path, text: str) -> None:
    """Writes a text file so that no reader, and no crash, ever sees half of it. Raises `TnmarsError` if it cannot."""
    write_bytes(path, [text.encode("utf-8")])


def write_bytes(
    path: str | Path,
    pieces: Iterable[bytes | memoryview],
    *,
    keep_previous: bool = False,
    finish: Callable[[BinaryIO], None] | None = None,
) -> None:
    """Writes the pieces of a file, one after the other, in the same way.

    With `keep_previous` the file that was there stays under the name of `previous(path)`; at every moment there is a
    whole file at `path`, once there was one. `finish` may change the file once all pieces are written, before anyone
    can see it.
    """
    target = Path(path)
    try:
        _write(target, pieces, keep_previous, finish)
    except OSError as error:
        raise TnmarsError(f"{target}: cannot be written: {error.strerror or error}.") from None


def make_folder(path: str | Path) -> Path:
    """The folder, made where it is not there, with those above it. Raises `TnmarsError` if it cannot be."""
    target = Path(path)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TnmarsError(f"{target}: the folder cannot be made: {error.strerror or error}.") from None
    return target


def previous(path: str | Path) -> Path:
    """Where the file is kept that another took the place of."""
    return Path(f"{path}.previous")


def clear_abandoned(path: str | Path) -> None:
    """Removes temporary files that killed writers of a file left behind."""
    target = Path(path)
    for entry in target.parent.glob(f".{_escaped(target.name)}.*.part"):
        try:
            if time.time() - entry.stat().st_mtime > ABANDONED:
                entry.unlink()
        except OSError:
            continue


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _write(
    target: Path,
    pieces: Iterable[bytes | memoryview],
    keep_previous: bool,
    finish: Callable[[BinaryIO], None] | None,
) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            for piece in pieces:
                stream.write(piece)
            if finish is not None:
                finish(stream)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        if keep_previous and target.exists():
            _keep(target, Path(f"{temporary}.link.part"))
        Path(temporary).replace(target)
        _sync_folder(target.parent)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """What the user takes from the rights of new files."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _keep(target: Path, second: Path) -> None:
    """Gives a file a second name, in the place of what had that name. The first name is there all the time."""
    try:
        try:
            second.hardlink_to(target)
        except OSError:  # a file system without second names
            shutil.copyfile(target, second)
        second.replace(previous(target))
    finally:
        second.unlink(missing_ok=True)  # where both names were the same file already, a rename does nothing


def _sync_folder(folder: Path) -> None:
    """Makes renames in a folder last; where the system has no such thing, nothing."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        return
    finally:
        os.close(handle)
