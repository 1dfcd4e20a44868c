"""The graphs in a saved model, and headers that are not ones that tnmars writes."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import tnmars
from tnmars.errors import SpecError
from tnmars.spec.model_file import graphs_in, is_model_file

GRAPH = tnmars.families.lowrank("linear", inputs=(3,), outputs=(3,), rank=2)


def header_of(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    header: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header


def write(path: Path, header: dict[str, Any], about: str) -> None:
    """A file with nothing but a header, which says this about the model."""
    header["__metadata__"]["tnmars"] = about
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    tnmars.save(nn.Sequential(tnmars.compile(GRAPH), tnmars.compile(GRAPH)), tmp_path / "a")
    return tmp_path / "a"


def test_the_graphs_are_those_of_the_layers(saved: Path) -> None:
    assert is_model_file(saved)
    assert graphs_in(saved) == {"0": GRAPH, "1": GRAPH}


def test_two_layers_of_one_name_are_refused(saved: Path) -> None:
    header = header_of(saved)
    about = json.loads(header["__metadata__"]["tnmars"])
    about["layers"][1]["names"] = ["0"]
    write(saved, header, json.dumps(about))
    with pytest.raises(SpecError, match="is damaged: ValueError a key is given twice"):
        graphs_in(saved)


def test_a_header_of_millions_of_values_takes_little_memory(saved: Path) -> None:
    write(saved, header_of(saved), '{"layers":[' + "[]," * 4_000_000 + "[]]}")
    size = saved.stat().st_size
    tracemalloc.start()
    try:
        with pytest.raises(SpecError, match="its header has 8,000,"):
            graphs_in(saved)
        assert tracemalloc.get_traced_memory()[1] < 3 * size
    finally:
        tracemalloc.stop()
