"""Where a model has weights that can be decomposed."""

from __future__ import annotations

import torch
from torch import nn

import tnmars
from tnmars.models.sites import sites
from tnmars.models.tying import grouped, problem, seen_by


def test_layers_and_weights_that_are_used_directly() -> None:
    model = nn.ModuleDict(
        {
            "fc": nn.Linear(4, 3),
            "lstm": nn.LSTM(4, 5, num_layers=2, bidirectional=True, proj_size=2),
            "gru": nn.GRU(4, 5),
            "cell": nn.LSTMCell(4, 5),
            "attention": nn.MultiheadAttention(4, 2),
            "cross": nn.MultiheadAttention(4, 2, kdim=3, vdim=5),
            "depth": nn.Conv2d(4, 4, 3, groups=4),
            "words": nn.Embedding(9, 4, sparse=True),
            "done": tnmars.Linear(4, 4, rank=2),
        }
    )
    found, refused = sites(model)
    ends = ("_l0", "_l0_reverse", "_l1", "_l1_reverse")
    assert set(found) == {
        "fc",
        "depth",
        *(f"lstm.weight_{key}{end}" for key in ("ih", "hh", "hr") for end in ends),
        "gru.weight_ih_l0",
        "gru.weight_hh_l0",
        "cell.weight_ih",
        "cell.weight_hh",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        *(f"cross.{key}_proj_weight" for key in "qkv"),
        "cross.out_proj.weight",
    }
    assert refused == {"words": "it has the option sparse, and gradients of cores, which all rows share, are dense"}
    assert found["fc"].is_layer
    assert not found["lstm.weight_hr_l1"].is_layer
    assert found["lstm.weight_hr_l1"].layer.shape == (2, 5)
    for name, site in found.items():
        if not site.is_layer:
            assert site.layer.weight is model.get_parameter(name)
            assert getattr(site.module, site.parameter) is site.layer.weight


def test_what_is_parametrized_is_refused() -> None:
    lstm = nn.LSTM(4, 5)
    tnmars.parametrize_(lstm, "weight_hh_l0", "lowrank", ranks=2)
    found, refused = sites(nn.ModuleDict({"lstm": lstm}))
    assert list(found) == ["lstm.weight_ih_l0"]
    assert refused == {"lstm.weight_hh_l0": "it is parametrized already"}


def test_a_shared_module_has_all_its_names() -> None:
    layer = nn.Linear(4, 4)
    found, _ = sites(nn.Sequential(layer, nn.ReLU(), nn.Sequential(layer)))
    assert list(found) == ["0"]
    assert found["0"].names == ("0", "2.0")


# --- weights that several places share -------------------------------------------------------------------------------


def tied(one: nn.Module, other: nn.Module) -> nn.Sequential:
    other.weight = one.weight
    return nn.Sequential(one, other, nn.Linear(7, 7))


def test_places_are_grouped_by_their_weight() -> None:
    layer, table = nn.Linear(4, 6), nn.Embedding(6, 4)
    groups = grouped(sites(tied(layer, table))[0].values())
    assert [[site.name for site in group.sites] for group in groups] == [["1", "0"], ["2"]]  # the table decides
    assert groups[0].name == "1"
    assert [problem(group.sites) for group in groups] == ["", ""]


def test_what_cannot_share_cores() -> None:
    conv, layer = nn.Conv1d(4, 6, 1), nn.Linear(4, 6)
    layer.weight = conv.weight
    assert problem(list(sites(nn.Sequential(conv, layer))[0].values())) == (
        "its weight is shared with '1', a layer of another kind"
    )
    cell, layer = nn.RNNCell(4, 6), nn.Linear(4, 6)
    layer.weight = cell.weight_ih
    (shared, _) = grouped(sites(nn.ModuleDict({"cell": cell, "layer": layer}))[0].values())
    assert problem(shared.sites) == "its weight is shared with 'layer', which uses it directly"


def test_a_graph_as_the_other_place_sees_it() -> None:
    """The same cores give the table, and the weight of the layer; options are each place's own."""
    layer, table = nn.Linear(4, 6), nn.Embedding(6, 4)
    model = tied(layer, table)
    found = sites(model)[0]
    graph = tnmars.families.of_layer("tt", "embedding", 6, 4, ways=2, rank=3)
    turned = seen_by(graph, found["0"].layer)
    assert (turned.kind, turned.dense_shape, turned.has_bias) == ("linear", (6, 4), True)
    assert turned.cores == graph.cores
    one, other = tnmars.compile(graph), tnmars.compile(turned)
    with torch.no_grad():
        for name in graph.cores:
            other.cores.get(name).copy_(one.cores.get(name))
    assert torch.allclose(one.dense(), other.dense(), atol=1e-6)
    assert seen_by(turned, found["1"].layer) == graph
