"""The graphs in a file of `tnmars.save` or `tnmars.save_checkpoint`, from its header alone: no tensor is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tnmars.errors import Problem, SpecError
from tnmars.files import unique
from tnmars.graph import Graph
from tnmars.spec.nodes import START
from tnmars.spec.reader import loads

MAX_HEADER = 200_000_000
"""The largest header that is read, in bytes."""
MAX_VALUES = 3_000_000
"""The largest number of values in it. Each takes up to a hundred bytes of memory, but may be two bytes of a file."""


def is_model_file(path: str | Path) -> bool:
    """Whether a file begins as a saved model does. A pipe does not: what is read from it is gone."""
    try:
        if not Path(path).is_file():
            return False
        with Path(path).open("rb") as stream:
            return stream.read(8 + len(START))[8:] == START
    except (OSError, ValueError):
        return False


def graphs_in(path: str | Path) -> dict[str, Graph]:
    """The graph of each compiled layer by the layer's name. Raises `SpecError`."""
    specs = _of_layers(path, "spec")
    if not specs:
        text = f"{path}: is a saved model without compiled layers, so it has no graph."
        raise SpecError(Problem(text, "tnmars compress makes some of its layers compiled ones."))
    return {name: loads(text, source=f"{path}: layer '{name}'") for name, text in specs.items()}


def dtypes_in(path: str | Path) -> dict[str, str]:
    """The type of the numbers of each compiled layer by the layer's name: `"complex64"`. Raises `SpecError`."""
    return {name: text.removeprefix("torch.") for name, text in _of_layers(path, "dtype").items()}


def _of_layers(path: str | Path, key: str) -> dict[str, str]:
    """One entry of each compiled layer by the layer's name."""
    try:
        with Path(path).open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > MAX_HEADER:
                raise ValueError(f"its header claims {length:,} bytes")
            head = stream.read(length)
        values = sum(map(head.count, (b",", b"[", b"{")))
        if values > MAX_VALUES:
            raise ValueError(f"its header has {values:,} values")
        table = json.loads(head, object_pairs_hook=unique)
        about = json.loads(table["__metadata__"]["tnmars"], object_pairs_hook=unique)
        return unique([(_name(entry), str(entry[key])) for entry in about["layers"]])
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise SpecError(f"{path}: is damaged: {type(error).__name__} {error}.") from None


def _name(entry: Any) -> str:
    name = str(entry["names"][0])
    name.encode()  # raises `ValueError` for what cannot be printed
    return name
