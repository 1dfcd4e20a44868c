"""The summary of a model: ranks before, of use, now and under the gates; parameters and multiply-adds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from kit import SPECS
from torch import nn

import tnmars
from tnmars.program.form import measure

TT = tnmars.families.tt("linear", inputs=(4, 3, 2), outputs=(2, 3, 4), rank=5)


def gated() -> tnmars.TNModule:
    layer = tnmars.compile(TT, selector=tnmars.Mars(), batch=16)
    with torch.no_grad():
        layer.gates.get("r1").copy_(torch.tensor([1.0, -1.0, 2.0, -3.0, -1.0]))
        layer.gates.get("r2").copy_(torch.tensor([-1.0, -1.0, -2.0, -0.5, -1.0]))
    return layer


def test_a_model_with_gates() -> None:
    model = nn.Sequential(nn.Linear(7, 24), gated())
    found = tnmars.summary(model)
    (layer,) = found.layers
    assert [(bond.name, bond.before, bond.useful, bond.size, bond.live) for bond in layer.bonds] == [
        ("r1", 5, 8, 5, 2),
        ("r2", 5, 8, 5, 1),
    ]
    assert (layer.parameters, layer.live_parameters, layer.dense_parameters) == (305, 42, 576)
    assert found.other == 7 * 24 + 24 + 24
    assert found.count.cores == 305
    text = str(found).splitlines()
    assert text[0].startswith("1: linear 24 -> 24; 305 -> 42 parameters (576 dense), ")
    assert text[0].endswith(" MACs for batch 16")
    assert text[1:-1] == [
        "  bond  before  useful  now  live",
        "  r1         5       8    5     2",
        "  r2         5       8    5     1",
    ]
    assert text[-1] == (
        "model: 521 parameters, 216 of them not in cores; compression 1.52; under the gates 258, compression 3.07"
    )


def test_the_same_model_pruned() -> None:
    small = tnmars.prune(nn.Sequential(gated()), simplify=False)
    found = tnmars.summary(small)
    (layer,) = found.layers
    assert [(bond.name, bond.before, bond.size, bond.live) for bond in layer.bonds] == [
        ("r1", 5, 2, None),
        ("r2", 5, None, None),
    ]
    assert layer.bonds[1].useful is None
    assert layer.parameters == layer.live_parameters == 42
    assert "r2         5       -    -" in str(found)
    again = tnmars.compile(small[0].graph, selector=tnmars.Mars(alpha=-1.0))
    twice = tnmars.prune(again, simplify=False)
    assert [(bond.name, bond.before, bond.size) for bond in tnmars.summary(twice).layers[0].bonds] == [
        ("r1", 5, None),
        ("r2", 5, None),
    ]


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_counts_are_those_of_the_module_and_of_what_pruning_leaves(path: Path) -> None:
    layer = tnmars.compile(path, selector=tnmars.Mars(spread=1.0, min_keep=0), batch=16, image=8)
    (found,) = tnmars.summary(layer).layers
    assert found.parameters == sum(value.numel() for value in layer.cores.parameters())
    form = layer.plan("infer", layer.nominal)
    assert found.macs == sum(entry.work.macs for entry in measure(form))
    small = tnmars.prune(layer, simplify=False) if layer.masks is not None else layer
    assert found.live_parameters == sum(value.numel() for value in small.cores.parameters())
    left = {bond.name for bond in tnmars.summary(small).layers[0].bonds}
    assert left >= {bond.name for bond in found.bonds if layer.masks is not None}
    json.dumps(tnmars.summary(layer).as_json(), allow_nan=False)
    json.dumps(tnmars.summary(small).as_json(), allow_nan=False)
    str(tnmars.summary(small))


def test_a_model_without_compiled_layers() -> None:
    assert str(tnmars.summary(nn.Linear(3, 4))) == "no compiled layer; 16 parameters"


def test_the_name_stays_the_function() -> None:
    """A module of the same name would take its place once it is imported."""
    assert callable(tnmars.summary)
    assert callable(tnmars.summary)
