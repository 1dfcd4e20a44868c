"""Recurrent layers with weights from graphs, against torch's own with the weights of one naive einsum."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from rebuilt_kit import first
from torch import Tensor, nn

import tnmars
from tnmars.errors import GraphError, ShapeError, TnmarsError
from tnmars.layer.module import layers

CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], dict[str, Any]]] = {
    "lstm": ("LSTM", (6, 8), {}, {"rank": 2}),
    "lstm, both ways": ("LSTM", (6, 8, 2), {"bidirectional": True, "batch_first": True}, {"family": "tr", "rank": 2}),
    "lstm, projected": ("LSTM", (6, 8, 2), {"proj_size": 4, "bias": False}, {"family": "lowrank", "rank": 3}),
    "lstm, dense inputs": ("LSTM", (6, 8), {}, {"input": False, "family": "cp", "rank": 5}),
    "gru": ("GRU", (6, 8, 2), {"bidirectional": True}, {"family": "tucker", "rank": 2}),
    "gru, dense states": ("GRU", (6, 8), {"bias": False}, {"recurrent": False, "ways": 4, "rank": 2}),
}


def pair(name: str) -> tuple[nn.Module, nn.Module]:
    """The layer, and torch's own with the dense weights of its cores."""
    kind, sizes, shared, own = CASES[name]
    torch.manual_seed(0)
    made = getattr(tnmars, kind)(*sizes, **shared, **own, dtype=torch.float64)
    plain = getattr(nn, kind)(*sizes, **shared, dtype=torch.float64)
    cores = dict(layers(made))
    with torch.no_grad():
        for key, value in plain.named_parameters():
            layer = cores.get(f"parametrizations.{key}.0.layer")
            if layer is None:
                value.copy_(made.get_parameter(key))
            else:
                held = {core: layer.cores.get(core).detach() for core in layer.graph.cores}
                value.copy_(oracle.dense(layer.graph, oracle.whole(layer.graph, held)).reshape(value.shape))
    return made, plain


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_torchs(name: str) -> None:
    made, plain = pair(name)
    assert type(plain) in type(made).__mro__ and isinstance(made, type(plain))
    x = torch.randn(5, 4, 6, dtype=torch.float64, requires_grad=True)
    assert oracle.error(first(made(x)), first(plain(x))) <= 1e-10
    biases = [key for key, _ in plain.named_parameters() if "bias" in key]
    found, wanted = (
        oracle.gradients(first(module(x)), [x, *(module.get_parameter(key) for key in biases)])
        for module in (made, plain)
    )
    assert all(oracle.error(mine, its) <= 1e-10 for mine, its in zip(found, wanted, strict=True))
    slopes = oracle.gradients(first(made(x)), list(made.parameters()))
    assert all(slope.any() for slope in slopes), "every core is trained"


@pytest.mark.parametrize("name", CASES)
def test_the_weights_that_were_asked_for_have_graphs_with_a_mode_for_the_gates(name: str) -> None:
    kind, (_, hidden, *_), _, own = CASES[name]
    made, _ = pair(name)
    gates = {"LSTM": 4, "GRU": 3}[kind]
    for part, key in (("input", "weight_ih"), ("recurrent", "weight_hh")):
        graphs = [layer.graph for path, layer in layers(made) if key in path]
        plain = [path for path, _ in made.named_parameters() if path.startswith(key)]
        assert bool(plain) == (own.get(part) is False) and bool(graphs) != bool(plain)
        for graph in graphs:
            outputs = [mode.size for mode in graph.modes if mode.role == tnmars.Role.OUT]
            assert outputs[0] == gates and torch.tensor(outputs).prod() == gates * hidden


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_arguments_have_torchs_names_and_order(name: str) -> None:
    own = list(inspect.signature(getattr(tnmars, name)).parameters)
    torchs = {
        "LSTM": "input_size hidden_size num_layers bias batch_first dropout bidirectional proj_size device dtype",
        "GRU": "input_size hidden_size num_layers bias batch_first dropout bidirectional device dtype",
    }[name].split()
    assert own[: len(torchs)] == torchs
    layer = getattr(tnmars, name)(6, 8, 2, False, True, 0.5, True, rank=2)
    assert (layer.num_layers, layer.bias, layer.batch_first, layer.dropout, layer.bidirectional) == (
        2,
        False,
        True,
        0.5,
        True,
    )


def test_weights_begin_as_large_as_torchs() -> None:
    torch.manual_seed(0)
    made = tnmars.LSTM(64, 64, family="lowrank", rank=48)
    assert float(made.weight_ih_l0.detach().std()) == pytest.approx(
        float(nn.LSTM(64, 64).weight_ih_l0.detach().std()), rel=0.1
    )


def test_graphs_of_your_own(tmp_path: Path) -> None:
    def halves(inputs: int, gates: int, hidden: int) -> tnmars.Graph:
        return tnmars.families.lowrank("linear", inputs=(inputs,), outputs=(gates, hidden), rank=inputs // 2)

    made = tnmars.GRU(6, 8, 2, input=halves, recurrent=False)
    assert [layer.graph.bonds["r"].size for _, layer in layers(made)] == [3, 4]
    tnmars.save_spec(halves(8, 4, 8), tmp_path / "state.yaml")
    made = tnmars.LSTM(6, 8, input=False, recurrent=tmp_path / "state.yaml", selector=tnmars.Mars())
    (layer,) = [layer for _, layer in layers(made)]
    assert layer.masks is not None and layer.graph.bonds["r"].size == 4


def test_gates_of_bonds_are_learned_pruned_and_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = tnmars.LSTM(6, 8, rank=4, selector=tnmars.Mars())
    with torch.no_grad():
        for _, layer in layers(made):
            for logits in layer.gates.parameters():
                logits.copy_(torch.tensor([3.0, -3.0, 3.0, -3.0][: len(logits)]))
    x = torch.randn(5, 2, 6)
    wanted = made.eval()(x)[0]
    small = tnmars.prune(made)
    assert oracle.error(small(x)[0], wanted) <= 1e-5
    assert sum(value.numel() for value in small.parameters()) < sum(value.numel() for value in made.parameters())
    tnmars.save(small, tmp_path / "small.safetensors")
    again = tnmars.LSTM(6, 8, rank=4, selector=tnmars.Mars())
    tnmars.load_into(again, tmp_path / "small.safetensors")
    assert torch.equal(again.eval()(x)[0], small(x)[0])


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({}, GraphError, "rank"),
        ({"family": "lowrnk", "rank": 2}, TnmarsError, r"family 'lowrnk' is not known(.|\n)*Did you mean 'lowrank'"),
        ({"input": False, "recurrent": False}, TnmarsError, r"no weight has a graph(.|\n)*torch\.nn\.LSTM"),
        ({"input": False, "recurrent": "own", "rank": 2}, TnmarsError, "rank is for the graphs of a family"),
        ({"input": "own", "recurrent": False}, ShapeError, r"'weight_ih_l0' of LSTM has shape \(32, 6\)"),
    ],
)
def test_mistakes(given: dict[str, Any], error: type[Exception], words: str) -> None:
    own = tnmars.families.lowrank("linear", inputs=(8,), outputs=(4, 8), rank=2)
    with pytest.raises(error, match=words):
        tnmars.LSTM(6, 8, **{key: own if value == "own" else value for key, value in given.items()})


def rows(x: Tensor) -> Tensor:
    return x.cumsum(1)


def test_a_recurrent_layer_shrinks() -> None:
    torch.manual_seed(0)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = tnmars.GRU(4, 6, batch_first=True, family="lowrank", rank=4)
            self.head = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.gru(x)[1][0])

    x = torch.randn(96, 3, 4)
    y = (rows(x)[:, -1, 0] > 0).long()
    curve = tnmars.shrink(
        Reader(),
        train=[(x[:64], y[:64])],
        loss=nn.functional.cross_entropy,
        evaluate=lambda model: (float((model(x[64:]).argmax(-1) == y[64:]).double().mean()), 32),
        settings=tnmars.Staircase(first=2),
        budget="1.5x",
    )
    assert curve.chosen.ratio >= 1.5 and len(curve.chosen.ranks) == 2


def test_every_family_can_be_named() -> None:
    """Also those that must be given more than a rank."""
    for family in tnmars.families.FAMILIES:
        layer = tnmars.LSTM(8, 8, family=family, rank=2, recurrent=False)
        assert layer.weight_ih_l0.shape == (32, 8)


def test_a_number_of_modes_that_makes_no_sense() -> None:
    with pytest.raises(tnmars.TnmarsError, match="ways is 0, but must be at least 1"):
        tnmars.GRU(8, 8, rank=2, ways=0)
