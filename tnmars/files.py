"""Files that are whole or not there: written under a temporary name, synced, then renamed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tnmars.errors import TnmarsError


def write_text(path: str | Path, text: str) -> None:
    """Writes a text file so that no reader, and no crash, ever sees half of it. Raises `TnmarsError` if it cannot."""
    target = Path(path)
    try:
        _write(target, text)
    except OSError as error:
        raise TnmarsError(f"{target}: cannot be written: {error.strerror or error}.") from None


def _write(target: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
