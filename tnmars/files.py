"""Atomic writes, so that no reader sees half of a file; and JSON from files that anyone may have written."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from tnmars.errors import TnmarsError

ABANDONED = 3600.0
"""Seconds without a write after which a temporary file counts as left behind by a killed process."""

LONGEST = 200
"""The bytes of a file's name that its temporary files repeat: the system allows 255 in all."""
MAX_JSON = 32_000_000
"""The bytes of the largest JSON file that is read."""
MAX_VALUES = 1_000_000
"""The number of values that such a file may have: an empty list takes twenty times as much memory as it has letters."""


def read_json(path: str | Path) -> Any:
    """The data in a JSON file. Raises `OSError`, and `ValueError` for what is not JSON, as `parse_json` does."""
    with Path(path).open("rb") as stream:
        return parse_json(stream.read(MAX_JSON + 1))


def parse_json(data: bytes) -> Any:
    """The data in a JSON text that anyone may have written.

    Raises `ValueError` if it is not JSON in UTF-8, is too large or too deep, or gives a key twice: another reader might
    take the other one.
    """
    if len(data) > MAX_JSON:
        raise ValueError(f"it has over {MAX_JSON:,} bytes")
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ValueError(f"it has over {MAX_VALUES:,} values")
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table of a JSON text, for `json.loads`. Raises `ValueError` if a key is given twice."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key is given twice")
    return table


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

    A symbolic link stays one, and its target is written; a file that is replaced keeps its rights, and its owner if
    the process may set it. With `keep_previous`, the file that was there moves to `previous(path)`. Once there has
    been a file at `path`, there is a complete one at every moment. `finish` may change the file after the last piece,
    before anyone can see it.
    """
    target, kept = target_of(path), target_of(previous(path)) if keep_previous else None
    try:
        _write(target, pieces, kept, finish)
    except OSError as error:
        raise _unwritten(path, error) from None


def target_of(path: str | Path) -> Path:
    """The file that is written for a path: the path itself, or what a symbolic link leads to.

    Raises `TnmarsError` for a device or a pipe, which a file would replace, and for a path that cannot be used.
    """
    found = _status(path)
    if found is not None and not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise TnmarsError(f"{path}: cannot be written: it is a device or a pipe, not a file.")
    return Path(os.path.realpath(path)) if Path(path).is_symlink() else Path(path)


def resolved(path: str | Path) -> Path:
    """The absolute path without symbolic links, to compare files. Raises `TnmarsError` if the path cannot be used."""
    _status(path)
    return Path(os.path.realpath(path))


def _status(path: str | Path) -> os.stat_result | None:
    """What the system says about a file, if there is one.

    Raises `TnmarsError` for links in a circle, a name that is too long or holds a NUL, and a folder that is closed.
    """
    try:
        return Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise TnmarsError(f"{path}: is not a usable path: {getattr(error, 'strerror', None) or error}.") from None


def _unwritten(path: str | Path, error: OSError) -> TnmarsError:
    return TnmarsError(f"{path}: cannot be written: {error.strerror or error}.")


def write_together(writers: Mapping[str, Callable[[Path], object]]) -> None:
    """Writes several files, all of them or none. Each function is called with the path of an empty file to write to.

    The files get their own names once all are written. Raises `TnmarsError`.
    """
    made: dict[Path, Path] = {}
    try:
        names: dict[Path, str] = {}
        for name in writers:
            same = names.setdefault(resolved(name), name)
            if same != name:
                raise TnmarsError(f"{same} and {name}: are the same file.")
        for name, write in writers.items():
            target = target_of(name)
            made[target] = _beside(target)
            try:
                _create(made[target], target).close()
                write(made[target])
            except OSError as error:
                raise _unwritten(target, error) from None
            except TnmarsError as error:
                reason = str(error).removeprefix(f"{made[target]}: ")
                raise TnmarsError(f"{target}: {reason}") from None
        _replace_all(made)
    except TnmarsError as error:
        raise TnmarsError(f"{error} Nothing was written.") from None
    finally:
        for temporary in made.values():
            temporary.unlink(missing_ok=True)


def _replace_all(made: Mapping[Path, Path]) -> None:
    """Gives files their own names. If that fails or is interrupted, all are put back as they were."""
    seconds: list[Path] = []
    kept: dict[Path, Path | None] = {}
    try:
        for target, temporary in made.items():
            before = _beside(target) if target.exists() else None
            try:
                if before is not None:
                    seconds.append(before)
                    _second_name(target, before)
                kept[target] = before
                temporary.replace(target)
            except OSError as error:
                raise _unwritten(target, error) from None
    except BaseException:
        for target, before in kept.items():
            with suppress(OSError):
                if before is None:
                    target.unlink(missing_ok=True)
                else:
                    before.replace(target)
        raise
    finally:
        for before in seconds:
            with suppress(OSError):
                before.unlink(missing_ok=True)


def _beside(target: Path) -> Path:
    """A name that no other file has, in the folder of a file."""
    return target.parent / f".{_start(target)}.{os.urandom(8).hex()}.part"


def _start(target: Path) -> str:
    """What the names of a file's temporary files start with: its own, cut where they would be too long."""
    name = target.name
    while len(os.fsencode(name)) > LONGEST:
        name = name[:-1]
    return name


def _create(temporary: Path, target: Path) -> BinaryIO:
    """A new file, open to be written. It has the rights of the one that it will replace, and its owner if possible.

    It has them before there is anything to read. Without one to replace, it has those of any new file: the umask is
    not asked for, which would change it for all threads.
    """
    before = _status(target)
    rights = 0o666 if before is None else stat.S_IMODE(before.st_mode) & 0o777  # without the bit of set-user-ID
    first = rights if before is None else rights & 0o700
    stream = open(temporary, "xb", opener=lambda path, flags: os.open(path, flags, first))  # noqa: SIM115
    if before is not None:
        with suppress(OSError, AttributeError):  # only root may give a file away
            new = os.fstat(stream.fileno())
            if (before.st_uid, before.st_gid) != (new.st_uid, new.st_gid):
                os.fchown(stream.fileno(), before.st_uid, before.st_gid)
        with suppress(OSError):
            temporary.chmod(rights)
    return stream


def make_folder(path: str | Path) -> Path:
    """The folder, created with its parents if it does not exist. Raises `TnmarsError` if that fails."""
    target = Path(path)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise TnmarsError(f"{target}: the folder cannot be created: {reason}.") from None
    return target


def previous(path: str | Path) -> Path:
    """The path to which `write_bytes` moves the file that it replaces."""
    return Path(f"{path}.previous")


def clear_abandoned(path: str | Path) -> None:
    """Removes the temporary files that killed writers of a file left behind."""
    target = target_of(path)
    for entry in target.parent.glob(f".{_escaped(_start(target))}.*.part"):
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
    kept: Path | None,
    finish: Callable[[BinaryIO], None] | None,
) -> None:
    """Writes a file; the one that was there becomes `kept`, if that is given."""
    temporary = _beside(target)
    try:
        with _create(temporary, target) as stream:
            for piece in pieces:
                stream.write(piece)
            if finish is not None:
                finish(stream)
            stream.flush()
            os.fsync(stream.fileno())
        if kept is not None and target.exists():
            _keep(target, kept)
        temporary.replace(target)
        _sync_folder(target.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _keep(target: Path, kept: Path) -> None:
    """Gives a file a second name, replacing what had it. The file keeps its own name throughout."""
    second = _beside(kept)
    try:
        _second_name(target, second)
        second.replace(kept)
    finally:
        second.unlink(missing_ok=True)  # a rename between two links to one file does nothing


def _second_name(target: Path, second: Path) -> None:
    try:
        second.hardlink_to(target)
    except OSError:  # a file system without hard links, or another one
        shutil.copy2(target, second)


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
