"""One writer for each folder of a run: a lock that the system releases when its process ends, however it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tnmars.errors import Problem, TnmarsError

if sys.platform != "win32":
    import fcntl

LOCK = "lock"


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Within the block no other process may own the folder. Raises `TnmarsError` if one does, and changes nothing.

    A run goes on if the command that started it is killed with -9; so the next command may meet it here.
    """
    if sys.platform == "win32":  # folders are not locked there
        yield
        return
    path = folder / LOCK
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise TnmarsError(f"{path}: cannot be written: {error.strerror or error}.") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            text = f"{folder}: process {file.read().strip() or 'unknown'} is still working on this run."
            raise TnmarsError(Problem(text, "Wait until it ends, or stop it with kill; then run again.")) from None
        except OSError:  # a file system without locks
            yield
            return
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
