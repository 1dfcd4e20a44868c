"""The summary of a model: ranks before, useful, now and if pruned; parameters and multiply-adds."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path

import pytest
import torch
from kit import SPECS
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tnmars
from tnmars.graph import Core, Edge, Graph, Role, Term
from tnmars.layer.forward import example_inputs
from tnmars.reporting import collect

TT = tnmars.families.tt("linear", inputs=(4, 3, 2), outputs=(2, 3, 4), rank=5)


def counted_macs(layer: tnmars.TNModule) -> int:
    """The multiply-adds of a pass, by torch's own counter. In training mode nothing is cached between passes."""
    inputs = example_inputs(layer.graph, layer.nominal, image=8)
    if dict(layer.graph.options).get("mode"):
        inputs = tuple(value[:, :1] for value in inputs)  # the batch counts rows of the table: one for each bag
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer(*inputs)
    return counter.get_total_flops() // 2


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
    layer = found.layers[0]
    times = f"time / dense {layer.time_ratio:.2f} for inference, {layer.train_time_ratio:.2f} in training"
    assert text[0].endswith(f" MACs for batch 16; {times}")
    assert layer.as_json()["time_ratio"] == layer.time_ratio > 1.0  # so small a layer is slower than torch's
    assert text[1:-1] == [
        "  bond  before  useful  now  live",
        "  r1         5       8    5     2",
        "  r2         5       8    5     1",
    ]
    assert text[-1] == (
        "model: 521 parameters, 216 of them not in cores; compression 1.52; if pruned now 258, compression 3.07"
    )


def test_cores_that_are_not_finite_are_no_error() -> None:
    """Without norms nothing can be cut, but the model can still be looked at."""
    layer = tnmars.compile(TT, selector=tnmars.Ard(), batch=16)
    assert str(tnmars.summary(layer)).splitlines()[-1].endswith("; if pruned now 329, compression 1.82")
    with torch.no_grad():
        next(layer.cores.parameters()).view(-1)[0] = torch.nan
    found = tnmars.summary(layer)
    assert [bond.live for bond in found.layers[0].bonds] == [None, None]
    assert found.layers[0].live_parameters == 305 and found.layers[0].live_macs == found.layers[0].macs
    text = str(found).splitlines()
    assert text[1:-1] == [
        "  bond  before  useful  now  live",
        "  r1         5       8    5     -",
        "  r2         5       8    5     -",
    ]
    assert "if pruned" not in text[-1]
    json.dumps(found.as_json(), allow_nan=False)
    with pytest.raises(tnmars.TnmarsError, match="training has diverged"):
        tnmars.keep(layer)


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
    assert found.macs == counted_macs(layer)
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
    import tnmars.reporting.summary
    import tnmars.store.prune_file

    assert inspect.isfunction(tnmars.summary)
    assert inspect.ismodule(importlib.import_module("tnmars.reporting.summary"))


def tied(keep: tuple[int, ...] = ()) -> nn.ModuleList:
    """Two layers that share their first core; with `keep`, gates that keep so many slices of each bond."""
    pair = [tnmars.compile(TT, selector=tnmars.Mars() if keep else None, batch=16) for _ in range(2)]
    shared = next(name for name, _ in pair[0].cores.named_parameters())
    pair[1].cores._parameters[shared] = pair[0].cores._parameters[shared]
    for layer in pair if keep else ():
        with torch.no_grad():
            for logits, count in zip(layer.logits(), keep, strict=True):
                logits.copy_(torch.where(torch.arange(5) < count, 2.0, -2.0))
    return nn.ModuleList(pair)


def test_a_core_shared_by_layers_counts_once(tmp_path: Path) -> None:
    model = tied()
    found = tnmars.summary(model)
    numel = sum(value.numel() for value in model.parameters())
    assert numel == 2 * 305 - 40 + 48
    assert found.count.cores + found.other == found.as_json()["parameters"] == numel
    assert [layer.parameters for layer in found.layers] == [305, 305]
    assert [layer.shared for layer in found.layers] == [0, 40]
    assert "; 40 parameters shared with a layer above" in str(found)
    assert f"model: {numel} parameters, 48 of them not in cores" in str(found)
    tnmars.save(model, tmp_path / "model")
    for given in (model, tmp_path / "model"):
        whole = collect(given, given, measure=False).before
        assert whole.cores + whole.other == numel


def test_a_shared_core_counts_once_under_gates() -> None:
    model = tied((2, 3))
    found = tnmars.summary(model)
    small = tnmars.prune(model, simplify=False)
    cores = {id(value): value.numel() for layer in small for value in layer.cores.parameters()}
    assert found.live_count.cores == sum(cores.values())


def test_a_core_twice_in_one_layer_counts_once() -> None:
    modes = (Edge("i", 6, Role.IN), Edge("o", 6, Role.OUT))
    term = Term("main", (Edge("r", 2),), (Core("A", ("i", "r")), Core("B", ("o", "r"))))
    layer = tnmars.compile(Graph("linear", modes, (term,)), batch=16)
    layer.cores._parameters["B"] = layer.cores._parameters["A"]
    (found,) = tnmars.summary(layer).layers
    assert found.parameters == sum(value.numel() for value in layer.cores.parameters()) == 12
