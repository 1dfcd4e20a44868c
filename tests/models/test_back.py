"""Compiled layers back to torch's own: the same numbers, options and flags, and no compiled layer left."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from pathlib import Path

import oracle
import pytest
import torch
from kit import CONV, EXACT, LINEAR, MAP, PADDED, PATCH, SKIPPED, SPECS, TABLE, TENSOR, Given, inputs_of, set_gates
from torch import Tensor, nn

import tnmars
from tnmars import Graph, TNModule
from tnmars.errors import TnmarsError
from tnmars.layer.module import layers

DENSE = [path for path in SPECS if tnmars.load(path).kind in ("linear", "conv", "conv_transpose", "embedding")]
LOWRANK = tnmars.network("linear", "A[i,r] B[r,o]", inputs={"i": 6}, outputs={"o": 5}, bonds=3)


def conv(spatial: int, **options: object) -> Graph:
    """A convolution of three cores over some spatial axes, of unequal taps."""
    taps = dict(zip("hwd", (3, 2, 4), strict=False))
    kernel = dict(list(taps.items())[:spatial])
    text = f"A[i,r] K[r,{','.join(kernel)},s] B[s,o]"
    return tnmars.network(
        "conv", text, inputs={"i": 3}, outputs={"o": 4}, kernel=kernel, bonds={"r": 2, "s": 3}, options=options
    )


OPTIONS: list[dict[str, object]] = [
    {},
    {"bias": False},
    {"stride": 2},
    {"padding": 1, "dilation": 2},
    {"padding": "same"},
    {"padding": "same", "dilation": 2},
]
every_convolution = pytest.mark.parametrize("spatial", [1, 2, 3])
every_option = pytest.mark.parametrize("options", OPTIONS, ids=str)


def assert_equal_outputs(layer: nn.Module, made: nn.Module, graph: Graph, error: float = EXACT) -> None:
    """Two layers give the same numbers, with and without a batch where torch allows both."""
    dtype = next(made.parameters()).dtype
    given = inputs_of(graph, 3, dtype)
    assert oracle.error(made(*given), layer(*given)) <= error
    if graph.kernel_size:
        assert oracle.error(made(given[0][0]), layer(given[0][0])) <= error
    if graph.kind == "linear":
        x = given[0].expand(2, 4, *given[0].shape)
        assert oracle.error(made(x), layer(x)) <= error


# --- the dense weight ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", DENSE, ids=lambda path: path.stem)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str)
def test_dense_layer_gives_the_same_numbers(path: Path, dtype: torch.dtype, error: float) -> None:
    layer = oracle.compiled(tnmars.load(path), dtype=dtype)
    made = tnmars.to_dense_(layer)
    assert type(made).__module__.startswith("torch.nn")
    assert made.weight.dtype == dtype
    assert_equal_outputs(layer, made, layer.graph, error)


@every_convolution
@every_option
def test_dense_convolution_has_the_options(spatial: int, options: dict[str, object]) -> None:
    graph = conv(spatial, **options)
    layer = oracle.compiled(graph, dtype=torch.float64)
    made = tnmars.to_dense_(layer)
    assert type(made) is (nn.Conv1d, nn.Conv2d, nn.Conv3d)[spatial - 1]
    assert made.kernel_size == graph.kernel_size
    assert (made.bias is None) is (options.get("bias") is False)
    assert_equal_outputs(layer, made, graph)


@pytest.mark.parametrize("option", [{}, {"mode": "sum"}, {"mode": "mean"}], ids=str)
@pytest.mark.parametrize("skip", [None, 7])
def test_dense_table_has_the_options(option: dict[str, str], skip: int | None) -> None:
    options = {**({} if skip is None else {"padding_idx": skip}), **option}
    layer = oracle.compiled(replace(TABLE, options=tuple(options.items())), dtype=torch.float64)
    made = tnmars.to_dense_(layer)
    assert type(made) is (nn.EmbeddingBag if option else nn.Embedding)
    assert made.padding_idx == skip
    index = torch.tensor([[0, 7, 3], [7, 7, 49]])
    assert oracle.error(made(index), layer(index)) <= EXACT
    if option:
        flat, offsets = index.reshape(-1), torch.tensor([0, 1, 1, 4])
        assert oracle.error(made(flat, offsets), layer(flat, offsets)) <= EXACT


def test_flags_device_and_bias_are_kept() -> None:
    layer = oracle.compiled(LOWRANK).eval().requires_grad_(False)
    layer.bias.requires_grad_(True)
    bias = layer.bias
    made = tnmars.to_dense_(layer)
    assert not made.training
    assert not made.weight.requires_grad
    assert made.bias is bias
    assert tnmars.to_dense_(oracle.compiled(LOWRANK)).weight.requires_grad
    assert tnmars.to_dense_(oracle.compiled(LOWRANK, device="meta")).weight.is_meta
    assert tnmars.to_dense_(oracle.compiled(LOWRANK, dtype=torch.bfloat16)).weight.dtype == torch.bfloat16


def test_weight_shares_no_memory_with_the_cores() -> None:
    layer = oracle.compiled(tnmars.network("linear", "W[o,i]", inputs={"i": 6}, outputs={"o": 5}))
    made = tnmars.to_dense_(layer)
    assert made.weight.data_ptr() != layer.cores.get("W").data_ptr()
    made(torch.randn(2, 6)).sum().backward()
    assert made.weight.grad is not None


class Net(nn.Module):
    """Layers of several kinds, one under two names, one within another module."""

    def __init__(self) -> None:
        super().__init__()
        self.table = oracle.compiled(SKIPPED, dtype=torch.float64)
        self.inner = nn.Sequential(oracle.compiled(tied(12, 12), dtype=torch.float64), nn.ReLU())
        self.again = self.inner[0]
        self.last = nn.Linear(12, 3, dtype=torch.float64)

    def forward(self, index: Tensor) -> Tensor:
        return self.last(self.again(self.inner(self.table(index))))


def tied(inside: int, outside: int) -> Graph:
    return tnmars.network("linear", "A[i,r] B[r,o]", inputs={"i": inside}, outputs={"o": outside}, bonds=3)


INDEX = torch.tensor([[1, 7, 40], [3, 3, 0]])


def test_layers_with_several_names_stay_shared() -> None:
    model = Net().eval()
    expected = model(INDEX)
    assert tnmars.to_dense_(model) is model
    assert model.again is model.inner[0]
    assert list(layers(model)) == []
    assert oracle.error(model(INDEX), expected) <= EXACT
    assert set(model.state_dict()) == {
        *("table.weight", "inner.0.weight", "inner.0.bias", "again.weight", "again.bias", "last.weight", "last.bias"),
    }


def test_layers_are_chosen_by_name_or_pattern() -> None:
    model = tnmars.to_dense_(Net(), "again")
    assert isinstance(model.inner[0], nn.Linear)
    assert model.again is model.inner[0]
    assert isinstance(model.table, TNModule)
    assert isinstance(tnmars.to_dense_(Net(), ["inner.*"]).again, nn.Linear)
    other = Net()
    with pytest.raises(TnmarsError) as caught:
        tnmars.to_dense_(other, ["table", "agan"])
    assert str(caught.value) == (
        "'agan' matches no compiled layer of the model.\n"
        "  Compiled layers: table, inner.0, again. Did you mean 'again'?\n"
        "Nothing was changed."
    )
    assert isinstance(other.table, TNModule)


def test_tied_cores_give_tied_weights() -> None:
    table = oracle.compiled(tnmars.network("embedding", "A[v,r] B[r,o]", lookup={"v": 20}, outputs={"o": 6}, bonds=3))
    head = oracle.compiled(tnmars.network("linear", "B[r,i] A[o,r]", inputs={"i": 6}, outputs={"o": 20}, bonds=3))
    turned = oracle.compiled(tnmars.network("linear", "A[i,r] B[r,o]", inputs={"i": 20}, outputs={"o": 6}, bonds=3))
    for other in (head, turned):
        other.cores.put("A", table.cores.get("A"))
        other.cores.put("B", table.cores.get("B"))
    model = tnmars.to_dense_(nn.ModuleDict({"table": table, "head": head, "turned": turned}))
    assert model["table"].weight is model["head"].weight
    assert model["turned"].weight is not model["head"].weight
    torch.testing.assert_close(model["turned"].weight, model["head"].weight.t())


def test_gated_layer_becomes_what_it_computes_in_evaluation() -> None:
    layer = oracle.compiled(LOWRANK, selector=Given(), dtype=torch.float64).train()
    set_gates(layer, {"r": torch.tensor([0.9, 0.2, 1.0])})
    x = torch.randn(4, 6, dtype=torch.float64)
    expected = copy.deepcopy(layer).eval()(x)
    assert oracle.error(layer(x), expected) > 0.01
    for made in (tnmars.to_dense_(copy.deepcopy(layer)), tnmars.as_torch_(copy.deepcopy(layer)).model):
        assert made.training
        assert oracle.error(made(x), expected) <= EXACT
    assert [entry.out_features for entry in tnmars.as_torch_(layer).model] == [2, 5]
    assert layer.training
    assert layer.masks.training


def test_layer_without_terms_is_its_bias() -> None:
    layer = oracle.compiled(LOWRANK.with_terms(()))
    made = tnmars.to_dense_(layer)
    assert torch.equal(made(torch.randn(2, 6)), layer.bias.expand(2, 5))
    assert made.weight.requires_grad
    assert tnmars.as_torch_(layer).stayed == {"": "it has no term left"}


def test_what_torch_has_no_layer_for_is_refused() -> None:
    model = nn.ModuleDict(
        {"fc": oracle.compiled(LOWRANK), "pool": oracle.compiled(MAP), "core": oracle.compiled(TENSOR)}
    )
    with pytest.raises(TnmarsError) as caught:
        tnmars.to_dense_(model)
    assert "layer 'pool' is of kind map, for which torch has no layer." in str(caught.value)
    assert "layer 'core' is of kind tensor" in str(caught.value)
    assert str(caught.value).endswith("Nothing was changed.")
    assert isinstance(model["fc"], TNModule)
    assert isinstance(tnmars.to_dense_(model, "fc")["fc"], nn.Linear)
    with pytest.raises(TnmarsError, match="the layer is frozen, and has no cores"):
        tnmars.to_dense_(tnmars.freeze(oracle.compiled(LOWRANK)))


# --- chains of torch's layers ----------------------------------------------------------------------------------------

CHAINS = {
    "lowrank_linear": "Linear(512, 32), Linear(32, 256)",
    "lowrank_embedding": "Embedding(5000, 24), Linear(24, 128)",
    "odd_one_core": "Linear(64, 48)",
    "tucker2_conv": "Conv2d(64, 16, 1x1), Conv2d(16, 24, 3x3), Conv2d(24, 96, 1x1)",
    "tucker2_lenet_conv": "Conv2d(20, 20, 1x1), Conv2d(20, 20, 5x5), Conv2d(20, 50, 1x1)",
    "cp_conv": "Conv2d(64, 48, 1x1), Conv2d(48, 48, 3x1, groups=48), Conv2d(48, 48, 1x3, groups=48), "
    "Conv2d(48, 64, 1x1)",
    "grouped_conv": "Conv2d(64, 48, 3x3, groups=16), Conv2d(48, 64, 1x1, groups=16)",
    "cp_conv3d": "Conv3d(32, 32, 1x1x1), Conv3d(32, 32, 3x1x1, groups=32), Conv3d(32, 32, 1x3x1, groups=32), "
    "Conv3d(32, 32, 1x1x3, groups=32), Conv3d(32, 32, 1x1x1)",
    "generator_conv_transpose": "Conv2d(64, 16, 1x1), ConvTranspose2d(16, 16, 4x4), Conv2d(16, 32, 1x1)",
    "cp_conv_transpose": "Conv1d(32, 24, 1), ConvTranspose1d(24, 24, 5, groups=24), Conv1d(24, 16, 1)",
}
"""The specs that are chains, and what they become."""


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_specs_that_are_chains_become_torchs_layers(path: Path) -> None:
    graph = tnmars.load(path)
    layer = oracle.compiled(graph, dtype=torch.float64)
    done = tnmars.as_torch_(layer)
    assert done.became.get("") == CHAINS.get(path.stem)
    if done.stayed:
        assert done.model is layer
        assert done.stayed[""]
        return
    cores = sum(value.numel() for value in layer.parameters())
    assert sum(value.numel() for value in done.model.parameters()) == cores
    assert_equal_outputs(layer, done.model, graph)
    assert_equal_outputs(layer.float(), done.model.float(), graph, 1e-5)


def network(kind: str, text: str, **weight: object) -> Graph:
    return tnmars.network(kind, text, **weight)


SHAPES = {
    "three cores": (network("linear", "A[i,r] M[r,s] B[s,o]", inputs={"i": 5}, outputs={"o": 4}, bonds=3), 3),
    "several modes on a core": (
        network("linear", "B[o2,s,o1] A[i1,s,i2]", inputs={"i1": 2, "i2": 3}, outputs={"o1": 4, "o2": 5}, bonds=2),
        2,
    ),
    "two bonds": (network("linear", "A[i,r,s] B[s,r,o]", inputs={"i": 7}, outputs={"o": 4}, bonds={"r": 2, "s": 3}), 2),
    "padding": (
        network(
            "linear",
            "A[i1,i2,r] B[r,o1,o2]",
            inputs={"i1": 2, "i2": 4},
            outputs={"o1": 3, "o2": 4},
            bonds=3,
            features={"in": 7, "out": 10},
        ),
        2,
    ),
    "singular values": (network("linear", "A[i,r] S[r] B[r,o]", inputs={"i": 5}, outputs={"o": 4}, bonds=3), 2),
    "patches": (PATCH, 2),
    "padded patches": (
        network(
            "conv", "A[p,r] B[r,o]", patch={"p": 16}, outputs={"o": 4}, bonds=2, kernel_size=(2, 2), features={"in": 3}
        ),
        2,
    ),
    "taps in one mode": (
        network(
            "conv",
            "A[i,r] K[r,k,s] B[s,o]",
            inputs={"i": 3},
            outputs={"o": 4},
            kernel={"k": 6},
            bonds=2,
            kernel_size=(3, 2),
        ),
        3,
    ),
    "taps on the outputs": (
        network("conv", "A[i,r] B[r,h,w,o]", inputs={"i": 3}, outputs={"o": 4}, kernel={"h": 3, "w": 2}, bonds=2),
        2,
    ),
    "taps on two cores": (
        network("conv", "A[i,h,r] B[r,w,o]", inputs={"i": 3}, outputs={"o": 4}, kernel={"h": 3, "w": 2}, bonds=2),
        2,
    ),
    "depthwise, then pointwise": (
        network("conv", "K[i,h,w] A[i,o]", inputs={"i": 3}, outputs={"o": 4}, kernel={"h": 3, "w": 2}, shared=["i"]),
        2,
    ),
    "pointwise, then depthwise": (
        network("conv", "K[o,h,w] A[i,o]", inputs={"i": 3}, outputs={"o": 4}, kernel={"h": 3, "w": 2}, shared=["o"]),
        2,
    ),
    "groups of channels": (
        network(
            "conv",
            "A[i,s,r] K[r,s,h,w,t] B[t,r,o]",
            inputs={"i": 3},
            outputs={"o": 4},
            kernel={"h": 3, "w": 2},
            bonds={"s": 2, "r": 3, "t": 2},
        ),
        3,
    ),
    "padded table": (
        network(
            "embedding",
            "A[v1,v2,r] B[r,o]",
            lookup={"v1": 4, "v2": 5},
            outputs={"o": 6},
            bonds=3,
            vocab=18,
            options={"padding_idx": 2},
        ),
        2,
    ),
}
"""Graphs that are chains, and how many layers each becomes."""


@pytest.mark.parametrize(("graph", "count"), SHAPES.values(), ids=SHAPES)
def test_chains_are_seen_in_the_graph(graph: Graph, count: int) -> None:
    layer = oracle.compiled(graph, dtype=torch.float64)
    done = tnmars.as_torch_(nn.Sequential(layer))
    assert done.stayed == {}
    assert len(done.model[0]) == count
    assert list(layers(done.model)) == []
    assert_equal_outputs(layer, done.model, graph)


@every_convolution
@every_option
def test_options_go_with_the_taps(spatial: int, options: dict[str, object]) -> None:
    graph = conv(spatial, **options)
    layer = oracle.compiled(graph, dtype=torch.float64)
    made = tnmars.as_torch_(layer).model
    assert [part.kernel_size for part in made] == [(1,) * spatial, graph.kernel_size, (1,) * spatial]
    assert [part.bias is not None for part in made] == [False, False, options.get("bias", True)]
    assert_equal_outputs(layer, made, graph)


def test_stride_of_an_axis_without_taps() -> None:
    weight = {"inputs": {"i": 3}, "outputs": {"o": 4}, "bonds": 2, "kernel_size": (1, 1)}
    graph = network("conv", "A[i,r] B[r,o]", options={"stride": (2, 3), "padding": (1, 0)}, **weight)
    layer = oracle.compiled(graph, dtype=torch.float64)
    assert_equal_outputs(layer, tnmars.as_torch_(layer).model, graph)


def test_what_is_no_chain_stays_with_a_reason() -> None:
    model = nn.ModuleDict(
        {
            "open": oracle.compiled(LINEAR),
            "padded": oracle.compiled(PADDED),
            "conv": oracle.compiled(CONV),
            "bags": oracle.compiled(replace(TABLE, options=(("mode", "sum"),))),
            "pool": oracle.compiled(MAP),
            "frozen": tnmars.freeze(oracle.compiled(LOWRANK)),
        }
    )
    done = tnmars.as_torch_(model)
    assert done.model is model
    assert list(done.became) == ["conv"]
    assert done.stayed == {
        "open": "its input modes are on the cores G1, G2, and torch's layers take all channels at once",
        "padded": "its input modes are on the cores G1, G2, and torch's layers take all channels at once",
        "bags": "its bags may be given with offsets, and nn.Sequential takes one input",
        "pool": "torch has no layer of kind map",
        "frozen": "it is frozen, and has no cores",
    }
    assert "pool: stays compiled, because torch has no layer of kind map" in str(done)
    ring = network("linear", "A[i,r,s] B[r,s,t] C[t,o,r]", inputs={"i": 3}, outputs={"o": 3}, bonds=2)
    assert tnmars.as_torch_(oracle.compiled(ring)).stayed == {
        "": "its cores are not a chain from the inputs to the outputs"
    }


def test_shared_layers_and_tied_cores_stay_so_in_chains() -> None:
    first, second = oracle.compiled(tied(6, 6)), oracle.compiled(tied(6, 6)).eval().requires_grad_(False)
    for name in ("A", "B"):
        second.cores.put(name, first.cores.get(name))
    model = nn.ModuleList([first, second, first])
    tnmars.as_torch_(model)
    assert model[0] is model[2]
    assert model[0] is not model[1]
    assert model[0][0].weight is model[1][0].weight
    assert model[0][1].bias is not model[1][1].bias
    assert model[0].training
    assert not model[1][0].training
    assert not model[1][1].bias.requires_grad


def test_layers_whose_weight_torch_reads_stay() -> None:
    """In evaluation, torch's encoder layer reads `linear1.weight`; a dense layer has it, a chain has not."""
    block = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    block.linear1, block.self_attn.out_proj = oracle.compiled(tied(8, 12)), oracle.compiled(tied(8, 8))
    done = tnmars.as_torch_(nn.Sequential(block))
    assert done.stayed == {
        "0.self_attn.out_proj": "nn.MultiheadAttention reads its weight, which a chain does not have",
        "0.linear1": "nn.TransformerEncoderLayer reads its weight, which a chain does not have",
    }
    assert list(tnmars.as_torch_(block).stayed) == ["self_attn.out_proj", "linear1"]
    x = torch.randn(3, 4, 8)
    tnmars.to_dense_(block)
    with torch.no_grad():
        fast = block.eval()(x)
    assert oracle.error(fast, block(x)) <= 1e-5


def test_training_goes_on() -> None:
    model = tnmars.as_torch_(nn.Sequential(oracle.compiled(tied(6, 5)), nn.Tanh())).model
    x, y = torch.randn(32, 6), torch.randn(32, 5).tanh()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_chains_can_be_quantized() -> None:
    """torch's own dynamic quantization replaces `nn.Linear`, which it does not find in a compiled layer."""
    quantization = pytest.importorskip("torch.ao.quantization")
    if "none" in torch.backends.quantized.engine or not hasattr(quantization, "quantize_dynamic"):
        pytest.skip("this torch has no engine for quantized layers")
    model = nn.Sequential(oracle.compiled(tied(64, 48)), nn.ReLU(), nn.Linear(48, 10)).eval()
    x = torch.randn(16, 64)
    expected = model(x)
    tnmars.as_torch_(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces its successor
        small = quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    assert ["quantized" in type(part).__module__ for part in (*small[0], small[2])] == [True] * 3
    assert oracle.error(small(x), expected) < 0.1


def test_model_without_compiled_layers_stays() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    assert tnmars.to_dense_(model) is model
    assert str(tnmars.as_torch_(model)) == "no compiled layer"
