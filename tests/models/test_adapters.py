"""Adapters: a frozen layer plus a tensor network, against the sum computed by hand; merged, it is one layer again."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tnmars
from tnmars.store.container import Container, read, write


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4)).double()


def moved(net: nn.Module) -> nn.Module:
    """The model with adapters that no longer are zero."""
    with torch.no_grad():
        for value in net.parameters():
            if value.requires_grad:
                value.normal_()
    return net


def test_an_adapter_changes_nothing_at_first() -> None:
    net = model()
    x = torch.randn(5, 16, dtype=torch.float64)
    before = net(x)
    tnmars.adapter_(net, {"*": "lowrank"}, rank=2)
    assert torch.equal(net(x), before)


@pytest.mark.parametrize("family", ["lowrank", "tt", "cp", "tr", "btt"])
def test_the_output_is_the_sum(family: str) -> None:
    net = model()
    plain = copy.deepcopy(net)
    moved(tnmars.adapter_(net, {"0": family}, rank=2, scale=0.5))
    x = torch.randn(5, 16, dtype=torch.float64)
    weight = plain[0].weight + 0.5 * net[0].delta.dense()
    expected = plain[2](F.relu(F.linear(x, weight, plain[0].bias)))
    torch.testing.assert_close(net(x), expected, rtol=1e-10, atol=1e-10)
    tnmars.merge_adapters_(net)
    assert type(net[0]) is nn.Linear
    torch.testing.assert_close(net(x), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Conv2d(4, 6, 3, stride=2, padding=1), torch.randn(2, 4, 7, 7)),
        (nn.Embedding(20, 6), torch.tensor([1, 19])),
        (nn.Linear(5, 6, bias=False), torch.randn(3, 5)),
    ],
    ids=["conv", "embedding", "no bias"],
)
def test_other_layers(layer: nn.Module, x: torch.Tensor) -> None:
    net = nn.Sequential(copy.deepcopy(layer))
    moved(tnmars.adapter_(net, rank=2))
    before = net(x)
    tnmars.merge_adapters_(net)
    assert type(net[0]) is type(layer)
    assert not torch.allclose(before, layer(x))
    torch.testing.assert_close(net(x), before, rtol=1e-4, atol=1e-4)


def test_only_adapters_are_trained(capsys: pytest.CaptureFixture[str]) -> None:
    net = tnmars.adapter_(model(), {"0": "lowrank"}, rank=2)
    trained = [name for name, value in net.named_parameters() if value.requires_grad]
    assert trained == ["0.delta.cores.A", "0.delta.cores.B"]
    tnmars.print_trainable_parameters(net)
    assert capsys.readouterr().out == "trainable params: 56 || all params: 312 || trainable%: 17.9487\n"
    optimizer = torch.optim.Adam([value for value in net.parameters() if value.requires_grad], lr=0.05)
    x, y = torch.randn(64, 16, dtype=torch.float64), torch.randn(64, 4, dtype=torch.float64)
    frozen = net[0].base.weight.clone()
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]
    assert torch.equal(net[0].base.weight, frozen)


def test_ranks_by_masks() -> None:
    net = tnmars.adapter_(model(), {"0": "lowrank"}, rank=6, selector=tnmars.Mars(pi=1e-2))
    moved(net)
    with torch.no_grad():
        net[0].delta.gates.get("r").copy_(torch.tensor([5.0, 5.0, -5.0, -5.0, -5.0, -5.0]))
    x = torch.randn(5, 16, dtype=torch.float64)
    expected = net.eval()(x)
    small = tnmars.prune(net)
    assert small[0].delta.graph.bonds["r"].size == 2
    torch.testing.assert_close(small(x), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(tnmars.merge_adapters_(net)(x), expected, rtol=1e-10, atol=1e-10)


def test_a_layer_with_several_names_has_one_adapter() -> None:
    shared = nn.Linear(6, 6)
    net = nn.Sequential(shared, nn.ReLU(), shared)
    tnmars.adapter_(net, rank=2)
    assert net[0] is net[2]
    assert sum(value.requires_grad for value in net.parameters()) == 2


def test_mistakes_change_nothing() -> None:
    net = model()
    with pytest.raises(tnmars.PatternError, match="'fc' matches no layer"):
        tnmars.adapter_(net, {"fc": "lowrank"}, rank=2)
    with pytest.raises(tnmars.TnmarsError, match="no rank is given for family 'lowrank'"):
        tnmars.adapter_(net, {"0": "lowrank"})
    with pytest.raises(tnmars.TnmarsError, match="single layer"):
        tnmars.adapter_(nn.Linear(3, 3), rank=1)
    with pytest.raises(tnmars.TnmarsError, match="the model has no adapter"):
        tnmars.merge_adapters_(net)
    assert all(value.requires_grad for value in net.parameters())
    assert type(net[0]) is nn.Linear


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_grouped_convolutions_are_adapted_and_merged(groups: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 8, 3, groups=groups))
    x = torch.randn(2, 8, 6, 6)
    before = model(x)
    tnmars.adapter_(model, rank=2)
    assert torch.equal(model(x), before)
    with torch.no_grad():
        for value in model.parameters():
            if value.requires_grad:
                value.normal_()
    after = model(x)
    assert not torch.allclose(after, before)
    tnmars.merge_adapters_(model)
    assert torch.allclose(model(x), after, atol=1e-4)


def test_a_tied_weight_is_changed_in_the_merged_layer_only() -> None:
    torch.manual_seed(0)
    words = nn.Embedding(9, 6)
    head = nn.Linear(6, 9, bias=False)
    head.weight = words.weight
    model = nn.Sequential(words, head)
    index = torch.arange(9)
    tnmars.adapter_(model, {"1": "lowrank"}, rank=2)
    with torch.no_grad():
        for value in model.parameters():
            if value.requires_grad:
                value.normal_()
    vectors, after = words(index), model(index)
    tnmars.merge_adapters_(model)
    assert torch.equal(words(index), vectors)
    assert torch.allclose(model(index), after, atol=1e-5)


def test_an_adapter_on_an_adapter_is_merged_with_it() -> None:
    net = model()
    x = torch.randn(5, 16, dtype=torch.float64)
    moved(tnmars.adapter_(net, {"0": "lowrank"}, rank=2, scale=0.5))
    moved(tnmars.adapter_(net, {"0.base": "tt"}, rank=2))
    expected = net(x)
    tnmars.merge_adapters_(net)
    assert type(net[0]) is nn.Linear
    torch.testing.assert_close(net(x), expected, rtol=1e-10, atol=1e-10)


def test_an_adapter_that_became_dense_is_merged() -> None:
    net = model()
    x = torch.randn(5, 16, dtype=torch.float64)
    expected = moved(tnmars.adapter_(net, {"0": "lowrank"}, rank=2))(x)
    tnmars.to_dense_(net)
    tnmars.merge_adapters_(net)
    assert type(net[0]) is nn.Linear
    torch.testing.assert_close(net(x), expected, rtol=1e-10, atol=1e-10)


def test_a_single_adapter_is_merged() -> None:
    net = model()
    adapted = moved(tnmars.adapter_(net, {"0": "lowrank"}, rank=2))[0]
    x = torch.randn(5, 16, dtype=torch.float64)
    expected = adapted(x)
    merged = tnmars.merge_adapters_(adapted)
    assert type(merged) is nn.Linear
    torch.testing.assert_close(merged(x), expected, rtol=1e-10, atol=1e-10)


def test_what_cannot_be_merged_is_refused_and_stays() -> None:
    net = moved(tnmars.adapter_(model(), {"*": "lowrank"}, rank=2))
    x = torch.randn(5, 16, dtype=torch.float64)
    expected = net(x)
    tnmars.as_torch_(net[2])
    net[2].delta = tnmars.as_torch_(net[2].delta).model
    with pytest.raises(tnmars.TnmarsError, match=r"adapter of layer '2' is a Sequential now, which has no weight"):
        tnmars.merge_adapters_(net)
    torch.testing.assert_close(net(x), expected, rtol=1e-10, atol=1e-10)
    other = tnmars.adapter_(model(), {"0": "lowrank"}, rank=2)
    other[0].base = tnmars.from_dense(other[0].base, "lowrank", ranks=2)
    with pytest.raises(tnmars.TnmarsError, match="layer '0' was compiled after it had an adapter"):
        tnmars.merge_adapters_(other)


@pytest.mark.parametrize("selector", [None, tnmars.Mars(pi=1e-2)])
def test_adapters_are_loaded_into_the_original_model(tmp_path: Path, selector: tnmars.Selector | None) -> None:
    net = model()
    original = copy.deepcopy(net)
    moved(tnmars.adapter_(net, {"0": "lowrank", "2": "tt"}, rank=2, scale=0.5, selector=selector)).eval()
    path = tmp_path / "adapters.safetensors"
    tnmars.save_adapters(net, path)
    x = torch.randn(5, 16, dtype=torch.float64)
    again = tnmars.load_adapters_(copy.deepcopy(original), path).eval()
    assert torch.equal(again(x), net(x))
    trained = [name for name, value in again.named_parameters() if value.requires_grad]
    assert trained == [name for name, value in net.named_parameters() if value.requires_grad]
    moved(again)
    assert torch.equal(tnmars.load_adapters_(again, path).eval()(x), net(x)), "adapters that are there are replaced"
    whole = tmp_path / "whole.safetensors"
    tnmars.save(net, whole)
    assert path.stat().st_size < whole.stat().st_size


def test_adapters_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "adapters.safetensors"
    tnmars.save_adapters(tnmars.adapter_(model(), {"*": "lowrank"}, rank=2), path)
    other = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 5))
    with pytest.raises(tnmars.TnmarsError, match=r"layer '2' is linear of shape \(5, 12\), but its adapter is for"):
        tnmars.load_adapters_(other, path)
    assert type(other[0]) is nn.Linear and other[0].weight.requires_grad
    with pytest.raises(tnmars.TnmarsError, match="layer '2' is not in the model"):
        tnmars.load_adapters_(nn.Sequential(nn.Linear(16, 12)), path)
    tnmars.save(model(), path)
    with pytest.raises(tnmars.CheckpointError, match="it was not written by save_adapters"):
        tnmars.load_adapters_(model(), path)
    with pytest.raises(tnmars.TnmarsError, match="the model has no adapter"):
        tnmars.save_adapters(model(), path)


FORGED = {
    "no entries": lambda header, tensors: header.update(adapters=3),
    "an entry that is none": lambda header, tensors: header["adapters"].append("x"),
    "names that are none": lambda header, tensors: header["adapters"][0].update(names=[1]),
    "no names": lambda header, tensors: header["adapters"][0].update(names=[]),
    "a scale that is none": lambda header, tensors: header["adapters"][0].update(scale="1"),
    "a rebuilt layer": lambda header, tensors: header["adapters"][0].update(rebuilt=True),
    "a spec that is none": lambda header, tensors: header["adapters"][0].update(spec="tnmars: 1"),
    "no spec": lambda header, tensors: header["adapters"][0].pop("spec"),
    "a missing core": lambda header, tensors: tensors.pop("0.cores.A"),
    "another core": lambda header, tensors: tensors.update({"0.cores.Z": torch.zeros(3)}),
    "a core of another shape": lambda header, tensors: tensors.update({"0.cores.A": torch.zeros(3)}),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_file_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "adapters.safetensors"
    tnmars.save_adapters(tnmars.adapter_(model(), {"0": "lowrank"}, rank=2), path)
    held = read(path)
    header, tensors = json.loads(json.dumps(held.header)), dict(held.tensors)
    FORGED[name](header, tensors)
    write(path, Container(header, tensors))
    net = model()
    with pytest.raises(tnmars.CheckpointError, match=r"adapters\.safetensors"):
        tnmars.load_adapters_(net, path)
    assert type(net[0]) is nn.Linear and all(value.requires_grad for value in net.parameters())


def test_an_adapter_begins_with_a_core_that_stands_in_one_place() -> None:
    """If it stood in two and was zero, it would stay zero."""
    text, sizes = "A[i1,r] B=A[i2,r] C[r,o]", {"inputs": {"i1": 4, "i2": 4}, "outputs": {"o": 16}}
    net = tnmars.adapter_(nn.Sequential(nn.Linear(16, 16)), {"*": tnmars.network("linear", text, bonds=3, **sizes)})
    net(torch.randn(5, 16)).pow(2).sum().backward()
    assert float(net[0].delta.cores.get("C").grad.norm()) > 0.0
    assert float(net[0].delta.cores.get("C").norm()) == 0.0
    tied = tnmars.network(
        "linear", "A[i1,o1,r] B=A[i2,o2,r]", bonds=3, inputs={"i1": 4, "i2": 4}, outputs={"o1": 4, "o2": 4}
    )
    with pytest.raises(tnmars.TnmarsError, match="no core that stands in one place only"):
        tnmars.adapter_(nn.Sequential(nn.Linear(16, 16)), {"*": tied})
