"""Atomic writes: a file is written under a temporary name, synced, then renamed, so that no reader sees half of it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from tnmars.errors import TnmarsError

ABANDONED = 3600.0
"""Seconds without a write after which a temporary file counts as left behind by a killed process."""


def write_text(path: str | Path, text: str) -> None:
    """Writes a text file atomically: neither a reader nor a crash ever sees half of it. Raises `TnmarsError`."""
    write_bytes(path, [text.encode("utf-8")])


def write_bytes(
    path: str | Path,
    pieces: Iterable[bytes | memoryview],
    *,
    keep_previous: bool = False,
    finish: Callable[[BinaryIO], None] | None = None,
) -> None:
    """Writes the pieces of a file one after the other, atomically. Raises `TnmarsError`.

    With `keep_previous`, the file that was there moves to `previous(path)`. Once there has been a file at `path`, there
    is a complete one at every moment. `finish` may change the file after the last piece, before anyone can see it.
    """
    target = Path(path)
    try:
        _write(target, pieces, keep_previous, finish)
    except OSError as error:
        raise TnmarsError(f"{target}: cannot be written: {error.strerror or error}.") from None


def write_together(writers: Mapping[str, Callable[[Path], object]]) -> None:
    """Writes several files, all of them or none. Each function is called with the path that it writes to.

    The files get their own names once all are written. Raises `TnmarsError`.
    """
    made: dict[Path, Path] = {}
    target = Path()
    try:
        for name, write in writers.items():
            target = Path(name)
            made[target] = target.parent / f".{target.name}.{os.urandom(8).hex()}.part"
            write(made[target])
        for target, temporary in made.items():
            temporary.replace(target)
    except (OSError, TnmarsError) as error:
        shown = str(error) if isinstance(error, TnmarsError) else f"cannot be written: {error.strerror or error}."
        reason = shown.removeprefix(f"{made[target]}: ")
        raise TnmarsError(f"{target}: {reason} Nothing was written.") from None
    finally:
        for temporary in made.values():
            temporary.unlink(missing_ok=True)


def make_folder(path: str | Path) -> Path:
    """The folder, created with its parents if it does not exist. Raises `TnmarsError` if that fails."""
    target = Path(path)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TnmarsError(f"{target}: the folder cannot be created: {error.strerror or error}.") from None
    return target


def previous(path: str | Path) -> Path:
    """The path to which `write_bytes` moves the file that it replaces."""
    return Path(f"{path}.previous")


def clear_abandoned(path: str | Path) -> None:
    """Removes the temporary files that killed writers of a file left behind."""
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
    temporary = target.parent / f".{target.name}.{os.urandom(8).hex()}.part"
    # Mode "x" creates the file with the rights that the process's umask leaves, as any other new file; asking for the
    # umask to set them later would change it for all threads.
    stream = temporary.open("xb")
    try:
        with stream:
            for piece in pieces:
                stream.write(piece)
            if finish is not None:
                finish(stream)
            stream.flush()
            os.fsync(stream.fileno())
        if keep_previous and target.exists():
            _keep(target, Path(f"{temporary}.link.part"))
        temporary.replace(target)
        _sync_folder(target.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _keep(target: Path, second: Path) -> None:
    """Links a file to its `previous` path, replacing what was there. The file keeps its own name throughout."""
    try:
        try:
            second.hardlink_to(target)
        except OSError:  # a file system without hard links
            shutil.copyfile(target, second)
        second.replace(previous(target))
    finally:
        second.unlink(missing_ok=True)  # a rename between two links to one file does nothing


def _sync_folder(folder: Path) -> None:
    """Makes renames in a folder durable; does nothing if the system does not support that."""
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
