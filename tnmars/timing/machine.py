"""The name of the processor that times are measured on."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path


@cache
def processor() -> str:
    """The processor's name, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
