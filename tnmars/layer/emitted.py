"""Emitted source made callable."""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=4096)
def functions(source: str) -> Mapping[str, Any]:
    """The functions of an emitted source by name. It is ours: no name of a spec file is in it but in comments."""
    name = f"<tnmars {abs(hash(source)):x}>"
    space: dict[str, Any] = {}
    exec(compile(source, name, "exec"), space)  # noqa: S102
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    return space
