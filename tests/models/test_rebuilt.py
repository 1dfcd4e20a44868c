"""Parameters that are rebuilt from cores, with what compiled layers can do: gates, cuts, files, ties, freezing."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import oracle
import pytest
import torch
from kit import Given, set_gates
from rebuilt_kit import Counted, cores_of, matrix, whole_
from torch import Tensor, nn

import tnmars
from tnmars import TnmarsError
from tnmars.layer.module import layers
from tnmars.models.parametrize import restore_
from tnmars.program import choice
from tnmars.store.prune_file import prune_file


@pytest.fixture(autouse=True)
def _few_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning several batches is most of what compiling costs."""
    monkeypatch.setattr(choice, "BATCHES", ())
    monkeypatch.setattr(choice, "TOKEN_COUNTS", ())


# --- gates -----------------------------------------------------------------------------------------------------------


def gated(selector: tnmars.Selector, rank: int = 5) -> nn.LSTM:
    torch.manual_seed(0)
    lstm = nn.LSTM(6, 8).double()
    for name in ("weight_ih_l0", "weight_hh_l0"):
        graph = matrix(lstm.get_parameter(name).shape, rank)
        tnmars.parametrize_(lstm, name, graph, selector=selector, init="glorot")
    return lstm


def test_pruned_is_masked() -> None:
    lstm = gated(Given()).eval()
    x = torch.randn(5, 4, 6, dtype=torch.float64)
    for _, layer in layers(lstm):
        set_gates(layer, {"r": torch.ones(5)})
    full = lstm(x)[0]
    for _, layer in layers(lstm):
        set_gates(layer, {"r": torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])})
    masked = lstm(x)[0]
    assert oracle.error(full, masked) > 1e-3
    pruned = tnmars.prune(lstm)
    assert oracle.error(pruned(x)[0], masked) <= 1e-10
    assert pruned.parametrizations.weight_hh_l0[0].layer.graph.bonds["r"].size == 3
    assert torch.equal(lstm(x)[0], masked), "the model itself does not change"
    chosen = {name: {"r": (0, 2, 3)} for name in tnmars.keep(lstm)}
    assert list(chosen) == [f"parametrizations.weight_{which}_l0.0.layer" for which in ("ih", "hh")]
    tnmars.prune_(lstm, keep=chosen)
    assert oracle.error(lstm(x)[0], masked) <= 1e-10


def test_a_weight_of_which_nothing_is_left() -> None:
    lstm = gated(Given()).eval()
    for _, layer in layers(lstm):
        set_gates(layer, {"r": torch.zeros(5)})
    x = torch.randn(5, 4, 6, dtype=torch.float64)
    pruned = tnmars.prune(lstm)
    assert not pruned.weight_hh_l0.any()
    assert torch.equal(pruned(x)[0], lstm(x)[0])


def test_a_training_run_with_gates(tmp_path: Path) -> None:
    """Penalty, groups, schedule, a cut with the optimizer, and a checkpoint that a plain model resumes from."""
    model = nn.Sequential(gated(tnmars.Mars(alpha=0.0)).float())
    optimizer = torch.optim.Adam(tnmars.param_groups(model, lr=1e-2))
    assert [len(group["params"]) for group in optimizer.param_groups] == [6, 2]
    schedule = tnmars.MaskSchedule(model, total_steps=20, seed=1)
    x = torch.randn(5, 4, 6)

    def step(model, optimizer, schedule) -> Tensor:
        loss = model(x)[0].square().mean() + tnmars.penalty(model) / 100
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        return loss.detach()

    for _ in range(3):
        step(model, optimizer, schedule)
    assert tnmars.expected(model) < 5 * (32 + 6 + 32 + 8)
    tnmars.prune_(model, optimizer, {"0.parametrizations.weight_hh_l0.0.layer": {"r": (0, 2, 4)}}, keep_gates=True)
    step(model, optimizer, schedule)
    tnmars.save_checkpoint(tmp_path / "a", model, optimizer, schedule)
    wanted = [step(model, optimizer, schedule) for _ in range(3)]
    fresh = nn.Sequential(nn.LSTM(6, 8))
    other = torch.optim.Adam(fresh.parameters(), lr=1e-2)
    another = tnmars.MaskSchedule(fresh, total_steps=20, seed=2)
    tnmars.load_checkpoint(tmp_path / "a", fresh, other, another)
    assert [step(fresh, other, another) for _ in range(3)] == wanted


def test_summary_and_report(tmp_path: Path) -> None:
    lstm = gated(Given())
    for _, layer in layers(lstm):
        set_gates(layer, {"r": torch.ones(5)})
    found = tnmars.summary(lstm)
    assert [layer.name for layer in found.layers] == [f"parametrizations.weight_{w}_l0.0.layer" for w in ("ih", "hh")]
    assert [layer.parameters for layer in found.layers] == [5 * (32 + 6), 5 * (32 + 8)]
    assert found.other == 64
    assert [layer.macs for layer in found.layers] == [32 * 6 * 5, 32 * 8 * 5]
    assert "1,280 MACs to rebuild it" in str(found)
    assert found.count.dense == 32 * 14
    for _, layer in layers(lstm):
        set_gates(layer, {"r": torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])})
    assert [layer.live_macs for layer in tnmars.summary(lstm).layers] == [32 * 6 * 3, 32 * 8 * 3]
    tnmars.report(lstm, tnmars.prune(lstm), tmp_path / "a.html", measure=False)
    assert "weight_hh_l0" in (tmp_path / "a.html").read_text()


# --- files -----------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 8, bidirectional=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


def small_() -> Net:
    torch.manual_seed(0)
    net = Net()
    for name in ("rnn.weight_hh_l0", "rnn.weight_ih_l0_reverse", "head.weight"):
        tnmars.parametrize_(net, name, matrix(net.get_parameter(name).shape, 2), init="glorot")
    return net


def test_a_plain_model_takes_a_file(tmp_path: Path) -> None:
    net = small_()
    tnmars.save(net, tmp_path / "a")
    x = torch.randn(5, 4, 6)
    for fresh in (Net(), small_(), whole_(Net(), "rnn.weight_hh_l0")):
        held = fresh.rnn
        assert tnmars.load_into(fresh, tmp_path / "a") is fresh
        assert fresh.rnn is held
        assert list(fresh.state_dict()) == list(net.state_dict())
        assert torch.equal(fresh(x), net(x))
        assert fresh.rnn.parametrizations.weight_hh_l0[0].layer.is_rebuilt
        with Counted() as counted:
            fresh.rnn(x)
        assert counted.count == 2
    double = tnmars.load_into(Net().double(), tmp_path / "a")
    assert oracle.error(double(x.double()), net(x)) <= 1e-5


def test_a_fresh_process_loads_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(6, 8, num_layers=2)
    for name in ("weight_hh_l0", "weight_ih_l1"):
        tnmars.parametrize_(lstm, name, matrix((32, 8), 3), init="glorot", selector=tnmars.Mars())
    tnmars.save(lstm, tmp_path / "a")
    x = torch.randn(5, 4, 6)
    torch.save({"x": x, "y": lstm.eval()(x)[0].detach()}, tmp_path / "b")
    code = f"""
import torch, tnmars
held = torch.load({str(tmp_path / "b")!r})
lstm = tnmars.load_into(torch.nn.LSTM(6, 8, num_layers=2), {str(tmp_path / "a")!r}).eval()
assert torch.equal(lstm(held["x"])[0], held["y"])
assert len(tnmars.keep(lstm)) == 2
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_is_pruned_without_the_model(tmp_path: Path) -> None:
    lstm = gated(tnmars.Mars()).eval()
    for _, layer in layers(lstm):
        set_gates(layer, {"r": torch.tensor([9.0, -9.0, 9.0, 9.0, -9.0])})
    tnmars.save(lstm, tmp_path / "a")
    pruned = prune_file(tmp_path / "a", tmp_path / "b")
    assert [layer.graph.bonds["r"].size for layer in pruned] == [3, 3]
    fresh = tnmars.load_into(nn.LSTM(6, 8).double().eval(), tmp_path / "b")
    x = torch.randn(5, 4, 6, dtype=torch.float64)
    assert oracle.error(fresh(x)[0], lstm(x)[0]) <= 1e-10
    assert tnmars.summary(fresh).layers[0].is_rebuilt


def test_what_does_not_fit_is_reported(tmp_path: Path) -> None:
    tnmars.save(small_(), tmp_path / "a")
    net = Net()
    net.rnn = nn.GRU(6, 9, bidirectional=True)
    with pytest.raises(TnmarsError) as caught:
        tnmars.load_into(net, tmp_path / "a")
    assert "parameter 'rnn.weight_hh_l0' has shape (27, 9), but (24, 8) in the file" in str(caught.value)
    net.rnn = nn.GRU(6, 8)
    with pytest.raises(TnmarsError, match="layer 'rnn' has no parameter 'weight_ih_l0_reverse', which the file has"):
        tnmars.load_into(net, tmp_path / "a")
    assert type(net.rnn) is nn.GRU
    del net.rnn
    with pytest.raises(TnmarsError, match="layer 'rnn' is not in the model"):
        tnmars.load_into(net, tmp_path / "a")


# --- ties ------------------------------------------------------------------------------------------------------------


def tied() -> nn.ModuleDict:
    torch.manual_seed(0)
    model = nn.ModuleDict({"table": nn.Embedding(12, 6), "head": nn.Linear(6, 12)})
    model["head"].weight = model["table"].weight
    return model


def test_a_tied_parameter_stays_tied(tmp_path: Path) -> None:
    model = tied()
    layer = tnmars.parametrize_(model, "head.weight", matrix((12, 6), 2), init="glorot")
    assert model["table"].parametrizations.weight[0].layer is layer
    assert model["head"].parametrizations.weight[0].layer is layer
    assert sum(value.numel() for value in model.parameters()) == 2 * 18 + 12
    copied = copy.deepcopy(model)
    assert copied["table"].parametrizations.weight[0].layer is copied["head"].parametrizations.weight[0].layer
    tnmars.save(model, tmp_path / "a")
    fresh = tnmars.load_into(tied(), tmp_path / "a")
    assert fresh["table"].parametrizations.weight[0].layer is fresh["head"].parametrizations.weight[0].layer
    assert torch.equal(fresh["head"].weight, layer.dense())
    parameter = restore_(model, "table.weight")
    assert model["head"].weight is model["table"].weight is parameter


# --- inference -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["compact", "fast"])
def test_freeze(form: str) -> None:
    net = small_()
    x = torch.randn(5, 4, 6)
    frozen = tnmars.freeze(net, form)
    assert torch.allclose(frozen(x), net(x), atol=1e-6)
    is_plain = type(frozen.rnn) is nn.GRU
    assert is_plain == (form == "fast")
    assert not frozen.rnn.weight_hh_l0.requires_grad
    assert not any(value.requires_grad for key, value in frozen.named_parameters() if "cores" in key)
    assert net.rnn.weight_hh_l0.requires_grad


def test_gates_are_pruned_before_freezing() -> None:
    lstm = gated(Given()).eval()
    for _, layer in layers(lstm):
        set_gates(layer, {"r": torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])})
    x = torch.randn(5, 4, 6, dtype=torch.float64)
    for form in ("compact", "fast"):
        assert oracle.error(tnmars.freeze(lstm, form)(x)[0], lstm(x)[0]) <= 1e-10


def test_cached_rebuilds_once_for_a_block() -> None:
    net = small_()
    x = torch.randn(5, 4, 6)
    wanted = net.eval()(x)
    with tnmars.cached(net):
        assert torch.equal(net(x), wanted)
        with torch.no_grad():
            for value in net.parameters():
                value.mul_(2)
        weight = net.rnn.weight_hh_l0
        assert not weight.requires_grad
        assert net.train().rnn.weight_hh_l0.requires_grad
    assert not torch.equal(net.rnn.weight_hh_l0, weight)


# --- a transformer ---------------------------------------------------------------------------------------------------


def encoder(first_layer: int, parts: str) -> tuple[nn.Module, nn.Module]:
    """An encoder of torch, and one with compressed layers from a layer on."""
    torch.manual_seed(0)
    plain = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2)
    for value in plain.parameters():
        nn.init.normal_(value, std=0.3)
    made = copy.deepcopy(plain)
    for layer in made.layers[first_layer:]:
        if "attention" in parts:
            whole_(layer.self_attn)
        for name in ("linear1", "linear2") if "linear" in parts else ():
            linear = getattr(layer, name)
            compiled = oracle.compiled(matrix(linear.weight.shape, 8), batch=16)
            compiled.load_state_dict(
                {f"cores.{key}": value for key, value in cores_of(linear.weight).items()} | {"bias": linear.bias}
            )
            setattr(layer, name, compiled)
    return plain, made


@pytest.mark.parametrize("parts", ["linear", "attention", "attention and linear"])
@pytest.mark.parametrize("first_layer", [0, 1])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_transformer_computes_the_same_in_training_and_evaluation(first_layer: int, parts: str) -> None:
    """With a padding mask too, for which torch passes nested tensors from layer to layer in evaluation."""
    plain, made = encoder(first_layer, parts)
    x = torch.randn(3, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 2 + [True] * 3])
    for training in (True, False):
        plain.train(training)
        made.train(training)
        for grad in (True, False):
            for mask in (None, padding):
                with torch.set_grad_enabled(grad):
                    found, wanted = made(x, src_key_padding_mask=mask), plain(x, src_key_padding_mask=mask)
                keep = torch.ones(3, 5, dtype=torch.bool) if mask is None else ~mask
                assert oracle.error(found[keep], wanted[keep]) <= 1e-5
    frozen = tnmars.freeze(made)
    with torch.no_grad():
        assert oracle.error(frozen(x), plain(x)) <= 1e-5


def test_compiled_layers_of_a_transformer_compute_themselves_in_evaluation() -> None:
    """The fused path would take dense weights; it is not taken, and none is made."""
    _, made = encoder(0, "linear")
    with Counted() as counted, torch.no_grad():
        made.eval()(torch.randn(3, 5, 8))
    assert counted.count == 0
