"""The digests in the summary of a fit: they tell whether its files are still as they were written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tnmars.files import read_json

DIGESTS = "digests"
SUMMARY = ".json"
OTHERS = (".yaml", ".safetensors")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def signed(summary: Mapping[str, Any], digests: Mapping[str, str]) -> str:
    """The text of a summary with the digests of the other files by their endings, and of itself without any."""
    own = digest(_text(summary).encode())
    return _text({**summary, DIGESTS: {**digests, SUMMARY: own}})


def changed(stem: str) -> str | None:
    """The name of a file that is not as a fit wrote it, or `None`. A file that is not there has not changed."""
    try:
        summary = read_json(f"{stem}{SUMMARY}")
        digests = summary.pop(DIGESTS)
        if digests.pop(SUMMARY) != digest(_text(summary).encode()):
            return f"{stem}{SUMMARY}"
        for ending in OTHERS:
            path = Path(f"{stem}{ending}")
            if path.exists() and digest(path.read_bytes()) != digests[ending]:
                return str(path)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return f"{stem}{SUMMARY}"
    return None


def _text(summary: Mapping[str, Any]) -> str:
    return json.dumps(summary, indent=1) + "\n"
