"""Parameters that are rebuilt from cores: the module computes the same, is copied, and becomes a plain one again."""

from __future__ import annotations

import copy
import io
import pickle
import re
from pathlib import Path

import oracle
import pytest
import torch
from rebuilt_kit import Counted, cores_of, first, matrix, pair, whole_
from torch import Tensor, nn
from torch.nn.utils import parametrize as torchs

import tnmars
from tnmars import ShapeError, TnmarsError, TNModule
from tnmars.models.parametrize import restore_
from tnmars.program import choice
from tnmars.ship.export import export_program

EXACT = {torch.float32: 1e-5, torch.float64: 1e-10}


@pytest.fixture(autouse=True)
def _few_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning several batches is most of what compiling costs."""
    monkeypatch.setattr(choice, "BATCHES", ())
    monkeypatch.setattr(choice, "TOKEN_COUNTS", ())


# --- the same function -----------------------------------------------------------------------------------------------


RECURRENT = {
    "lstm": lambda: nn.LSTM(6, 8),
    "lstm deep": lambda: nn.LSTM(6, 8, num_layers=3, batch_first=True),
    "lstm both ways": lambda: nn.LSTM(6, 8, num_layers=2, bidirectional=True),
    "lstm projected": lambda: nn.LSTM(6, 8, num_layers=2, proj_size=3, bidirectional=True),
    "lstm without bias": lambda: nn.LSTM(6, 8, bias=False),
    "gru": lambda: nn.GRU(6, 8, num_layers=2, bidirectional=True),
    "rnn": lambda: nn.RNN(6, 8, nonlinearity="relu"),
}
CELLS = {"lstm cell": lambda: nn.LSTMCell(6, 8), "gru cell": lambda: nn.GRUCell(6, 8)}
ATTENTION = {
    "attention": lambda: nn.MultiheadAttention(6, 2),
    "attention of others": lambda: nn.MultiheadAttention(6, 3, kdim=4, vdim=5, batch_first=True),
}
LINEAR = {"linear": lambda: nn.Linear(6, 9)}
EVERY = {**RECURRENT, **CELLS, **ATTENTION, **LINEAR}


def inputs_for(name: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64).to(dtype).requires_grad_()

    if name in CELLS or name in LINEAR:
        return (normal(4, 6),)
    if name in RECURRENT:
        return (normal(5, 4, 6),)
    x = normal(5, 4, 6)
    return (x, x, x) if name == "attention" else (x, normal(5, 3, 4), normal(5, 3, 5))


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("name", EVERY)
def test_at_full_rank_the_module_computes_the_same(name: str, dtype: torch.dtype) -> None:
    plain, rebuilt = pair(EVERY[name], dtype)
    assert not any(value.dim() == 2 and "cores" not in key for key, value in rebuilt.named_parameters())
    inputs = inputs_for(name, dtype)
    for training in (True, False):
        plain.train(training)
        rebuilt.train(training)
        assert oracle.error(first(rebuilt(*inputs)), first(plain(*inputs))) <= EXACT[dtype]
        with torch.no_grad():
            assert oracle.error(first(rebuilt(*inputs)), first(plain(*inputs))) <= EXACT[dtype]


@pytest.mark.parametrize("name", EVERY)
def test_gradients_are_those_of_torchs_own_layer(name: str) -> None:
    """Of inputs and biases as they are; of cores, what follows from the gradient of the dense weight."""
    plain, rebuilt = pair(EVERY[name], torch.float64)
    inputs = list(dict.fromkeys(inputs_for(name, torch.float64)))
    given = inputs_for(name, torch.float64) if len(inputs) > 1 else inputs * len(inputs_for(name, torch.float64))
    wanted = dict(plain.named_parameters())
    slopes = oracle.gradients(first(plain(*given)), [*inputs, *wanted.values()])
    by_name = dict(zip(wanted, slopes[len(inputs) :], strict=True))
    held = dict(rebuilt.named_parameters())
    found = oracle.gradients(first(rebuilt(*given)), [*inputs, *held.values()])
    for mine, its in zip(found[: len(inputs)], slopes[: len(inputs)], strict=True):
        assert oracle.error(mine, its) <= 1e-10
    made = dict(zip(held, found[len(inputs) :], strict=True))
    for key, slope in by_name.items():
        if key in made:
            assert oracle.error(made[key], slope) <= 1e-10
            continue
        path, _, last = key.rpartition(".")
        prefix = f"{path}.parametrizations.{last}.0.layer".removeprefix(".")
        layer = rebuilt.get_submodule(prefix)
        cores = dict(layer.named_parameters())
        follows = torch.autograd.grad(layer.dense(), list(cores.values()), slope)
        for core, value in zip(cores, follows, strict=True):
            assert oracle.error(made[f"{prefix}.{core}"], value) <= 1e-10


def test_a_kernel_a_table_and_a_tensor() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Parameter(torch.randn(2, 3, 4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum("bi,bj,ijk->bk", x[:, :2], x[:, 2:], self.mix)

    kernel = tnmars.families.tucker2("conv", inputs=(4,), outputs=(5,), kernel=(3, 3), rank=3)
    table = tnmars.families.tt("embedding", lookup=(4, 5), outputs=(2, 3), rank=3)
    tensor = tnmars.families.cp("tensor", free=(2, 3, 4), rank=3)
    cases = (
        (nn.Conv2d(4, 5, 3), "weight", kernel, torch.randn(2, 4, 6, 6)),
        (nn.Embedding(20, 6), "weight", table, torch.randint(20, (7,))),
        (Own(), "mix", tensor, torch.randn(6, 5)),
    )
    for module, name, graph, x in cases:
        plain = copy.deepcopy(module)
        layer = tnmars.parametrize_(module, name, graph, init="glorot")
        with torch.no_grad():
            plain.get_parameter(name).copy_(layer.dense())
        assert torch.allclose(module(x), plain(x), atol=1e-6)
        assert layer.bias is None
        module(x).square().sum().backward()
        assert all(core.grad.any() for core in layer.cores.parameters())


def test_states_and_packed_sequences() -> None:
    plain, rebuilt = pair(lambda: nn.LSTM(6, 8, bidirectional=True))
    state = (torch.randn(2, 4, 8), torch.randn(2, 4, 8))
    x = torch.randn(5, 4, 6)
    for mine, its in zip(rebuilt(x, state)[1], plain(x, state)[1], strict=True):
        assert torch.allclose(mine, its, atol=1e-6)
    packed = nn.utils.rnn.pack_padded_sequence(x, [5, 3, 2, 2])
    assert torch.allclose(rebuilt(packed)[0].data, plain(packed)[0].data, atol=1e-6)
    assert torch.allclose(rebuilt(x[:, 0])[0], plain(x[:, 0])[0], atol=1e-6)
    with pytest.raises(ValueError) as said:
        plain(x.double())
    with pytest.raises(ValueError, match=re.escape(str(said.value))):
        rebuilt(x.double())


# --- how often it is rebuilt -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_a_weight_is_rebuilt_once_per_call(name: str) -> None:
    _, rebuilt = pair(EVERY[name])
    weights = len([key for key in rebuilt.state_dict() if key.endswith("cores.A")])
    inputs = inputs_for(name, torch.float32)
    for training in (True, False):
        rebuilt.train(training)
        for grad in (True, False):
            with Counted() as counted, torch.set_grad_enabled(grad):
                rebuilt(*inputs)
            assert counted.count == weights


def test_nothing_is_kept_between_calls() -> None:
    """The forward pass is a pure function: other cores, or another mode, give another weight at once."""
    _, lstm = pair(RECURRENT["lstm"])
    x = torch.randn(5, 4, 6)
    with torch.no_grad():
        before = lstm(x)[0]
        for value in lstm.parameters():
            value.mul_(1.5)
        assert not torch.allclose(lstm(x)[0], before)
    assert lstm(x)[0].requires_grad
    assert lstm._flat_weights[0] is not lstm._flat_weights[0]


def test_moving_flattening_and_torchs_cache() -> None:
    plain, lstm = pair(RECURRENT["lstm projected"])
    x = torch.randn(5, 4, 6)
    with Counted() as counted:
        lstm.flatten_parameters()
        lstm.double()
        assert counted.count == 0
    assert oracle.error(lstm(x.double())[0], plain.double()(x.double())[0]) <= 1e-6
    assert lstm.all_weights[0][0].dtype == torch.float64
    _, cell = pair(CELLS["lstm cell"])
    with Counted() as counted, torchs.cached():
        for row in x:
            cell(row)
        assert counted.count == 2
    functional = torch.func.functional_call(
        lstm, {key: value * 0 for key, value in lstm.named_parameters()}, x.double()
    )
    assert not functional[0].any()


def test_autocast_leaves_the_weight_in_its_dtype() -> None:
    _, linear = pair(LINEAR["linear"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear.weight.dtype == torch.float32
        assert linear(torch.randn(2, 6)).dtype == torch.bfloat16


def test_compile_and_export() -> None:
    plain, lstm = pair(RECURRENT["lstm both ways"])
    x = torch.randn(5, 4, 6)
    assert torch.allclose(torch.compile(lstm, backend="eager")(x)[0], plain(x)[0], atol=1e-6)
    _, linear = pair(LINEAR["linear"])
    assert torch.equal(torch.compile(linear, backend="eager", fullgraph=True)(x), linear(x))
    for name in ("lstm deep", "attention of others"):
        _, module = pair(EVERY[name])
        inputs = tuple(value.detach() for value in inputs_for(name, torch.float32))
        program = export_program(module, inputs)
        assert torch.allclose(first(program.module()(*inputs)), first(module.eval()(*inputs)), atol=1e-6)


def test_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    _, lstm = pair(lambda: nn.LSTM(6, 8, batch_first=True, bidirectional=True))
    tnmars.export_onnx(lstm, tmp_path / "a.onnx", torch.randn(2, 5, 6))
    session = runtime.InferenceSession(tmp_path / "a.onnx")
    x = torch.randn(7, 5, 6)
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    assert oracle.error(torch.from_numpy(found), lstm(x)[0]) <= 1e-5


# --- copies and pickles ----------------------------------------------------------------------------------------------


def saved(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def pickled(module: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(module))  # noqa: S301


@pytest.mark.parametrize("way", [saved, pickled, copy.deepcopy, copy.copy])
@pytest.mark.parametrize("name", ["lstm projected", "gru cell", "attention"])
def test_a_copy_computes_the_same(name: str, way) -> None:
    _, module = pair(EVERY[name])
    model = nn.Sequential(module, nn.ReLU())
    made = way(model)[0]
    inputs = inputs_for(name, torch.float32)
    assert torch.equal(first(made(*inputs)), first(module(*inputs)))
    assert list(made.state_dict()) == list(module.state_dict())
    assert torchs.type_before_parametrizations(made) is torchs.type_before_parametrizations(module)


@pytest.mark.parametrize("way", [pickled, copy.deepcopy])
def test_what_is_done_to_a_copy_is_not_done_to_its_original(way) -> None:
    _, lstm = pair(RECURRENT["lstm"])
    x = torch.randn(5, 4, 6)
    before = lstm(x)[0]
    made = way(lstm)
    with torch.no_grad():
        for value in made.parameters():
            value.zero_()
    assert not made(x)[0].any()
    for name in ("weight_ih_l0", "weight_hh_l0"):
        restore_(made, name)
    assert type(made) is nn.LSTM
    assert torch.equal(lstm(x)[0], before)
    assert isinstance(lstm.parametrizations.weight_hh_l0[0].layer, TNModule)


def test_a_state_dict_goes_round() -> None:
    _, one = pair(RECURRENT["gru"])
    two = copy.deepcopy(one)
    with torch.no_grad():
        for value in two.parameters():
            value.normal_()
    two.load_state_dict(one.state_dict())
    x = torch.randn(5, 4, 6)
    assert torch.equal(one(x)[0], two(x)[0])


# --- back again ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_a_plain_parameter_is_back(name: str) -> None:
    plain, rebuilt = pair(EVERY[name])
    inputs = inputs_for(name, torch.float32)
    wanted = first(rebuilt(*inputs))
    for key in dict(plain.named_parameters()):
        if not key.endswith(("bias", "bias_ih", "bias_hh")) and "bias" not in key:
            parameter = restore_(rebuilt, key)
            assert rebuilt.get_parameter(key) is parameter
    assert {type(module) for module in rebuilt.modules()} == {type(module) for module in plain.modules()}
    assert list(rebuilt.state_dict()) == list(plain.state_dict())
    assert torch.allclose(first(rebuilt(*inputs)), wanted, atol=1e-6)
    first(rebuilt(*inputs)).sum().backward()
    assert all(value.grad is not None for value in rebuilt.parameters())


def test_torchs_own_removal_works_too() -> None:
    plain, lstm = pair(RECURRENT["lstm projected"])
    for name in [key for key in plain.state_dict() if "weight" in key]:
        torchs.remove_parametrizations(lstm, name)
    x = torch.randn(5, 4, 6)
    assert type(lstm) is nn.LSTM
    assert torch.allclose(lstm(x)[0], plain(x)[0], atol=1e-6)


def test_beside_a_parametrization_of_torch() -> None:
    torch.manual_seed(0)
    lstm = nn.utils.parametrizations.weight_norm(nn.LSTM(6, 8), "weight_ih_l0")
    other = copy.deepcopy(lstm)
    x = torch.randn(5, 4, 6)
    before = other(x)[0]
    whole_(lstm, "weight_hh_l0")
    assert torch.allclose(lstm(x)[0], before, atol=1e-6)
    assert torch.equal(other(x)[0], before), "a copy that torch made does not change"
    restore_(lstm, "weight_hh_l0")
    assert torch.allclose(lstm(x)[0], before, atol=1e-6)
    with pytest.raises(TnmarsError, match="'weight_ih_l0' of LSTM is parametrized already"):
        tnmars.parametrize_(lstm, "weight_ih_l0", matrix((32, 6), 2))


# --- how cores begin, and mistakes -----------------------------------------------------------------------------------


def test_cores_begin_with_the_present_weight() -> None:
    lstm = nn.LSTM(6, 8).double()
    before = lstm.weight_hh_l0.detach().clone()
    tnmars.parametrize_(lstm, "weight_hh_l0", matrix((32, 8), 8))
    assert oracle.error(lstm.weight_hh_l0, before) <= 1e-10
    kernel = nn.Conv2d(6, 8, 3).double()
    wanted = kernel.weight.detach().clone()
    tnmars.parametrize_(kernel, "weight", "tucker2", error=1e-6)
    assert oracle.error(kernel.weight, wanted) <= 1e-6
    before = lstm.weight_ih_l0.detach().clone()
    layer = tnmars.parametrize_(lstm, "weight_ih_l0", "lowrank", ranks=3)
    left, values, right = torch.linalg.svd(before, full_matrices=False)
    assert oracle.error(lstm.weight_ih_l0, left[:, :3] * values[:3] @ right[:3]) <= 1e-10
    assert layer.graph.bonds["r"].size == 3
    with pytest.raises(TnmarsError, match="no ranks are given for family 'lowrank'"):
        tnmars.parametrize_(nn.Linear(4, 4), "weight", "lowrank")


def test_what_does_not_train_stays_so_and_devices_are_kept() -> None:
    linear = nn.Linear(6, 9, dtype=torch.float64)
    linear.weight.requires_grad_(False)
    layer = tnmars.parametrize_(linear, "weight", matrix((9, 6), 2), init=1.0)
    assert layer.dtype == torch.float64
    assert [name for name, value in linear.named_parameters() if value.requires_grad] == ["bias"]
    meta = nn.LSTM(6, 8, device="meta")
    tnmars.parametrize_(meta, "weight_hh_l0", matrix((32, 8), 2))
    assert meta.weight_hh_l0.is_meta


def test_mistakes_are_reported_and_nothing_is_changed() -> None:
    lstm = nn.LSTM(6, 8)
    lstm.register_buffer("steps", torch.zeros(3, 3))
    before = list(lstm.state_dict())
    graph = matrix((32, 8), 2)
    cores = cores_of(lstm.weight_hh_l0)
    cases = [
        (
            ("weight_hh_l1", graph),
            {},
            "parameter 'weight_hh_l1' of LSTM does not exist.*\n.*Did you mean 'weight_hh_l0'",
        ),
        (("steps", graph), {}, "parameter 'steps' of LSTM is a buffer"),
        (("lstm.weight", graph), {}, "there is no module 'lstm' in LSTM"),
        (("weight_ih_l0", graph), {"init": 1.0}, r"has shape \(32, 6\), but the weight of the graph has \(32, 8\) "),
        (("weight_hh_l0", graph), {"cores": cores}, r"core 'A' has shape \(8, 8\), but \(8, 2\) in the graph"),
        (("weight_hh_l0", graph), {"cores": {"C": cores["A"]}}, "cores has 'C', which is not a core of the graph"),
        (("weight_hh_l0", graph), {"cores": {"A": cores["A"][:, :2]}}, "cores lacks 'B' of the graph"),
        (("weight_hh_l0", graph), {"cores": cores, "init": 1.0}, "cores and init are both given"),
        (("weight_hh_l0", graph), {"init": 1.0, "error": 0.1}, "error is for cores that are computed"),
        (("weight_hh_l0", graph), {"init": 1.0, "selector": 3}, "selector is 3"),
    ]
    for arguments, keywords, text in cases:
        with pytest.raises(TnmarsError, match=text):
            tnmars.parametrize_(lstm, *arguments, **keywords)
        assert type(lstm) is nn.LSTM
        assert list(lstm.state_dict()) == before
    with pytest.raises(ShapeError):
        tnmars.parametrize_(lstm, "weight_ih_l0", graph, init=1.0)
    with pytest.raises(TnmarsError, match="belongs to a compiled layer"):
        tnmars.parametrize_(tnmars.compile(graph), "cores.A", graph, init=1.0)
    with pytest.raises(TnmarsError, match="has no shape yet"):
        tnmars.parametrize_(nn.LazyLinear(3), "weight", graph, init=1.0)
    with pytest.raises(TnmarsError, match="parameter 'weight_hh_l0' of LSTM is not rebuilt from cores"):
        restore_(lstm, "weight_hh_l0")


def test_assigning_is_refused() -> None:
    _, lstm = pair(RECURRENT["lstm"])
    with pytest.raises(TnmarsError, match="is rebuilt from the cores of a graph, and cannot be assigned to"):
        lstm.weight_hh_l0 = torch.zeros(32, 8)
