"""Cores that several layers share: they are cut, saved and loaded as one, or not at all."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

import tnmars
from tnmars.store.prune_file import prune_file


def chain() -> tnmars.TNModule:
    """Three cores in a row, so that the last one does not touch the first bond."""
    graph = tnmars.network(
        "linear", "A[i,r] B[r,j,s] C[s,o]", inputs=dict(i=8, j=3), outputs=dict(o=24), bonds=dict(r=4, s=6)
    )
    return tnmars.compile(graph, selector=tnmars.Mars(), dtype=torch.float64, batch=7)


def tied(core: str = "B") -> nn.Sequential:
    model = nn.Sequential(chain(), nn.ReLU(), chain())
    model[2].cores.put(core, model[0].cores.get(core))
    return model


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    for _ in range(steps):
        (model(torch.randn(7, 24, dtype=torch.float64)).square().mean() + tnmars.penalty(model) / 10).backward()
        optimizer.step()
        optimizer.zero_grad()


def set_gates(model: nn.Sequential, kept: Mapping[str, Mapping[str, tuple[int, ...]]]) -> None:
    with torch.no_grad():
        for name, bonds in kept.items():
            for bond, logits in zip(("r", "s"), model[int(name)].logits(), strict=True):
                logits.fill_(-5.0)
                logits[list(bonds[bond])] = 5.0


def sharing(model: nn.Module) -> list[tuple[str, ...]]:
    """The names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(value), []).append(name)
    return [tuple(entry) for entry in names.values() if len(entry) > 1]


# Slices of both layers: enough of them that no two cores are merged.
BOTH = {"0": {"r": (0, 2), "s": (1, 2, 5)}, "2": {"r": (0, 2), "s": (1, 2, 5)}}
X = torch.linspace(-1.0, 1.0, 168, dtype=torch.float64).reshape(7, 24)


def test_layers_that_are_cut_the_same_way_stay_tied() -> None:
    model = tied()
    set_gates(model, BOTH)
    small = tnmars.prune(model)
    assert sharing(small) == [("0.cores.B", "2.cores.B")]
    assert (small(X) - model.eval()(X)).abs().max() <= 1e-12
    assert sharing(copy.deepcopy(small)) == sharing(small)


def test_a_cut_that_leaves_a_shared_core_alone_leaves_it_tied_and_trained() -> None:
    model = tied("C")
    optimizer = torch.optim.Adam(tnmars.param_groups(model, lr=1e-2))
    trained(model, optimizer)
    shared, state = model[0].cores.get("C"), optimizer.state[model[0].cores.get("C")]["exp_avg"].clone()
    tnmars.prune_(model, optimizer, {"0": {"r": (0, 2), "s": range(6)}}, keep_gates=True)
    assert sharing(model) == [("0.cores.C", "2.cores.C")] and model[2].cores.get("C") is shared
    assert torch.equal(optimizer.state[shared]["exp_avg"], state)
    held = [value for group in optimizer.param_groups for value in group["params"]]
    assert {id(value) for value in held} == {id(value) for value in model.parameters()} and len(held) == len(set(held))
    before = shared.detach().clone()
    trained(model, optimizer)
    assert not torch.equal(before, shared.detach())


@pytest.mark.parametrize("in_place", [True, False])
def test_a_cut_of_one_layer_does_not_untie(in_place: bool) -> None:
    model = tied()
    optimizer = torch.optim.Adam(tnmars.param_groups(model, lr=1e-2))
    kept = {"0": BOTH["0"]}
    with pytest.raises(tnmars.TnmarsError) as caught:
        tnmars.prune_(model, optimizer, kept) if in_place else tnmars.prune(model, kept)
    assert str(caught.value) == (
        "core 'B' of layer '0' is '2.cores.B' of the model too, which would not be cut. Nothing was changed.\n"
        "  Cut both with the same slices (keep=...), or untie them first."
    )
    assert sharing(model) == [("0.cores.B", "2.cores.B")] and model[0].graph.bonds["r"].size == 4


def test_a_core_that_another_module_uses_is_not_cut() -> None:
    model = nn.Sequential(chain(), nn.Linear(24, 6, dtype=torch.float64))
    model[1].weight = model[0].cores.get("C")
    with pytest.raises(tnmars.TnmarsError, match=r"core 'C' of layer '0' is '1.weight' of the model too"):
        tnmars.prune(model, {"0": BOTH["0"]})


def test_shut_slices_do_not_untie() -> None:
    model = tied()
    optimizer = torch.optim.SGD(tnmars.param_groups(model, lr=1e-2))
    set_gates(model, {"0": BOTH["0"]})
    for layer in (model[0], model[2]):
        layer.masks.noise.zero_()
    shut = tnmars.ShutSlices(model, 1, optimizer)
    with pytest.raises(tnmars.TnmarsError, match="Nothing was changed"):
        shut.step()
    assert sharing(model) == [("0.cores.B", "2.cores.B")]


@pytest.mark.parametrize("fresh", [tied, lambda: nn.Sequential(chain(), nn.ReLU(), chain())])
def test_a_file_of_a_cut_model_keeps_its_ties(fresh, tmp_path: Path) -> None:
    model = tied()
    small = tnmars.prune(model, BOTH)
    tnmars.save(small, tmp_path / "a")
    other = tnmars.load_into(fresh(), tmp_path / "a")
    assert sharing(other) == sharing(small) == [("0.cores.B", "2.cores.B")]
    assert torch.equal(other(X), small(X))


def test_a_run_with_tied_cores_goes_on(tmp_path: Path) -> None:
    model = tied()
    optimizer = torch.optim.Adam(tnmars.param_groups(model, lr=1e-2))
    trained(model, optimizer, 2)
    tnmars.prune_(model, optimizer, BOTH, keep_gates=True)
    trained(model, optimizer)
    tnmars.save_checkpoint(tmp_path / "a", model, optimizer)
    other = tied()
    second = torch.optim.Adam(tnmars.param_groups(other, lr=1e-2))
    tnmars.load_checkpoint(tmp_path / "a", other, second)
    assert sharing(other) == sharing(model)
    for one, way in ((model, optimizer), (other, second)):
        torch.manual_seed(3)
        trained(one, way, 2)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_file_is_cut_like_the_model(tmp_path: Path) -> None:
    model = tied()
    set_gates(model, BOTH)
    tnmars.save(model, tmp_path / "a")
    prune_file(tmp_path / "a", tmp_path / "b")
    small = tnmars.prune(model)
    other = tnmars.load_into(tied(), tmp_path / "b")
    assert sharing(other) == sharing(small) == [("0.cores.B", "2.cores.B")]
    assert torch.equal(other(X), small(X))


def test_a_file_whose_layers_would_be_cut_differently_is_refused(tmp_path: Path) -> None:
    model = tied()
    set_gates(model, {**BOTH, "2": {"r": (0, 2), "s": (0, 1, 2)}})
    tnmars.save(model, tmp_path / "a")
    with pytest.raises(tnmars.TnmarsError, match=r"cut differently\. Nothing was changed"):
        prune_file(tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_file_whose_other_modules_use_a_core_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(chain(), nn.Linear(24, 6, dtype=torch.float64))
    model[1].weight = model[0].cores.get("C")
    set_gates(model, {"0": BOTH["0"]})
    tnmars.save(model, tmp_path / "a")
    with pytest.raises(tnmars.TnmarsError, match=r"core 'C' of layer '0' is '1.weight' of the model too"):
        prune_file(tmp_path / "a", tmp_path / "b")
