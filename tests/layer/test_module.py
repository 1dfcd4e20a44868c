"""Layers as `nn.Module`s: what they are called and hold, what they take, and what they say to what they cannot take."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import oracle
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import CONV, EXACT, LINEAR, MAP, PADDED, PATCH, SKIPPED, TABLE, TENSOR, every_kind, inputs_of, square
from strategies import cases, graphs
from torch import Tensor, nn

import tnmars
from tnmars import Graph, ShapeError, TNModule, families
from tnmars.graph import MAIN, Core, Edge, Role, Term


def double(graph: Graph, **keywords: object) -> TNModule:
    return tnmars.compile(graph, dtype=torch.float64, **keywords)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def truth(layer: TNModule, *inputs: Tensor) -> Tensor:
    """What torch's own layer gives with the weight of this one."""
    return oracle.layer(layer.graph, layer.dense(), layer.bias, *inputs)


# --- what it is called and holds -------------------------------------------------------------------------------------


def test_sizes_are_named_as_torchs() -> None:
    linear = tnmars.compile(PADDED)
    assert (linear.in_features, linear.out_features) == (5, 17)
    conv = tnmars.compile(CONV, stride=(1, 2), padding=1)
    assert (conv.in_channels, conv.out_channels, conv.kernel_size) == (3, 4, (3, 2))
    assert (conv.stride, conv.padding, conv.dilation) == ((1, 2), 1, 1)
    table = tnmars.compile(SKIPPED)
    assert (table.num_embeddings, table.embedding_dim, table.padding_idx) == (50, 12, 7)
    assert tnmars.compile(TABLE).padding_idx is None
    for layer, name in ((linear, "in_channels"), (conv, "in_features"), (table, "out_features")):
        assert not hasattr(layer, name)
        with pytest.raises(AttributeError, match=name):
            getattr(layer, name)


@every_kind
def test_a_layer_shows_its_graph_and_its_size(graph: Graph) -> None:
    layer = tnmars.compile(graph)
    count = sum(parameter.numel() for name, parameter in layer.named_parameters() if name != "bias")
    assert layer.graph == graph
    assert layer.extra_repr() == f"{graph.kind}, {graph.signature}, {count:,} parameters in {len(graph.cores)} cores"
    assert layer.extra_repr() in repr(layer)
    assert layer.source.startswith("import torch\n")


@settings(max_examples=cases(300))
@given(graph=graphs(least_terms=0))
def test_parameters_are_the_cores_in_the_specs_order(graph: Graph) -> None:
    layer = oracle.compiled(graph)
    wanted = {f"cores.{name}": shape for name, shape in graph.cores.items()}
    if graph.has_bias:
        wanted["bias"] = (graph.out_features,)
    assert {name: tuple(value.shape) for name, value in layer.named_parameters()} == wanted
    assert {name: tuple(value.shape) for name, value in layer.state_dict().items()} == wanted
    assert all(value.requires_grad and value.is_leaf for value in layer.parameters())


def test_keys_of_several_terms() -> None:
    graph = tnmars.families.btd("linear", inputs=(2, 3), outputs=(4, 5), rank=2, terms=2)
    keys = set(tnmars.compile(graph).state_dict())
    assert {key.split(".")[0] for key in keys} == {"cores", "bias"}
    assert keys == {"bias", *(f"cores.{term.name}.{core.name}" for term in graph.terms for core in term.cores)}


NAMES = ("type", "forward", "training", "values", "copy", "parameters", "_parameters", "put", "get", "T_destination")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 2])
def test_any_name_is_a_name_for_a_core_or_a_term(name: str, count: int) -> None:
    """Also one that `nn.Module` uses itself: everything one does with a module goes on working."""
    bonds, modes = (Edge("r", 2),), (Edge("i", 3, Role.IN), Edge("o", 4, Role.OUT))
    cores = (Core(name, ("i", "r")), Core("B", ("r", "o")))
    names = [MAIN] if count == 1 else [name, "other"]
    graph = Graph("linear", modes, tuple(Term(term, bonds, cores) for term in names))
    layer = double(graph)
    assert (f"cores.{name}" if count == 1 else f"cores.{name}.{name}") in layer.state_dict()
    x = normal(5, 3)
    assert oracle.error(layer(x), truth(layer, x)) <= EXACT
    layer.eval().train().requires_grad_(False).requires_grad_(True).zero_grad()
    repr(layer)
    again = copy.deepcopy(layer)
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(x), layer(x))
    layer(x).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    if count > 1:
        return  # torch's own limit: it finds submodules by `getattr`
    doubled = {key: 2 * value for key, value in layer.named_parameters()}
    found = torch.func.functional_call(layer, doubled, (x,))
    assert oracle.error(found, F.linear(x, 4 * layer.dense(), 2 * layer.bias)) <= EXACT


@every_kind
def test_a_state_goes_round(graph: Graph) -> None:
    one, two = tnmars.compile(graph), tnmars.compile(graph)
    given = inputs_of(graph)
    assert not torch.equal(one(*given), two(*given))
    two.load_state_dict(one.state_dict(), strict=True)
    assert torch.equal(one(*given), two(*given))
    wrong = {key: value[..., :1] for key, value in one.state_dict().items()}
    with pytest.raises(RuntimeError, match="size mismatch"):
        two.load_state_dict(wrong)


@every_kind
def test_a_copy_is_its_own(graph: Graph) -> None:
    layer = tnmars.compile(graph)
    given = inputs_of(graph)
    before = layer(*given)
    again = copy.deepcopy(layer)
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.mul_(3)
    assert torch.equal(layer(*given), before)
    assert not torch.equal(again(*given), before)


@every_kind
def test_reset_parameters_draws_again(graph: Graph) -> None:
    layer = tnmars.compile(graph)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    layer.reset_parameters()
    assert not any(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert all(value.requires_grad for value in layer.parameters())


@every_kind
def test_forward_is_a_function(graph: Graph) -> None:
    """Of its input and parameters alone: nothing is kept, and nothing given is changed."""
    layer = tnmars.compile(graph)
    given = inputs_of(graph)
    copies = [value.clone() for value in given]
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    first = layer(*given)
    assert torch.equal(first, layer(*given))
    assert all(torch.equal(value, kept) for value, kept in zip(given, copies, strict=True))
    assert all(torch.equal(value, state[name]) for name, value in layer.state_dict().items())
    with torch.no_grad():
        next(layer.parameters()).mul_(2.0)
    assert not torch.equal(layer(*given), first), "nothing is cached"


# --- dtype and device ------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.05)]
)
def test_dtypes(graph: Graph, dtype: torch.dtype, tolerance: float) -> None:
    problem = oracle.problem(graph, 5)
    layer = tnmars.compile(graph, dtype=dtype)
    assert {parameter.dtype for parameter in layer.parameters()} == {dtype}
    oracle.load(layer, problem)
    found, slopes = oracle.ask(layer, problem)
    assert found.dtype == dtype
    assert oracle.error(found, problem.answer()) <= tolerance
    for slope, wanted in zip(slopes, oracle.gradients(problem.answer(), problem.leaves), strict=True):
        assert slope.dtype == dtype
        assert oracle.error(slope, wanted) <= tolerance


@every_kind
def test_the_default_dtype_and_later_changes(graph: Graph) -> None:
    layer = tnmars.compile(graph)
    assert layer.dtype == torch.float32
    given = oracle.problem(graph, 3).inputs
    assert layer.double()(*given).dtype == torch.float64
    assert layer.dense().dtype == torch.float64


@every_kind
def test_the_meta_device(graph: Graph) -> None:
    """Nothing is allocated until the layer moves, and then it can be drawn."""
    layer = tnmars.compile(graph, device="meta")
    assert all(parameter.is_meta for parameter in layer.parameters())
    given = inputs_of(graph)
    shape = layer(*(value.to("meta") for value in given)).shape
    layer.to_empty(device="cpu")
    layer.reset_parameters()
    found = layer(*given)
    assert found.shape == shape
    assert oracle.error(found, truth(layer, *given)) <= 1e-5


# --- shapes it takes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", [LINEAR, PADDED], ids=["plain", "padded"])
@pytest.mark.parametrize("lead", [(), (1,), (7,), (2, 3), (2, 1, 4), (0,), (2, 0), (0, 3, 0)])
def test_a_linear_layer_takes_any_leading_shape(graph: Graph, lead: tuple[int, ...]) -> None:
    layer = double(graph)
    x = normal(*lead, graph.in_features)
    found = layer(x)
    assert found.shape == (*lead, graph.out_features)
    assert oracle.error(found, truth(layer, x)) <= EXACT


@pytest.mark.parametrize("graph", [CONV, PATCH], ids=["taps", "patch"])
@pytest.mark.parametrize("lead", [(), (1,), (3,), (0,)])
def test_a_convolution_takes_one_image_or_several(graph: Graph, lead: tuple[int, ...]) -> None:
    layer = double(graph)
    x = normal(*lead, 3, 6, 7)
    assert oracle.error(layer(x), truth(layer, x)) <= EXACT


@pytest.mark.parametrize("graph", [TABLE, SKIPPED], ids=["plain", "padding_idx"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 5), (2, 3, 4), (0,), (3, 0), (300,), (20, 30)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_an_embedding_takes_any_shape_of_tokens(graph: Graph, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    layer = double(graph)
    index = torch.randint(50, shape, dtype=dtype)
    if index.numel():
        index.view(-1)[0] = 7
    found = layer(index)
    assert found.shape == (*shape, 12)
    assert oracle.error(found, truth(layer, index)) <= EXACT


@pytest.mark.parametrize("shape", [(), (1,), (4, 5), (0,), (300,)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_tensor_takes_any_shape_of_index_tuples(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    layer = double(TENSOR)
    index = torch.stack([torch.randint(size, shape, dtype=dtype) for size in (4, 5, 3)], dim=-1)
    found = layer(index)
    assert found.shape == shape
    assert oracle.error(found, layer.dense()[index.long().unbind(-1)]) <= EXACT


def test_a_tensor_alone_is_its_weight() -> None:
    layer = double(TENSOR)
    assert layer().shape == (4, 5, 3)
    assert torch.equal(layer(), layer.dense())


@pytest.mark.parametrize("lengths", [(2, 3, 4), (1, 1, 1), (0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0), (5, 40, 1)])
def test_a_map_takes_any_length_of_its_data_axes(lengths: tuple[int, int, int]) -> None:
    b, n, m = lengths
    layer = double(MAP)
    x, y = normal(b, n, 3), normal(b, m, 2)
    wanted = torch.einsum("bni,bmj,ijo->bnmo", x, y, layer.dense())
    for found in (layer(x, y), layer(x, y=y), layer(x=x, y=y), layer(y=y, x=x)):
        assert oracle.error(found, wanted) <= EXACT


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda value: value.transpose(0, -1).contiguous().transpose(0, -1),
    "strided": lambda value: torch.stack([value, value + 1], dim=-1).flatten(-2)[..., ::2],
    "reversed axes": lambda value: (
        value.permute(*reversed(range(value.dim()))).contiguous().permute(*reversed(range(value.dim())))
    ),
    "offset": lambda value: torch.cat([value[:1] + 1, value])[1:],
    "expanded": lambda value: value[:1].expand(value.shape),
    "channels last": lambda value: value.to(memory_format=torch.channels_last) if value.dim() == 4 else value,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch", [1, 3, 40])
@every_kind
def test_inputs_may_lie_in_memory_as_they_like(graph: Graph, layout: str, batch: int) -> None:
    layer = double(graph)
    given = tuple(value.detach() for value in oracle.problem(graph, batch).inputs)
    odd = tuple(LAYOUTS[layout](value) for value in given)
    wanted = truth(layer, *(value.contiguous() for value in odd))
    assert oracle.error(layer(*odd), wanted) <= EXACT
    with torch.no_grad():
        assert oracle.error(layer(*odd), wanted) <= EXACT


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_repeated_tokens_are_looked_up_once() -> None:
    """From some number of tokens on: the layer computes no row twice, and gradients add up."""
    layer = double(TABLE)
    seen: list[int] = []
    compute = layer.compute
    layer.compute = lambda batch, *inputs: (seen.append(batch), compute(batch, *inputs))[1]
    index = torch.tensor([3, 5, 3, 9]).repeat(100)
    found = layer(index)
    assert seen == [3]
    weight = layer.dense().detach().requires_grad_()
    assert oracle.error(found, F.embedding(index, weight)) <= EXACT
    cores = list(layer.parameters())
    slopes = torch.autograd.grad(found.square().sum(), cores)
    wanted = torch.autograd.grad(truth(layer, index).square().sum(), cores)
    assert all(oracle.error(one, two) <= EXACT for one, two in zip(slopes, wanted, strict=True))


@pytest.mark.parametrize("count", [2, 400])
def test_the_row_of_padding_idx_is_zero_and_has_no_gradient(count: int) -> None:
    layer = double(SKIPPED)
    index = torch.tensor([7, 9]).repeat(count // 2)
    found = layer(index)
    assert not found[::2].any()
    assert oracle.error(found[1::2], layer.dense()[9].expand(count // 2, -1)) <= EXACT
    for slope in torch.autograd.grad(found[::2].sum(), list(layer.parameters()), retain_graph=True):
        assert not slope.any()
    assert any(slope.any() for slope in torch.autograd.grad(found[1::2].sum(), list(layer.parameters())))


def test_the_dense_table_of_a_layer_with_padding_idx_is_what_it_looks_up() -> None:
    layer = double(SKIPPED)
    assert oracle.error(layer.dense(), layer(torch.arange(50))) <= EXACT


# --- what it cannot take ---------------------------------------------------------------------------------------------


def refused(graph: Graph, *inputs: Tensor, **named: Tensor) -> str:
    with pytest.raises(ShapeError) as caught:
        tnmars.compile(graph)(*inputs, **named)
    return str(caught.value)


@pytest.mark.parametrize("shape", [(3, 7), (6, 3), (3,), (), (2, 3, 5)])
def test_a_linear_layer_refuses_other_features(shape: tuple[int, ...]) -> None:
    wanted = f"input has shape {shape}, but the last axis must be 6 (modes i1=2, i2=3)."
    assert refused(LINEAR, torch.ones(shape)) == wanted


def test_padding_is_not_for_the_user_to_give() -> None:
    assert "the last axis must be 5 (modes i1=2, i2=3)" in refused(PADDED, torch.ones(3, 6))


@pytest.mark.parametrize("shape", [(2, 4, 6, 6), (6, 6), (3, 6), (1, 2, 3, 6, 6), ()])
def test_a_convolution_refuses_other_images(shape: tuple[int, ...]) -> None:
    wanted = f"input has shape {shape}, but must be (batch, 3, height, width), the batch being optional "
    assert refused(CONV, torch.ones(shape)) == f"{wanted}(modes i=3)."
    assert refused(PATCH, torch.ones(shape)) == f"{wanted}(modes p=12)."


@pytest.mark.parametrize("graph", [CONV, PATCH], ids=["taps", "patch"])
@pytest.mark.parametrize("batch", [1, 40])
def test_an_image_smaller_than_the_kernel_is_refused(graph: Graph, batch: int) -> None:
    layer = tnmars.compile(graph)
    for shape in ((1, 5), (5, 1)):
        with pytest.raises((ShapeError, RuntimeError)):
            layer(torch.ones(batch, 3, *shape))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_another_dtype_is_refused(dtype: torch.dtype) -> None:
    for graph in (LINEAR, CONV):
        found = refused(graph, inputs_of(graph)[0].to(dtype))
        assert found == f"input has dtype {dtype}, but the layer has torch.float32; convert one with .to()."
    x, y = inputs_of(MAP)
    assert refused(MAP, x, y.to(dtype)).startswith(f"input 'y' has dtype {dtype}, but the layer has torch.float32")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.uint8])
def test_an_index_of_another_dtype_is_refused(dtype: torch.dtype) -> None:
    wanted = f"index has dtype {dtype}, but must be int64 or int32."
    assert refused(TABLE, torch.ones(3, dtype=dtype)) == wanted
    assert refused(TENSOR, torch.ones(2, 3, dtype=dtype)) == wanted


@pytest.mark.parametrize("count", [1, 400])
@pytest.mark.parametrize("row", [-1, 50, 59, 10**9])
def test_a_token_out_of_range_is_refused(row: int, count: int) -> None:
    """Also where the table has room for it: padding is not for the user."""
    index = torch.zeros(count, dtype=torch.int64)
    index[-1] = row
    assert refused(TABLE, index) == f"index has row {row}, but rows must be from 0 to 49."


@pytest.mark.parametrize(("at", "value", "most"), [(0, 4, 3), (1, 5, 4), (2, -1, 2)])
def test_an_index_tuple_out_of_range_is_refused(at: int, value: int, most: int) -> None:
    index = torch.zeros(6, 3, dtype=torch.int64)
    index[4, at] = value
    name = TENSOR.modes[at].name
    assert refused(TENSOR, index) == f"index has '{name}' {value}, but '{name}'s must be from 0 to {most}."


@pytest.mark.parametrize("shape", [(3, 2), (4,), ()])
def test_index_tuples_of_another_length_are_refused(shape: tuple[int, ...]) -> None:
    modes = ", ".join(map(str, TENSOR.modes))
    wanted = f"index has shape {shape}, but the last axis must be 3, one for each mode ({modes})."
    assert refused(TENSOR, torch.zeros(shape, dtype=torch.int64)) == wanted


def test_a_map_refuses_other_inputs() -> None:
    x, y = torch.ones(2, 5, 3), torch.ones(2, 4, 2)
    takes = "the layer takes inputs x, y, each once, by position or by name."
    assert refused(MAP, x) == takes
    assert refused(MAP, x, y, x) == takes
    assert refused(MAP, x, x=x) == takes
    assert refused(MAP, x, y, y=y) == takes
    assert refused(MAP, x, z=y) == takes
    assert refused(MAP, x[0], y).startswith("input 'x' has 2 axes, but must be x[b, n, i]")
    assert refused(MAP, x, y[..., :1]).startswith("input 'y' has shape (2, 4, 1), but axis 2 of y[b, m, j] must be 2")
    assert refused(MAP, x, y[:1]).startswith("input 'y' has shape (1, 4, 2), but axis 0 of y[b, m, j] must be 2")


# --- no terms --------------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("batch", [3, 0])
def test_a_layer_without_terms_is_its_bias(graph: Graph, batch: int) -> None:
    layer = double(replace(graph, terms=()))
    given = oracle.problem(graph, batch).inputs
    found, wanted = layer(*given), double(graph)(*given)
    assert found.shape == wanted.shape
    assert found.dtype == torch.float64
    assert list(layer.state_dict()) == (["bias"] if graph.has_bias else [])
    bias = layer.bias if graph.has_bias else torch.zeros((), dtype=torch.float64)
    shape = (-1, *[1] * len(graph.kernel_size)) if graph.has_bias else ()
    assert torch.equal(found, bias.reshape(shape).expand(found.shape))
    assert torch.equal(layer.dense(), torch.zeros(graph.dense_shape, dtype=torch.float64))
    if graph.has_bias and batch:
        found.sum().backward()
        assert torch.allclose(layer.bias.grad, torch.full_like(layer.bias, found.numel() / len(layer.bias)))
    layer.reset_parameters()
    assert "0 parameters in 0 cores" in repr(layer)
    compile(layer.source, "source", "exec")


def test_a_map_without_terms_takes_its_inputs_by_name() -> None:
    layer = double(replace(MAP, terms=()))
    assert torch.equal(layer(y=normal(2, 4, 2), x=normal(2, 5, 3)), torch.zeros(2, 5, 4, 4, dtype=torch.float64))
    with pytest.raises(ShapeError):
        layer(normal(2, 5, 3), normal(3, 4, 2))


# --- inside a model --------------------------------------------------------------------------------------------------


def test_layers_train_in_a_model() -> None:
    """A regression that the dense weight of rank 2 can solve: the loss falls by far."""
    model = nn.Sequential(tnmars.compile(LINEAR), nn.Tanh(), nn.Linear(20, 1))
    x = torch.randn(64, 6)
    y = torch.sin(x.sum(-1, keepdim=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    losses = []
    for _ in range(60):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


@settings(max_examples=cases(200))
@given(graph=graphs(["linear", "conv"]), frozen=st.booleans())
def test_gradients_reach_only_what_wants_them(graph: Graph, frozen: bool) -> None:
    problem = oracle.problem(graph, 2)
    layer = oracle.compiled(graph, dtype=torch.float64).requires_grad_(not frozen)
    x = problem.inputs[0].detach().requires_grad_(frozen)
    layer(x).sum().backward()
    assert (x.grad is not None) == frozen
    assert all((parameter.grad is None) == frozen for parameter in layer.parameters())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_an_index_out_of_range_is_no_other_entry_when_compiled(backend: str) -> None:
    layer = tnmars.compile(families.tt("tensor", free=(4, 5, 6), rank=2))
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    assert torch.allclose(compiled(torch.tensor([[0, 1, 0]])), layer(torch.tensor([[0, 1, 0]])))
    with pytest.raises(RuntimeError, match="index out of range"):
        compiled(torch.tensor([[0, 6, 0]]))


def test_an_index_out_of_range_is_no_other_entry_under_vmap() -> None:
    layer = tnmars.compile(families.tt("tensor", free=(4, 5, 6), rank=2))
    with pytest.raises(tnmars.ShapeError, match="index has 'n2' 6"):
        torch.func.vmap(layer)(torch.tensor([[[0, 6, 0]]]))


def test_what_is_no_tensor_is_reported() -> None:
    with pytest.raises(tnmars.ShapeError, match="input is of type list"):
        tnmars.compile(square())([1.0])


def test_an_image_smaller_than_the_kernel_is_reported() -> None:
    graph = tnmars.network("conv", "A[p,r] B[r,o]", patch=dict(p=27), outputs=dict(o=4), bonds=2, kernel_size=(3, 3))
    with pytest.raises(tnmars.ShapeError, match="length 2 along spatial axis 1, but the kernel reaches over 3"):
        tnmars.compile(graph)(torch.randn(1, 3, 2, 2))
